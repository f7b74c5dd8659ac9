"""Which rows of two tables are equal, each row at most once, and which of the others are versions of one row.

Rows are compared as multisets: a row that occurs three times in one table and twice in the other is left over once. The
result is exact. Rows are found by a hash and then compared; where different rows have one hash, those are hashed anew.

Two tables of equal rows in equal order cost one comparison of their values. Otherwise the rows that differ at their
position are hashed and sorted by the hash, which costs some 200 ns for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cojoin.comparison.row_equality import canonical, differing
from cojoin.engine.values.hashes import row_hashes
from cojoin.engine.values.tables import take_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["Differing", "compare_rows"]


class Differing(NamedTuple):
    """The rows of two tables that have no equal, in the order of the first table and then of the second.

    Attributes:
        one: The rows' positions in the first table; -1 for a row that only the second has.
        other: The rows' positions in the second table; -1 for a row that only the first has.
        columns: Which columns differ, as an array of rows times columns; all False unless both have a position.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    columns: NDArray[np.bool_]


def compare_rows(one: pa.Table, other: pa.Table, identity: Sequence[str] = ()) -> Differing:
    """Return the rows in which two tables of the same columns differ.

    Args:
        one: The first table.
        other: The second table.
        identity: The columns by which a row of one table is the other version of a row of the other; of several with
            one identity, the first left over in each are paired, then the second, and so on. Without any, rows are only
            compared as a whole.

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
        places = np.flatnonzero(differs.any(axis=1))
        one_by_one = [one.schema.get_field_index(name) for name in identity]
        if identity and not differs[:, one_by_one].any() and _are_unique(one.select(list(identity)), places):
            # A row's equal has its identity, and the only row with that is the one at its position.
            return Differing(places, places, differs[places])
        left = right = places
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
"""How often rows are hashed anew; of rows with equal hashes until then, at least one side is reported as different."""


def _without_matches(
    one: pa.Table, other: pa.Table, left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the given rows of each table that have no equal in the other one, and the pairs of those that have."""
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

    Only as many bits of the hashes count as are left beside a position in a word, since words sort many times faster.
    """
    bits = np.uint64(max(len(one), len(other)).bit_length())
    (order, mine), (others, theirs) = _sorted(one, bits), _sorted(other, bits)
    occurrence = np.arange(len(mine)) - np.searchsorted(mine, mine, side="left")
    places = np.searchsorted(theirs, mine, side="left") + occurrence
    found = places < len(theirs)
    found[found] = theirs[places[found]] == mine[found]
    # In the order of the rows, which are then taken from memory one after the other.
    partner = np.full(len(one), -1, dtype=np.int64)
    partner[order[found]] = others[places[found]]
    first = np.flatnonzero(partner >= 0)
    return first, partner[first]


def _sorted(hashes: NDArray[np.uint64], bits: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the positions of hashes sorted by their upper bits, equal ones in their order, and these bits."""
    packed = (hashes >> bits << bits) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64), packed >> bits
