"""Debezium's events as rows: values that only their schema explains, and those that the database's log did not hold."""

from __future__ import annotations

import json
import random
import re
import uuid
from base64 import b64decode, b64encode
from datetime import date, datetime, timezone
from decimal import ROUND_HALF_UP, Decimal
from hashlib import md5
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema

import cojoin as cj
from cojoin.engine.row_changes import EARLIEST
from cojoin.engine.time.control_rows import UNAVAILABLE
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.debezium import ChangeReading, DebeziumJson
from cojoin.kafka.formats.record_formats import avro, debezium, json_schema, resolve
from cojoin.kafka.formats.record_formats import json as json_format
from cojoin.kafka.record_columns import RecordDescription
from cojoin.kafka.records import FAULT, VALUE, decode_parts
from cojoin.kafka.topics import Topics
from cojoin.session.arrow_types import spark_schema
from tests.kafka.formats.encoded import framed
from tests.kafka.formats.test_avro_fuzz import spoilt
from tests.kafka.formats.test_wire_format import GuidRegistry
from tests.kafka.formats.written_values import DEBEZIUM, ENVELOPE
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

HIDDEN = "__debezium_unavailable_value"
IN_BASE64 = b64encode(HIDDEN.encode()).decode()
BY_ID = ChangeReading(("id",))
DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"


@pytest.fixture(scope="module")
def guids() -> Iterator[GuidRegistry]:
    made = GuidRegistry()
    yield made
    made.close()


def rows(
    spark: SparkSession, value: Any, values: Sequence[bytes | None], reading: ChangeReading = BY_ID
) -> list[dict[str, Any]]:
    """Return what becomes of values, in their order: rows, faults and notes."""
    found = decoded(spark, value, values, reading).collect()
    return sorted((each.asDict(recursive=True) for each in found), key=lambda each: each["offset"])


def decoded(
    spark: SparkSession, value: Any, values: Sequence[bytes | None], reading: ChangeReading = BY_ID
) -> DataFrame:
    formats = {"value": value, "key": None}
    records = RecordDescription("source kafka t", Topics(("t",)), None, {}, None, formats, {})
    form = records.record_format(keeps_tombstones=False, archive=None)
    faults: list[str | None] = [None] * len(values)
    made = {"topic": ["t"] * len(values), "partition": [0] * len(values), "offset": list(range(len(values)))}
    columns: dict[str, Any] = {**made, **({VALUE: list(values)} if VALUE in form.parts else {})}
    columns |= decode_parts(form, values, [], faults)
    columns[FAULT] = faults
    arrays = [
        each
        if isinstance(each := columns.get(field.name, [None] * len(values)), pa.Array)
        else pa.array(each, field.type)
        for field in form.schema
    ]
    frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=form.schema), spark_schema(form.schema))
    return records.rows(frame, fails_for=None, archive=None, changes=reading)


def in_micros(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in the order of their offsets, timestamps in microseconds: Python has none after the year 9999."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
    found: list[dict[str, Any]] = table.sort_by("offset").to_pylist()
    return found


def event(
    op: str, before: Any = None, after: Any = None, schema: Sequence[dict[str, Any]] | None = None, **source: Any
) -> bytes:
    payload = {"before": before, "after": after, "op": op, "source": {"ts_ms": 1_760_000_000_000, **source}}
    if schema is None:
        return json.dumps(payload).encode()
    sides = [
        {"type": "struct", "fields": list(schema), "optional": True, "field": side} for side in ("before", "after")
    ]
    return json.dumps({"schema": {"type": "struct", "fields": sides}, "payload": payload}).encode()


def base64_of(unscaled: int) -> str:
    size = (unscaled.bit_length() // 8) + 1
    return b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def decimal_field(scale: int, name: str = "x") -> dict[str, Any]:
    return {"type": "bytes", "name": DECIMAL, "parameters": {"scale": str(scale)}, "optional": True, "field": name}


def time_field(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "optional": True, "field": "x"}


LATER = datetime(2026, 1, 5, 12, 30, 15, 123_456, timezone.utc)
MICROS = int(LATER.timestamp()) * 1_000_000 + 123_456
EXPLAINED: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("decimal(10,2)", decimal_field(2), base64_of(1234), Decimal("12.34")),
    ("decimal(10,2)", decimal_field(2), base64_of(-1234), Decimal("-12.34")),
    ("decimal(10,2)", decimal_field(2), base64_of(0), Decimal("0.00")),
    ("decimal(10,2)", decimal_field(2), base64_of(-1), Decimal("-0.01")),
    ("decimal(38,10)", decimal_field(10), base64_of(10**38 - 1), Decimal("9999999999999999999999999999.9999999999")),
    ("decimal(38,0)", decimal_field(0), base64_of(-(10**38) + 1), Decimal(-(10**38) + 1)),
    ("decimal(10,4)", decimal_field(2), base64_of(128), Decimal("1.2800")),
    ("decimal(10,1)", decimal_field(2), base64_of(1280), Decimal("12.8")),
    ("decimal(10,2)", decimal_field(-2), base64_of(5), Decimal("500.00")),
    ("decimal(10,2)", decimal_field(2), None, None),
    ("decimal(10,2)", decimal_field(2), 12.34, Decimal("12.34")),
    ("decimal(10,2)", {"type": "double", "field": "x"}, 12.34, Decimal("12.34")),
    (
        "decimal(10,2)",
        {"type": "struct", "name": VARIABLE, "field": "x"},
        {"scale": 1, "value": base64_of(77)},
        Decimal("7.70"),
    ),
    (
        "array<decimal(10,2)>",
        {"type": "array", "items": decimal_field(2), "field": "x"},
        [base64_of(5), None],
        [Decimal("0.05"), None],
    ),
    (
        "map<string,decimal(10,2)>",
        {"type": "map", "values": decimal_field(2), "field": "x"},
        {"k": base64_of(5)},
        {"k": Decimal("0.05")},
    ),
    # With decimal.handling.mode=string.
    ("decimal(10,2)", {"type": "string", "field": "x"}, "1234", Decimal("1234.00")),
    (
        "struct<y:decimal(10,2)>",
        {"type": "struct", "fields": [decimal_field(2, "y")], "field": "x"},
        {"y": base64_of(5)},
        {"y": Decimal("0.05")},
    ),
    ("string", decimal_field(2), base64_of(1234), base64_of(1234)),
    (
        "timestamp",
        time_field("int64", "io.debezium.time.Timestamp"),
        MICROS // 1000,
        LATER.replace(microsecond=123_000),
    ),
    ("timestamp", time_field("int64", "io.debezium.time.MicroTimestamp"), MICROS, LATER),
    ("timestamp", time_field("int64", "io.debezium.time.NanoTimestamp"), MICROS * 1000 + 999, LATER),
    (
        "timestamp",
        time_field("int64", "org.apache.kafka.connect.data.Timestamp"),
        -1,
        datetime(1969, 12, 31, 23, 59, 59, 999_000, timezone.utc),
    ),
    ("timestamp_ntz", time_field("int64", "io.debezium.time.MicroTimestamp"), MICROS, LATER.replace(tzinfo=None)),
    ("timestamp", time_field("string", "io.debezium.time.ZonedTimestamp"), "2026-01-05T13:30:15.123456+01:00", LATER),
    ("date", time_field("int32", "io.debezium.time.Date"), -1, date(1969, 12, 31)),
    ("date", time_field("int32", "org.apache.kafka.connect.data.Date"), 20_000, date(2024, 10, 4)),
    ("bigint", time_field("int64", "io.debezium.time.MicroTimestamp"), MICROS, MICROS),
    ("bigint", time_field("int64", "io.debezium.time.MicroTime"), 1, 1),
    ("int", time_field("int32", "io.debezium.time.Date"), 20_000, 20_000),
    ("double", {"type": "double", "field": "x"}, 1e300, 1e300),
]


@pytest.mark.spark
def test_values_are_what_the_schema_beside_them_says(spark: SparkSession) -> None:
    ddl = ", ".join(f"x{at} {dtype}" for at, (dtype, *_) in enumerate(EXPLAINED))
    schema = [
        {"type": "int64", "field": "id"},
        *({**each, "field": f"x{at}"} for at, (_, each, _, _) in enumerate(EXPLAINED)),
    ]
    given = {f"x{at}": value for at, (*_, value, _) in enumerate(EXPLAINED)}
    expected = {f"x{at}": value for at, (*_, value) in enumerate(EXPLAINED)}
    value = debezium(json_format(f"id bigint, {ddl}"))
    found = rows(
        spark,
        value,
        [event("c", after={"id": 1, **given}, schema=schema), event("d", {"id": 2, **given}, schema=schema)],
    )
    assert [each[FAULT] for each in found] == [None, None]
    assert [each["_deleted"] for each in found] == [False, True]
    for each in found:
        for name, right in expected.items():
            got = each[name]
            # As collect() shows a time.
            is_zoned = isinstance(right, datetime) and right.tzinfo is not None
            assert got == (right.astimezone().replace(tzinfo=None) if is_zoned else right), name


MISFITS = [
    ("decimal(10,2)", decimal_field(4), base64_of(12345), "field 'x' is 1.2345, which decimal(10,2) can't hold"),
    ("decimal(4,2)", decimal_field(2), base64_of(10_000), "field 'x' is 100.00, which decimal(4,2) can't hold"),
    ("decimal(10,2)", decimal_field(2), "AB=C", "field 'x': expected the base64 of a decimal, got 'AB=C'"),
    ("decimal(10,2)", decimal_field(2), [1], "field 'x': expected the base64 of a decimal"),
    ("decimal(10,2)", decimal_field(1 << 40), base64_of(1), "field 'x' has too many digits for decimal(10,2)"),
    ("decimal(10,2)", decimal_field(2), b64encode(b"\x7f" * 10_000).decode(), "field 'x' has too many digits"),
    ("timestamp", time_field("int64", "io.debezium.time.Timestamp"), 1 << 60, "a time beyond the years 1 to 9999"),
    ("date", time_field("int32", "io.debezium.time.Date"), -(1 << 31), "a time beyond the years 1 to 9999"),
    (
        "timestamp",
        time_field("int64", "io.debezium.time.Timestamp"),
        1700000000000.0,
        "is the number 1700000000000.0, by its schema io.debezium.time.Timestamp: expected a whole number of milli",
    ),
    (
        "date",
        time_field("int64", "io.debezium.time.Timestamp"),
        20_000,
        "field 'x' is the number 20000, by its schema io.debezium.time.Timestamp: expected a whole number of days",
    ),
    (
        "timestamp",
        time_field("int32", "io.debezium.time.Date"),
        20_000,
        "by its schema io.debezium.time.Date: expected",
    ),
    (
        "map<string,decimal(10,2)>",
        {"type": "map", "values": decimal_field(4), "field": "x"},
        {"k": base64_of(12345)},
        "a value of field 'x' is 1.2345, which decimal(10,2) can't hold",
    ),
    (
        "decimal(10,2)",
        {"type": "bytes", "field": "x"},
        "1234",
        "field 'x' is the text '1234', which is a number or the",
    ),
]


def test_fields_of_an_envelope_next_to_its_payload_stay() -> None:
    decoder = DebeziumJson(pa.struct(list(parse_schema("x decimal(10,2)"))))
    whole = json.loads(event("c", after={"x": base64_of(1234)}, schema=[decimal_field(2)]))
    whole["op"] = whole["payload"].pop("op")
    whole["before"] = {"x": base64_of(5)}
    (made,) = decoder.decode([json.dumps(whole).encode()], [None]).to_pylist()
    found = json.loads(made, parse_float=str)
    assert (found["op"], found["before"], found["payload"]["after"]) == ("c", {"x": "0.05"}, {"x": "12.34"})


@pytest.mark.parametrize(("dtype", "field", "value", "said"), MISFITS)
def test_a_value_that_its_column_can_not_hold_is_a_fault(dtype: str, field: Any, value: Any, said: str) -> None:
    decoder = DebeziumJson(pa.struct(list(parse_schema(f"x {dtype}"))))
    faults: list[str | None] = [None]
    assert decoder.decode([event("c", after={"x": value}, schema=[field])], faults).to_pylist() == [None]
    assert said in str(faults[0])


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'{"schema": 1, "io.debezium.time.Date": 2}',
        b'{"schema":' + b"[" * 100_000,
    ],
)
def test_what_is_no_event_with_a_schema_is_left_to_spark(value: bytes | None) -> None:
    faults: list[str | None] = [None]
    assert DebeziumJson(pa.struct([("x", pa.decimal128(10, 2))])).decode([value], faults).to_pylist() == [value]
    assert faults == [None]


def test_what_is_nested_too_deeply_to_be_read_is_a_fault_and_not_left_to_spark() -> None:
    faults: list[str | None] = [None]
    deep = b'{"payload": {"op": "c", "after": {"x": 1, "y": %s1%s}}}' % (b"[" * 100_000, b"]" * 100_000)
    decoder = DebeziumJson(pa.struct([("x", pa.timestamp("us", "UTC"))]))
    assert decoder.decode([deep], faults).to_pylist() == [None]
    assert faults == ["undecodable: the value is nested too deeply to be read"]


@pytest.mark.parametrize("dtype", ["timestamp", "timestamp_ntz", "date", "array<timestamp>"])
def test_a_number_for_a_time_without_a_schema_is_a_fault(dtype: str) -> None:
    decoder = DebeziumJson(pa.struct(list(parse_schema(f"x {dtype}, y bigint"))))
    time: Any = [MICROS] if "array" in dtype else MICROS
    told = f"is the number {MICROS}, and the event has no schema that defines the time: set schemas.enable=true in its"
    for value in (
        event("c", after={"x": time}),
        event("c", after={"x": time}, schema=[time_field("int64", "a.b")]),
        event("d", {"x": time}, schema=[{"type": "int64", "field": "y"}]),
        b'{"payload": %s}' % event("c", after={"x": time}),
    ):
        faults: list[str | None] = [None]
        assert decoder.decode([value], faults).to_pylist() == [None]
        assert told in str(faults[0])
    plain = event("c", after={"x": "2026-01-05", "y": MICROS})
    faults = [None, None]
    assert decoder.decode([plain, plain[:-1]], faults).to_pylist() == [plain, None]
    assert faults[0] is None
    assert str(faults[1]).startswith("undecodable: the value is not JSON: ")


def decode_one(decoder: DebeziumJson, value: bytes) -> tuple[bytes | None, str | None]:
    faults: list[str | None] = [None]
    return decoder.decode([value], faults).to_pylist()[0], faults[0]


@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        ("decimal(10,2)", "{}"),
        ("array<decimal(10,2)>", "[{}]"),
        ("map<string,decimal(10,2)>", '{{"k": {}}}'),
        ("struct<y:decimal(10,2)>", '{{"y": {}}}'),
    ],
)
def test_a_text_for_a_decimal_that_is_a_number_and_base64_is_a_fault_without_a_schema(dtype: str, form: str) -> None:
    decoder = DebeziumJson(pa.struct(list(parse_schema(f"x {dtype}"))))
    for text in ("1234", "12345678", "12e3", "+123", "0000"):
        assert b64decode(text, validate=True)
        Decimal(text)
        for spelled in (f'"{text}"', f'"\\u{ord(text[0]):04x}{text[1:]}"'):
            value = event("c", after={"x": "X"}).replace(b'"X"', form.format(spelled).encode())
            for each in (value, event("d", "Y").replace(b'"Y"', b'{"x": %s}' % form.format(spelled).encode())):
                found, fault = decode_one(decoder, each)
                assert found is None
                assert f"is the text '{text}', which is a number or the base64 of one" in str(fault)
                assert "set schemas.enable=true in its converter, or read it as a string and convert it" in str(fault)
    # These are one of both alone.
    for text in ("12.34", "-123", "123", "12345", "BNI=", "1e", "12.5e3", "", "ab12"):
        value = event("c", after={"x": "X"}).replace(b'"X"', form.format(json.dumps(text)).encode())
        assert decode_one(decoder, value) == (value, None)


def test_of_an_envelope_in_two_places_both_are_looked_at() -> None:
    decoder = DebeziumJson(pa.struct(list(parse_schema("x timestamp, y decimal(10,2)"))))
    for inner in ({"x": MICROS}, {"y": "1234"}):
        value = json.dumps({"payload": {"op": "c"}, "op": "c", "after": inner}).encode()
        assert decode_one(decoder, value)[0] is None


def test_events_with_a_schema_in_a_registry_are_looked_at_too(guids: GuidRegistry) -> None:
    number = guids.client.register_schema("json-envelope", Schema('{"type": "object"}', "JSON"))
    chosen = debezium(json_schema(guids.url, schema="x timestamp, y decimal(10,2), z int"))
    decoder: Any = resolve(chosen, "t-value", "value", "input 't'").decoder
    for inner, said in (
        ({"x": MICROS}, "and the event has no schema that defines the time: read it as a bigint and convert it"),
        (
            {"y": "1234"},
            "which is a number or the base64 of one, and the event has no schema that defines it: read it as a",
        ),
    ):
        found, fault = decode_one(decoder, framed(number, event("c", after=inner)))
        assert found is None
        assert said in str(fault)
    right = event("c", after={"x": "2026-01-05T00:00:00Z", "y": 12.5, "z": 7})
    assert decode_one(decoder, framed(number, right)) == (right, None)
    assert "is not JSON" in str(decode_one(decoder, framed(number, right + b"}"))[1])
    assert "has no schema id" in str(decode_one(decoder, right)[1])
    plain: Any = resolve(debezium(json_schema(guids.url, schema="z int")), "t-value", "value", "input 't'").decoder
    assert decode_one(plain, framed(number, right)) == (right, None)


def uuid_of(text: str) -> str:
    return str(uuid.UUID(bytes=md5(text.encode()).digest(), version=3))


PLACEHOLDERS: list[tuple[str, Any]] = [
    ("string", HIDDEN),
    ("string", IN_BASE64),
    ("string", json.dumps({HIDDEN: HIDDEN}, separators=(",", ":"))),
    ("binary", IN_BASE64),
    ("array<string>", [HIDDEN]),
    ("array<string>", [IN_BASE64]),
    ("array<string>", [uuid_of(HIDDEN)]),
    ("array<binary>", [IN_BASE64]),
    ("array<int>", list(HIDDEN.encode())),
    ("array<bigint>", list(HIDDEN.encode())),
    ("map<string,string>", {HIDDEN: HIDDEN}),
    ("struct<wkb:binary,srid:int>", {"wkb": IN_BASE64, "srid": None}),
]
ORDINARY: list[tuple[str, Any]] = [
    ("string", HIDDEN + "s"),
    ("string", None),
    ("array<string>", [HIDDEN, HIDDEN]),
    ("array<string>", []),
    ("array<int>", [95, None]),
    ("map<string,string>", {"a": HIDDEN}),
    ("map<string,string>", {}),
    ("array<double>", [1.5]),
    ("struct<a:string>", None),
]


@pytest.mark.spark
@pytest.mark.slow
def test_a_value_that_is_unavailable_never_comes_out(spark: SparkSession) -> None:
    both = [*PLACEHOLDERS, *ORDINARY]
    ddl = "id string, " + ", ".join(f"c{at} {dtype}" for at, (dtype, _) in enumerate(both))
    ordinary = {f"c{at}": value for at, (_, value) in enumerate(both) if at >= len(PLACEHOLDERS)}
    events = [event("c", after={"id": "k", **ordinary})]
    events += [event("u", after={"id": "k", f"c{at}": value}) for at, (_, value) in enumerate(PLACEHOLDERS)]
    events += [event("u", after={"id": HIDDEN}), event("d", {"id": HIDDEN}), event("d", {"id": "k", "c0": HIDDEN})]
    events += [event("u", {"id": "j", "c0": HIDDEN}, {"id": "k", "c0": "y"})]
    many = len(PLACEHOLDERS)
    found = rows(spark, debezium(json_format(ddl)), events)
    assert [each[FAULT] for each in found if each["offset"] == 0] == [None]
    for at, (dtype, _) in enumerate(PLACEHOLDERS):
        (row,) = [each for each in found if each["offset"] == at + 1]
        assert row[FAULT] == (
            f"unavailable_value: column 'c{at}': the database's log does not hold its value; set REPLICA IDENTITY FULL "
            f'for the table (PostgreSQL), or read it with debezium(..., unavailable="null")'
        ), dtype
    last = [
        (each["offset"] - many, each["id"], each["c0"], each["_deleted"], each[FAULT]) for each in found[many + 1 :]
    ]
    of_key = (
        "unavailable_value: column 'id': the database's log does not hold its value; set REPLICA IDENTITY FULL for the "
    )
    of_key += "table (PostgreSQL)"
    # Of a delete only the key is needed, and an update's former row is deleted by its key.
    assert last == [
        (1, None, None, False, of_key),
        (2, None, None, True, of_key),
        (3, "k", None, True, None),
        (4, "j", None, True, None),
        (4, "k", "y", False, None),
    ]
    nulled = rows(spark, debezium(json_format(ddl), unavailable="null"), events)
    for at in range(many):
        row, note = [each for each in nulled if each["offset"] == at + 1]
        assert (row["id"], row[FAULT], note[FAULT]) == ("k", None, UNAVAILABLE)
        assert row[f"c{at}"] is None or row[f"c{at}"] == {"wkb": None, "srid": None}
    assert [each[FAULT] for each in nulled if each["offset"] in (many + 1, many + 2)] == [of_key] * 2
    other = rows(
        spark,
        debezium(json_format("id string, c string"), placeholder="gone"),
        [event("c", after={"id": "k", "c": each}) for each in (HIDDEN, "gone")],
    )
    assert [each[FAULT] is None for each in other] == [True, False]
    of_both_sides = rows(spark, debezium(json_format("id string")), [event("u", {"id": HIDDEN}, {"id": HIDDEN})])
    assert {each[FAULT] for each in of_both_sides} == {of_key}


HELD: dict[str, tuple[str, Any]] = {
    "decimal": ("decimal(10,2)", Decimal("12.34")),
    "decimal negative": ("decimal(10,2)", Decimal("-12.34")),
    "decimal wide": ("decimal(38,10)", Decimal("1234567890123456789012345678.0123456789")),
    "decimal null": ("decimal(10,2)", None),
    "variable scale": ("decimal(10,3)", Decimal("-1.234")),
    "date": ("date", date(2024, 10, 4)),
    "timestamp": ("timestamp_ntz", datetime(2026, 1, 5, 0, 0, 0, 123_000)),  # noqa: DTZ001 - a local time
    "micro timestamp": ("timestamp_ntz", datetime(2026, 1, 5, 0, 0, 0, 123_456)),  # noqa: DTZ001
    "nano timestamp": ("bigint", 1_767_571_200_123_456_789),
    "zoned timestamp": ("string", "2026-01-05T00:00:00.123456Z"),
    "connect timestamp": ("timestamp", datetime(2026, 1, 5, 0, 0, 0, 123_000, timezone.utc)),
    "connect date": ("date", date(2024, 10, 4)),
    "text": ("string", "ä"),
    "boolean": ("boolean", True),
    "double": ("double", 0.1),
    "bytes": ("binary", b"\xff\0\1"),
    "text array": ("array<string>", ["a", None]),
    "hstore": ("map<string,string>", {"a": "b"}),
    "unavailable text": ("string", None),
    "unavailable bytes": ("binary", None),
    "unavailable text array": ("array<string>", None),
    "unavailable bytes array": ("array<binary>", None),
    "unavailable uuid array": ("array<string>", None),
    "unavailable int array": ("array<int>", None),
    "unavailable bigint array": ("array<bigint>", None),
    "unavailable hstore": ("map<string,string>", None),
    "unavailable hstore as json": ("string", None),
}
"""The column of each of ``DEBEZIUM``, and its value; None where it is unavailable."""


def of_all(titles: Sequence[str], how: str, registry: GuidRegistry) -> tuple[bytes, Any]:
    """Return one event whose row has a column for each title, and the format of its value."""
    made = [DEBEZIUM[each] for each in titles]
    if how == "avro":
        fields = [{"name": f"x{at}", "type": kind} for at, (*_, kind, _) in enumerate(made)]
        row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}, *fields]}
        source = {
            "type": "record",
            "name": "Source",
            "fields": [{"name": "ts_ms", "type": "long"}, {"name": "db", "type": "string"}],
        }
        parts = [("before", ["null", row]), ("after", ["null", "Value"]), ("source", source), ("op", "string")]
        parts.append(("ts_ms", ["null", "long"]))
        envelope = {
            "type": "record",
            "name": "Envelope",
            "fields": [{"name": name, "type": kind} for name, kind in parts],
        }
        number = registry.client.register_schema(f"all-{len(titles)}", Schema(json.dumps(envelope), "AVRO"))
        begin, end = map(bytes.fromhex, ENVELOPE)
        return framed(number, begin + b"".join(bytes.fromhex(each[-1]) for each in made) + end), avro(
            registry.url, schema=ddl_of(titles)
        )
    fields = [{"type": "int64", "field": "id"}, *({**each[0], "field": f"x{at}"} for at, each in enumerate(made))]
    after = ", ".join(f'"x{at}": {each[2 if how == "numbers" else 1]}' for at, each in enumerate(made))
    whole = event("c", after="AFTER", schema=fields).decode().replace('"AFTER"', f'{{"id": 7, {after}}}')
    return whole.encode(), json_format(ddl_of(titles))


def ddl_of(titles: Sequence[str]) -> str:
    return ", ".join(["id bigint", *(f"x{at} {HELD[title][0]}" for at, title in enumerate(titles))])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("how", ["json", "numbers", "avro"])
def test_what_debezium_and_connect_write(spark: SparkSession, guids: GuidRegistry, how: str) -> None:
    assert HELD.keys() == DEBEZIUM.keys()
    value, inner = of_all([*HELD], how, guids)
    held = [each for each in HELD if "unavailable" not in each]
    plain, of_plain = of_all(held, how, guids)
    (found,) = rows(spark, debezium(of_plain), [plain])
    nulled, note = rows(spark, debezium(inner, unavailable="null"), [value])
    (refused,) = rows(spark, debezium(inner), [value])
    assert (found[FAULT], nulled[FAULT], note[FAULT]) == (None, None, UNAVAILABLE)
    assert (found["id"], nulled["id"]) == (7, 7)
    for row, titles in ((found, held), (nulled, [*HELD])):
        for at, title in enumerate(titles):
            right = HELD[title][1]
            is_zoned = isinstance(right, datetime) and right.tzinfo is not None
            assert row[f"x{at}"] == (right.astimezone().replace(tzinfo=None) if is_zoned else right), title
    told = str(refused[FAULT])
    assert told.startswith("unavailable_value: column 'x18' and 'x19' and ")
    assert all(f"'x{at}'" in told for at in range(18, 27))


@pytest.mark.spark
def test_known_times_of_changes(spark: SparkSession) -> None:
    def row(hour: int, key: int = 1) -> dict[str, Any]:
        return {"id": key, "valid_at": f"2026-01-05T{hour:02}:00:00Z"}

    events = [
        event("r", after=row(9), snapshot="true"),
        event("r", after=row(9), snapshot=True),
        event("r", after=row(9), snapshot=None),
        event("r", after=row(9)),
        event("r", after=row(9), snapshot="incremental"),
        event("c", after=row(9)),
        event("u", row(10), row(9)),
        event("u", row(9), row(10)),
        event("u", row(9), row(9)),
        event("u", None, row(8)),
        event("u", row(10), row(9, key=2)),
        event("d", row(9)),
    ]
    value = debezium(json_format("id bigint, valid_at timestamp"))

    def read(reading: ChangeReading) -> tuple[list[int], dict[int, str]]:
        found = in_micros(decoded(spark, value, events, reading).toArrow())
        first = [each["offset"] for each in found if each["_source_timestamp"] == EARLIEST]
        return first, {each["offset"]: each[FAULT] for each in found if each[FAULT] is not None}

    moved = (
        'moved_back: an update has moved \'valid_at\' back: {"before":"2026-01-05T10:00:00.000Z",'
        '"after":"2026-01-05T09:00:00.000Z"}; by known times the new row would never match, since the former one is '
        "later"
    )
    assert read(ChangeReading(("id",), "Valid_At", snapshot_first=True)) == ([0, 1, 2, 3], {6: moved})
    assert read(ChangeReading(("id",), "valid_at")) == ([], {6: moved})
    assert read(BY_ID) == ([], {})
    # A row far ahead of the clock was rejected, so its correction moves nothing back.
    events[:] = [event("u", {"id": 1, "valid_at": "2999-01-01T00:00:00Z"}, row(9)), event("u", row(10), row(9))]
    assert read(ChangeReading(("id",), "valid_at", max_ahead_ms=60_000))[1] == {1: moved}
    assert list(read(ChangeReading(("id",), "valid_at"))[1]) == [0, 1]


@pytest.mark.spark
def test_a_time_of_the_database_that_can_not_be_is_a_fault(spark: SparkSession) -> None:
    times = [1 << 62, -(1 << 62), -1, 1_760_000_000_000]
    values = [event("c", after={"id": 1}).replace(b"1760000000000", str(each).encode()) for each in times]
    found = rows(spark, debezium(json_format("id bigint")), values)
    assert [each["_source_timestamp"] is None for each in found] == [True, True, False, False]
    assert "its source.ts_ms is not a time in milliseconds: got 4611686018427387904" in found[0][FAULT]
    assert [each[FAULT] is None for each in found] == [False, False, True, True]


@pytest.mark.spark
def test_decimals_in_base64_without_a_schema_are_told(spark: SparkSession) -> None:
    value = debezium(json_format("id bigint, price decimal(10,2)"))
    (found,) = rows(spark, value, [event("c", after={"id": 1, "price": base64_of(1234)})])
    assert found[FAULT].startswith("undecodable: the value (decimals in base64 are read by the event's schema: set ")


_HALVES = re.compile("[\ud800-\udfff]")
_ISO = re.compile(r"20[0-9]{2}-0[1-9]-[012][0-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]Z")
FUZZED = "id bigint, price decimal(10,2), at timestamp, note string"
FUZZED_FIELDS = [
    {"type": "int64", "field": "id"},
    {**decimal_field(2), "field": "price"},
    {**time_field("int64", "io.debezium.time.MicroTimestamp"), "field": "at"},
    {"type": "string", "field": "note"},
]


def read_by_hand(value: bytes) -> dict[str, Any] | None:
    """Return what an event says, read as JSON by Python alone; None where it is none, ``...`` for other forms.

    Its time is in microseconds.
    """
    try:
        found = json.JSONDecoder(parse_float=Decimal).decode(value.decode())
        payload = found.get("payload") or found
        row = payload["before" if payload["op"] == "d" else "after"]
        sides = {each.get("field"): each for each in found.get("schema", {}).get("fields", [])}
        side = sides.get("before" if payload["op"] == "d" else "after", {})
        types = {each.get("field"): each for each in side.get("fields", [])}
        made = {name: row.get(name) for name in ("id", "price", "at", "note")}
        if types.get("price", {}).get("name") == DECIMAL and isinstance(made["price"], str):
            digits = int.from_bytes(b64decode(made["price"], validate=True), "big", signed=True)
            made["price"] = Decimal(digits).scaleb(-int(types["price"]["parameters"]["scale"]))
        if isinstance(made["at"], int) and not (
            types.get("at", {}).get("name") == "io.debezium.time.MicroTimestamp" and -(2**63) <= made["at"] < 2**63
        ):
            return None
        if isinstance(made["at"], str):
            at = datetime.fromisoformat(made["at"].replace("Z", "+00:00")) if _ISO.fullmatch(made["at"]) else None
            made["at"] = ... if at is None else int(at.timestamp()) * 10**6
        if made["price"] is not None:
            # Of a plain number Spark keeps the column's digits.
            made["price"] = Decimal(made["price"]).quantize(Decimal("0.01"), ROUND_HALF_UP)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        return None
    if isinstance(made["note"], str) and _HALVES.search(made["note"]):
        return None
    # Spark gives other JSON as its text.
    made["note"] = made["note"] if isinstance(made["note"], (str, type(None))) else ...
    return made


@pytest.mark.spark
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_oracle_of_damaged_events(spark: SparkSession, count: int) -> None:
    rng = random.Random(f"{SEED} debezium")
    values: list[bytes] = []
    for at in range(count):
        note = "".join(rng.choices('aä€😀"\\', k=rng.randrange(8)))
        price, moment = rng.randrange(-(10**9), 10**9), MICROS + rng.randrange(10**12)
        row = {"id": at, "price": base64_of(price), "at": moment, "note": note}
        is_plain = rng.random() < 0.2
        if is_plain:
            row |= {"price": price / 100, "at": "2026-01-05T00:00:00Z"}
        whole = event("c", after=row, schema=None if is_plain else FUZZED_FIELDS)
        values.append(spoilt(rng, whole) if at % 10 else whole)
    found = in_micros(decoded(spark, debezium(json_format(FUZZED)), values).toArrow())
    assert [each["offset"] for each in found] == list(range(count))
    read = 0
    for value, row in zip(values, found, strict=True):
        if row[FAULT] is not None:
            assert row["offset"] % 10, (value, row[FAULT])
            assert row[FAULT].startswith("undecodable: ")
            continue
        read += 1
        expected = read_by_hand(value)
        assert expected is not None, (value, row)
        for name, right in expected.items():
            if right is not ...:
                assert row[name] == right, (value, name)
    assert count * 0.1 <= read < count * 0.95


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"unavailable": "nulls"}, "debezium: unavailable: expected 'reject' or 'null', got 'nulls'"),
        ({"placeholder": ""}, "debezium: placeholder: expected a text"),
        ({"placeholder": b"x"}, "debezium: placeholder: expected a text"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=said):
        debezium(json_format("id bigint"), **arguments)
