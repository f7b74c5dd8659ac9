"""Reads states and timers at rest, for people and for tests.

Their tables have the key columns and, as the last column, a state's value or a timer's timestamp.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.state.ttl import split_type
from cojoin.engine.values.encoding import coercer, misfit
from cojoin.engine.values.rows import decode_column, decode_rows
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["decode_keys", "entry_of", "rows_of", "size_of"]


def decode_keys(table: pa.Table) -> list[Any]:
    """Return keys as functions see them: the value of a single column, else a row."""
    return decode_column(table.column(0)) if table.num_columns == 1 else decode_rows(table)


def rows_of(table: pa.Table, key_schema: pa.Schema, key: Any, owner: str) -> pa.Table:
    """Return the rows of one key.

    Args:
        table: A state's or the timers' table.
        key_schema: The key columns.
        key: A value where the key has one column, else a tuple or row of values.
        owner: The function's name, for messages.

    Raises:
        FunctionError: The key does not fit the key columns.
    """
    what = f"{owner}: key"
    values = (key,) if len(key_schema) == 1 else key
    if not isinstance(values, tuple) or len(values) != len(key_schema):
        msg = f"{what}: expected a tuple of {', '.join(key_schema.names)}, got {key!r}"
        raise FunctionError(msg)
    masks = []
    for field, value in zip(key_schema, values, strict=True):
        if value is None:
            raise misfit(value, field.type, f"{what} column {field.name!r}")
        wanted = coercer(field.type, f"{what} column {field.name!r}")(value)
        masks.append(pc.equal(table.column(field.name), pa.scalar(wanted, field.type)))
    return table.filter(reduce(pc.and_, masks))


def entry_of(rows: pa.Table) -> Any:
    """Return the one entry of a state in some rows, without its last accesses; None where there is no row."""
    if not rows.num_rows:
        return None
    column = rows.column(rows.num_columns - 1)
    (entry,) = decode_column(column)
    if split_type(column.type)[1] is None:
        return entry
    if isinstance(entry, dict):
        return {key: value for key, (value, _) in entry.items()}
    return _values(entry) if isinstance(entry, list) else _values([entry])[0]


def _values(pairs: Iterable[tuple[Any, int]]) -> list[Any]:
    return [value for value, _ in pairs]


def size_of(table: pa.Table) -> dict[str, int]:
    """Return how many rows a table has, and their size in memory in bytes."""
    return {"rows": table.num_rows, "bytes": table.nbytes}
