"""The lateness of rows in memory (``engine.lateness``): they are sorted by partition and arrival, and counted.

It costs a sort unless they are in order, and some 50 bytes a row beside the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.embedded.bound_frames import cast_voids
from cojoin.embedded.frames import read_frame, size_of
from cojoin.embedded.libraries import is_pandas, library_of
from cojoin.embedded.memory import check_memory
from cojoin.engine.input import Input
from cojoin.engine.input_columns import InputColumns
from cojoin.engine.lateness import Lateness, LatenessCounter, arrival_order
from cojoin.engine.values.types import type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.lateness import ArrivalOrder
    from cojoin.engine.values.arguments import Duration

__all__ = ["frame_lateness"]

_TIME = pa.timestamp("us", "UTC")


def frame_lateness(
    source: Any,
    event_time: Any,
    arrival: Any,
    partition: str | Sequence[str],
    every: Duration | None,
    max_ahead: Duration | None,
    now_ms: int,
) -> Lateness:
    """Return how late rows in memory come; ``cojoin.lateness`` documents the arguments but the present moment.

    Raises:
        ConfigurationError: The rows do not fit into memory, or an argument is invalid.
        SchemaError: A column does not exist or has the wrong type.
    """
    what, name = "input 'source'", "source"
    check_memory(0, size_of(source), what)
    wanted = {each: _TIME for each in (event_time, arrival) if isinstance(each, str)}
    parts = partition if isinstance(partition, (list, tuple)) else [partition]
    names = dict.fromkeys([*wanted, *(each for each in parts if isinstance(each, str))])
    rows = cast_voids(read_frame(_narrowed(source, list(names)), what), wanted)
    types = {field.name: type_to_ddl(field.type) for field in rows.schema}
    order = arrival_order(types, arrival, every, max_ahead, now_ms)
    columns = InputColumns(what, {field.name: field for field in rows.schema}, types, library_of(source, what))
    # A key is needed and has no meaning here; the event time's column can be one.
    declared = Input(source, key=event_time, event_time=event_time, name=name, partition=partition)
    spec = columns.spec(declared, name, event_time, None)
    return _counted(rows, spec, order)


def _narrowed(source: Any, names: Sequence[str]) -> Any:
    """Return rows with the named columns alone, where the library drops columns without cost; else the same rows."""
    if is_pandas(source):
        return source[names] if source.columns.is_unique and set(names) <= set(source.columns) else source
    has_all = isinstance(source, pa.Table) and set(names) <= set(source.column_names)
    return source.select(names) if has_all and len(set(source.column_names)) == source.num_columns else source


def _counted(rows: pa.Table, spec: InputSpec, order: ArrivalOrder) -> Lateness:
    assert spec.event_time is not None
    timestamps = spec.millis(rows)
    nulls = _nulls(rows.column(spec.event_time))
    left_out = {"null_event_time": nulls}
    arrivals = np.arange(rows.num_rows, dtype=np.int64)
    if order.column is not None:
        column = rows.column(order.column)
        unknown = _nulls(column) & ~nulls
        left_out["null_arrival"] = unknown
        nulls = nulls | unknown
        numbers = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        arrivals = pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy()
    length, to_end = order.window_us
    arrivals = np.floor_divide(arrivals, length) * length
    if order.max_ahead_ms is not None:
        clock = -(-(arrivals + to_end) // 1_000) if order.has_clock else order.now_ms
        left_out["too_far_ahead"] = (timestamps > clock + order.max_ahead_ms) & ~nulls
        nulls = nulls | left_out["too_far_ahead"]
    known = np.flatnonzero(~nulls)
    partitions = _partitions(rows, spec.partition)
    counter = LatenessCounter()
    for numbers in (arrivals, partitions):
        known = _sorted_by(numbers, known)
    counter.add(partitions[known], arrivals[known], timestamps[known])
    counts = {name: int(np.count_nonzero(each)) for name, each in left_out.items() if each.any()}
    return Lateness(
        order.words(spec.partition), rows.num_rows, dict(sorted(counter.counts.items())), counter.largest_ms, counts
    )


def _sorted_by(numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions in the order of their numbers; equal ones stay as they are."""
    values = numbers[positions]
    if (values[1:] >= values[:-1]).all():
        return positions
    if values.min() >= 0 and values.max() < 1 << 16:
        # Short integers are sorted by their digits, in a tenth of the time.
        values = values.astype(np.uint16)
    return positions[np.argsort(values, kind="stable")]


def _nulls(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return column.is_null().to_numpy()  # type: ignore[no-any-return]


def _partitions(rows: pa.Table, columns: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's source partition."""
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)
