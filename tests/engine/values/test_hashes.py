"""Hashes of keys and tables are fixed numbers, and differ where keys and tables do."""

from __future__ import annotations

import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.hashes import add_digests, key_hashes, mixed, rows_digest
from tests.seeds import SEED

NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-1, 0, 1]),
    "bigint": (pa.int64(), [-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
    "string": (pa.string(), ["", "a", "ß", "a\0"]),
    "binary": (pa.binary(), [b"", b"a", b"\xff"]),
    "date": (pa.date32(), [date(1969, 12, 31), date(1970, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON, NOON.replace(microsecond=1)]),
    "decimal": (pa.decimal128(38, 2), [Decimal("-0.01"), Decimal("0.00"), Decimal("99999999999999999999.00")]),
}


@pytest.mark.parametrize("name", VALUES)
def test_unequal_values_have_unequal_hashes_and_pieces_and_slices_change_nothing(name: str) -> None:
    dtype, values = VALUES[name]
    whole = key_hashes(pa.table({"k": pa.array(values, dtype)}))
    assert len(np.unique(whole)) == len(values)
    pieces = pa.chunked_array([pa.array([values[0], each], dtype).slice(1) for each in values])
    assert key_hashes(pa.table({"other": pieces})).tolist() == whole.tolist()
    assert key_hashes(pa.table({"k": pa.array([], dtype)})).tolist() == []
    assert key_hashes(pa.table({"k": pa.chunked_array([], dtype)})).tolist() == []


def test_the_order_of_columns_matters_and_their_names_and_widths_do_not() -> None:
    one = key_hashes(pa.table({"a": [1, 2], "b": [2, 1]}))
    assert one[0] != one[1]
    two = key_hashes(pa.table({"x": pa.array([1], pa.int8()), "y": pa.array([2], pa.int32())}))
    assert two[0] == one[0]


def test_they_are_those_of_every_process_and_version() -> None:
    keys = pa.table({"id": [7], "name": ["gold"], "day": [date(2026, 1, 15)]})
    assert key_hashes(keys).tolist() == [46_824_386_288_403_524]


def test_texts_have_the_hashes_of_pandas() -> None:
    """Segments of earlier releases have them."""
    pandas = pytest.importorskip("pandas")
    drawn = random.Random(SEED)
    lengths = [*range(20), 255, 256, 257, 1_000, *(drawn.randrange(60) for _ in range(5_000))]
    texts = ["".join(drawn.choices("ab\0ß€😀", k=length)) for length in lengths]
    for values in (pa.array(texts), pa.array([each.encode() for each in texts])):
        expected = pandas.util.hash_array(np.array(values.to_pylist(), dtype=object), categorize=False)
        found = [key_hashes(pa.table({"k": piece})) for piece in (values, values.slice(7, 300))]
        words = [mixed(each) for each in (expected, expected[7:307])]
        assert [each.tolist() for each in found] == [each.tolist() for each in words]


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "whole": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "amount": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -1.5, float("inf")])),
    "ok": (pa.bool_(), st.booleans()),
    "name": (pa.string(), st.text(max_size=20)),
    "raw": (pa.binary(), st.binary(max_size=20)),
    "price": (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    "at": (pa.timestamp("us", "UTC"), st.integers(-(10**15), 10**15)),
    "tags": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "counts": (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.text(max_size=2), st.none() | st.integers(0, 9))),
    "place": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 3), "y": st.none() | st.text(max_size=2)}),
    ),
    "nothing": (pa.null(), st.none()),
}
SCHEMA = pa.schema([(name, dtype) for name, (dtype, _) in KINDS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), max_size=6)


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    lists = [row | {"counts": None if row["counts"] is None else list(row["counts"].items())} for row in rows]
    return pa.Table.from_pylist(lists, schema=SCHEMA)


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 6))
def test_neither_order_nor_cuts_matter(rows: list[dict[str, Any]], random: Any, place: int) -> None:
    table, shuffled = as_table(rows), random.sample(rows, len(rows))
    assert rows_digest(as_table(shuffled)) == rows_digest(table)
    pieces = [table.slice(0, place), table.slice(place)]
    assert rows_digest(pa.concat_tables(pieces)) == rows_digest(table)
    assert add_digests(*map(rows_digest, pieces)) == rows_digest(table)
    assert add_digests(*(rows_digest(as_table([row])) for row in rows)) == rows_digest(table)


@given(ROWS, ROWS)
def test_other_rows_have_another_digest(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    # Arrow's own spelling tells -0.0 from 0.0, and maps by the order of their entries, as the digest does.
    same = sorted(map(repr, as_table(one).to_pylist())) == sorted(map(repr, as_table(two).to_pylist()))
    assert (rows_digest(as_table(one)) == rows_digest(as_table(two))) is same


@pytest.mark.parametrize(
    ("dtype", "one", "two"),
    [
        (pa.string(), [("a", "bc")], [("ab", "c")]),
        (pa.string(), [(None, "")], [("", None)]),
        (pa.float64(), [(1.5, -2.5)], [(-1.5, 2.5)]),
        (pa.int64(), [(1, 2), (3, 4)], [(1, 4), (3, 2)]),
        (pa.int64(), [(1, 1)], [(1, 1), (1, 1)]),
        (pa.list_(pa.int64()), [([1], [2])], [([1, 2], [])]),
        (pa.decimal128(38, 2), [(Decimal(1), Decimal(2))], [(Decimal(2), Decimal(1))]),
    ],
)
def test_what_looks_alike_is_told_apart(dtype: pa.DataType, one: list[Any], two: list[Any]) -> None:
    schema = pa.schema([("a", dtype), ("b", dtype)])
    tables = [pa.Table.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], schema) for rows in (one, two)]
    assert rows_digest(tables[0]) != rows_digest(tables[1])


def test_the_digest_is_the_same_in_every_version() -> None:
    table = pa.table({"id": pa.array([7, None], pa.int64()), "tier": ["gold, and more of it", None]})
    assert rows_digest(table) == 9485286507459896766
    assert rows_digest(table.slice(2)) == 0
