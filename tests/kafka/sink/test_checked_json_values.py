"""Values in JSON with a real registry's schema: what is held to it, and what a subject's schema says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from tests.kafka.sink.values import head, writing

if TYPE_CHECKING:
    from cojoin.kafka.sink.serializers import RegistryValues
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.kafka]

TRADE = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0}, "tier": {"enum": ["gold", "basic"]}},
    "required": ["id"],
}


def written(registry: RegistryServer, subject: str, rows: pa.Table, **arguments: Any) -> RegistryValues:
    return writing(cj.kafka.json_schema(registry.url, subject=subject, **arguments), rows)


def as_json(*texts: str) -> pa.Table:
    return pa.table({"c0": list(texts)})


def test_rows_are_held_to_a_subjects_schema(registry: RegistryServer) -> None:
    number = registry.register("json-trades", json.dumps(TRADE), "JSON")
    rows = pa.table({"id": [1], "tier": ["gold"], "left_out": ["x"]})
    values = written(registry, "json-trades", rows)
    assert (values.schema.number, values.schema.columns.names) == (number, ["id", "tier"])
    texts = ['{"id":1,"tier":"gold"}', '{"id":12345678901234567890}']
    encoded = values.encode(as_json(*texts))
    assert [value[:5] for value in encoded] == [head(values)] * 2
    assert [json.loads(value[5:]) for value in encoded] == [json.loads(text) for text in texts]
    for text, told in (
        ('{"id":-1}', "-1 is less than the minimum of 0"),
        ('{"tier":"gold"}', "'id' is a required property"),
        ('{"id":1,"tier":"none"}', "'none' is not one of"),
    ):
        with pytest.raises(cj.QueryFailedError, match=told):
            values.encode(as_json(text))
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default, and the output no such column"):
        written(registry, "json-trades", pa.table({"tier": ["gold"]}))
    with pytest.raises(cj.SchemaError, match="field 'id' takes bigint, and the output's column is double"):
        written(registry, "json-trades", pa.table({"id": [1.0]}))


def test_a_schema_of_all_columns_is_registered_once(registry: RegistryServer) -> None:
    rows = pa.table({"id": [1], "amount": [0.5]})
    values = written(registry, "json-made", rows)
    there = registry.client.get_latest_version("json-made")
    assert there.schema_id == values.schema.number
    assert json.loads(there.schema.schema_str)["properties"] == {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
    }
    assert written(registry, "json-made", rows).schema.number == values.schema.number


def test_a_schema_without_columns_is_told(registry: RegistryServer) -> None:
    choice = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    registry.register("json-choice", json.dumps({"type": "object", "properties": {"id": choice}}), "JSON")
    said = "got oneOf of 2 types, at #/properties/id; name another schema with subject="
    with pytest.raises(cj.SchemaError, match=said):
        written(registry, "json-choice", pa.table({"id": [1]}))


def test_a_null_that_the_schema_asks_for_is_put_back(registry: RegistryServer) -> None:
    maybe = {"oneOf": [{"type": "null"}, {"type": "string"}]}
    inner = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]}
    described = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "note": maybe,
            "side": {"$ref": "#/definitions/side"},
            "within": {"oneOf": [{"type": "null"}, inner]},
            "many": {"type": "array", "items": inner},
        },
        "required": ["id", "note", "side", "within"],
        "definitions": {"side": maybe},
    }
    registry.register("json-nulls", json.dumps(described), "JSON")
    rows = pa.table({"id": [1], "note": ["x"], "side": ["y"]}).append_column("within", pa.array([{"a": 1}]))
    values = written(registry, "json-nulls", rows)
    (first, second) = values.encode(as_json('{"id":1}', '{"id":2,"within":{},"many":[{}]}'))
    assert json.loads(first[5:]) == {"id": 1, "note": None, "side": None, "within": None}
    assert json.loads(second[5:]) == {"id": 2, "note": None, "side": None, "within": {"a": None}, "many": [{"a": None}]}
    with pytest.raises(cj.QueryFailedError, match="'id' is a required property"):
        values.encode(as_json('{"note":"x"}'))
