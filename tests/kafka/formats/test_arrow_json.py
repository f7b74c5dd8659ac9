"""What the workers settle of JSON is what Spark's ``from_json`` gives; all else is left to it."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.arrow_json import parsed_json
from cojoin.kafka.record_columns import RecordDescription
from cojoin.kafka.records import FAULT, MARK, NEWEST, VALUE
from cojoin.kafka.topics import Topics
from tests.seeds import SEED, drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = "id long, small int, tiny byte, amount double, price decimal(10, 2), tier string, is_new boolean, at timestamp, "
DDL += "day date"
SCHEMA = parse_schema(DDL)

NUMBERS = [
    "0",
    "-0",
    "7",
    "-7",
    "1.5",
    "1.50",
    "-1.005",
    "1e2",
    "1E-2",
    "127",
    "128",
    "-129",
    "2147483648",
    "1.0",
    "0.0",
]
NUMBERS += ["9223372036854775807", "9223372036854775808", "123456789012345678901234567890", "1e400", "-1e400", "1e-400"]
NUMBERS += [
    "0.1",
    "99999999.99",
    "99999999.995",
    "100000000",
    "01",
    "+1",
    ".5",
    "5.",
    "NaN",
    "Infinity",
    "-Infinity",
    "INF",
]
NUMBERS += [
    "0.30000000000000004",
    "2.2250738585072011e-308",
    "123456.789e-3",
    "-INF",
    "Inf",
    "1_000",
    "0x1F",
    "1d",
    "1f",
]
TEXTS = [
    "",
    " ",
    "gold",
    "null",
    "12",
    " 12",
    "1.5",
    "true",
    "NaN",
    "Infinity",
    "ü",
    "😀",
    "a\\nb",
    "\\u0000",
    "\\u00e9",
]
TEXTS += ["\\ud83d\\ude00", "\\ud83d", "\\/", "\\x", "\\'", "a\tb", "{}", "[1]", "AQID", '\\"', "\\\\", "New", "INFO"]
TIMES = [
    "2026-01-15T10:00:00Z",
    "2026-01-15T10:00:00.1Z",
    "2026-01-15T10:00:00.123456Z",
    "2026-01-15T10:00:00.1234567Z",
]
TIMES += ["2026-01-15 10:00:00", "2026-01-15T10:00:00", "2026-01-15T10:00:00.123", "2026-01-15T10:00:00+02:00", "2026"]
TIMES += ["2026-01-15T10:00:00.5-11:30", "2026-01-15T10:00:00+0200", "2026-01-15T10:00:00+02", "2026-01-15T10:00:00 Z"]
TIMES += ["2026-01-15 10:00:00 UTC", "2026-01-15T10:00:00[Europe/Berlin]", "2026-01-15T10:00", "2026-01-15T10:00Z"]
TIMES += ["2026-01-15T10:00+01:00", "2026-01-15 10:00-05:00", "2026-01-15T10+01:00"]
TIMES += [
    "2026-01-15",
    "2026-01-15T",
    "2026-1-5",
    "2026-01",
    "2026-02-30",
    "2026-02-30T10:00:00Z",
    "2026-01-15T24:00:00Z",
]
TIMES += [
    "2026-01-15T23:59:60Z",
    "2026-01-15T10:00:00z",
    "2026-01-15t10:00:00Z",
    " 2026-01-15T10:00:00Z",
    "now",
    "epoch",
]
TIMES += ["2026-01-15T10:00:00Z ", "0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "9999-12-31"]
TIMES += ["9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "1582-10-10", "0000-01-01"]
TIMES += [
    "2026-01-15T10:00:00+19:00",
    "2026-01-15T10:00:00+18:00",
    "2026-01-15T10:00:00-18:01",
    "2026-01-15T10:00:00-00:00",
]
TIMES += [
    "2026-01-15T10:00:00+14:60",
    "2026-01-15T10:00:00,5Z",
    "20260115T100000Z",
    "2026-01-15T1:00:00Z",
    "+2026-01-15",
]
OTHERS = [
    "null",
    "true",
    "false",
    "True",
    "[]",
    "[1, 2]",
    "{}",
    '{"a": {"b": [1]}}',
    "'gold'",
    "gold",
    "",
    "nul",
    "NULL",
]


def quoted(text: str) -> str:
    return f'"{text}"'


def a_value(rng: random.Random) -> bytes | None:
    """Return a value, mostly right, with some of what is odd."""
    right: dict[str, Any] = {
        "id": str(rng.randrange(-(2**40), 2**40)),
        "small": str(rng.randrange(100)),
        "tiny": str(rng.randrange(-128, 128)),
        "amount": repr(rng.uniform(-1e6, 1e6)),
        "price": f"{rng.randrange(10**8)}.{rng.randrange(100):02d}",
        "tier": json.dumps(rng.choice(["gold", "süß", "", 'a"b', "a\nb"]), ensure_ascii=rng.random() < 0.5),
        "is_new": rng.choice(["true", "false"]),
        "at": quoted(dt.datetime.fromtimestamp(rng.randrange(2**31) + rng.random(), dt.timezone.utc).isoformat()),
        "day": quoted(str(dt.date.fromordinal(rng.randrange(600_000, 800_000)))),
    }
    fields = [(name, value) for name, value in right.items() if rng.random() < 0.9]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        pool = rng.choice(
            [NUMBERS, OTHERS, list(map(quoted, TEXTS)), list(map(quoted, TIMES)), list(map(quoted, NUMBERS))]
        )
        name = rng.choice([*right, *right, "more", "ID", "", "id "])
        fields = [each for each in fields if each[0] != name or rng.random() < 0.05]
        fields.insert(rng.randrange(len(fields) + 1), (name, rng.choice(pool)))
    blank = rng.choice(["", "", "", " ", "\t", "  "])
    text = "{" + f",{blank}".join(f'"{name}"{blank}:{blank}{value}' for name, value in fields) + "}"
    value = text.encode()
    if rng.random() < 0.1:
        at = rng.randrange(len(value) + 1)
        odd = [
            b"",
            b"}",
            b"{",
            b",",
            b'"',
            b"\n",
            b"\r",
            b"\x00",
            b"\xff",
            b"\xc3",
            b"\xed\xa0\x80",
            b"/**/",
            b"#",
            b" x",
        ]
        value = value[:at] + rng.choice(odd) + value[at + rng.randrange(2) :]
    if rng.random() < 0.03:
        value = rng.choice(
            [value + value, value + b" " + value, b" " + value, value + b" ", value + b"x", b"[" + value + b"]"]
        )
    if rng.random() < 0.02:
        return rng.choice([b"", b"{}", b"null", b"1", b'"a"', b"[]", b"{", b"}", b"\xef\xbb\xbf{}", None])
    return value


def by_spark(spark: SparkSession, values: list[bytes | None]) -> list[tuple[Any, ...]]:
    """Return each value's row as Spark parses it, and its fault."""
    rows = [(number, value, "t", 0, number, None, None, None) for number, value in enumerate(values)]
    ddl = f"number int, {VALUE} binary, topic string, partition int, offset long, {MARK} long, {FAULT} string, "
    frame = spark.createDataFrame(rows, f"{ddl}{NEWEST} long")
    records = RecordDescription("source kafka t", Topics(("t",)), DDL)
    found = records.rows(frame, fails_for=None, archive=None).toArrow().sort_by("offset")
    return [*zip(*as_lists(found.select(SCHEMA.names)), found.column(FAULT).to_pylist(), strict=True)]


def as_lists(rows: pa.Table) -> list[list[Any]]:
    """Return the columns, with times as numbers, because Python's have no year 0."""
    numbers = {pa.timestamp("us", "UTC"): pa.int64(), pa.date32(): pa.int32()}
    return [each.cast(numbers.get(each.type, each.type)).to_pylist() for each in rows.columns]


def is_settled(value: bytes | None) -> bool:
    return bool(parsed_json(pa.array([value], pa.binary()), SCHEMA)[1][0])


def compare(spark: SparkSession, values: list[bytes | None]) -> float:
    """Compare the settled values with Spark's, and return their share."""
    rows, settled = parsed_json(pa.array(values, pa.binary()), SCHEMA)
    assert rows.schema == SCHEMA
    found = zip(*as_lists(rows), strict=True)
    for value, mine, is_sure, (*expected, fault) in zip(values, found, settled, by_spark(spark, values), strict=True):
        if is_sure:
            assert fault is None, (value, mine, fault)
            assert repr(list(mine)) == repr(expected), value
        else:
            assert not any(each is not None for each in mine)
    return float(settled.mean())


@pytest.mark.spark
@pytest.mark.slow
def test_settled_values_are_what_spark_gives(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    values = [a_value(rng) for _ in range(3_000)]
    # One by one, so that none is left to Spark for its neighbours' sake.
    alone = [is_settled(value) for value in values]
    assert 0.3 < sum(alone) / len(alone) < 0.7
    one_by_one = [value for value, is_sure in zip(values, alone, strict=True) if is_sure]
    assert compare(spark, one_by_one) == 1
    assert compare(spark, values) < 0.2


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("part", drawn(range(5), 1))
def test_many_settled_values_are_what_spark_gives(spark: SparkSession, part: int) -> None:
    rng = random.Random(f"{SEED} {part}")
    values = [value for value in (a_value(rng) for _ in range(20_000)) if is_settled(value)]
    assert compare(spark, values) == 1
