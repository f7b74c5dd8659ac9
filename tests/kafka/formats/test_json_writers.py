"""Values with JSON schemas as writers make them: their columns, and Spark's rows compared with `json`'s values."""

from __future__ import annotations

import base64
import json
import random
import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import jsonschema
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from cojoin.engine.values.types import parse_schema
from cojoin.errors import SchemaError
from cojoin.kafka.formats.decoding import json_problem
from cojoin.kafka.formats.json_schema import json_columns
from cojoin.kafka.formats.registry import RegisteredSchema
from cojoin.kafka.record_columns import RecordDescription
from cojoin.kafka.records import FAULT, MARK, NEWEST, VALUE
from cojoin.kafka.topics import Topics
from tests.kafka.formats.json_cases import CASES, PYTHON, REFUSED, Case
from tests.kafka.formats.test_proto_writers import damaged
from tests.seeds import SEED, SEED_TEXT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_valid(case: Case) -> bool:
    """Return whether jsonschema takes a case's value."""
    resources = [(name, Resource.from_contents(each, DRAFT7)) for name, each in case.references.items()]
    resources += [
        (each["$id"], Resource.from_contents(each, DRAFT7)) for each in case.references.values() if "$id" in each
    ]
    kind = jsonschema.validators.validator_for(case.whole, jsonschema.Draft7Validator)
    return bool(kind(case.whole, registry=Registry().with_resources(resources)).is_valid(case.value))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.origin)
def test_what_writers_register_has_columns(case: Case) -> None:
    assert is_valid(case)
    assert pa.schema(list(json_columns(case.found, "input 'trades'"))) == parse_schema(case.columns)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.origin)
def test_what_has_no_type_is_refused_by_its_place(case: Case) -> None:
    with pytest.raises(
        SchemaError, match=f"^input 'trades': .*{case.refused}.*; give the columns as DDL, where a string"
    ):
        json_columns(case.found, "input 'trades'")


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"const": 5}])
def test_a_schema_of_no_object_is_refused_with_another_cure(schema: Any) -> None:
    with pytest.raises(SchemaError, match=r"of an object with properties, got one of .*: schema= and decode="):
        json_columns(RegisteredSchema("JSON", json.dumps(schema)), "input 'trades'")


def assert_told(value: Any, told: Any, dtype: pa.DataType) -> None:  # noqa: C901, PLR0912 - one for each type
    """Compare a value of a column with JSON's."""
    types = pa.types
    if value is None or told is None:
        assert (value, told) == (None, None)
    elif types.is_struct(dtype):
        assert isinstance(told, dict)
        for each in dtype:
            assert_told(value[each.name], told.get(each.name), each.type)
    elif types.is_list(dtype):
        assert len(value) == len(told)
        for one, other in zip(value, told, strict=True):
            assert_told(one, other, dtype.value_type)
    elif types.is_map(dtype):
        assert [one for one, _ in value] == list(told)
        for one, other in value:
            assert_told(other, told[one], dtype.item_type)
    elif types.is_string(dtype):
        assert value == told if isinstance(told, str) else json.loads(value) == told
    elif types.is_timestamp(dtype):
        assert value == datetime.fromisoformat(told.replace("Z", "+00:00")).astimezone(timezone.utc)
    elif types.is_date(dtype):
        assert value == date.fromisoformat(told)
    elif types.is_decimal(dtype):
        assert value == Decimal(str(told))
    elif types.is_binary(dtype):
        assert value == base64.b64decode(told)
    else:
        assert value == told, (value, told)
        assert isinstance(value, bool) == isinstance(told, bool)


def by_spark(spark: SparkSession, columns: str, values: list[bytes]) -> tuple[list[Any], list[str | None]]:
    """Return values' rows as the source makes them, and their faults."""
    problems = [json_problem(each) for each in values]
    rows = [
        (each if problem is None else None, "t", 0, at, None, problem, None)
        for at, (each, problem) in enumerate(zip(values, problems, strict=True))
    ]
    ddl = f"{VALUE} binary, topic string, partition int, offset long, {MARK} long, {FAULT} string, {NEWEST} long"
    frame = spark.createDataFrame(rows, ddl)
    records = RecordDescription("source kafka t", Topics(("t",)), columns)
    found = records.rows(frame, fails_for=None, archive=None).toArrow().sort_by("offset")
    rows = found.select(parse_schema(columns).names)
    if "at" in rows.column_names:  # Spark's years are more than Python's
        rows = rows.set_column(rows.column_names.index("at"), "at", rows.column("at").cast(pa.int64()))
    return rows.to_pylist(), found.column(FAULT).to_pylist()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("case", [*CASES, *REFUSED], ids=lambda case: case.origin)
def test_oracle_values_are_as_json_reads_them(spark: SparkSession, case: Case) -> None:
    """Also by the user's columns, where the schema is refused: the cure works."""
    (row,), (fault,) = by_spark(spark, case.columns, [json.dumps(case.value).encode()])
    assert fault is None
    dtype = pa.struct(list(parse_schema(case.columns)))
    if case.refused and case.expected is not None:
        assert {**row} == case.expected
    else:
        assert_told(row, case.value, dtype)


@pytest.mark.parametrize("case", PYTHON, ids=lambda case: case.origin)
def test_what_the_python_client_emits(case: Case) -> None:
    """It registers the schema as it is, and its values are JSON that is read back."""
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    references = []
    for name, each in case.references.items():
        client.register_schema(name, Schema(json.dumps(each), "JSON"))
        references.append(SchemaReference(name, name, 1))
    schema = Schema(json.dumps(case.whole | {"title": "It"}), "JSON", references)
    made = JSONSerializer(schema, client)(case.value, SerializationContext("t", MessageField.VALUE))
    registered = client.get_schema(int.from_bytes(made[1:5], "big"))
    found = RegisteredSchema("JSON", registered.schema_str, case.found.references)
    assert pa.schema(list(json_columns(found, "w"))) == parse_schema(case.columns)
    assert json_problem(made[5:]) is None
    assert json.loads(made[5:]) == case.value


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": 1}}', b'{"a": 1}{"a": 2}', b'{"a": 1} x', b'{"a": 1}]', b"{'a': 1}", b'{"a": 1}\0', b'{"s": "\\ud83d"}',
        b"", b'\xef\xbb\xbf{"a": 1}', '{"a": 1}'.encode("utf-16"), b'{"s": "\xff"}', b'{"s": "a\nb"}', b'{"a": 01}',
        b'{"a": 1,}', b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"s": "\\udc00\\ud83d"}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_a_fault(value: bytes) -> None:
    assert json_problem(value) is not None


@pytest.mark.parametrize(
    "value",
    [b' {"a": 1} \n', b'{"s": "\\ud83d\\ude00"}', b'{"s": "\\\\ud83d"}', b'{"a": %s}' % (b"9" * 9_999), b'{"d": NaN}'],
)  # fmt: skip
def test_what_is_json_is_left_to_spark(value: bytes) -> None:
    assert json_problem(value) is None


TIMES = ["10:00", "T10:00:00Z", "T10", "1:2", " 10:00", "\\t10:00", "\\u0031\\u0030:00", "10:00:00.123456789Z"]
NESTED = "o struct<l: array<timestamp>, m: map<string, timestamp>>"


@pytest.mark.slow
@pytest.mark.spark
def test_a_time_without_a_date_is_a_fault_and_not_today(spark: SparkSession) -> None:
    """Spark alone takes the day on which it parses, so that each run would have another row."""
    forms = ['{"t": "%s"}', '{"o": {"l": ["2026-01-15T10:00:00Z", "%s"]}}', '{"o": {"m": {"k": "%s"}}}']
    wrong = [form % each for form in forms for each in TIMES] + [f'{{"d": "{each}"}}' for each in ("20", "+7", " 120 ")]
    right = [
        '{"t": "2026-01-15T10:00:00Z"}',
        '{"t": "2026-01-15", "s": "10:00"}',
        '{"o": {"m": {"10:00": "2026-01-15"}}}',
    ]
    right += ['{"t": 10}', '{"t": null, "s": "T1000"}', '{"s": "\\t", "d": "2026-01-15"}', '{"d": "2026"}']
    columns = f"t timestamp, s string, d date, {NESTED}"
    _, faults = by_spark(spark, columns, [each.encode() for each in (*wrong, *right)])
    assert [each is None for each in faults] == [False] * len(wrong) + [True] * len(right), faults
    assert "undecodable: the value is not JSON of the schema" in str(faults[0])


@pytest.mark.slow
@pytest.mark.spark
def test_long_blanks_end_no_query(spark: SparkSession) -> None:
    """Java's matcher would go one call deeper with each of them, until its stack overflows."""
    blanks = [" " * 100_000, "\\n" * 100_000, "\\u0020" * 20_000]
    values = [f'{{"note": "{each}x", "s": "{each}", "t": "2026-01-15"}}'.encode() for each in blanks]
    _, faults = by_spark(spark, "t timestamp, s string, d date", values)
    assert faults == [None] * len(values)
    _, faults = by_spark(spark, "t timestamp", [f'{{"t": "{each}10:00"}}'.encode() for each in blanks])
    assert None not in faults


FUZZED = "id bigint, tier string, amount double, is_new boolean, at timestamp, tags array<string>, "
FUZZED += "place struct<x: bigint, y: string>"
WHOLE = {
    "id": 12345, "tier": "süß", "amount": -1.5, "is_new": True, "at": "2026-01-15T10:00:00.123Z", "tags": ["a", 'q"\\'],
    "place": {"x": 7, "y": "\u0000\U0001f600"}, "more": [{"n": 1e5}],
}  # fmt: skip


def damaged_values(count: int) -> list[bytes]:
    rng = random.Random(SEED)
    texts = [json.dumps(WHOLE, ensure_ascii=each).encode() for each in (True, False)]
    return [damaged(rng, texts[at % 2]) for at in range(count)]


def test_fuzz_of_damaged_bytes_that_are_no_json() -> None:
    wrong = 0
    for value in damaged_values(2_000):
        try:
            json.loads(value.decode())
        except (ValueError, RecursionError):  # noqa: PERF203
            wrong += 1
            assert json_problem(value) is not None, (SEED_TEXT, value)
    assert wrong > 500, SEED_TEXT


def assert_time(micros: int | None, told: Any) -> None:
    """Compare a time with its text; Spark reads more forms than JSON schemas have, as long as there is a year."""
    if micros is None or told is None:
        assert (micros, told) == (None, None)
    elif isinstance(told, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told):
        expected = datetime.fromisoformat(told.replace("Z", "+00:00")) - datetime(1970, 1, 1, tzinfo=timezone.utc)
        assert micros == expected // timedelta(microseconds=1)
    elif isinstance(told, str):
        # Spark leaves out blanks and control characters around a time.
        assert re.match(r"[\s\x00-\x1f\x7f-\x9f]*[+-]?\d{4,}(-|[\s\x00-\x1f\x7f-\x9f]*$)", told), told
    else:
        assert isinstance(told, int)
        assert micros == 1_000_000 * told
        assert abs(told) < 10**11


@pytest.mark.slow
@pytest.mark.spark
def test_many_damaged_bytes_are_faults_or_right(spark: SparkSession) -> None:
    values = damaged_values(10_000)
    rows, faults = by_spark(spark, FUZZED, values)
    right = 0
    for value, row, fault in zip(values, rows, faults, strict=True):
        if fault is not None:
            continue
        right += 1
        told = json.loads(value.decode())
        try:
            assert_time(row.pop("at"), told.get("at"))
            assert_told(row, told, pa.struct([each for each in parse_schema(FUZZED) if each.name != "at"]))
        except Exception as error:
            msg = f"{SEED_TEXT}: {value!r} became {row}"
            raise AssertionError(msg) from error
    assert 500 < right < 9_500, SEED_TEXT
