"""Tables compared as multisets, for every type, against Python's counters of canonical values."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.comparison import row_matching
from cojoin.comparison.row_matching import Differing, compare_rows

NUMBERS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])
TEXTS = st.sampled_from(["", "a", "ab", "ein langer Text"])
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(0, 2),
    pa.float64(): NUMBERS,
    pa.float32(): NUMBERS,
    pa.string(): TEXTS,
    pa.binary(): TEXTS.map(str.encode),
    pa.bool_(): st.booleans(),
    pa.decimal128(10, 2): st.decimals(0, 2, places=2),
    pa.timestamp("us", "UTC"): st.integers(0, 2),
    pa.list_(pa.float64()): st.lists(NUMBERS | st.none(), max_size=2),
    pa.struct({"x": pa.float64(), "y": pa.string()}): st.fixed_dictionaries({"x": NUMBERS | st.none(), "y": TEXTS}),
    pa.map_(pa.string(), pa.float64()): st.dictionaries(TEXTS, NUMBERS | st.none(), max_size=3).flatmap(
        lambda found: st.permutations(list(found.items()))
    ),
    pa.list_(pa.map_(pa.string(), pa.int64())): st.lists(
        st.dictionaries(TEXTS, st.integers(0, 1), max_size=2).map(lambda found: list(found.items())), max_size=2
    ),
}


def plain(value: Any, dtype: pa.DataType) -> Any:
    """Return a value so that Python's equality is Spark's."""
    if value is None:
        return None
    if pa.types.is_floating(dtype):
        return "NaN" if math.isnan(value) else value + 0.0
    if pa.types.is_map(dtype):
        return frozenset((plain(key, dtype.key_type), plain(item, dtype.item_type)) for key, item in value)
    if pa.types.is_list(dtype):
        return tuple(plain(each, dtype.value_type) for each in value)
    if pa.types.is_struct(dtype):
        return tuple(plain(value[field.name], field.type) for field in dtype)
    return value


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [[plain(each, field.type) for each in table.column(field.name).to_pylist()] for field in table.schema]
    return list(zip(*columns, strict=True))


@st.composite
def pairs_of_tables(draw: Any) -> tuple[pa.Table, pa.Table]:
    types = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
    row = st.tuples(*(COLUMNS[dtype] | st.none() for dtype in types))
    some = draw(st.lists(row, max_size=12))
    # Much of the other table is the same in another order.
    other = draw(st.permutations(some))[: draw(st.integers(0, 12))] + draw(st.lists(row, max_size=3))
    made = []
    for rows in (some, other):
        columns = [pa.array([each[at] for each in rows], dtype) for at, dtype in enumerate(types)]
        table = pa.table(columns, names=[f"c{at}" for at in range(len(types))])
        cut = draw(st.integers(0, table.num_rows))
        # Slices and chunks have offsets, which nested arrays must heed.
        made.append(pa.concat_tables([table.slice(0, cut), table.slice(cut)]))
    return made[0], made[1]


def only(positions: Any, others: Any) -> list[int]:
    return [int(each) for each, other in zip(positions, others, strict=True) if other < 0]


@pytest.mark.parametrize("bits", [64, 4, 1])
@given(tables=pairs_of_tables())
def test_whole_rows_are_multisets(tables: tuple[pa.Table, pa.Table], bits: int) -> None:
    one, other = tables
    real = row_matching.row_hashes
    with pytest.MonkeyPatch.context() as patch:
        # Hashes of few bits are those of other rows, too; the seed shifts which ones.
        patch.setattr(row_matching, "row_hashes", lambda *given: real(*given) >> np.uint64(64 - bits) << np.uint64(60))
        found = compare_rows(one, other)
    left, right = rows_of(one), rows_of(other)
    assert Counter(left[at] for at in only(found.one, found.other)) == Counter(left) - Counter(right)
    assert Counter(right[at] for at in only(found.other, found.one)) == Counter(right) - Counter(left)
    assert not found.columns.any()


@given(pairs_of_tables())
def test_rows_of_one_identity_are_versions(tables: tuple[pa.Table, pa.Table]) -> None:
    one, other = tables
    found = compare_rows(one, other, ["c0"])
    left, right = rows_of(one), rows_of(other)
    rest, others = Counter(left) - Counter(right), Counter(right) - Counter(left)
    changed = [place for place in range(len(found.one)) if found.one[place] >= 0 and found.other[place] >= 0]
    for place in changed:
        a, b = left[found.one[place]], right[found.other[place]]
        assert a[0] == b[0]
        assert found.columns[place].tolist() == [x != y for x, y in zip(a, b, strict=True)]
        assert a != b
    assert Counter(left[at] for at in found.one if at >= 0) == rest
    assert Counter(right[at] for at in found.other if at >= 0) == others
    # As many as can be are paired.
    identities = [Counter(), Counter()]
    for identity, rows in zip(identities, (rest, others), strict=True):
        for row, count in rows.items():
            identity[row[0]] += count
    assert len(changed) == (identities[0] & identities[1]).total()


def test_the_first_left_over_are_paired_with_the_first() -> None:
    one = pa.table({"id": [1, 1, 1], "x": [5, 6, 7]})
    other = pa.table({"id": [1, 1], "x": [6, 9]})
    found = compare_rows(one, other, ["id"])
    assert [found.one.tolist(), found.other.tolist()] == [[0, 2], [1, -1]]


def test_nothing_differs_in_empty_tables() -> None:
    empty = pa.table({"x": pa.array([], pa.map_(pa.string(), pa.int64()))})
    found = compare_rows(empty, empty, ["x"])
    assert isinstance(found, Differing)
    assert len(found.one) == len(found.other) == 0


@pytest.mark.parametrize(
    ("dtype", "one", "other"),
    [
        (pa.struct([("x", pa.int64())]), None, {"x": None}),
        (pa.int64(), None, 0x6E756C6C),
        (pa.list_(pa.struct([("a", pa.int64())])), [None], [{"a": None}]),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])), [None], [{"a": 0, "b": None}]),
        (pa.list_(pa.int64()), [None], [0x6E756C6C]),
    ],
)
def test_a_null_is_no_value(dtype: pa.DataType, one: Any, other: Any) -> None:
    found = compare_rows(pa.table({"v": pa.array([one], dtype)}), pa.table({"v": pa.array([other], dtype)}))
    assert (found.one.tolist(), found.other.tolist()) == ([0, -1], [-1, 0])
