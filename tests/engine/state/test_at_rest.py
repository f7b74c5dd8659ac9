from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.state.at_rest import decode_keys, entry_of, rows_of, size_of
from cojoin.errors import FunctionError

COMPOSITE = pa.schema([("customer", pa.string()), ("region", pa.int32())])
TABLE = pa.table({"customer": ["a", "a"], "region": pa.array([1, 2], pa.int32()), "@value": [5, 6]})


def test_a_key_is_found_as_functions_see_it() -> None:
    for key, entry in zip([("a", 1), decode_keys(TABLE.select(COMPOSITE.names))[1]], (5, 6), strict=True):
        assert entry_of(rows_of(TABLE, COMPOSITE, key, "F")) == entry
    assert entry_of(rows_of(TABLE, COMPOSITE, ("z", 1), "F")) is None


def test_a_key_of_one_column_is_its_value() -> None:
    table = pa.table({"customer": ["a"], "@value": [[1, 2]]})
    assert entry_of(rows_of(table, pa.schema([("customer", pa.string())]), "a", "F")) == [1, 2]
    assert size_of(table)["rows"] == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("a", "F: key: expected a tuple of customer, region, got 'a'"),
        (("a",), "F: key: expected a tuple of customer, region"),
        (("a", "1"), "F: key column 'region': expected int, got '1'"),
        ((None, 1), "F: key column 'customer': expected string, got None"),
    ],
)
def test_a_key_that_can_not_be_one_is_refused(key: Any, said: str) -> None:
    with pytest.raises(FunctionError) as caught:
        rows_of(TABLE, COMPOSITE, key, "F")
    assert said in str(caught.value)
