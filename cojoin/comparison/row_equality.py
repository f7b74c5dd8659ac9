"""The equality of rows as Spark's ``GROUP BY`` has it, exact for every type.

A null equals a null, NaN equals NaN, and -0.0 equals 0.0. Maps are equal if they have equal entries in any order. Lists
are equal element by element, structs field by field. What stands under a null does not matter.

It costs some nanoseconds for each value; columns with floating-point numbers or maps are copied once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.hashes import row_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["canonical", "differing"]


def canonical(table: pa.Table) -> pa.Table:
    """Return a table whose equal values have equal bits: one zero, one NaN, and maps sorted by their keys' hashes.

    >>> canonical(pa.table({"x": [-0.0, 1.5]}))["x"].to_pylist()
    [0.0, 1.5]
    """
    columns = [_canonical_column(column) if _has_spellings(column.type) else column for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def differing(one: pa.Table, other: pa.Table) -> NDArray[np.bool_]:
    """Return which values differ between the rows of two tables, position by position.

    Args:
        one: Rows as ``canonical`` returns them.
        other: As many rows of the same types.

    Returns:
        An array of rows times columns.

    >>> differing(pa.table({"id": [1, 2], "x": [None, 3]}), pa.table({"id": [1, 2], "x": [None, None]})).tolist()
    [[False, False], [False, True]]
    """
    found: NDArray[np.bool_] = np.zeros((one.num_columns, one.num_rows), dtype=bool).T
    pairs = zip(one.combine_chunks().columns, other.combine_chunks().columns, strict=True)
    for place, (first, second) in enumerate(pairs):
        # Most columns of most tables are equal, which a comparison of their bytes tells at once.
        if first.equals(second):
            continue
        found[:, place] = ~_equal(_whole(first), _whole(second))
    return found


def _has_spellings(dtype: pa.DataType) -> bool:
    """Return whether equal values of a type may have different bits."""
    if pa.types.is_floating(dtype) or pa.types.is_map(dtype):
        return True
    return any(_has_spellings(dtype.field(place).type) for place in range(dtype.num_fields))


def _canonical_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([_canonical_array(chunk) for chunk in column.chunks], column.type)


def _canonical_array(array: pa.Array) -> pa.Array:
    types, dtype = pa.types, array.type
    if not _has_spellings(dtype):
        return array
    if types.is_floating(dtype):
        # Adding zero turns -0.0 into 0.0.
        return pc.if_else(pc.is_nan(array), pa.scalar(np.nan, dtype), pc.add(array, pa.scalar(0.0, dtype)))
    mask = array.is_null()
    if types.is_struct(dtype):
        fields = [_canonical_array(pc.struct_field(array, [place])) for place in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=mask)
    starts, lengths = _extents(array)
    rows, places = _spread(starts, lengths)
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int64() if types.is_large_list(dtype) else pa.int32())
    if not types.is_map(dtype):
        values = _canonical_array(array.values.take(pa.array(places)))
        return type(array).from_arrays(offsets, values, type=dtype, mask=mask)
    keys, items = (_canonical_array(each.take(pa.array(places))) for each in (array.keys, array.items))
    order = pa.array(np.lexsort((row_hashes(pa.table([keys], names=["key"])), rows)))
    return pa.MapArray.from_arrays(offsets, keys.take(order), items.take(order), dtype, mask=mask)


def _equal(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Return which values of two arrays of one type and length are equal."""
    types, dtype = pa.types, one.type
    if types.is_null(dtype):
        return np.ones(len(one), dtype=bool)
    if types.is_struct(dtype):
        same = np.ones(len(one), dtype=bool)
        for place in range(dtype.num_fields):
            same &= _equal(pc.struct_field(one, [place]), pc.struct_field(other, [place]))
    elif types.is_map(dtype) or types.is_list(dtype) or types.is_large_list(dtype):
        same = _equal_lists(one, other)
    elif types.is_floating(dtype):
        bits = pa.int64() if dtype.bit_width == 64 else pa.int32()
        same = _flags(pc.equal(one.view(bits), other.view(bits)))
    else:
        same = _flags(pc.equal(one, other))
    if not one.null_count and not other.null_count:
        return same
    known, also = (each.is_valid().to_numpy(zero_copy_only=False) for each in (one, other))
    return np.where(known & also, same, known == also)


def _equal_lists(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Return which lists or maps are equal; only those of equal length are looked into."""
    (starts, lengths), (others, counts) = _extents(one), _extents(other)
    same: NDArray[np.bool_] = lengths == counts
    compared = np.where(same, lengths, 0)
    _, first = _spread(starts, compared)
    _, second = _spread(others, compared)
    children = (
        [(one.keys, other.keys), (one.items, other.items)]
        if pa.types.is_map(one.type)
        else [(one.values, other.values)]
    )
    equal = np.ones(len(first), dtype=bool)
    for mine, theirs in children:
        equal &= _equal(mine.take(pa.array(first)), theirs.take(pa.array(second)))
    unequal = np.concatenate([[0], np.cumsum(~equal)])
    ends = np.cumsum(compared)
    same &= unequal[ends] == unequal[ends - compared]
    return same


def _extents(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each list or map begins in its children, and its length; a null has no length."""
    if not len(array):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.where(array.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)


def _spread(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each element, and its place among the children."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.cumsum(lengths) - lengths
    return rows, np.arange(len(rows)) - begins[rows] + starts[rows]


def _flags(array: pa.Array) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = (array.fill_null(False) if array.null_count else array).to_numpy(zero_copy_only=False)
    return flags


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; texts beyond 2 GB have several chunks even after they are combined."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column if large is None else column.cast(large)).combine_chunks()
