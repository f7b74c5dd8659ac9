"""JSON that Spark alone would read otherwise than it was written is a fault of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.record_formats import ResolvedFormat
from cojoin.kafka.formats.record_formats import json as json_format
from cojoin.kafka.record_columns import RecordDescription
from cojoin.kafka.records import FAULT, KEY, MARK, NEWEST, VALUE
from cojoin.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def read(
    spark: SparkSession, columns: str, values: Sequence[bytes | None], keys: str | None = None
) -> list[dict[str, Any]]:
    """Return values, and keys that are equal to them, as the source's rows."""
    rows = [(each, each, "t", 0, at, None, None, None) for at, each in enumerate(values)]
    ddl = f"{VALUE} binary, {KEY} binary, topic string, partition int, offset long, {MARK} long, {FAULT} string, "
    frame = spark.createDataFrame(rows, f"{ddl} {NEWEST} long")
    formats = {"value": None, "key": None if keys is None else json_format(keys)}
    # Resolved already: names that differ in case alone are none that a user may give.
    resolved = {} if keys is None else {"key": ResolvedFormat(pa.struct(list(parse_schema(keys))), None)}
    records = RecordDescription("source kafka t", Topics(("t",)), columns, formats=formats, resolved=resolved)
    found = records.rows(frame, fails_for=None, archive=None).toArrow().sort_by("offset")
    found = found.select([field.name for field in found.schema if not pa.types.is_nested(field.type)])
    for at, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):  # Spark's years are more than Python's
            found = found.set_column(at, field.name, found.column(at).cast(pa.int64()))
    return found.to_pylist()


BEHIND = ["}", "]", " x", '{"a": 2}', ' {"a": 2}', ',{"a": 2}', "\0", " null", ",", "]}", ', "b": 1}', " // x"]
BEHIND += ["]}}", ']}, "b": [{"a": 2}', ']}[{"a": 1}']
BEFORE = ["x ", '{"a": 2},', "[", "1 ", ", "]


@pytest.mark.spark
def test_an_object_with_something_beside_it_is_a_fault(spark: SparkSession) -> None:
    wrong = ['{"a": 1}' + each for each in BEHIND] + [each + '{"a": 1}' for each in BEFORE]
    wrong += ["", " ", "null", "1", '"x"', "[]", '[{"a": 1}]', '{"a": 1', '{"a": "x"}', '{"a": 1, "a": {}}']
    right = [' {"a": 1}', '{"a": 1} \n\t', "{'a': 1}", '{"a": 1, "z": [1, {"a": 2}]}']
    found = read(spark, "a int", [each.encode() for each in (*wrong, *right)], keys="A int")
    for text, row in zip(wrong, found, strict=False):
        assert str(row[FAULT]).startswith(f"undecodable: the value is not JSON of the schema: got {text}"), text
    assert [(row["a"], row["A"], row[FAULT]) for row in found[len(wrong) :]] == [(1, None, None)] * len(right)
    of_keys = read(spark, "z int", [b'{"a": 1} x', b'{"a": 1}'], keys="a int")
    assert [row[FAULT] is None for row in of_keys] == [False, True]
    assert (of_keys[1]["a"], read(spark, "a int", [None])[0][FAULT]) == (1, None)


@pytest.mark.spark
def test_a_long_number_is_no_seconds(spark: SparkSession) -> None:
    columns = "t timestamp, o struct<l: array<timestamp>, m: map<string, timestamp>>, s string, n bigint"
    numbers = ["1767571200000", "-1767571200000", "1767571200123456", "1767571200123456789", "100000000000"]
    forms = ['{"t": %s}', '{"t":\n %s }', '{"o": {"l": [1, %s]}}', '{"o": {"m": {"k": %s}}}', '{"\\u0074": %s}']
    wrong = [form % each for form in forms for each in numbers]
    right = ['{"t": 1767571200}', '{"t": 99999999999}', '{"t": 0, "n": 1767571200000, "s": 1767571200000}']
    right += ['{"o": {"m": {"1767571200000": 1}}}', '{"t": "2026-01-05", "s": "[1767571200000]"}']
    found = read(spark, columns, [each.encode() for each in (*wrong, *right)])
    assert [row[FAULT] is None for row in found] == [False] * len(wrong) + [True] * len(right)
    assert [row["t"] for row in found[len(wrong) :]][:3] == [1767571200 * 10**6, 99999999999 * 10**6, 0]
    other = read(spark, "x timestamp_ntz, y date", [b'{"x": 1}', b'{"y": 1}', b'{"x": 1767571200000}'])
    assert None not in [row[FAULT] for row in other]
