"""Sets of hashes as arrays: searched by binary search, without a Python object for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["among", "ranges", "with_fewer"]


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of one or more ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    positions: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return positions


def with_fewer(before: NDArray[np.uint64], after: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the distinct hashes that occur less often after than before."""
    distinct, counts = np.unique(before, return_counts=True)
    left = np.sort(after)
    still = np.searchsorted(left, distinct, "right") - np.searchsorted(left, distinct, "left")
    return distinct[still < counts]


def among(values: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each value whether it is among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[places] == values  # type: ignore[no-any-return]
