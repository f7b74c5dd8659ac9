"""Rows that the reading task packs are those that the map side packs of what Spark decodes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.key_groups import group_labels
from cojoin.engine.values.codec import read_message
from cojoin.kafka.packed_records import PackedRecords, why_through_spark
from cojoin.kafka.record_columns import RecordDescription
from cojoin.kafka.records import FAULT, KEY, MARK, NEWEST, TIME, TOMBSTONE, VALUE
from cojoin.kafka.topics import Topics
from cojoin.spark.batch.packing import (
    CONTROL_TAG,
    GROUP_COLUMN,
    MARKER_COLUMNS,
    READY_COLUMNS,
    Grouping,
    Packer,
    key_group,
    read_control,
)
from tests.kafka.formats.test_arrow_json import DDL, a_value, as_lists
from tests.kafka.replayed import MINUTE, START, Written, join, make, pairs, rejected, row, run, version, write
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.spark

GROUPS = 5
PLACE = ("topic", "partition", "offset")


def described(schema: str | None = DDL, *, key: str = "long") -> RecordDescription:
    columns = {"from_key": cj.kafka.key(key), "made": cj.kafka.timestamp()}
    return RecordDescription("source kafka t", Topics(("t",)), schema, columns)


def drawn(
    rng: random.Random, records: RecordDescription, count: int, begin: int, *, odd: bool, keeps: bool
) -> pa.RecordBatch:
    """Draw records as a task reads them: rows, tombstones, faults and marks."""
    form = records.record_format(keeps_tombstones=keeps, archive=None)
    rows: list[dict[str, Any]] = []
    for offset in range(count):
        row: dict[str, Any] = {"topic": "t", "partition": rng.randrange(3), "offset": begin + offset}
        row[KEY] = str(rng.randrange(-50, 50)).encode()
        row[TIME] = rng.randrange(2_000_000_000_000_000)
        if odd and rng.random() < 0.1:
            row[KEY] = rng.choice([None, b"", b"\xff", b"1.5", b" 7", b"007", b"99999999999999999999", b"-0", b"x"])
        row[VALUE] = a_value(rng) if odd else b'{"id": %d, "tier": "gold"}' % rng.randrange(100)
        if odd and row[VALUE] is None and not keeps:
            row[FAULT] = TOMBSTONE
        if odd and rng.random() < 0.02:
            row = {"topic": "t", "partition": rng.randrange(3)}
            row[rng.choice([MARK, NEWEST])] = rng.randrange(2_000_000_000)
        rows.append(row)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in form.schema]
    return pa.RecordBatch.from_arrays(columns, schema=form.schema)


def spec_of(records: RecordDescription, frame: DataFrame, key: str) -> InputSpec:
    names = [name for name in frame.columns if name not in (*MARKER_COLUMNS, *READY_COLUMNS)]
    schema = frame.select(*names).limit(0).toArrow().schema
    return InputSpec("trades", schema, (key,), "made", partition=("topic", "partition"), sequence=("offset",))


def packed(frame: DataFrame, spec: InputSpec) -> tuple[dict[int, list[pa.Table]], dict[int, Any]]:
    """Return the messages and the control of each key group."""
    columns = [frame[name].alias(f"c{at}") for at, name in enumerate(spec.source_schema.names)]
    columns += [frame[name] for name in (*MARKER_COLUMNS, *READY_COLUMNS) if name in frame.columns]
    # Rows with a null key are spread, too, as where they are let out unmatched.
    keys, spread = ([frame[name] for name in names] for names in (spec.key, spec.spreading))
    group = key_group(keys, GROUPS, spread).alias(GROUP_COLUMN)
    batches = frame.select(*columns, group).toArrow().to_batches()
    pieces: dict[int, list[pa.Table]] = {}
    controls: dict[int, Any] = {}
    for emitted in Packer(spec, 1, group_labels(GROUPS), 60_000)(iter(batches)):
        for label, tag, payload in zip(*(column.to_pylist() for column in emitted.columns), strict=True):
            if tag == CONTROL_TAG:
                controls[label] = read_control(payload)
            else:
                pieces.setdefault(label, []).append(payload)
    return pieces, controls


def both(
    spark: SparkSession, records: RecordDescription, batches: Iterable[pa.RecordBatch], key: str = "from_key"
) -> tuple[Any, Any, InputSpec]:
    """Return what is packed in the general way and directly, and the input."""
    batches = list(batches)
    general = records.rows(spark.createDataFrame(pa.Table.from_batches(batches)), fails_for=None, archive=None)
    spec = spec_of(records, general, key)
    assert why_through_spark(records, spec, has_archive=False) is None
    parts = records.parts(spec.source_schema.names)
    assert parts is not None
    packing = PackedRecords(
        Grouping(spec.source_schema, spec.key, GROUPS, spec.spreading), parts, records.columns, records.json
    )
    ready = pa.Table.from_batches(list(packing(iter(batches))), packing.schema(batches[0].schema))
    direct = records.rows(spark.createDataFrame(ready), fails_for=None, archive=None)
    return packed(general, spec), packed(direct, spec), spec


def rows_of(pieces: dict[int, list[bytes]], spec: InputSpec) -> dict[int, pa.Table]:
    return {
        label: pa.Table.from_batches(
            [read_message(pa.py_buffer(each), spec.source_schema) for each in messages]
        ).sort_by([(name, "ascending") for name in PLACE])
        for label, messages in pieces.items()
    }


def assert_same(general: Any, direct: Any, spec: InputSpec) -> None:
    one, other = rows_of(direct[0], spec), rows_of(general[0], spec)
    assert one.keys() == other.keys()
    for label, expected in other.items():
        assert str(as_lists(one[label])) == str(as_lists(expected))  # as texts, because NaN is not equal to itself
    assert direct[1].keys() == general[1].keys()
    for label, control in general[1].items():
        found = direct[1][label]
        assert sorted(found.faults) == sorted(control.faults)
        assert without_faults(found) == without_faults(control)


def without_faults(control: Any) -> dict[str, Any]:
    return {**vars(control), "faults": None, "unread": sorted(control.unread)}


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("key", ["long", "string", "binary", "int", "tinyint"])
def test_rows_are_those_of_the_general_way(spark: SparkSession, key: str, *, keeps: bool) -> None:
    rng, records = random.Random(f"{SEED} {key} {keeps}"), described(key=key)
    batches = [drawn(rng, records, rng.choice([1, 50, 300]), 1000 * at, odd=True, keeps=keeps) for at in range(3)]
    assert_same(*both(spark, records, batches, rng.choice(["from_key", "id", "tier", "day", "offset"])))


def test_plain_records_are_packed_to_the_same_bytes(spark: SparkSession) -> None:
    rng, records = random.Random(SEED), described()
    general, direct, spec = both(spark, records, [drawn(rng, records, 2_000, 0, odd=False, keeps=False)])
    assert direct == general
    assert sum(each.num_rows for each in rows_of(direct[0], spec).values()) == 2_000


def test_what_the_tasks_do_not_pack_is_told(spark: SparkSession) -> None:
    spec = InputSpec("trades", pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())]), ("id",), "at")

    def why(records: RecordDescription, *, has_archive: bool = False) -> str | None:
        return why_through_spark(records, spec, has_archive=has_archive)

    def of(schema: str, **columns: Any) -> RecordDescription:
        formats = {"value": None, "key": None}
        return RecordDescription("source kafka t", Topics(("t",)), schema, columns, None, formats, {})

    plain = "at timestamp, id long"
    assert why(of(plain)) is None
    assert why(of(plain), has_archive=True) == "it has an archive"
    assert why(of("id long")) == "its event time is an expression"
    assert why(of(f"{plain}, price float")) == "Spark alone parses JSON as its column 'price', of the type float"
    assert "column 'part', header 'h' as string" in str(why(of(plain, part=cj.kafka.header("h"))))
    assert "column 'part', the record's key as double" in str(why(of(plain, part=cj.kafka.key("double"))))
    for name, value in (("spark.cojoin.kafka", "spark"), ("spark.sql.legacy.timeParserPolicy", "LEGACY")):
        spark.conf.set(name, value)
        try:
            assert why(of(plain)) == f"{name} is {value}"
        finally:
            spark.conf.unset(name)


@pytest.mark.kafka
@pytest.mark.slow  # Two queries, each in two runs.
@pytest.mark.parametrize("ways", [("", "spark"), ("spark", "")])
def test_a_checkpoint_goes_on_either_way(
    spark: SparkSession, broker: Broker, tmp_path: Path, ways: tuple[str, str]
) -> None:
    left, right = f"packed-l-{ways[0]}", f"packed-r-{ways[0]}"
    servers = make(broker, left, right, partitions=2)
    told = []
    for number, way in enumerate(ways):
        minute = 10 * number
        odd = {**row(0, minute + 4).value, "id": "seven"}
        write(servers, left, [row(4 * number + at, minute + at, at % 2) for at in range(4)])
        write(
            servers, left, [Written(odd, 0, START + (minute + 4) * MINUTE), Written(None, 1, START + minute * MINUTE)]
        )
        write(servers, right, [version(number, minute + 1, partition) for partition in range(2)])
        spark.conf.set("spark.cojoin.kafka", way)
        try:
            query = run(join(servers, left, right), tmp_path, drain=number == 1)
        finally:
            spark.conf.unset("spark.cojoin.kafka")
        assert query.progress is not None
        assert query.progress.is_conserved
        told.append([each.reading for each in query.progress.inputs])
    assert told == [["direct" if not way else "spark.cojoin.kafka is spark"] * 2 for way in ways]
    assert pairs(spark, tmp_path) == [(0, None), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 1)]
    assert [reason for _, reason, _ in rejected(spark, tmp_path)] == [
        "undecodable",
        "undecodable",
        "tombstone",
        "tombstone",
    ]
