"""Operations on Arrow tables: concatenation, selection of rows, and event times as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["concat", "event_micros", "event_millis", "take_rows", "up_to_millis"]

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of one schema as one table, without the empty ones."""
    full = [table for table in tables if table.num_rows]
    if not full:
        return tables[0]
    return full[0] if len(full) == 1 else pa.concat_tables(full)


def take_rows(table: pa.Table, positions: NDArray[np.int64]) -> pa.Table:
    """Return rows by position; each column becomes one chunk first, which makes taking strings many times faster."""
    return table.combine_chunks().take(pa.array(positions))


def event_micros(table: pa.Table, column: str) -> NDArray[np.int64]:
    """Return a timestamp column as epoch microseconds; a null becomes 0."""
    times = table.column(column)
    values = (times.chunk(0) if times.num_chunks == 1 else times.combine_chunks()).view(pa.int64())
    return (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def event_millis(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return microseconds floored to milliseconds, the unit that watermarks and timers compare, before 1970 too."""
    return np.floor_divide(micros, 1_000)


def up_to_millis(micros: NDArray[np.int64], millis: int) -> NDArray[np.bool_]:
    """Return which times in microseconds are at or below a time in milliseconds, once they are floored to that unit."""
    last = millis * 1_000 + 999
    return micros <= min(last, _LAST) if last >= _FIRST else np.zeros(len(micros), dtype=bool)
