"""Values in Avro by a real registry: read back as they were, and what a subject's schema says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.avro_decoder import AvroReadings
from cojoin.kafka.formats.registry import FoundSchema
from tests.kafka.formats.test_avro_schema import ALL
from tests.kafka.sink.values import a_row, head, writing

if TYPE_CHECKING:
    from cojoin.kafka.sink.serializers import RegistryValues
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.kafka]


def written(registry: RegistryServer, subject: str, rows: pa.Table, **arguments: Any) -> RegistryValues:
    return writing(cj.kafka.avro(registry.url, subject=subject, **arguments), rows)


def test_rows_are_read_back_as_they_were(registry: RegistryServer) -> None:
    schema = parse_schema(ALL)
    rows = pa.Table.from_pylist([a_row(), dict.fromkeys(schema.names)], schema)
    values = written(registry, "all-types", rows)
    encoded = values.encode(rows)
    assert {value[:5] for value in encoded} == {head(values)}
    there = registry.client.get_latest_version("all-types")
    assert there.schema_id == values.schema.number
    columns = pa.struct([each.with_type(pa.int32()) if each.name in ("small", "tiny") else each for each in schema])
    read, faults = AvroReadings(columns, None, "value")(FoundSchema("AVRO", there.schema.schema_str))(encoded)
    assert read is not None
    assert faults == [None, None]
    assert read.to_pylist() == rows.to_pylist()
    # What is registered is used again.
    assert written(registry, "all-types", rows).schema.number == values.schema.number


def test_times_of_all_years_are_written(registry: RegistryServer) -> None:
    """Python's own times end with the year 9999."""
    far = pa.array([1 << 60, -(1 << 60)])
    moments, days = far.cast(pa.timestamp("us", "UTC")), pa.array([5_000_000, -5_000_000], pa.int32()).cast(pa.date32())
    inside = pa.StructArray.from_arrays([moments, days], ["at", "on"])
    lists = pa.ListArray.from_arrays([0, 1, 2], far.cast(pa.timestamp("us")))
    rows = pa.table({"at": moments, "on": days, "inside": inside, "lists": lists})
    encoded = written(registry, "all-years", rows).encode(rows)
    there = registry.client.get_latest_version("all-years").schema
    read, faults = AvroReadings(pa.struct(list(rows.schema)), None, "value")(FoundSchema("AVRO", there.schema_str))(
        encoded
    )
    assert faults == [None, None]
    assert pa.Table.from_struct_array(read).equals(rows)


def test_of_a_time_in_milliseconds_within_another_type_no_unit_is_lost(registry: RegistryServer) -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": millis}]}
    registry.register("inner-millis", record({"name": "a", "type": inner}, {"name": "b", "type": "Inner"}))
    at = pa.array([5_000]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({name: pa.StructArray.from_arrays([at], ["at"]) for name in "ab"})
    assert written(registry, "inner-millis", rows, schema=1).encode(rows)[0][5:] == b"\x0a\x0a"


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Out", "fields": list(fields)})


def test_a_subjects_schema_says_which_columns_are_written(registry: RegistryServer) -> None:
    first = registry.register("chosen", record({"name": "id", "type": "long"}))
    more = {"name": "note", "type": ["null", "string"], "default": None}
    second = registry.register("chosen", record({"name": "id", "type": "long"}, more))
    rows = pa.table({"id": pa.array([5, None], pa.int32()), "amount": [1.0, 2.0]})
    newest = written(registry, "chosen", rows)
    assert (newest.schema.number, newest.schema.columns.names) == (second, ["id"])
    assert newest.encode(rows.slice(0, 1)) == [b"\0" + second.to_bytes(4, "big") + b"\x0a\0"]
    assert written(registry, "chosen", rows, schema=1).schema.number == first
    with pytest.raises(cj.QueryFailedError, match=r"a row can't be written with schema \d+ of subject 'chosen'"):
        newest.encode(rows)
    with pytest.raises(cj.ConfigurationError, match="subject 'chosen' has no version 9; it has 1, 2"):
        written(registry, "chosen", rows, schema=9)
    with pytest.raises(cj.SchemaError, match="takes bigint, and the output's column is string; cast"):
        written(registry, "chosen", pa.table({"id": ["a"]}))
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default, and the output no such column"):
        written(registry, "chosen", pa.table({"it": [1]}))
    registry.register("a-text", '"string"')
    with pytest.raises(cj.SchemaError, match="expected an Avro record"):
        written(registry, "a-text", rows)
