"""The map side by itself: pieces by key group, the control rows that close a task, and the size of Arrow batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd  # noqa: TC002 - Spark reads the hint
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.batch_report import InputCounts
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.time.control_rows import REPEATED, UNAVAILABLE
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.codec import read_message
from cojoin.errors import QueryFailedError
from cojoin.spark.batch import packing
from cojoin.spark.batch.packing import (
    CONTROL_TAG,
    FAULT_COLUMN,
    GROUP_COLUMN,
    MARK_COLUMN,
    MARKER_COLUMNS,
    NEWEST_COLUMN,
    NOW_COLUMN,
    Packer,
    RowSizes,
    counted_by_rows,
    read_control,
    runs_python,
)
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("part", pa.string())])
NOW = 1_000_000


def spec(**settings: Any) -> InputSpec:
    return InputSpec("trades", SCHEMA, ("key",), "time", **settings)


def batch(rows: Sequence[tuple[Any, ...]], *, now: int | None = None) -> pa.RecordBatch:
    """Make what the JVM sends, of (key, microseconds, partition, key group)."""
    keys, times, parts, groups = ([row[column] for row in rows] for column in range(4))
    columns = [
        pa.array(keys, pa.int64()),
        pa.array(times, pa.int64()).cast(SCHEMA.field("time").type),
        pa.array(parts, pa.string()),
    ]
    names = ["c0", "c1", "c2"]
    if now is not None:
        columns.append(pa.array([now] * len(rows), pa.int64()))
        names.append(NOW_COLUMN)
    return pa.RecordBatch.from_arrays([*columns, pa.array(groups, pa.int32())], names=[*names, GROUP_COLUMN])


def packed(packer: Packer, *batches: pa.RecordBatch) -> tuple[dict[int, list[Any]], dict[int, Any]]:
    """Return the rows and the control of each key group."""
    pieces: dict[int, list[Any]] = {}
    controls: dict[int, Any] = {}
    for emitted in packer(iter(batches)):
        for group, tag, payload in zip(*(column.to_pylist() for column in emitted.columns), strict=True):
            if tag == CONTROL_TAG:
                assert group not in controls, "a task sends one control row to each key group"
                controls[group] = read_control(payload)
            else:
                assert tag == packer.tag
                rows = read_message(pa.py_buffer(payload), SCHEMA).to_pylist()
                pieces.setdefault(group, []).extend(row["key"] for row in rows)
    return pieces, controls


def test_rows_go_to_their_key_groups_and_every_group_hears_of_every_partition() -> None:
    first = batch([(1, 5_000, "a", 0), (2, 9_999, "b", 2), (3, 7_000, "a", 0)])
    second = batch([(4, 1_000, "b", 2), (5, -1, "c", 2)])
    pieces, controls = packed(Packer(spec(partition=("part",)), 1, (0, 1, 2, 3)), first, second)
    assert pieces == {0: [1, 3], 2: [2, 4, 5]}
    assert [controls[group].rows for group in range(4)] == [2, 0, 3, 0]
    assert {json.dumps(dict(control.partitions), sort_keys=True) for control in controls.values()} == {
        json.dumps({'["a"]': 7, '["b"]': 9, '["c"]': -1}, sort_keys=True)
    }
    assert {control.input for control in controls.values()} == {1}


def test_rows_too_large_for_one_message_all_come_to_their_key_group() -> None:
    rows = [(key, key, "x" * 90_000, key % 2) for key in range(7)]
    packer = Packer(spec(), 1, (5, 6))
    assert [batch.num_rows for batch in packer(iter([batch(rows)]))] == [7, 2]
    pieces, controls = packed(packer, batch(rows))
    assert pieces == {5: [0, 2, 4, 6], 6: [1, 3, 5]}
    assert [controls[label].rows for label in (5, 6)] == [4, 3]


def test_large_rows_are_packed_before_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 100_000)
    wide = [batch([(key, key, "x" * 60_000, 0)]) for key in range(5)]
    chunks = len(list(Packer(spec(), 1, (0,))(iter(wide)))) - len(["the control"])
    assert chunks == 3


@pytest.mark.parametrize("place", [0, 500, 999])
def test_a_large_row_among_small_ones_makes_no_large_chunk(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 10_000)
    texts = ["x" * 5] * 1_000
    texts[place] = "y" * 1_000_000
    made = list(packing.chunks([pa.record_batch({"text": texts})]))
    assert [text for chunk in made for text in chunk.column("text").to_pylist()] == texts
    assert [chunk.num_rows for chunk in made if chunk.nbytes > 20_000] == [1]
    assert len(made) < 20


def test_without_partition_columns_an_input_is_one_partition() -> None:
    controls = packed(Packer(spec(), 2, (0,)), batch([(1, 5_000, "a", 0), (2, 9_000, "b", 0)]))[1]
    assert dict(controls[0].partitions) == {"[]": 9}


@pytest.mark.parametrize(
    ("row", "moves"),
    [
        ((None, 9_000_000, "a", 0), True),
        ((1, None, "a", 0), False),
        ((None, None, "a", 0), False),
        ((1, (NOW + 501) * 1000, "a", 0), False),
        ((None, (NOW + 501) * 1000, "a", 0), False),
        ((1, (NOW + 500) * 1000 + 999, "a", 0), True),
    ],
)
def test_a_row_whose_time_is_at_fault_moves_no_watermark_but_is_sent_and_counted(
    row: tuple[Any, ...], moves: bool
) -> None:
    packer = Packer(spec(partition=("part",), max_ahead_ms=500), 1, (0,))
    pieces, controls = packed(packer, batch([row], now=NOW))
    assert pieces == {0: [row[0]]}
    assert controls[0].rows == 1
    assert controls[0].processing_time == NOW
    assert dict(controls[0].partitions) == ({'["a"]': row[1] // 1000} if moves else {})


def test_without_the_batch_s_time_no_row_is_taken_for_one_that_is_too_far_ahead() -> None:
    with refused("the time of the micro-batch did not reach the workers", kind=QueryFailedError):
        packed(Packer(spec(max_ahead_ms=500), 1, (0,)), batch([(1, NOW * 1000, "a", 0)]))


def test_a_task_without_rows_says_nothing() -> None:
    assert packed(Packer(spec(), 1, (0, 1, 2, 3)), batch([])) == ({}, {})
    assert packed(Packer(spec(), 1, (0, 1, 2, 3))) == ({}, {})


def test_the_end_of_input_is_a_control_of_its_own() -> None:
    assert read_control(b'{"end_of_input": true}') is None


def test_signs_of_a_source_are_no_rows() -> None:
    rows = [(1, 2_000, "a", 0), (None, None, "b", 1), (None, None, "a", 1), (7, 3_000, "b", 1), (2, 4_000, "a", 0)]
    markers = {
        MARK_COLUMN: pa.array([None, 60, None, None, None], pa.int64()),
        FAULT_COLUMN: pa.array([None, None, None, "undecodable: no JSON: {", None], pa.string()),
        NEWEST_COLUMN: pa.array([None, None, 14, None, None], pa.int64()),
    }
    plain = batch(rows)
    sent = pa.RecordBatch.from_arrays([*plain.columns, *markers.values()], names=[*plain.schema.names, *markers])
    bounded = WatermarkStrategy.for_bounded_out_of_orderness("5 ms")
    declared = spec(partition=("part",), sequence=("key",), watermark=bounded)
    pieces, controls = packed(Packer(declared, 1, (0, 1), max_apart_ms=10), sent)
    assert pieces == {0: [1, 2]}
    assert [controls[group].rows for group in (0, 1)] == [2, 0]
    assert controls[0].partitions == {'["a"]': 4}
    assert controls[0].source_watermarks == {'["b"]': 54}
    assert controls[0].agrees is True
    assert controls[0].faults == ()
    ((reason, known),) = controls[1].faults
    assert (reason, json.loads(known)) == ("undecodable", {"part": "b", "key": 7, "error": "no JSON: {"})
    _, controls = packed(Packer(declared, 1, (0, 1), max_apart_ms=9), sent)
    assert controls[0].agrees is False


def test_the_reason_of_a_fault_leaves_a_column_named_error_alone() -> None:
    schema = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("error", pa.string())])
    rows = batch([(None, None, "b", 0)])
    markers = [pa.nulls(1, pa.int64()), pa.array(["undecodable: no JSON: {"]), pa.nulls(1, pa.int64())]
    sent = pa.RecordBatch.from_arrays([*rows.columns, *markers], names=[*rows.schema.names, *MARKER_COLUMNS])
    declared = InputSpec("trades", schema, ("key",), "time", partition=("error",))
    _, controls = packed(Packer(declared, 1, (0,)), sent)
    ((_, known),) = controls[0].faults
    assert json.loads(known) == {"error": "b", "_error": "no JSON: {"}


def test_tombstones_that_repeat_a_delete_and_unavailable_values_are_counted() -> None:
    one = (1, 2_000, "a", 0)
    rows = batch([one, (None, None, "a", 1), (None, None, "b", 1), (7, None, "b", 0), one])
    faults = pa.array([None, REPEATED, REPEATED, "undecodable: no JSON: {", UNAVAILABLE], pa.string())
    markers = [pa.nulls(5, pa.int64()), faults, pa.nulls(5, pa.int64())]
    sent = pa.RecordBatch.from_arrays([*rows.columns, *markers], names=[*rows.schema.names, *MARKER_COLUMNS])
    pieces, controls = packed(Packer(spec(partition=("part",), sequence=("key",)), 1, (0, 1)), sent)
    assert pieces == {0: [1]}
    assert [controls[group].tombstones for group in (0, 1)] == [0, 2]
    assert [len(controls[group].faults) for group in (0, 1)] == [1, 0]
    assert [controls[group].unavailable for group in (0, 1)] == [1, 0]
    counts = InputCounts()
    for each in controls.values():
        counts.add_received(each)
    # A row with nulls instead of values is one row.
    assert (counts.rows_in, counts.done, counts.tombstones, counts.unavailable) == (4, 2, 2, 1)
    again = InputCounts()
    again.restore(json.loads(json.dumps(counts.as_dict())))
    assert again == counts
    # A state of 0.5.0 has none.
    again.restore({"rows_in": 4, "done": 2, "late_applied": 0, "rejected": {}})
    assert (again.tombstones, again.unavailable) == (0, 0)


def test_only_a_watermark_that_goes_by_event_times_hears_a_source() -> None:
    rows = batch([(1, 2_000, "a", 0)])
    markers = [pa.array([60], pa.int64()), pa.array([None], pa.string()), pa.array([None], pa.int64())]
    sent = pa.RecordBatch.from_arrays([*rows.columns, *markers], names=[*rows.schema.names, *MARKER_COLUMNS])
    for strategy in (WatermarkStrategy.for_clock_lag("1 second"), WatermarkStrategy.no_watermarks()):
        _, controls = packed(Packer(spec(partition=("part",), watermark=strategy), 1, (0,)), sent)
        assert controls[0].source_watermarks == {}


@pytest.mark.parametrize(
    ("max_ahead", "watermark"), [(None, NOW + 5_000 - 1), (100, NOW + 100 - 1), (9_000, NOW + 4_999)]
)
def test_no_mark_is_beyond_the_batch_s_clock_and_max_ahead(max_ahead: int | None, watermark: int) -> None:
    rows = batch([(None, None, "a", 0)], now=NOW)
    markers = [pa.array([NOW + 5_000], pa.int64()), pa.array([None], pa.string()), pa.array([None], pa.int64())]
    sent = pa.RecordBatch.from_arrays([*rows.columns, *markers], names=[*rows.schema.names, *MARKER_COLUMNS])
    bounded = WatermarkStrategy.for_bounded_out_of_orderness("0 ms")
    declared = spec(partition=("part",), watermark=bounded, max_ahead_ms=max_ahead)
    _, controls = packed(Packer(declared, 1, (0,)), sent)
    assert controls[0].source_watermarks == {'["a"]': watermark}


def test_chunks_are_bounded_by_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 10_000)
    sizes = [10, 4_000, 4_000, 4_000, 10, 50_000, 10, *[100] * 300]
    column = pa.array(["x" * size for size in sizes])
    batches = [pa.RecordBatch.from_arrays([column.slice(begin, 3)], ["c0"]) for begin in range(0, len(sizes), 3)]
    batches[1:2] = [batches[1].slice(row, 1) for row in range(3)]
    batches.append(pa.RecordBatch.from_arrays([pa.array(["y" * 4_000] * 50)], ["c0"]))
    found = [chunk.column("c0").to_pylist() for chunk in packing.chunks(batches)]
    assert [text for chunk in found for text in chunk] == [*column.to_pylist(), *["y" * 4_000] * 50]
    assert all(len(chunk) == 1 or sum(map(len, chunk)) <= 20_000 for chunk in found)
    assert ["x" * 50_000] in found


MAX_BYTES, MAX_ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
MB = 1 << 20


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, as a stream has one."""
    own = spark.newSession()
    own.conf.set(MAX_ROWS, "2000")
    return own


def limits(session: SparkSession) -> tuple[str | None, str | None]:
    return session.conf.get(MAX_BYTES), session.conf.get(MAX_ROWS)


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (pa.RecordBatch.from_pydict({"rows": [batch.num_rows]}) for batch in batches)


def sizes(frame: DataFrame) -> list[int]:
    """How many rows cross at once."""
    return [row.rows for row in frame.mapInArrow(counted, "rows long").collect()]


def call(left: int, right: int, state: int = 0) -> dict[str, Any]:
    return {"row_bytes": [left, right], "state_bytes": state}


@pytest.mark.parametrize(
    ("batches", "are_small"),
    [
        ([], False),
        ([[call(100, 0)], [], [call(90, 0)]], False),
        ([[call(100, 0), call(0, 4096)]], True),
        ([[call(100, 0)], [call(0, 50)], []], True),
        ([[call(100, 100)], [call(5000, 100)], [call(100, 100)]], False),
        ([[call(10, 10, 200 * MB), call(10, 10, 57 * MB)]], False),
        ([[call(10, 10, 257 * MB)], [call(10, 10, 256 * MB)]], True),
    ],
)
def test_rows_are_small_once_both_inputs_have_shown_so(batches: list[list[dict[str, Any]]], are_small: bool) -> None:
    seen = RowSizes()
    for batch in batches:
        seen.observe(batch)
    assert seen.are_small == are_small


@pytest.mark.spark
def test_meanwhile_rows_are_counted(session: SparkSession) -> None:
    before = limits(session)
    with counted_by_rows(session):
        assert sizes(session.range(0, 3000, 1, 1)) == [1024, 1024, 952]
        assert limits(session)[0] == str((1 << 31) - 1)
    assert limits(session) == before
    assert sizes(session.range(0, 3000, 1, 1)) == [2000, 1000]


@pytest.mark.spark
def test_limits_of_the_users_stay(session: SparkSession) -> None:
    session.conf.set(MAX_ROWS, "700")
    with counted_by_rows(session):
        assert sizes(session.range(0, 1000, 1, 1)) == [700, 300]
    session.conf.set(MAX_BYTES, "4096")
    with counted_by_rows(session):
        assert max(sizes(session.range(0, 1000, 1, 1))) < 700
    assert limits(session) == ("4096", "700")


@pytest.mark.spark
def test_the_limits_come_back_after_a_fault(session: SparkSession) -> None:
    before = limits(session)
    with pytest.raises(ZeroDivisionError), counted_by_rows(session):
        _ = 1 / 0
    assert limits(session) == before


@pytest.mark.spark
def test_tasks_of_a_streams_batch_see_it_though_they_were_planned_before(session: SparkSession, tmp_path: Path) -> None:
    session.range(0, 3000, 1, 1).write.parquet(str(tmp_path / "in"))
    seen = []

    def take(batch: DataFrame, _: int) -> None:
        with counted_by_rows(batch.sparkSession):
            seen.extend(row.rows for row in batch.collect())

    stream = session.readStream.schema("id long").parquet(str(tmp_path / "in")).mapInArrow(counted, "rows long")
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert (max(seen), sum(seen)) == (1024, 3000)


@pytest.mark.spark
def test_python_before_an_input_is_found(spark: SparkSession) -> None:
    @F.pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def same(values: pd.Series) -> pd.Series:
        return values

    numbers, stream = spark.range(3), spark.readStream.format("rate").load()
    assert not runs_python(numbers)
    assert not runs_python(stream.where("value > 1"))
    assert runs_python(numbers.select(same("id")).where("id > 1"))
    assert runs_python(numbers.mapInArrow(counted, "rows long"))
    assert runs_python(stream.withColumn("more", F.udf(lambda value: value, "long")("value")))
