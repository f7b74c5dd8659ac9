"""Decoded columns as those that the user names: matched by name, wider where that loses nothing, null where missing.

The rules are those by which a stored schema may evolve (``schema_evolution``), but a column or field that is not named
is left out.
"""

from __future__ import annotations

import pyarrow as pa

from cojoin.engine.values.schema_evolution import differences

__all__ = ["fitted", "misfits"]


def misfits(there: pa.DataType, wanted: pa.DataType) -> list[str]:
    """Return why values of a type can't become those of another.

    >>> misfits(pa.struct([("tier", pa.string()), ("note", pa.string())]), pa.struct([("tier", pa.int64())]))
    ["field 'tier' changes from string to bigint"]
    """
    return differences(_narrowed(there, wanted), wanted)


def _narrowed(there: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return a type without the fields that are not wanted, at any depth."""
    types = pa.types
    if types.is_null(there):
        return wanted
    if types.is_struct(there) and types.is_struct(wanted):
        known = {field.name: field for field in wanted}
        return pa.struct(
            [field.with_type(_narrowed(field.type, known[field.name].type)) for field in there if field.name in known]
        )
    if types.is_list(there) and types.is_list(wanted):
        return pa.list_(_narrowed(there.value_type, wanted.value_type))
    if types.is_map(there) and types.is_map(wanted):
        return pa.map_(there.key_type, _narrowed(there.item_type, wanted.item_type))
    return there


def fitted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values, which are no slice, as those of a type that ``misfits`` has nothing against."""
    if array.type.equals(wanted):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if not pa.types.is_nested(wanted):
        return array.cast(wanted)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(wanted):
        places = [array.type.get_field_index(field.name) for field in wanted]
        children = [
            pa.nulls(len(array), field.type) if place < 0 else fitted(array.field(place), field.type)
            for place, field in zip(places, wanted, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if pa.types.is_map(wanted):
        items = fitted(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=wanted, mask=mask)
    return pa.ListArray.from_arrays(array.offsets, fitted(array.values, wanted.value_type), type=wanted, mask=mask)
