"""Sets of hashes are those of Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.hash_sets import among, ranges, with_fewer

HASHES = st.lists(st.integers(0, 9) | st.just((1 << 64) - 1), max_size=12)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@given(HASHES, HASHES)
def test_oracle_they_are_those_of_python(some: list[int], others: list[int]) -> None:
    assert among(array(some), array(sorted(set(others)))).tolist() == [each in others for each in some]
    before, after = Counter(some + others), Counter(others)
    fewer = with_fewer(array(some + others), array(others)).tolist()
    assert fewer == sorted(each for each in before if after[each] < before[each])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=6))
def test_ranges_follow_each_other(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array(each) for each in zip(*pairs, strict=True))
    wanted = [number for start, length in pairs for number in range(start, start + length)]
    assert ranges(starts, starts + lengths).tolist() == wanted
