"""A drain is planned once, in logs of the form that Spark wrote itself; how Spark runs it is in ``tests/spark``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.checkpoints.claimed_checkpoint import resumed_batches
from cojoin.checkpoints.control import (
    END_OF_INPUT,
    drain_is_promised,
    keep_former_runs_from_draining,
    open_control,
    plan_clock_message,
    plan_drain,
    plan_readings,
    promise_drain,
)
from cojoin.engine.time.control_rows import CompleteReading, Control
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import plan_look_at_the_clock, source_offsets
from cojoin.spark.batch.packing import read_control
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

pytestmark = pytest.mark.spark

OFFSETS = 'v1\n{"batchTimestampMs":5}\n{"logOffset":3}\n{"logOffset":1}\n-'


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Store:
    return open_store(spark, str(tmp_path))


def test_a_drain_stands_after_the_last_committed_batch(files: Store) -> None:
    files.write("spark/offsets/9", OFFSETS)
    files.write("spark/offsets/10", OFFSETS)
    files.write("spark/commits/10", "v1\n{}")
    files.make_directory("spark/sources/0")
    files.make_directory("spark/sources/2")
    assert not drain_is_promised(files)
    assert plan_drain(files, 1)
    assert drain_is_promised(files)
    assert source_offsets(files, 11) == ['{"logOffset":3}', '{"logOffset":1}', '{"logOffset":0}']
    assert (files.read("spark/offsets/11") or "").splitlines()[:2] == OFFSETS.splitlines()[:2]
    version, entry = (files.read("spark/sources/2/0") or "").splitlines()
    assert version == "v1"
    listed = f"file://{files.path('control/end_of_input.parquet').removeprefix('file:')}"
    assert json.loads(entry)["path"] == listed, "as Spark lists it"
    assert plan_drain(files, 1), "planned twice is planned once"
    assert files.names("spark/offsets") == ["10", "11", "9"]


def test_a_run_that_was_taken_over_promises_no_drain(files: Store) -> None:
    for number in (9, 10):
        files.write(f"spark/offsets/{number}", OFFSETS)
    files.write("spark/commits/10", "v1\n{}")
    files.make_directory("spark/sources/2")
    keep_former_runs_from_draining(files, 1)
    assert not files.exists("drain.json"), "a first run has none before it"
    keep_former_runs_from_draining(files, 2)
    with refused(
        "fenced off: another run, of epoch 2, has begun meanwhile; this query held epoch 1", kind=cj.QueryFailedError
    ):
        plan_drain(files, 1)
    assert not drain_is_promised(files)
    assert files.names("spark/offsets") == ["10", "9"]
    promise_drain(files, 2)
    keep_former_runs_from_draining(files, 3)
    assert drain_is_promised(files), "the next run finishes it, though its message was never written"
    assert plan_drain(files, 3)


def test_where_no_batch_ran_there_is_nothing_to_end(files: Store) -> None:
    assert not plan_drain(files, 1)
    assert source_offsets(files, 0) == []
    assert not drain_is_promised(files)


def test_a_batch_under_way_comes_first(files: Store) -> None:
    files.write("spark/offsets/0", OFFSETS)
    files.make_directory("spark/sources/2")
    with refused("batch 0 is planned but not committed; let a run finish it before a drain", kind=cj.CheckpointError):
        plan_drain(files, 1)
    assert not drain_is_promised(files)


def test_an_offset_log_of_another_form_is_left_alone(files: Store) -> None:
    files.write("spark/offsets/0", OFFSETS.replace("v1", "v2"))
    files.write("spark/commits/0", "v1\n{}")
    files.make_directory("spark/sources/2")
    with refused("spark/offsets/0", "is not in the form v1", "put it back", kind=cj.CheckpointError):
        plan_drain(files, 1)
    assert files.names("spark/offsets") == ["0"]
    assert not drain_is_promised(files)


def test_a_message_goes_to_its_key_group_or_to_every_one(spark: SparkSession, files: Store, tmp_path: Path) -> None:
    stream = open_control(spark, files, [0, 1, 2], tag=0)
    content = pa.table([pa.array([None, 1], pa.int32()), pa.array([END_OF_INPUT, b"one"])], ["key_group", "payload"])
    pq.write_table(content, tmp_path / "control" / "a.parquet")
    writer = stream.writeStream.format("memory").queryName("control_messages").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/stream").start().awaitTermination()
    rows = spark.table("control_messages").orderBy("key_group", F.length("payload").desc()).collect()
    assert [(row.key_group, row.tag, bytes(row.payload)) for row in rows] == [
        (0, 0, END_OF_INPUT),
        (1, 0, END_OF_INPUT),
        (1, 0, b"one"),
        (2, 0, END_OF_INPUT),
    ]


def test_a_look_at_the_clock_is_a_batch_that_reads_nothing(files: Store) -> None:
    assert not plan_look_at_the_clock(files, 5)
    files.write("spark/offsets/4", 'v1\n{"batchTimestampMs":1,"conf":{}}\n{"logOffset":7}\n-')
    assert not plan_look_at_the_clock(files, 5), "a batch under way has a clock of its own"
    files.write("spark/commits/4", "v1\n{}")
    assert plan_look_at_the_clock(files, 5)
    assert files.read("spark/offsets/5") == 'v1\n{"batchTimestampMs": 5, "conf": {}}\n{"logOffset":7}\n-'


def test_a_state_without_timeouts_looks_at_the_clock_by_a_message(files: Store) -> None:
    assert not plan_clock_message(files, 5, 1)
    files.write("spark/offsets/4", 'v1\n{"batchTimestampMs":1,"conf":{}}\n{"logOffset":7}\n-')
    files.make_directory("spark/sources/1")
    assert not plan_clock_message(files, 5, 1), "a batch under way has a clock of its own"
    for batch_id, epoch in ((4, 1), (5, 2)):
        files.write(f"spark/commits/{batch_id}", "v1\n{}")
        assert plan_clock_message(files, 5 + batch_id, epoch)
    version, entry, *sources = (files.read("spark/offsets/6") or "").splitlines()
    assert (version, json.loads(entry)["batchTimestampMs"], sources) == (
        "v1",
        10,
        ['{"logOffset":7}', '{"logOffset":1}'],
    )
    assert files.names("control") == ["clock-2-6.parquet"], "the one before was read"
    (message,) = pq.read_table(f"{files.root.removeprefix('file:')}/control/clock-2-6.parquet").to_pylist()
    assert message["key_group"] is None
    assert read_control(message["payload"]) == Control(1, processing_time=10)


def test_complete_readings_are_stored_with_the_plan_of_a_batch_that_reads_nothing_else(files: Store) -> None:
    files.write("spark/offsets/10", OFFSETS)
    files.make_directory("spark/sources/2")
    readings = {2: CompleteReading(100, 7, 40), 1: CompleteReading(100)}
    assert not plan_readings(files, 3, readings, 200), "a batch under way comes first"
    files.write("spark/commits/10", "v1\n{}")
    assert plan_readings(files, 3, readings, 200)
    assert (files.read("spark/offsets/11") or "").splitlines() == [
        "v1",
        '{"batchTimestampMs": 200}',
        '{"logOffset":3}',
        '{"logOffset":1}',
        '{"logOffset":0}',
    ]
    rows = pq.read_table(files.path("control/reading-3.parquet")).to_pylist()
    assert {row["key_group"] for row in rows} == {None}
    told = [json.loads(row["payload"]) for row in rows]
    assert [(each["input"], each["reading"]) for each in told] == [
        (1, {"asked_at": 100}),
        (2, {"asked_at": 100, "version": 7, "up_to": 40}),
    ]
    for epoch in (4, 5):
        files.write(f"spark/commits/{epoch + 7}", "v1\n{}")
        assert plan_readings(files, epoch, readings, 300)
    assert sorted(files.names("control")) == ["reading-4.parquet", "reading-5.parquet"], "the one before may be named"


def test_a_run_that_was_taken_over_plans_no_reading(files: Store) -> None:
    def taken_over() -> None:
        msg = "another run has continued"
        raise cj.QueryFailedError(msg)

    files.write("spark/offsets/10", OFFSETS)
    files.write("spark/commits/10", "v1\n{}")
    files.make_directory("spark/sources/2")
    with refused("another run has continued", kind=cj.QueryFailedError):
        plan_readings(files, 3, {1: CompleteReading(100)}, 200, taken_over)
    assert files.names("spark/offsets") == ["10"]


def test_where_no_batch_ran_there_is_no_reading(files: Store) -> None:
    assert not plan_readings(files, 3, {1: CompleteReading(100)}, 200)


def test_a_run_that_fails_again_and_again_does_not_forget_with_which_batch_the_last_one_began(
    files: Store,
) -> None:
    assert resumed_batches(files) == {0}
    files.write("spark/offsets/0", "v1")
    for _ in range(9):
        assert resumed_batches(files) == {0, 1}


def test_a_later_run_has_begun_where_an_earlier_one_notes_its_start(files: Store) -> None:
    assert resumed_batches(files, 2) == {0}
    files.write("spark/offsets/0", "v1")
    with refused("fenced off: another run, of epoch 2, has begun meanwhile", kind=cj.QueryFailedError):
        resumed_batches(files, 1)
    assert resumed_batches(files, 3) == {0, 1}
