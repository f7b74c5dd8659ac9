"""Labels for the key groups, chosen so that Spark spreads the groups evenly over its shuffle partitions.

Spark chooses a group's partition by the Murmur3 hash of its label. If 32 groups had the labels 0 to 31, 12 would go to
one of two partitions and 20 to the other, and one core would wait. A group's label is instead the smallest number whose
hash, taken modulo 10,080, is the group's own number: then group g goes to partition g modulo n for every n that divides
10,080 (1 to 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, ...). Labels depend only on the number of groups, so a stored
state is found again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["group_labels", "spark_hash"]

_MODULUS = 10_080
_SEED = 42


@lru_cache(maxsize=16)
def group_labels(key_groups: int) -> tuple[int, ...]:
    """Return each group's label, by its number.

    >>> sorted(int(spark_hash(np.array([label]))[0]) % 2 for label in group_labels(4))
    [0, 0, 1, 1]
    """
    rounds = -(-key_groups // _MODULUS)
    count = 16 * _MODULUS * rounds
    while True:
        residues = np.mod(spark_hash(np.arange(count)), _MODULUS)
        order = np.argsort(residues, kind="stable")
        starts = np.searchsorted(residues[order], np.arange(_MODULUS + 1))
        needed = np.bincount(np.arange(key_groups) % _MODULUS, minlength=_MODULUS)
        if (np.diff(starts) >= needed).all():
            return tuple(int(order[starts[group % _MODULUS] + group // _MODULUS]) for group in range(key_groups))
        count *= 2


def spark_hash(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the hashes of integers, as Spark's ``hash`` computes them: Murmur3 of 32 bits, signed."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotate(mixed, 15) * np.uint32(0x1B873593)
        state = _rotate(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        state ^= np.uint32(4)
        state ^= state >> np.uint32(16)
        state *= np.uint32(0x85EBCA6B)
        state ^= state >> np.uint32(13)
        state *= np.uint32(0xC2B2AE35)
        state ^= state >> np.uint32(16)
    hashed: NDArray[np.int64] = state.view(np.int32).astype(np.int64)
    return hashed


def _rotate(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    rotated: NDArray[np.uint32] = (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
    return rotated
