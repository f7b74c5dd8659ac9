"""Two inputs whose rows are in memory: their rows read, their columns found and checked.

A column without any value, such as that of an empty day, has no type in pandas. As a key it takes the other input's
type, as event time, or as the begin or end of a row's validity, it becomes a timestamp. Rows with a span of validity
are made into versions and deletes here (``row_changes``), so batches count both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.embedded.frames import read_frame, size_of
from cojoin.embedded.memory import check_memory
from cojoin.engine.input_columns import InputColumns, check_pair
from cojoin.engine.validity import check_validity
from cojoin.engine.values.types import type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.input import Input
    from cojoin.engine.inputs import InputSpec

__all__ = ["bind_frames"]

_TIME = pa.timestamp("us", "UTC")

_TIME_CURES = {
    "timestamp_ntz": "it has no time zone; say which is meant, such as with .dt.tz_localize('UTC') in pandas",
    "bigint": "turn epoch numbers into one, with their unit: pandas.to_datetime(column, unit='ms', utc=True)",
    "string": "turn it into one, such as with pandas.to_datetime(column, utc=True)",
    "date": "turn it into one, such as with pandas.to_datetime(column, utc=True)",
}
"""What to do about an event-time column, by its type."""

_KEY_CURES = {
    "double": "pandas makes floats of whole numbers with nulls: .astype('Int64')",
    "void": "it has no values, and so no type; give it one, such as with .astype('string')",
}
"""What to do about a key column, by its type."""

_NAMES = {"tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"}
"""The names of Spark's types in pandas and Arrow."""


def bind_frames(left: Input, right: Input) -> tuple[tuple[InputSpec, InputSpec], tuple[pa.Table, pa.Table]]:
    """Return the specifications of two declared inputs, and their rows in Spark's types.

    Raises:
        ConfigurationError: The inputs do not fit together, or not into memory.
        SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
    """
    declared, names = (left, right), (left.name or "left", right.name or "right")
    check_memory(0, size_of(left.source) + size_of(right.source), f"inputs {names[0]!r} and {names[1]!r}")
    tables = [read_frame(each.source, f"input {name!r}") for each, name in zip(declared, names, strict=True)]
    tables = _with_types(declared, tables)
    first, second = (_spec(*each) for each in zip(declared, names, tables, strict=True))
    check_pair(first, second, _cast)
    specs = (first, second)
    left, right = (_expanded(spec, table) for spec, table in zip(specs, tables, strict=True))
    return specs, (left, right)


def _expanded(spec: InputSpec, table: pa.Table) -> pa.Table:
    """Return an input's rows, those with a span of validity as versions and deletes.

    Raises:
        ConfigurationError: Spans of validity overlap, or end before they begin.
    """
    if spec.changes is None:
        return table
    check_validity(table, spec)
    return spec.changes.expanded(table)[0]


def _with_types(declared: Sequence[Input], tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return both inputs' rows, where key and event-time columns without values have the types that they need."""
    keys = [[each.key] if isinstance(each.key, str) else list(each.key or ()) for each in declared]
    times = [(each.event_time, each.valid_from, each.valid_to) for each in declared]
    wanted: list[dict[Any, pa.DataType]] = [dict.fromkeys(each, _TIME) for each in times]
    for pair in zip(*keys, strict=False):
        for side in (0, 1):
            other = tables[1 - side]
            if pair[1 - side] in other.column_names:
                wanted[side][pair[side]] = other.schema.field(pair[1 - side]).type
    return [_cast_voids(table, types) for table, types in zip(tables, wanted, strict=True)]


def _cast_voids(table: pa.Table, types: dict[Any, pa.DataType]) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and field.name in types:
            table = table.set_column(place, field.name, pa.nulls(table.num_rows, types[field.name]))
    return table


def _spec(declared: Input, name: str, table: pa.Table) -> InputSpec:
    what = f"input {name!r}"
    types = {field.name: type_to_ddl(field.type) for field in table.schema}
    fields = {field.name: field for field in table.schema}
    columns = InputColumns(what, fields, types, _TIME_CURES, _KEY_CURES)
    spec = columns.spec(declared, name, declared.event_time, None)
    spec.watermark.generator.check(spec.schema, what)
    return spec


def _cast(column: str, dtype: str) -> str:
    return f"{column!r} to {dtype}, such as with .astype({_NAMES.get(dtype, dtype)!r}) in pandas"
