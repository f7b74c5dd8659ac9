"""The rows of two tables that have no equal in the other, and those of them that are versions of one row.

Rows are compared as multisets: of a row that occurs three times in one table and twice in the other, one is left. The
result is exact: rows are matched by a hash and then compared, and different rows with one hash are hashed again.

Two tables of equal rows in equal order cost one comparison of their values. Otherwise the rows that differ at their
position are hashed and sorted by the hash, which costs some 200 ns for each.

Values are equal as in Spark's ``GROUP BY``, exactly and for every type. A null equals a null, NaN equals NaN, and -0.0
equals 0.0. Maps are equal if they have equal entries in any order. Values under a null do not matter. A comparison
costs some nanoseconds for each value; columns with floating-point numbers or maps are copied once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.hashes import row_hashes
from cojoin.engine.values.tables import take_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Differing(NamedTuple):
    """The rows of two tables that have no equal, as positions in each; -1 where only the other table has the row.

    They are in the order of the first table and then of the second. ``columns`` masks the columns that differ, by row
    and column; all False unless both tables have the row.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    columns: NDArray[np.bool_]


def compare_rows(one: pa.Table, other: pa.Table, identity: Sequence[str] = ()) -> Differing:
    """Return the rows in which two tables of the same columns differ.

    The identity are the columns by which a row of one table is the other version of a row of the other. Of several rows
    with one identity, the first left over in each are paired, then the second, and so on. Without an identity, rows are
    only compared as a whole.

    >>> import pyarrow as pa
    >>> one, other = pa.table({"id": [1, 2, 2], "x": [5, 6, 6]}), pa.table({"id": [2, 1], "x": [6, 7]})
    >>> compare_rows(one, other, ["id"])
    Differing(one=array([0, 2]), other=array([ 1, -1]), columns=array([[False,  True],
           [False, False]]))
    """
    if one.equals(other):
        nothing = np.zeros(0, dtype=np.int64)
        return Differing(nothing, nothing, np.zeros((0, one.num_columns), dtype=bool))
    # As one chunk, since rows are taken from them several times.
    one, other = canonical(one).combine_chunks(), canonical(other).combine_chunks()
    if one.num_rows == other.num_rows:
        differs = differing(one, other)
        differing_rows = np.flatnonzero(differs.any(axis=1))
        one_by_one = [one.schema.get_field_index(name) for name in identity]
        if identity and not differs[:, one_by_one].any() and _are_unique(one.select(list(identity)), differing_rows):
            # A row's equal has its identity, and the only row with that is the one at its position.
            return Differing(differing_rows, differing_rows, differs[differing_rows])
        left = right = differing_rows
    else:
        left, right = np.arange(one.num_rows), np.arange(other.num_rows)
    left, right, _ = _without_matches(one, other, left, right)
    pairs = (np.zeros(0, dtype=np.int64),) * 2
    if identity:
        by = list(identity)
        left, right, pairs = _without_matches(one.select(by), other.select(by), left, right)
    columns = differing(take_rows(one, pairs[0]), take_rows(other, pairs[1]))
    absent = [np.full(len(each), -1, dtype=np.int64) for each in (left, right)]
    first = np.concatenate([pairs[0], left])
    order = np.argsort(first, kind="stable")
    only = np.zeros((len(left) + len(right), one.num_columns), dtype=bool)
    return Differing(
        np.concatenate([first[order], absent[1]]),
        np.concatenate([np.concatenate([pairs[1], absent[0]])[order], right]),
        np.concatenate([columns, only])[np.concatenate([order, np.arange(len(first), len(first) + len(right))])],
    )


def _are_unique(table: pa.Table, positions: NDArray[np.int64]) -> bool:
    """Return whether no two of these rows are equal; False, too, where two different rows have one hash."""
    return len(np.unique(row_hashes(take_rows(table, positions)))) == len(positions)


_MOST_SEEDS = 1_000
"""The most times that rows are hashed again; of rows with equal hashes until then, at least one side differs."""


def _without_matches(
    one: pa.Table, other: pa.Table, left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the chosen rows of each table that have no equal in the other one, and the pairs of those that have."""
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = [(left[:0], right[:0])]
    seed, is_sure = 0, False
    while len(left) and len(right) and not is_sure and seed < _MOST_SEEDS:
        mine, theirs = _rows(one, left), _rows(other, right)
        first, second = _equal_hashes(row_hashes(mine, seed), row_hashes(theirs, seed))
        equal = ~differing(_rows(mine, first), _rows(theirs, second)).any(axis=1)
        # Different rows with one hash may hide equal rows; with another seed they have different hashes.
        is_sure, seed = bool(equal.all()), seed + 1
        pairs.append((left[first[equal]], right[second[equal]]))
        left, right = np.delete(left, first[equal]), np.delete(right, second[equal])
    matched = np.concatenate([each for each, _ in pairs]), np.concatenate([each for _, each in pairs])
    return left, right, matched


def _rows(table: pa.Table, positions: NDArray[np.int64]) -> pa.Table:
    """Return rows by position, without a copy where these are all rows in their order."""
    is_whole = len(positions) == table.num_rows and bool((np.diff(positions) == 1).all())
    return table if is_whole else take_rows(table, positions)


def _equal_hashes(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of hashes that occur on both sides: the first occurrence with the first, and so on.

    Only as many bits of a hash count as fit into a word next to a position, since words sort many times faster.
    """
    bits = np.uint64(max(len(one), len(other)).bit_length())
    (order, mine), (others, theirs) = _sorted(one, bits), _sorted(other, bits)
    occurrence = np.arange(len(mine)) - np.searchsorted(mine, mine, side="left")
    positions = np.searchsorted(theirs, mine, side="left") + occurrence
    has_match = positions < len(theirs)
    has_match[has_match] = theirs[positions[has_match]] == mine[has_match]
    # In the order of the rows, which are then taken from memory one after the other.
    partner = np.full(len(one), -1, dtype=np.int64)
    partner[order[has_match]] = others[positions[has_match]]
    first = np.flatnonzero(partner >= 0)
    return first, partner[first]


def _sorted(hashes: NDArray[np.uint64], bits: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the positions of hashes sorted by their upper bits, equal ones in their order, and these bits."""
    packed = (hashes >> bits << bits) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64), packed >> bits


def canonical(table: pa.Table) -> pa.Table:
    """Return a table whose equal values have equal bits: one zero, one NaN, and maps sorted by their keys' hashes.

    >>> canonical(pa.table({"x": [-0.0, 1.5]}))["x"].to_pylist()
    [0.0, 1.5]
    """
    columns = [_canonical_column(column) if _has_spellings(column.type) else column for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def differing(one: pa.Table, other: pa.Table) -> NDArray[np.bool_]:
    """Return a mask of rows times columns: the values that differ between two tables of ``canonical``, row by row.

    >>> differing(pa.table({"id": [1, 2], "x": [None, 3]}), pa.table({"id": [1, 2], "x": [None, None]})).tolist()
    [[False, False], [False, True]]
    """
    differs: NDArray[np.bool_] = np.zeros((one.num_columns, one.num_rows), dtype=bool).T
    pairs = zip(one.combine_chunks().columns, other.combine_chunks().columns, strict=True)
    for column, (first, second) in enumerate(pairs):
        # Most columns of most tables are equal, as a comparison of their bytes shows at once.
        if first.equals(second):
            continue
        differs[:, column] = ~_equal(_whole(first), _whole(second))
    return differs


def _has_spellings(dtype: pa.DataType) -> bool:
    """Return whether equal values of a type may have different bits."""
    if pa.types.is_floating(dtype) or pa.types.is_map(dtype):
        return True
    return any(_has_spellings(dtype.field(position).type) for position in range(dtype.num_fields))


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
        fields = [_canonical_array(pc.struct_field(array, [position])) for position in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=mask)
    starts, lengths = _extents(array)
    rows, inner = _spread(starts, lengths)
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int64() if types.is_large_list(dtype) else pa.int32())
    if not types.is_map(dtype):
        values = _canonical_array(array.values.take(pa.array(inner)))
        return type(array).from_arrays(offsets, values, type=dtype, mask=mask)
    keys, items = (_canonical_array(each.take(pa.array(inner))) for each in (array.keys, array.items))
    order = pa.array(np.lexsort((row_hashes(pa.table([keys], names=["key"])), rows)))
    return pa.MapArray.from_arrays(offsets, keys.take(order), items.take(order), dtype, mask=mask)


def _equal(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the equal values of two arrays of one type and length."""
    types, dtype = pa.types, one.type
    if types.is_null(dtype):
        return np.ones(len(one), dtype=bool)
    if types.is_struct(dtype):
        same = np.ones(len(one), dtype=bool)
        for position in range(dtype.num_fields):
            same &= _equal(pc.struct_field(one, [position]), pc.struct_field(other, [position]))
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
    """Return a mask of the equal lists or maps; only those of equal length are compared."""
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
    """Return the start of each list or map in its children, and its length; a null has no length."""
    if not len(array):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.where(array.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)


def _spread(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each element, and its position among the children."""
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
