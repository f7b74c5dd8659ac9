"""Avro decoded by columns equals what fastavro itself makes of each record."""

from __future__ import annotations

import io
import json
import pickle
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.avro_decoder import AvroReadings, avro_columns
from cojoin.kafka.formats.schema_lookup import FoundSchema
from tests.kafka.formats.encoded import avro_record, framed


def found(*fields: tuple[str, Any], **more: Any) -> FoundSchema:
    schema = {"type": "record", "name": "shop.T", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    return FoundSchema("AVRO", json.dumps(schema | more))


def read(written: FoundSchema, values: list[bytes], reader: FoundSchema | None = None, ddl: Any = None) -> Any:
    columns = ddl if ddl is not None else avro_columns(reader or written, "value", "input 'trades'")
    readings = pickle.loads(
        pickle.dumps(AvroReadings(columns, None if ddl is not None else reader or written, "value"))
    )
    return readings(written)([framed(7, each) for each in values])


def encoded(schema: FoundSchema, *rows: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema.text))
    return [avro_record(parsed, row) for row in rows]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


R = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "float"}]}
EACH_TYPE = found(
    ("flag", "boolean"),
    ("small", "int"),
    ("large", ["null", "long"]),
    ("single", "float"),
    ("double", "double"),
    ("text", "string"),
    ("raw", "bytes"),
    ("four", {"type": "fixed", "name": "Four", "size": 4}),
    ("tier", ["null", {"type": "enum", "name": "Tier", "symbols": ["BASIC", "GOLD"]}]),
    ("price", logical("bytes", "decimal", precision=9, scale=2)),
    ("day", logical("int", "date")),
    ("ms", logical("long", "timestamp-millis")),
    ("us", ["null", logical("long", "timestamp-micros")]),
    ("local", logical("long", "local-timestamp-micros")),
    ("at", logical("int", "time-millis")),
    ("id", logical("string", "uuid")),
    ("rows", {"type": "array", "items": ["null", R]}),
    ("named", {"type": "map", "values": "R"}),
    ("either", ["null", "string", "long", "R"]),
    ("wide", ["int", "long"]),
)
ROW = {
    "flag": True,
    "small": -5,
    "large": None,
    "single": 1.5,
    "double": 0.1,
    "text": "ä",
    "raw": b"\xff",
    "four": b"abcd",
    "tier": "GOLD",
    "price": Decimal("-12.34"),
    "day": date(1969, 12, 31),
    "ms": datetime(1969, 12, 31, 23, 59, 59, 999_000, timezone.utc),
    "us": datetime(2026, 1, 5, 0, 0, 0, 7, timezone.utc),
    "local": datetime(2026, 1, 5),  # noqa: DTZ001 - a local time
    "at": 7,
    "id": str(UUID(int=5)),
    "rows": [{"x": 1.0}, None],
    "named": {"b": {"x": 2.0}},
    "either": {"x": 4.0},
    "wide": 1 << 40,
}


def test_each_type_has_its_column() -> None:
    parsed = fastavro.parse_schema(json.loads(EACH_TYPE.text))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, ROW | {"at": 7, "either": ("shop.R", {"x": 4.0})})
    rows, faults = read(EACH_TYPE, [stream.getvalue()])
    assert faults == [None]
    expected = ROW | {"named": [("b", {"x": 2.0})], "either": {"member0": None, "member1": None, "member2": {"x": 4.0}}}
    assert rows.to_pylist() == [expected]
    assert schema_to_ddl(pa.schema(list(rows.type))) == (
        "flag boolean, small int, large bigint, single float, double double, text string, raw binary, four binary, "
        "tier string, price decimal(9,2), day date, ms timestamp, us timestamp, local timestamp_ntz, at int, "
        "id string, rows array<struct<x:float>>, named map<string,struct<x:float>>, "
        "either struct<member0:string,member1:bigint,member2:struct<x:float>>, wide bigint"
    )


ORDER = found(
    ("order_id", "long"), ("at", logical("long", "timestamp-micros")), ("notes", {"type": "array", "items": "string"})
)
NEWER = FoundSchema(
    "AVRO",
    json.dumps(
        {
            "type": "record",
            "name": "shop.T",
            "fields": [
                {"name": "source", "type": "string", "default": "shop"},
                {"name": "at", "type": logical("long", "timestamp-micros")},
                {"name": "order_id", "type": "double"},
            ],
        }
    ),
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MOMENTS = st.integers(-(1 << 50), 1 << 52).map(lambda each: EPOCH + timedelta(microseconds=each))
ORDERS = st.fixed_dictionaries(
    {"order_id": st.integers(-(1 << 50), 1 << 50), "at": MOMENTS, "notes": st.lists(st.text(max_size=5), max_size=3)}
)


@given(rows=st.lists(ORDERS, min_size=1, max_size=20), evolves=st.booleans())
def test_oracle_fastavro_with_its_own_resolution(rows: list[dict[str, Any]], evolves: bool) -> None:
    values, reader = encoded(ORDER, *rows), NEWER if evolves else ORDER
    schemas = [fastavro.parse_schema(json.loads(each.text)) for each in (ORDER, reader)]
    decoded, faults = read(ORDER, values, reader)
    assert faults == [None] * len(rows)
    assert decoded.to_pylist() == [fastavro.schemaless_reader(io.BytesIO(each), *schemas) for each in values]


STATUS = {"type": "enum", "name": "Status", "symbols": ["ACTIVE", "CLOSED"]}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
ROME = {"city": "Rome"}
FOUR = {"type": "fixed", "name": "Four", "size": 4}


@pytest.mark.parametrize(
    ("there", "here", "value"),
    [
        (STATUS, ["null", STATUS], "ACTIVE"),
        (["null", STATUS], STATUS, "ACTIVE"),
        (ADDRESS, ["null", ADDRESS], ROME),
        (["null", ADDRESS], ADDRESS, ROME),
        (FOUR, ["null", FOUR], b"abcd"),
        ({"type": "array", "items": STATUS}, {"type": "array", "items": ["null", STATUS]}, ["ACTIVE", "CLOSED"]),
    ],
)
def test_a_type_that_becomes_nullable_or_no_longer_is_keeps_its_values(there: Any, here: Any, value: Any) -> None:
    rows, faults = read(found(("x", there)), encoded(found(("x", there)), {"x": value}), found(("x", here)))
    assert (rows.to_pylist(), faults) == ([{"x": value}], [None])


def test_a_type_may_be_spelled_out_in_another_place() -> None:
    newer = FoundSchema(
        "AVRO",
        json.dumps(
            {
                "type": "record",
                "name": "shop.T",
                "fields": [
                    {"name": "billing", "type": ["null", ADDRESS], "default": None},
                    {"name": "home", "type": ["null", "Address"]},
                ],
            }
        ),
    )
    older = found(("home", ["null", ADDRESS]))
    rows, faults = read(older, encoded(older, {"home": ("shop.Address", ROME)}), newer)
    assert (rows.to_pylist(), faults) == ([{"billing": None, "home": ROME}], [None])


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        ({"type": "fixed", "name": "Two", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        (logical("bytes", "decimal", precision=9, scale=2), "\u0007", Decimal("0.07")),
        ([STATUS, "null"], "CLOSED", "CLOSED"),
        (
            {"type": "record", "name": "M", "fields": [{"name": "at", "type": logical("long", "timestamp-millis")}]},
            {"at": 1000},
            {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)},
        ),
    ],
)
def test_a_default_is_the_same_for_each_record(kind: Any, default: Any, value: Any) -> None:
    older = found(("id", "long"))
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": kind, "default": default}]
    newer = FoundSchema("AVRO", json.dumps({"type": "record", "name": "shop.T", "fields": fields}))
    rows, faults = read(older, encoded(older, *({"id": each} for each in range(3))), newer)
    assert faults == [None] * 3
    assert [each["x"] for each in rows.to_pylist()] == [value] * 3


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (
            logical("bytes", "decimal", precision=9, scale=2),
            ["null", logical("bytes", "decimal", precision=12, scale=4)],
            r"field 'x' is decimal\(9,2\) there and decimal\(12,4\) here",
        ),
        (
            logical("long", "timestamp-millis"),
            logical("long", "timestamp-micros"),
            "field 'x' is timestamp-millis there and timestamp-micros here; give the columns as DDL",
        ),
    ],
)
def test_a_number_of_another_scale_or_unit_is_refused(there: Any, here: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(found(("x", there)), [], found(("x", here)))


@given(rows=st.lists(ORDERS, min_size=2, max_size=8), data=st.data())
def test_wrong_bytes_are_faults_of_their_records_alone(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    values = encoded(ORDER, *rows)
    wrong = data.draw(st.integers(0, len(rows) - 1))
    cut = data.draw(st.integers(0, len(values[wrong]) - 1))
    spoiled = [*values]
    spoiled[wrong] = values[wrong][:cut] if data.draw(st.booleans()) else values[wrong] + b"\0"
    decoded, faults = read(ORDER, spoiled)
    assert [at for at, fault in enumerate(faults) if fault is not None] == [wrong]
    assert decoded.to_pylist() == [
        None if at == wrong else each for at, each in enumerate(read(ORDER, values)[0].to_pylist())
    ]


def test_columns_of_the_user_are_found_by_name() -> None:
    wanted = pa.struct([("notes", pa.list_(pa.string())), ("missing", pa.date32()), ("order_id", pa.int64())])
    rows, _ = read(ORDER, encoded(ORDER, {"order_id": 5, "at": 7, "notes": ["a"]}), ddl=wanted)
    assert rows.to_pylist() == [{"notes": ["a"], "missing": None, "order_id": 5}]
    with pytest.raises(ValueError, match="field 'order_id' is bigint there and string here"):
        read(ORDER, [], ddl=pa.struct([("order_id", pa.string())]))


def test_a_value_that_is_no_record_is_one_column() -> None:
    schema = FoundSchema("AVRO", '["null", {"type": "long", "logicalType": "timestamp-millis"}]')
    rows, _ = read(schema, [b"\2\2", b"\0"])
    assert rows.to_pylist() == [{"value": datetime(1970, 1, 1, 0, 0, 0, 1_000, timezone.utc)}, {"value": None}]


def test_types_of_references_are_known() -> None:
    inner = {"type": "record", "name": "shop.R", "fields": [{"name": "x", "type": "int"}]}
    schema = FoundSchema("AVRO", found(("r", "shop.R"), ("s", ["null", "shop.R"])).text, (("R", json.dumps(inner)),))
    rows, faults = read(schema, [b"\2\0", b"\2\2\4"])
    assert faults == [None, None]
    assert rows.to_pylist() == [{"r": {"x": 1}, "s": None}, {"r": {"x": 1}, "s": {"x": 2}}]


def test_a_value_that_its_column_can_not_hold_is_a_fault() -> None:
    schema = found(("small", "int"), ("price", logical("bytes", "decimal", precision=3, scale=1)))
    values = [b"\2\2\5", b"\x80\x80\x80\x80\x80\x01\2\5", b"\2\6\x7f\xff\xff"]
    rows, faults = read(schema, values)
    assert rows.to_pylist() == [{"small": 1, "price": Decimal("0.5")}, None, None]
    assert [each is None for each in faults] == [True, False, False]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (found(("next", ["null", "shop.T"])), "contains itself"),
        (found(("price", logical("bytes", "decimal", precision=40, scale=2))), "40 digits"),
        (found(("either", ["int", "long", "string"])), "a union of int and long and string has no columns"),
        (FoundSchema("AVRO", "{"), "does not parse"),
        (FoundSchema("AVRO", '{"type": "record", "name": "T"}'), "has no field"),
    ],
)
def test_schemas_without_columns_are_refused(schema: FoundSchema, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        avro_columns(schema, "value", "input 'trades'")
