"""Binary searches for matching rows of the other side, over rows sorted by key, then by the total order.

It has no state. Each side is sorted once, as integers. A match is a position in the sorted side; of one key's rows,
the one with the smaller position is earlier.

Of several rows in one microsecond, the last in the total order is in force, for searches backward and forward. (pandas
``merge_asof`` takes the first of such rows in a forward search, and the last in a backward search.) Arithmetic on
microseconds saturates instead of wrapping, since an event time may be any 64-bit integer.

It costs a sort of one integer for each row, or a merge where rows were kept in order (``ordering``). It costs a binary
search for each row of the side that has fewer, and no Python for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cojoin.engine.ordering import OrderedPart, combine, sort_part, stable_argsort
from cojoin.engine.values.keys import encode_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.ordering import Ranks

_SIGN = np.uint64(1 << 63)
_LAST = np.uint64((1 << 63) - 1)


@dataclass(frozen=True)
class SortedRows:
    """The rows of one side, and in sorted order their positions, key codes and microseconds.

    Equal keys have equal codes on both sides.
    """

    table: pa.Table
    order: NDArray[np.int64]
    codes: NDArray[np.int64]
    micros: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.order)

    def pick(self, positions: NDArray[np.int64]) -> SortedRows:
        """Return the rows at some ascending positions of the sorted order."""
        return SortedRows(self.table, self.order[positions], self.codes[positions], self.micros[positions])


def sort_sides(
    inputs: tuple[InputSpec, InputSpec],
    rows: Sides,
    settled: tuple[int, int] = (0, 0),
    right_ranks: Ranks | None = None,
) -> tuple[SortedRows, SortedRows]:
    """Return the rows of both sides sorted by key, then by the total order.

    ``settled`` is how many of each side's first rows are known to be in the total order within each key.
    ``right_ranks`` break ties of the right rows, after their known times; None takes those of its input.
    """
    codes, _ = encode_keys([spec.keys(table) for spec, table in zip(inputs, rows, strict=True)])
    ranks = inputs[0].ranks, known_first(inputs[1], right_ranks or inputs[1].ranks)
    left, right = (
        _sort(spec, table, key_codes, place, count, decides)
        for spec, table, key_codes, place, count, decides in zip(
            inputs, rows, codes, (1, 0), settled, ranks, strict=True
        )
    )
    return left, right


def known_first(spec: InputSpec, ranks: Ranks | None) -> Ranks | None:
    """Return the ranks of an input's rows of one microsecond: first by their known times, if they have some."""
    if spec.known is None or spec.known.column is None:
        return ranks

    def by_known_time(table: pa.Table) -> tuple[NDArray[Any], NDArray[Any]]:
        before, after = (np.zeros(table.num_rows, dtype=np.int8),) * 2 if ranks is None else ranks(table)
        times = np.unique(spec.known_micros(table), return_inverse=True)[1].reshape(-1)
        # A rank of deletes is 0 or 1.
        return times * 2 + before, after

    return by_known_time


def sort_alone(inputs: tuple[InputSpec, InputSpec], side: int, rows: pa.Table) -> tuple[SortedRows, SortedRows]:
    """Return rows of one side, sorted by the total order regardless of their keys, with an empty other side."""
    left, right = (
        _sort(spec, table, np.zeros(table.num_rows, dtype=np.int64), 1 - number, 0, spec.ranks)
        for number, (spec, table) in enumerate(
            (spec, rows if number == side else spec.schema.empty_table()) for number, spec in enumerate(inputs)
        )
    )
    return left, right


def _sort(
    spec: InputSpec, table: pa.Table, codes: NDArray[np.int64], rank: int, settled: int, ranks: Ranks | None
) -> SortedRows:
    part = OrderedPart(codes, spec.event_micros(table), rank, table, spec.source_order, settled, ranks)
    return SortedRows(table, *sort_part(part))


class Neighbours:
    """Finds the versions next to each left row in time, as positions in the sorted right side, -1 for none.

    A version may be at most the tolerance away, in microseconds; None means any distance. With ``exact`` a version of
    the row's own microsecond matches.
    """

    def __init__(self, left: SortedRows, right: SortedRows, tolerance: int | None, *, exact: bool) -> None:
        self._left, self._right, self._exact = left, right, exact
        self._tolerance = None if tolerance is None else _clipped(tolerance)

    @cached_property
    def _words(self) -> list[NDArray[np.int64]]:
        """The keys and event times of the rows, and of the versions, in one column each."""
        return combine((self._left.codes, self._left.micros), (self._right.codes, self._right.micros))

    def behind(self) -> NDArray[np.int64]:
        """Return the newest version before (``exact``: at or before) each row; of equal times, the last in order."""
        side: Literal["left", "right"] = "right" if self._exact else "left"
        rows, versions = self._words
        return self._near(_places(versions, rows, side) - 1)

    def ahead(self) -> NDArray[np.int64]:
        """Return the earliest version after (``exact``: at or after) each row; of equal times, the last in order."""
        side: Literal["left", "right"] = "left" if self._exact else "right"
        rows, versions = self._words
        last_of_time = np.searchsorted(versions, versions, side="right") - 1
        return self._near(np.append(last_of_time, -1)[_places(versions, rows, side)])

    def known_behind(self, effective: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return of the versions that are effective at or before each row the newest one before (``exact``: at) it.

        ``effective`` are the effective times of the sorted versions (``known_time``), not before their event times. A
        version that is newest, and further away than the tolerance, leaves no match, since all others are older.
        """
        codes, micros = self._right.codes, self._right.micros
        by_effect = stable_argsort(codes, effective)
        newest = np.maximum.accumulate(by_effect) if len(by_effect) else by_effect
        rows, versions = combine((self._left.codes, self._left.micros), (codes, effective[by_effect]))
        places = _places(versions, rows, "right") - 1
        if not self._exact:
            # Of the versions of one effective time, those of the same event time are last.
            at_once = (micros == effective)[by_effect]
            begins = np.append(True, (versions[1:] != versions[:-1]) | (at_once[1:] != at_once[:-1]))[: len(versions)]
            first = np.maximum.accumulate(np.where(begins, np.arange(len(versions)), 0))
            is_exact = (places >= 0) & (at(versions, places) == rows) & at(at_once, places)
            places = np.where(is_exact, at(first, places) - 1, places)
        return self._near(np.where(places >= 0, at(newest, places), -1))

    def _near(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        valid = (places >= 0) & (at(self._right.codes, places) == self._left.codes)
        if self._tolerance is not None:
            valid &= distance(self._left.micros, at(self._right.micros, places)) <= self._tolerance
        return np.where(valid, places, -1)


def ranges(probe: SortedRows, built: SortedRows, low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each probe row, the range of rows of its key that are ``low`` to ``high`` microseconds after it.

    A range is the position of its first row in the sorted other side, and the position after its last row. The two are
    equal if nothing matches.
    """
    lowest, highest = shift(probe.micros, low), shift(probe.micros, high)
    first, last, others = combine((probe.codes, lowest), (probe.codes, highest), (built.codes, built.micros))
    starts, stops = _places(others, first, "left"), _places(others, last, "right")
    # A bound beyond the limits of 64 bits was clipped, and no time can be beyond it, so nothing matches.
    if low > 0:
        stops = np.where(distance(lowest, probe.micros) < _clipped(low), starts, stops)
    if high < 0:
        stops = np.where(distance(highest, probe.micros) < _clipped(-high), starts, stops)
    return starts, np.maximum(starts, stops)


def expand(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ranges as pairs: the number of each range with each position in it."""
    counts = stops - starts
    numbers = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers, starts[numbers] + offsets


def at(values: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values at some positions; -1 returns a meaningless value, even from an empty array.

    >>> at(np.array([7, 8]), np.array([1, 0])).tolist(), len(at(np.array([], dtype=int), np.array([-1])))
    ([8, 7], 1)
    """
    return values[positions] if len(values) else np.zeros(len(positions), dtype=values.dtype)


def distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return how far apart times are, as unsigned 64-bit integers, which hold the distance of any two times.

    >>> distance(np.array([3, -(2**63)]), np.array([5, 2**63 - 1])).tolist()
    [2, 18446744073709551615]
    """
    return np.maximum(one, other).view(np.uint64) - np.minimum(one, other).view(np.uint64)


def shift(micros: NDArray[np.int64], by: int | NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return times moved by some microseconds, at most to the limits of 64 bits.

    >>> shift(np.array([5, 2**63 - 2]), 3).tolist(), shift(np.array([5, -(2**63)]), -3).tolist()
    ([8, 9223372036854775807], [2, -9223372036854775808])
    """
    unsigned = micros.view(np.uint64)
    if isinstance(by, int) and by < 0:
        moved = unsigned - np.minimum(unsigned - _SIGN, _clipped(-by))
    else:
        moved = unsigned + np.minimum(_LAST - unsigned, _clipped(by) if isinstance(by, int) else by)
    signed: NDArray[np.int64] = moved.view(np.int64)
    return signed


def _places(values: NDArray[np.int64], wanted: NDArray[np.int64], side: Literal["left", "right"]) -> NDArray[np.int64]:
    """Return ``searchsorted`` of sorted numbers in sorted numbers; it searches the longer array for the shorter one."""
    if len(wanted) <= len(values):
        return np.searchsorted(values, wanted, side=side)
    starts = np.searchsorted(wanted, values, side="left" if side == "right" else "right")
    return np.repeat(np.arange(len(values) + 1), np.diff(starts, prepend=0, append=len(wanted)))


def _clipped(micros: int) -> Any:
    return np.uint64(min(micros, (1 << 64) - 1))
