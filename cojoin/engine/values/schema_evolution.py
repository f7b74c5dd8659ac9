"""Schema evolution: the schemas that a stored one may become without loss, and the conversion of stored rows.

Columns and the fields of structs are matched by name, in any order. A nullable one may be added, and is null in stored
rows; one that was never null may become nullable. A number's type may be widened: integers to wider ones, integers of
at most 32 bits and floats to ``double``, and a decimal to one with at least as many digits on both sides of its point.
The same holds inside structs, lists and the values of maps. The keys of maps, and columns that are declared fixed, keep
their type. Every other difference is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence


def differences(
    stored: pa.Schema | pa.DataType, wanted: pa.Schema | pa.DataType, *, fixed: Collection[str] = ()
) -> list[str]:
    """Return a text for each reason why a stored schema or type can't become another; none where it can.

    The ``fixed`` columns of a schema, such as those of a key, keep their type.

    >>> stored = pa.schema([("tier", pa.string()), ("visits", pa.int32()), ("note", pa.string())])
    >>> differences(stored, pa.schema([("visits", pa.int64()), ("tier", pa.int32()), ("rank", pa.int32())]))
    ["column 'tier' changes from string to int", "column 'note' is removed"]
    """
    if isinstance(stored, pa.Schema):
        return list(_between_fields(stored, wanted, "column", "", fixed))
    return list(_between_types(stored, wanted, ""))


def _between_fields(
    stored: Iterable[pa.Field], wanted: Iterable[pa.Field], noun: str, of: str, fixed: Collection[str] = ()
) -> Iterator[str]:
    new = {field.name: field for field in wanted}
    for field in stored:
        place = f"{noun} {field.name!r}{of}"
        if field.name not in new:
            yield f"{place} is removed"
            continue
        other = new.pop(field.name)
        if field.name in fixed and not field.type.equals(other.type):
            before, after = _spelled(field.type, other.type)
            yield f"{place}, which must keep its type, changes from {before} to {after}"
        else:
            yield from _between(field, other, place)
    for name, field in new.items():
        if not field.nullable:
            yield f"{noun} {name!r}{of} is added and may not be null"


def _between(stored: pa.Field, wanted: pa.Field, place: str) -> Iterator[str]:
    if stored.nullable and not wanted.nullable:
        yield f"{place} may no longer be null"
    yield from _between_types(stored.type, wanted.type, place)


def _between_types(stored: pa.DataType, wanted: pa.DataType, place: str) -> Iterator[str]:
    types, of = pa.types, f" of {place}" if place else ""
    if stored.equals(wanted) or _widens(stored, wanted):
        return
    if types.is_struct(stored) and types.is_struct(wanted):
        yield from _between_fields(stored, wanted, "field", of)
    elif types.is_list(stored) and types.is_list(wanted):
        yield from _between(stored.value_field, wanted.value_field, f"an element{of}")
    elif types.is_map(stored) and types.is_map(wanted):
        if not stored.key_type.equals(wanted.key_type):
            before, after = _spelled(stored.key_type, wanted.key_type)
            yield f"a key{of} changes from {before} to {after}"
        yield from _between(stored.item_field, wanted.item_field, f"a value{of}")
    else:
        before, after = _spelled(stored, wanted)
        yield f"{place or 'it'} changes from {before} to {after}"


def _widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    if types.is_signed_integer(stored):
        if types.is_signed_integer(wanted):
            return bool(stored.bit_width <= wanted.bit_width)
        # A double holds integers of 53 bits, too few for a bigint.
        return bool(types.is_float64(wanted) and stored.bit_width <= 32)
    if types.is_decimal128(stored) and types.is_decimal128(wanted):
        whole = wanted.precision - wanted.scale >= stored.precision - stored.scale
        return bool(whole and wanted.scale >= stored.scale)
    return bool(types.is_float32(stored) and types.is_float64(wanted))


def _spelled(stored: pa.DataType, wanted: pa.DataType) -> tuple[str, str]:
    try:
        before, after = type_to_ddl(stored), type_to_ddl(wanted)
    except SchemaError:
        before = after = ""
    # Several Arrow types may have one Spark name, and some have none.
    return (str(stored), str(wanted)) if before == after else (before, after)


def evolve(table: pa.Table, schema: pa.Schema, label: str, *, fixed: Collection[str] = ()) -> pa.Table:
    """Return stored rows converted, without loss, to the wanted schema; the same table where it has that already.

    >>> stored = pa.table({"visits": pa.array([5], pa.int32())})
    >>> evolve(stored, pa.schema([("visits", pa.int64()), ("tier", pa.string())]), "input 'customers'").to_pylist()
    [{'visits': 5, 'tier': None}]
    """
    if table.schema.equals(schema):
        return table
    reasons = differences(table.schema, schema, fixed=fixed)
    if reasons:
        msg = (
            f"{label}: the checkpoint's columns can't become the query's: {'; '.join(reasons)}; keep them as they "
            f"were, or start with a new checkpoint"
        )
        raise CheckpointError(msg)
    stored = set(table.column_names)
    columns = [
        pa.chunked_array([fitted(chunk, field.type) for chunk in table.column(field.name).chunks], field.type)
        if field.name in stored
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def fitted(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return values as those of a type that theirs may become; nulls without a type may become any."""
    if array.type.equals(dtype):
        return array
    if pa.types.is_null(array.type) or not len(array):
        return pa.nulls(len(array), dtype)
    if not pa.types.is_nested(dtype):
        return array.cast(dtype)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(dtype):
        places = [array.type.get_field_index(field.name) for field in dtype]
        children = [
            pa.nulls(len(array), field.type) if place < 0 else fitted(array.field(place), field.type)
            for place, field in zip(places, dtype, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(dtype), mask=mask)
    # Copied, because Arrow refuses a mask with offsets that are a slice.
    offsets = pa.array(array.offsets.to_numpy())
    if pa.types.is_map(dtype):
        items = fitted(array.items, dtype.item_type)
        return pa.MapArray.from_arrays(offsets, array.keys, items, type=dtype, mask=mask)
    return pa.ListArray.from_arrays(offsets, fitted(array.values, dtype.value_type), type=dtype, mask=mask)


def widest(schemas: Sequence[pa.Schema], label: str) -> pa.Schema:
    """Return the one of some schemas that all others may become; key groups may hold those of before a change.

    >>> widest([pa.schema([("visits", pa.int32())]), pa.schema([("visits", pa.int64())])], "state 'visits'")
    visits: int64
    """
    distinct: list[pa.Schema] = []
    for schema in schemas:
        if not any(schema.equals(other) for other in distinct):
            distinct.append(schema)
    against = [[text for other in distinct for text in differences(other, schema)] for schema in distinct]
    best = min(range(len(distinct)), key=lambda place: len(against[place]))
    if against[best]:
        msg = (
            f"{label}: the checkpoint's key groups hold it in forms that can't become one: {'; '.join(against[best])}; "
            f"restore a checkpoint that one query wrote, or start with a new one"
        )
        raise CheckpointError(msg)
    return distinct[best]
