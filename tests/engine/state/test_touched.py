from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.state.touched import TouchedKeys

SCHEMAS = [
    pa.schema([("id", pa.string())]),
    pa.schema([("id", pa.string()), ("region", pa.int32())]),
    pa.schema([("flag", pa.bool_()), ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary())]),
]


@given(st.data(), st.sampled_from(SCHEMAS))
def test_oracle_rows_are_found_by_their_keys(data: st.DataObject, schema: pa.Schema) -> None:
    values: dict[Any, Any] = {
        pa.string(): st.sampled_from(["", "a", "b"]),
        pa.int32(): st.integers(0, 2),
        pa.bool_(): st.booleans(),
        pa.timestamp("us", "UTC"): st.integers(0, 2).map(lambda day: datetime(2024, 1, 1 + day, tzinfo=timezone.utc)),
        pa.binary(): st.sampled_from([b"", b"\x00", b"ab"]),
    }
    rows = st.lists(st.tuples(*(values[field.type] for field in schema)), max_size=6)

    def table(of: list[Any]) -> pa.Table:
        pieces = [of[: len(of) // 2], of[len(of) // 2 :]]
        return pa.concat_tables(
            [
                pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in each], schema)
                for each in pieces
            ]
        )

    first, second, rest = data.draw(rows), data.draw(rows), data.draw(rows)
    touched = TouchedKeys([table(first), table(second)])
    keys = [tuple(row.values()) for row in touched.keys.to_pylist()]
    assert len(touched) == len(keys) == len(set(keys))
    assert [[keys[code] for code in codes] for codes in touched.codes] == [first, second]
    expected = [keys.index(row) if row in keys else -1 for row in rest]
    assert touched.find(table(rest).append_column("@value", [[0] * len(rest)])).tolist() == expected


@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_keys_find_nothing(schema: pa.Schema) -> None:
    touched = TouchedKeys([schema.empty_table()])
    row = {"id": "a", "region": 1, "flag": True, "at": datetime(2024, 1, 1, tzinfo=timezone.utc), "raw": b""}
    table = pa.Table.from_pylist([{name: row[name] for name in schema.names}], schema)
    assert touched.find(table).tolist() == [-1]
    assert touched.find(schema.empty_table()).tolist() == []
