"""Hashes of keys are the same for equal keys, wherever and in whatever form they come."""

from __future__ import annotations

import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.values.key_hashes import key_hashes, mixed
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
