"""Two inputs whose rows are in memory: their rows read, their columns found and checked.

A column without any value, such as that of an empty day, has no type in pandas. As a key it takes the other input's
type, as event time, or as the begin or end of a row's validity, it becomes a timestamp. Rows with a span of validity
are made into versions and deletes here (``row_changes``), so batches count both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.embedded.frames import read_frame, size_of
from cojoin.embedded.libraries import library_of
from cojoin.embedded.memory import check_memory
from cojoin.engine.input_columns import InputColumns, check_pair
from cojoin.engine.validity import check_validity
from cojoin.engine.values.types import type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.embedded.libraries import Library
    from cojoin.engine.input import Input
    from cojoin.engine.inputs import InputSpec

__all__ = ["bind_frames", "cast_voids"]

_TIME = pa.timestamp("us", "UTC")


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
    libraries = [library_of(each.source, f"input {name!r}") for each, name in zip(declared, names, strict=True)]
    first, second = (_spec(*each) for each in zip(declared, names, tables, libraries, strict=True))
    check_pair(first, second, (libraries[0], libraries[1]))
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
    # ``InputColumns`` refuses later what is not a name.
    keys = [each.key if isinstance(each.key, (list, tuple)) else [each.key] for each in declared]
    times = [(each.event_time, each.valid_from, each.valid_to) for each in declared]
    wanted: list[dict[Any, pa.DataType]] = [
        dict.fromkeys((name for name in each if isinstance(name, str)), _TIME) for each in times
    ]
    for pair in zip(*keys, strict=False):
        if not all(isinstance(each, str) for each in pair):
            continue
        for side in (0, 1):
            other = tables[1 - side]
            if pair[1 - side] in other.column_names:
                wanted[side][pair[side]] = other.schema.field(pair[1 - side]).type
    return [cast_voids(table, types) for table, types in zip(tables, wanted, strict=True)]


def cast_voids(table: pa.Table, types: dict[Any, pa.DataType]) -> pa.Table:
    """Return rows in which columns without any value, and so without a type, have the types that are named for them."""
    for place, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and field.name in types:
            table = table.set_column(place, field.name, pa.nulls(table.num_rows, types[field.name]))
    return table


def _spec(declared: Input, name: str, table: pa.Table, library: Library) -> InputSpec:
    what = f"input {name!r}"
    types = {field.name: type_to_ddl(field.type) for field in table.schema}
    fields = {field.name: field for field in table.schema}
    columns = InputColumns(what, fields, types, library)
    spec = columns.spec(declared, name, declared.event_time, None)
    spec.watermark.generator.check(spec.schema, what)
    return spec
