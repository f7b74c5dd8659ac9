"""Debezium's events as rows: values that only their schema explains, and those that the database's log did not hold."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from datetime import date, datetime, timezone
from decimal import Decimal
from hashlib import md5
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.time.control_rows import UNAVAILABLE
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.debezium_json import DebeziumJson
from cojoin.kafka.formats.record_formats import debezium
from cojoin.kafka.formats.record_formats import json as json_format
from cojoin.kafka.record_description import RecordDescription
from cojoin.kafka.records import FAULT, VALUE, decode_parts
from cojoin.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

HIDDEN = "__debezium_unavailable_value"
IN_BASE64 = b64encode(HIDDEN.encode()).decode()
DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"


def rows(
    spark: SparkSession, value: Any, values: Sequence[bytes | None], key: Sequence[str] = ("id",)
) -> list[dict[str, Any]]:
    """Return what becomes of values, in their order: rows, faults and notes."""
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
    frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=form.schema))
    found = records.rows(frame, fails=False, archive=None, moves_by=key)
    return sorted((each.asDict(recursive=True) for each in found.collect()), key=lambda each: each["offset"])


def event(op: str, before: Any = None, after: Any = None, schema: Sequence[dict[str, Any]] | None = None) -> bytes:
    payload = {"before": before, "after": after, "op": op, "source": {"ts_ms": 1_760_000_000_000}}
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
]


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
    decoder = DebeziumJson(pa.struct([("x", pa.decimal128(10, 2))]))
    faults: list[str | None] = [None]
    signed = None if value is None else value + b' "org.apache.kafka.connect.data.Decimal"'
    for each in (value, signed):
        assert decoder.decode([each], faults).to_pylist() == [each]
    assert faults == [None]


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


@pytest.mark.spark
def test_decimals_in_base64_without_a_schema_are_told(spark: SparkSession) -> None:
    value = debezium(json_format("id bigint, price decimal(10,2)"))
    (found,) = rows(spark, value, [event("c", after={"id": 1, "price": base64_of(1234)})])
    assert found[FAULT].startswith("undecodable: the value (decimals in base64 are read by the event's schema: set ")


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
