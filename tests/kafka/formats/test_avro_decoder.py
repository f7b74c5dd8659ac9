"""Avro decoded by columns equals what fastavro itself makes of each record."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import re
import tracemalloc
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
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.encoded import avro_record, framed
from tests.seeds import SEED


def found(*fields: tuple[str, Any], **more: Any) -> RegisteredSchema:
    schema = {"type": "record", "name": "shop.T", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    return RegisteredSchema("AVRO", json.dumps(schema | more))


def read(
    written: RegisteredSchema, values: list[bytes], reader: RegisteredSchema | None = None, ddl: Any = None
) -> Any:
    columns = ddl if ddl is not None else avro_columns(reader or written, "value", "input 'trades'")
    readings = pickle.loads(
        pickle.dumps(AvroReadings(columns, None if ddl is not None else reader or written, "value"))
    )
    return readings(written)([framed(7, each) for each in values])


def encoded(schema: RegisteredSchema, *rows: Any) -> list[bytes]:
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
NEWER = RegisteredSchema(
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
    newer = RegisteredSchema(
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
    newer = RegisteredSchema("AVRO", json.dumps({"type": "record", "name": "shop.T", "fields": fields}))
    rows, faults = read(older, encoded(older, *({"id": each} for each in range(3))), newer)
    assert faults == [None] * 3
    assert [each["x"] for each in rows.to_pylist()] == [value] * 3


def of_connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}


DAY, MILLIS, MICROS = logical("int", "date"), logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
NINE, TWELVE = (logical("bytes", "decimal", precision=n, scale=s) for n, s in ((9, 2), (12, 4)))


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (NINE, ["null", TWELVE], "decimal of scale 2 in the record's schema, expected decimal of scale 4"),
        ("string", NINE, "string in the record's schema, expected decimal of scale 2"),
        (NINE, "string", "decimal of scale 2 in the record's schema, expected string"),
        (MILLIS, MICROS, "timestamp-millis in the record's schema, expected timestamp-micros; give the columns as DDL"),
        (
            MILLIS,
            logical("long", "local-timestamp-millis"),
            "timestamp-millis in the record's schema, expected local-timestamp-millis",
        ),
        (DAY, MILLIS, "date in the record's schema, expected timestamp-millis"),
        (DAY, ["null", MICROS], "date in the record's schema, expected timestamp-micros"),
        ("int", MILLIS, "int in the record's schema, expected timestamp-millis"),
        (logical("int", "time-millis"), MILLIS, "time-millis in the record's schema, expected timestamp-millis"),
        (
            logical("int", "time-millis"),
            logical("long", "time-micros"),
            "time-millis in the record's schema, expected time-micros",
        ),
        (logical("int", "time-millis"), DAY, "time-millis in the record's schema, expected date"),
        *(
            (of_connect("long", one), of_connect("long", other), f"{there} in the record's schema, expected {here}")
            for one, there in (("Timestamp", "local-timestamp-millis"), ("NanoTimestamp", "local-timestamp-nanos"))
            for other, here in (("MicroTimestamp", "local-timestamp-micros"), ("MicroTime", "time-micros"))
        ),
        (
            of_connect("int", "Date"),
            of_connect("long", "Timestamp"),
            "date in the record's schema, expected local-timestamp-millis",
        ),
        (
            of_connect("long", "NanoTimestamp"),
            MICROS,
            "local-timestamp-nanos in the record's schema, expected timestamp-micros",
        ),
        (
            of_connect("string", "ZonedTimestamp"),
            of_connect("long", "Timestamp"),
            "string in the record's schema, expected long",
        ),
        (of_connect("int", "Year"), of_connect("int", "Date"), "year in the record's schema, expected date"),
    ],
)
def test_a_number_that_stands_for_something_else_is_refused(there: Any, here: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^field 'x' is {said}") as refused:
        read(found(("x", there)), [], found(("x", here)))
    ddl = avro_columns(found(("x", here)), "value", "input 'trades'")
    if str(refused.value).endswith("; give the columns as DDL"):
        read(found(("x", there)), [], ddl=ddl)


@pytest.mark.parametrize(
    ("there", "here", "value", "right"),
    [
        (of_connect("int", "Date"), DAY, 1, date(1970, 1, 2)),
        (of_connect("long", "Timestamp"), of_connect("long", "Timestamp"), 1, datetime(1970, 1, 1, 0, 0, 0, 1000)),  # noqa: DTZ001
        (of_connect("long", "NanoTimestamp"), "long", 5, 5),
        (of_connect("int", "Date"), "long", 5, 5),
        (logical("int", "time-millis"), "double", 5, 5.0),
        ("long", MILLIS, 5, EPOCH + timedelta(milliseconds=5)),
        (logical("string", "uuid"), "string", "a", "a"),
        (NINE, "bytes", b"\1", b"\1"),
        # A logical type that its type can't have is left out.
        (logical("int", "timestamp-millis"), logical("long", "date"), 5, 5),
    ],
)
def test_a_number_stands_for_itself_where_a_schema_does_not_say(there: Any, here: Any, value: Any, right: Any) -> None:
    plain = found(("x", there["type"] if isinstance(there, dict) else there))
    rows, faults = read(found(("x", there)), encoded(plain, {"x": value}), found(("x", here)))
    assert (rows.to_pylist(), faults) == ([{"x": right}], [None])


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
    with pytest.raises(ValueError, match=r"field 'order_id' changes from bigint to string"):
        read(ORDER, [], ddl=pa.struct([("order_id", pa.string())]))


def test_a_value_that_is_no_record_is_one_column() -> None:
    schema = RegisteredSchema("AVRO", '["null", {"type": "long", "logicalType": "timestamp-millis"}]')
    rows, _ = read(schema, [b"\2\2", b"\0"])
    assert rows.to_pylist() == [{"value": datetime(1970, 1, 1, 0, 0, 0, 1_000, timezone.utc)}, {"value": None}]


def test_types_of_references_are_known() -> None:
    inner = {"type": "record", "name": "shop.R", "fields": [{"name": "x", "type": "int"}]}
    schema = RegisteredSchema(
        "AVRO", found(("r", "shop.R"), ("s", ["null", "shop.R"])).text, (("R", json.dumps(inner)),)
    )
    rows, faults = read(schema, [b"\2\0", b"\2\2\4"])
    assert faults == [None, None]
    assert rows.to_pylist() == [{"r": {"x": 1}, "s": None}, {"r": {"x": 1}, "s": {"x": 2}}]


def test_a_value_that_its_column_can_not_hold_is_a_fault() -> None:
    schema = found(("small", "int"), ("price", logical("bytes", "decimal", precision=3, scale=1)))
    values = [b"\2\2\5", b"\x80\x80\x80\x80\x80\x01\2\5", b"\2\6\x7f\xff\xff"]
    rows, faults = read(schema, values)
    assert rows.to_pylist() == [{"small": 1, "price": Decimal("0.5")}, None, None]
    assert [each is None for each in faults] == [True, False, False]
    assert faults[1] == "field 'small': an int has more than 32 bits: 17179869184"
    assert str(faults[2]).startswith("field 'price': ArrowInvalid: ")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (found(("next", ["null", "shop.T"])), "contains itself"),
        (found(("price", logical("bytes", "decimal", precision=50, scale=40))), "40 digits after its point"),
        (RegisteredSchema("AVRO", '"shop.Absent"'), "shop.Absent"),
        (RegisteredSchema("AVRO", "{"), "does not parse"),
        (RegisteredSchema("AVRO", '{"type": "record", "name": "T"}'), "has no field"),
    ],
)
def test_schemas_without_columns_are_refused(schema: RegisteredSchema, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        avro_columns(schema, "value", "input 'trades'")


A = {"type": "record", "name": "shop.A", "fields": [{"name": "x", "type": "int"}]}
B = {"type": "record", "name": "shop.B", "fields": [{"name": "a", "type": "shop.A"}, {"name": "s", "type": "string"}]}
REFERENCES = (("A", json.dumps(A)), ("B", json.dumps(B)))


@pytest.mark.parametrize(
    ("schema", "values", "rows"),
    [
        # Several event types in a topic: a union of the references alone.
        (
            ["shop.A", "shop.B"],
            [b"\0\6", b"\2\10\2y"],
            [
                {"member0": {"x": 3}, "member1": None},
                {"member0": None, "member1": {"a": {"x": 4}, "s": "y"}},
            ],
        ),
        ("shop.A", [b"\6"], [{"x": 3}]),
        ({"type": "shop.B"}, [b"\10\2y"], [{"a": {"x": 4}, "s": "y"}]),
        (["null", "shop.A"], [b"\0", b"\2\6"], [{"x": None}, {"x": 3}]),
        ({"type": "array", "items": "shop.A"}, [b"\4\6\10\0"], [{"value": [{"x": 3}, {"x": 4}]}]),
        ({"type": "map", "values": "shop.A"}, [b"\2\2k\6\0"], [{"value": [("k", {"x": 3})]}]),
    ],
)
def test_a_schema_may_be_of_references_alone(schema: Any, values: list[bytes], rows: list[Any]) -> None:
    decoded, faults = read(RegisteredSchema("AVRO", json.dumps(schema), REFERENCES), values)
    assert faults == [None] * len(values)
    found = decoded.to_pylist()
    assert [each or dict.fromkeys(rows[0]) for each in found] == rows


def test_of_a_unions_types_with_one_short_name_the_full_name_decides() -> None:
    def created(space: str, *names: str) -> dict[str, Any]:
        fields = [{"name": name, "type": "long"} for name in names]
        return {"type": "record", "name": "Created", "namespace": space, "fields": fields}

    schema = found(("event", ["null", created("orders", "id"), created("payments", "id", "sum")]))
    rows, faults = read(schema, [b"\4\4\12", b"\2\6"])
    assert faults == [None, None]
    assert rows.to_pylist() == [
        {"event": {"member0": None, "member1": {"id": 2, "sum": 5}}},
        {"event": {"member0": {"id": 3}, "member1": None}},
    ]


@pytest.mark.parametrize(
    "schema",
    [
        logical("bytes", "decimal"),
        logical("bytes", "decimal", precision=0),
        logical("bytes", "decimal", precision=4, scale=-2),
        logical("bytes", "decimal", precision=4, scale=5),
        logical("bytes", "decimal", precision="9", scale=2),
        logical("bytes", "decimal", precision=9, scale="2"),
        logical("bytes", "decimal", precision=True),
        logical("bytes", "uuid"),
        logical("bytes", "no such type"),
        {"type": "fixed", "name": "Two", "size": 2, "logicalType": "decimal", "precision": 5, "scale": 2},
        {"type": "fixed", "name": "Two", "size": 2, "logicalType": "uuid"},
        {"type": "fixed", "name": "Two", "size": 2, "logicalType": "duration"},
    ],
)
def test_a_logical_type_that_is_not_valid_is_left_out(schema: dict[str, Any]) -> None:
    value = b"\1\2" if schema["type"] == "fixed" else b"\4\1\2"
    rows, faults = read(found(("x", schema), ("y", "int")), [value + b"\6"])
    assert (rows.to_pylist(), faults) == ([{"x": b"\1\2", "y": 3}], [None])


@pytest.mark.parametrize("kind", ["int", "string", "boolean"])
def test_a_decimal_of_another_type_is_that_type(kind: str) -> None:
    rows, faults = read(found(("x", logical(kind, "decimal", precision=4))), [b"\0"])
    assert (rows.to_pylist(), faults) == ([{"x": {"int": 0, "string": "", "boolean": False}[kind]}], [None])


def test_a_decimal_without_known_digits_has_38_or_those_that_are_named() -> None:
    schema = found(("price", logical("bytes", "decimal", precision=64, scale=2)))
    rows, faults = read(schema, [b"\4\xfb\x2e", b"\x22\x7f" + bytes(16), b"\0"])
    assert rows.type.field("price").type == pa.decimal128(38, 2)
    assert rows.to_pylist() == [{"price": Decimal("-12.34")}, None, {"price": Decimal("0.00")}]
    assert [each is None for each in faults] == [True, False, True]
    rows, faults = read(schema, [b"\4\xfb\x2e", b"\6\1\0\0"], ddl=pa.struct([("price", pa.decimal128(5, 3))]))
    assert rows.to_pylist() == [{"price": Decimal("-12.340")}, None]
    assert faults[1] is not None


ODD = found(
    ("next", ["null", "shop.T"]),
    ("either", ["int", "long", {"type": "array", "items": "null"}, "string"]),
    ("nothing", {"type": "record", "name": "Nothing", "fields": []}),
    ("tree", {"type": "map", "values": {"type": "array", "items": ["null", "shop.T"]}}),
    ("huge", logical("bytes", "decimal", precision=60, scale=50)),
    ("wanted", {"type": "record", "name": "W", "fields": [{"name": "self", "type": ["null", "W"]}, *R["fields"]]}),
    ("id", "long"),
)


def test_what_no_named_column_needs_may_be_of_any_type() -> None:
    leaf = {
        "next": None,
        "either": "x",
        "nothing": {},
        "tree": {},
        "huge": Decimal(7),
        "wanted": {"self": None, "x": 1},
    }
    leaf |= {"id": 1}
    wanted = {"self": ("shop.W", {"self": None, "x": 2.0}), "x": 3.0}
    row = leaf | {"next": ("shop.T", leaf), "either": 1 << 40, "tree": {"a": [None, ("shop.T", leaf)]}}
    row |= {"wanted": wanted, "id": 5}
    columns = pa.struct([("id", pa.int64()), ("wanted", pa.struct([("x", pa.float64()), ("no", pa.string())]))])
    rows, faults = read(ODD, encoded(ODD, row), ddl=columns)
    assert (rows.to_pylist(), faults) == ([{"id": 5, "wanted": {"x": 3.0, "no": None}}], [None])
    with pytest.raises(ValueError, match=r"field 'next' of shop.T is the record shop.T in the schema, expected string"):
        read(ODD, [], ddl=pa.struct([("next", pa.string())]))


def test_a_record_that_is_nested_without_end_is_a_fault() -> None:
    schema = found(("next", ["null", "shop.T"]), ("id", "int"))
    rows, faults = read(schema, [b"\2" * 1_000_000, b"\2\0\4\2"], ddl=pa.struct([("id", pa.int32())]))
    assert rows.to_pylist() == [None, {"id": 1}]
    assert faults == ["it is nested too deep", None]


def test_each_union_has_columns() -> None:
    schema = found(("either", ["int", "null", "long", "string", FOUR, {"type": "array", "items": "int"}]))
    values = [b"\0\2", b"\2", b"\4\2", b"\6\2x", b"\10abcd", b"\12\2\2\0"]
    rows, faults = read(schema, values)
    assert faults == [None] * 6
    found_values = [each["either"] for each in rows.to_pylist()]
    nothing = dict.fromkeys(f"member{at}" for at in range(5))
    members = [(0, 1), None, (1, 1), (2, "x"), (3, b"abcd"), (4, [1])]
    assert found_values == [each and nothing | {f"member{each[0]}": each[1]} for each in members]


def test_a_record_of_another_schema_is_told_in_a_line() -> None:
    fields = [(f"field_{at}", ["null", "string"]) for at in range(300)]
    other = RegisteredSchema("AVRO", found(*fields).text.replace("shop.T", "shop.Other"))
    with pytest.raises(
        ValueError, match=r"the value is the record shop.Other in the record's schema, expected the record shop.T"
    ) as told:
        read(other, [], found(*fields))
    assert len(str(told.value)) < 100
    nested = found(*fields, ("address", {**ADDRESS, "fields": [{"name": "city", "type": "int"}]}))
    with pytest.raises(ValueError, match=r"^field 'city' is int in the record's schema, expected string$"):
        read(nested, [], found(*fields, ("address", ADDRESS)))
    missing = r"^field 'address' is missing in the record's schema, and has no default in the reader's$"
    with pytest.raises(ValueError, match=missing):
        read(found(*fields), [], found(*fields, ("address", ADDRESS)))
    # Of a union only the records that have the member are faults.
    rows, faults = read(found(("x", ["null", "string", "int"])), [b"\4\6", b"\2\2y"], found(("x", ["null", "int"])))
    assert rows.to_pylist() == [{"x": 3}, None]
    assert faults == [None, "field 'x': field 'x' is string in the record's schema, expected null or int"]


LONG = b"\xff" * 9
DAMAGED = [
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, [b"\1", b"\3", b"\4", LONG + b"\1"], "index of an enum"),
    (["null", "int"], [b"\1\0", b"\3\0", b"\4\0", LONG + b"\1"], "index of a union"),
    ("string", [b"\1", b"\3ab", b"\2", b"\xfe" + LONG[1:] + b"\1"], "a length is"),
    ("string", [b"\4\xff\xff"], "not UTF-8"),
    ("bytes", [b"\1", b"\3ab", b"\2", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"], "a length is"),
    ("boolean", [b"\2", b"\xff"], "a boolean is"),
    ("int", [b"\xfe\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x10"], "more than 32 bits"),
    ("long", [LONG + b"\2", LONG + b"\x7f", b"\x80" * 10 + b"\1"], "more than 64 bits"),
    ("long", [b"", b"\x80", LONG], "bytes end within it"),
    ("double", [b"abc"], "bytes end within it"),
    (FOUR, [b"abc"], "bytes end within it"),
    ({"type": "array", "items": "int"}, [b"\2", b"\4\0", LONG + b"\0", b"\xfe" + LONG[1:] + b"\1"], "bytes end"),
    ({"type": "array", "items": "int"}, [b"\1\1\0\0", b"\1\x7e\0\0"], "the size of a block"),
    ({"type": "array", "items": "null"}, [b"\xfe\xff\xff\xff\xff\1\0", LONG[:8] + b"\1\2\0"], "take no bytes"),
    ({"type": "map", "values": "null"}, [b"\xfe\xff\xff\xff\xff\1\0", b"\2\2"], "bytes end|a length is"),
    ("null", [b"\0"], "its bytes end at 6, and its fields at 5"),
]


@pytest.mark.parametrize(("schema", "values", "said"), DAMAGED)
def test_damaged_bytes_are_never_values(schema: Any, values: list[bytes], said: str) -> None:
    whole = found(("x", schema))
    rows, faults = read(whole, values)
    assert rows.null_count == len(values)
    for fault in faults:
        assert re.search(said, fault), fault
    # Nor where nobody wants the field.
    assert read(whole, values, ddl=pa.struct([("y", pa.int32())]))[0].null_count == len(values)


def test_arrays_of_arrays_of_nothing_hold_a_bounded_number() -> None:
    schema = found(("x", {"type": "array", "items": {"type": "array", "items": "null"}}))
    inner = b"\xc0\x0c\0"  # 800 nulls in three bytes
    one, many = b"\2" + inner + b"\0", b"\xd0\x0f" + 1_000 * inner + b"\0"
    rows, faults = read(schema, [one, many, one])
    assert [fault is None for fault in faults] == [True, False, True]
    assert len(rows[0]["x"].as_py()[0]) == 800
    # A value for each byte is not more than other records have.
    rows, faults = read(schema, [b"\x80\2" + 128 * b"\x12\0" + b"\0"])
    assert (rows.to_pylist(), faults) == ([{"x": [[None] * 9] * 128}], [None])


def nothing(name: str, *kinds: Any) -> dict[str, Any]:
    fields = [{"name": f"n{at}", "type": kind} for at, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


NOTHING = [
    nothing("N", *["null"] * 100),
    nothing("N", *[nothing(f"I{at}", *["null"] * 10) for at in range(10)]),
    nothing("N", *[{"type": "fixed", "name": f"F{at}", "size": 0} for at in range(100)]),
]


@pytest.mark.parametrize("item", NOTHING)
def test_records_of_nothing_take_no_more_memory_than_their_bytes_allow(item: Any) -> None:
    schema = found(("x", {"type": "array", "items": item}), ("y", {"type": "array", "items": "N"}), ("z", "long"))
    few, many = b"\4\0", b"\xc0\x9a\x0c\0"  # 2 and 100,000 items
    values = [each + other + b"\6" for each in (few, many) for other in (few, many)]
    tracemalloc.start()
    rows, faults = read(schema, [*values, *[values[-1]] * 1_000])
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    assert [fault is None for fault in faults] == [True] + [False] * 1_003
    assert "values that take no bytes, in a record of " in str(faults[1])
    assert [len(rows[0][name].as_py()) for name in "xy"] == [2, 2]
    assert rows[0]["z"].as_py() == 3


def test_a_default_of_each_record_of_nothing_counts() -> None:
    older = found(("x", {"type": "array", "items": {"type": "record", "name": "N", "fields": []}}))
    fields = [{"name": f"d{at}", "type": "string", "default": "a" * 100} for at in range(50)]
    newer = found(("x", {"type": "array", "items": {"type": "record", "name": "N", "fields": fields}}))
    rows, faults = read(older, [b"\x14\0", b"\x90\3\0"], newer)  # 10 and 200 items
    assert [fault is None for fault in faults] == [True, False]
    assert rows[0]["x"].as_py() == [{f"d{at}": "a" * 100 for at in range(50)}] * 10


def test_types_that_name_others_twice_take_no_time() -> None:
    deep: Any = nothing("N0", "null")
    for at in range(1, 60):
        deep = nothing(f"N{at}", deep, f"N{at - 1}")
    tail: Any = nothing("T0", "long")
    for at in range(1, 12):
        tail = nothing(f"T{at}", ["null", tail], ["null", f"T{at - 1}"], ["null", f"T{at}"])
    schema = found(
        ("x", deep), ("y", {"type": "array", "items": "N59"}), ("t", {"type": "array", "items": tail}), ("z", "int")
    )
    rows, faults = read(schema, [b"\4\0\2\0\0\0\0\6"], ddl=pa.struct([("z", pa.int32())]))
    assert (rows.to_pylist(), faults) == ([{"z": 3}], [None])


PLAIN = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}


class Drawn:
    """Draws schemas, their later versions, and values of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.count = rng, 0

    def kind(self, depth: int) -> Any:  # noqa: PLR0911 - one for each kind
        rng = self.rng
        how = rng.random()
        if depth == 0 or how < 0.5:
            return rng.choice(PLAIN)
        if how < 0.6:
            return {"type": "array", "items": self.kind(depth - 1)}
        if how < 0.7:
            return {"type": "map", "values": self.kind(depth - 1)}
        self.count += 1
        if how < 0.75:
            return {"type": "enum", "name": f"E{self.count}", "symbols": ["A", "B", "C"][: rng.randrange(1, 4)]}
        if how < 0.8:
            return {"type": "fixed", "name": f"F{self.count}", "size": rng.randrange(1, 4)}
        if how < 0.9:
            inner = self.kind(depth - 1)
            return ["null", inner] if not isinstance(inner, list) and inner != "null" else inner
        return self.record(depth - 1)

    def record(self, depth: int) -> Any:
        self.count += 1
        name = f"R{self.count}"
        fields = [{"name": f"f{at}", "type": self.kind(depth)} for at in range(self.rng.randrange(1, 5))]
        return {"type": "record", "name": name, "fields": fields}

    def later(self, kind: Any) -> Any:
        """Return a later version of a type."""
        rng = self.rng
        if isinstance(kind, str):
            wider = WIDER.get(kind, [])
            found = rng.choice(wider) if wider and rng.random() < 0.4 else kind
            return ["null", found] if found != "null" and rng.random() < 0.2 else found
        if isinstance(kind, list):
            members = [each if each == "null" else self.later(each) for each in kind]
            return kind if any(isinstance(each, list) for each in members) else members
        found = copy.deepcopy(kind)
        for part in ("items", "values"):
            if part in kind:
                found[part] = self.later(kind[part])
        if kind["type"] == "enum" and rng.random() < 0.5:
            found["symbols"] = [*found["symbols"][1:], "D"]
            found["default"] = "D"
        if kind["type"] == "record":
            fields = [{**each, "type": self.later(each["type"])} for each in kind["fields"] if rng.random() < 0.8]
            for each in fields:
                if rng.random() < 0.2:
                    each |= {"name": f"{each['name']}x", "aliases": [each["name"]]}
            if not fields or rng.random() < 0.5:
                new, default = rng.choice(
                    [("long", 7), (["null", "string"], None), ("string", "é"), (["double", "null"], 0.5)]
                )
                fields.append({"name": f"new{rng.randrange(1_000_000)}", "type": new, "default": default})
            rng.shuffle(fields)
            found["fields"] = fields
        return found

    def value(self, kind: Any) -> Any:  # noqa: PLR0911 - one for each kind
        rng = self.rng
        if isinstance(kind, list):
            member = rng.choice(kind)
            return self.value(member)
        plain = {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.randrange(-1_000, 1_000),
            "long": lambda: rng.randrange(-(1 << 50), 1 << 50),
            "float": lambda: rng.randrange(-100, 100) / 4,
            "double": lambda: rng.randrange(-100, 100) / 4,
            "string": lambda: "".join(rng.choices("aß€", k=rng.randrange(4))),
            "bytes": lambda: rng.randbytes(rng.randrange(4)),
        }
        if isinstance(kind, str):
            return plain[kind]()
        what = kind["type"]
        if what == "array":
            return [self.value(kind["items"]) for _ in range(rng.randrange(4))]
        if what == "map":
            return {f"k{at}": self.value(kind["values"]) for at in range(rng.randrange(3))}
        if what == "enum":
            return rng.choice(kind["symbols"])
        if what == "fixed":
            return rng.randbytes(kind["size"])
        return {each["name"]: self.value(each["type"]) for each in kind["fields"]}


def by_fastavro(value: bytes, writer: Any, reader: Any) -> Any:
    schemas = (fastavro.parse_schema(copy.deepcopy(each)) for each in (writer, reader))
    return fastavro.schemaless_reader(io.BytesIO(value), *schemas)


def as_read(value: Any, dtype: pa.DataType) -> Any:
    """Return a value of fastavro's in a column's type: it leaves numbers as they were written."""
    if value is None:
        return None
    if pa.types.is_struct(dtype):
        return {field.name: as_read(value[field.name], field.type) for field in dtype}
    if pa.types.is_list(dtype):
        return [as_read(each, dtype.value_type) for each in value]
    if pa.types.is_map(dtype):
        return [(name, as_read(each, dtype.item_type)) for name, each in value.items()]
    if pa.types.is_floating(dtype):
        return pa.scalar(float(value), dtype).as_py()
    return value.encode() if pa.types.is_binary(dtype) and isinstance(value, str) else value


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_oracle_fastavro_of_random_schemas(count: int) -> None:
    drawn = Drawn(random.Random(f"{SEED} resolution"))
    compared = 0
    for _ in range(count):
        writer = drawn.record(3)
        reader = drawn.later(writer) if drawn.rng.random() < 0.8 else writer
        rows = [drawn.value(writer) for _ in range(3)]
        values = [avro_record(fastavro.parse_schema(copy.deepcopy(writer)), row) for row in rows]
        there, here = (RegisteredSchema("AVRO", json.dumps(each)) for each in (writer, reader))
        columns = avro_columns(here, "value", "input 't'")
        found, faults = AvroReadings(columns, here, "value")(there)([framed(7, each) for each in values])
        assert faults == [None] * 3, (writer, reader)
        assert found is not None
        expected = [as_read(by_fastavro(each, writer, reader), columns) for each in values]
        assert found.to_pylist() == expected, (writer, reader)
        compared += writer != reader
    assert compared > count / 2
