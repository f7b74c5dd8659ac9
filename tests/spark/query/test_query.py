"""A started query over its life: scheduled runs, drain, failures, restarts, and what it says of itself."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.session.session_adapter import FILE_MANAGER
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import logged_time
from cojoin.spark.batch.batch_facts import CLOCK_PROPERTY
from cojoin.spark.batch.packing import counted_by_rows
from cojoin.spark.query import batch_writer, query
from tests.spark.data import (
    Folders,
    asof,
    connect,
    customers,
    cut,
    enriched_rows,
    generate,
    rows,
    table,
    trades,
)
from tests.spark.functions import CountCalls, Deletes, Mendable
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.batch_report import BatchReport

pytestmark = pytest.mark.spark

DRAIN = cj.Trigger.available_now(drain=True)
PAUSE = cj.Trigger.available_now()
MAX_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Job:
    """One query with all it writes below one folder; each run starts it anew, as a new driver would."""

    def __init__(self, spark: SparkSession, folder: Path, folders: Folders) -> None:
        self.spark, self.folder, self.folders = spark, folder, folders
        self.checkpoint = f"{folder}/checkpoint"
        self.output: Any = cj.sinks.delta(f"{folder}/out")
        self.rejected: Any = None

    def joined(self) -> cj.Joined:
        return asof(self.folders.connect(self.spark, key_groups=2))

    def start(self, trigger: cj.Trigger = PAUSE, joined: cj.Joined | None = None, name: str | None = None) -> cj.Query:
        return (joined or self.joined()).start(
            output=self.output, rejected=self.rejected, checkpoint=self.checkpoint, trigger=trigger, name=name
        )

    def run(self, trigger: cj.Trigger = PAUSE, joined: cj.Joined | None = None) -> BatchReport:
        query = self.start(trigger, joined)
        assert query.await_termination()
        assert not query.is_active
        assert query.exception() is None
        assert query.progress is not None
        return query.progress

    def fails(self, trigger: cj.Trigger = PAUSE, joined: cj.Joined | None = None) -> str:
        query = self.start(trigger, joined)
        with pytest.raises(cj.QueryFailedError) as caught:
            query.await_termination()
        assert not query.is_active
        return str(caught.value)

    def out(self) -> DataFrame:
        return table(self.spark, self.folder / "out")

    def manifests(self) -> Manifests:
        return Manifests(open_store(self.spark, self.checkpoint))

    def assert_conserved(self) -> None:
        """See the law in every manifest, and that the progress table says the same, a row a batch."""
        reports = [
            manifest.report for each in self.manifests().batch_ids() if (manifest := self.manifests().read(each))
        ]
        assert all(report.is_conserved for report in reports)
        progress = table(self.spark, f"{self.checkpoint}/progress").orderBy("batch_id").collect()
        assert (
            [row.batch_id for row in progress] == [report.batch_id for report in reports] == list(range(len(reports)))
        )
        for row, report in zip(progress, reports, strict=True):
            assert [each.name for each in row.inputs] == ["trades", "customers"]
            for each, expected in zip(row.inputs, report.inputs, strict=True):
                assert each.rows_in == each.done + each.buffered + sum(each.rejected.values())
                assert (each.rows_in, each.done, each.rejected) == (expected.rows_in, expected.done, expected.rejected)


def test_a_batch_whose_entry_is_not_in_sparks_log_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, 2, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    job = Job(spark, tmp_path, folders)
    function = Deletes(f"{tmp_path}/checkpoint/spark/offsets/0")
    joined = folders.connect(spark, key_groups=2).process(function, "trade_id long", order="arrival")
    message = job.fails(PAUSE, joined)
    assert "spark/offsets/0 is missing, and Spark runs this batch: the file was deleted, or not written" in message
    assert not (tmp_path / "out" / "_delta_log").exists()
    assert job.manifests().batch_ids() == []


@pytest.mark.slow  # Six starts; other tests go on from a checkpoint once.
def test_five_scheduled_runs_give_what_one_run_gives(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(seed=11)
    folders = Folders(tmp_path)
    job = Job(spark, tmp_path, folders)
    early, middle, late = cut(streams.trades, 3)
    first, second, third = (streams.customers.iloc[start:stop] for start, stop in ((0, 25), (25, 130), (130, 150)))
    endings = []
    for new_trades, new_customers in [(early, first), (middle, None), (None, second), (late, third), (None, None)]:
        if new_trades is not None:
            folders.add_trades(new_trades)
        if new_customers is not None:
            folders.add_customers(new_customers)
        report = job.run()
        endings.append(report.ending())
        waiting = [f"{each.buffered:,} rows of {each.name!r}" for each in report.inputs if each.buffered]
        assert waiting
        assert report.ending().startswith(f"paused: {' and '.join(waiting)} wait for the watermark of ")
    assert "wait for the watermark of 'customers', which is 2024-03-01 07:00:" in endings[1]
    assert "wait for the watermark of 'trades', which is 2024-03-01 07:00:" in endings[2]
    assert endings[3] == endings[4]
    assert job.out().count() < 600
    job.assert_conserved()
    report = job.run(DRAIN)
    assert report.ending() == "drained: all inputs are finished"
    assert enriched_rows(job.out()) == streams.enriched()
    job.assert_conserved()
    with refused("was drained after batch", "so it is over; start a new query", kind=cj.CheckpointError):
        job.start(DRAIN)


def test_a_query_has_settings_and_times_of_its_own_and_the_session_keeps_its_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = FILE_MANAGER, "spark.sql.streaming.pollingDelay", "spark.sql.streaming.noDataMicroBatches.enabled"
    before, within = [spark.conf.get(name, None) for name in names], []
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    job = Job(spark, tmp_path, folders)

    def note(frame: DataFrame, batch_id: int) -> None:
        settings = [frame.sparkSession.conf.get(name, None) for name in names[:2]]
        within.append((batch_id, settings, spark.sparkContext.getLocalProperty(CLOCK_PROPERTY)))

    job.output = note
    job.run(DRAIN)
    ((batch_id, (manager, delay), time_of_batch),) = within
    assert str(manager).endswith(".FileSystemBasedCheckpointFileManager")
    assert delay == "30ms"
    # A repeated batch has the same offset log, and so the same time.
    assert time_of_batch == str(logged_time(open_store(spark, job.checkpoint), batch_id))
    assert [spark.conf.get(name, None) for name in names] == before


def test_a_start_that_fails_leaves_the_session_and_no_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    before = {each.id for each in spark.streams.active}

    def interrupted(stream: Any) -> None:
        del stream
        raise KeyboardInterrupt

    monkeypatch.setattr(query, "await_sources", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Job(spark, tmp_path, folders).start()
    assert {each.id for each in spark.streams.active} == before
    assert spark.conf.get(FILE_MANAGER, None) is None


def test_a_batch_that_fails_after_its_output_gives_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    folders.add_trades(trades([(2, None, 30), (3, 1, 30), (4, 1, 40)]))
    folders.add_customers(customers([(2, 1, 40)]))
    job = Job(spark, tmp_path, folders)
    seen: list[tuple[int, list[Any]]] = []

    def take_rejected(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, rows(frame, "reason")))
        if len(seen) == 1:
            msg = "the disk is full"
            raise OSError(msg)

    job.rejected = take_rejected
    message = job.fails(DRAIN)
    assert message == (
        "batch 1: rejected to test_a_batch_that_fails_after_its_output_gives_each_row_once.<locals>.take_rejected: "
        f"OSError: the disk is full ({__file__}:{take_rejected.__code__.co_firstlineno + 4}, in take_rejected)"
    )
    # The batch's output is there, but it does not count: it has no manifest.
    assert rows(job.out(), "trade_id") == [(1,), (3,)]
    assert job.manifests().batch_ids() == [0]
    report = job.run(DRAIN)
    assert rows(job.out(), "trade_id", "version") == [(1, 1), (3, 1), (4, 2)]
    assert seen == [(1, [("null_key",)]), (1, [("null_key",)])]
    assert report.inputs[0].rejected == {"null_key": 1}
    job.assert_conserved()


def test_a_batch_is_executed_once_whatever_its_sinks(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    for batch in range(2):
        folders.add_trades(trades([(10 * batch + key, key, 10 + 20 * batch) for key in range(8)] + [(99, None, 10)]))
        folders.add_customers(customers([(batch, 1, 10 + 20 * batch), (9, None, 10)]))
    job = Job(spark, tmp_path, folders)
    calls = tmp_path / "calls"
    joined = folders.connect(spark, key_groups=3).process(CountCalls(str(calls)), "trade_id long", order="arrival")
    report = job.run(DRAIN, joined)
    assert table(spark, f"{job.checkpoint}/rejected").count() == 4
    assert job.out().count() == 16
    key_groups, batches_run = 3, 3
    assert len(job.manifests().batch_ids()) == batches_run
    assert calls.read_text().count("call") == key_groups * batches_run
    assert report.details["timers"] == 0


@pytest.mark.slow  # Five batches each.
@pytest.mark.parametrize(
    ("interval", "persisted"), [(2, [0, 1, 0, 1, 0]), ("10 minutes", [0, 0, 0, 1, 0]), (1, [1, 1, 1, 1, 1])]
)
def test_what_is_read_once_is_not_persisted_and_the_calls_run_once_all_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: Any, persisted: list[int]
) -> None:
    """Three batches and a fourth of another run, which does not know when a snapshot is due; then the drain."""
    folders, calls = Folders(tmp_path), tmp_path / "calls"
    seen: list[int] = []

    class Watched(batch_writer._SparkBatch):
        def release(self) -> None:
            seen.append(int(self._is_persisted))
            super().release()

    monkeypatch.setattr(batch_writer, "_SparkBatch", Watched)

    def add(batch: int) -> None:
        folders.add_trades(trades([(10 * batch + key, key, 10 + 20 * batch) for key in range(8)]))
        folders.add_customers(customers([(batch, 1, 10 + 20 * batch)]))

    def run(trigger: cj.Trigger) -> None:
        joined = folders.connect(spark, key_groups=3).process(CountCalls(str(calls)), "trade_id long", order="arrival")
        out, checkpoint = cj.sinks.parquet(f"{tmp_path}/out"), f"{tmp_path}/checkpoint"
        query = joined.start(output=out, checkpoint=checkpoint, trigger=trigger, checkpoint_interval=interval)
        assert query.await_termination(progress=False)

    for batch in range(3):
        add(batch)
    run(PAUSE)
    add(3)
    run(DRAIN)
    assert seen == persisted
    assert calls.read_text().count("call") == 3 * 5
    assert spark.read.parquet(f"{tmp_path}/out").count() == 32
    taken = Snapshots(open_store(spark, f"{tmp_path}/checkpoint")).batch_ids()
    assert taken == {"10 minutes": [], 1: [1, 2, 3], 2: [1, 3]}[interval]


def test_rows_known_to_be_small_cross_by_number_and_only_the_calls_see_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(tmp_path)
    for batch in range(2):
        folders.add_trades(trades([(10 * batch + key, key, 10 + 20 * batch) for key in range(8)]))
        folders.add_customers(customers([(batch, 1, 10 + 20 * batch)]))
    counted, seen = [], []
    monkeypatch.setattr(
        batch_writer, "counted_by_rows", lambda session: counted.append(session) or counted_by_rows(session)
    )
    job = Job(spark, tmp_path, folders)
    job.output = lambda frame, batch_id: seen.append(frame.sparkSession.conf.get(MAX_ROWS))
    job.run(DRAIN)
    assert len(counted) == 2, "of three batches all but the first"
    assert set(seen) == {spark.conf.get(MAX_ROWS)}


@pytest.mark.slow
def test_a_function_that_raises_stops_the_query_and_its_mended_self_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = Folders(tmp_path)
    for batch in range(2):
        folders.add_trades(trades([(batch, 1, 10 + 20 * batch)]))
        folders.add_customers(customers([(batch, 1, 10 + 20 * batch)]))
    job = Job(spark, tmp_path, folders)

    def joined(bad_trade: int | None) -> cj.Joined:
        return folders.connect(spark, key_groups=2).process(Mendable(bad_trade), "trade_id long", order="arrival")

    code = Mendable.process_element1.__code__
    message = job.fails(DRAIN, joined(1))
    assert message == (
        "Mendable.process_element1 raised LookupError: no price for trade 1 "
        f"({code.co_filename}:{code.co_firstlineno + 3}, in process_element1); input 'trades', key 1, "
        "row Row(trade_id=1, customer_id=1, event_time=datetime.datetime(2024, 3, 1, 7, 0, 30, "
        "tzinfo=datetime.timezone.utc), amount=1.0, position=1)"
    )
    assert job.manifests().batch_ids() == [0]
    report = job.run(DRAIN, joined(None))
    assert report.batch_id == 2
    assert rows(job.out()) == [(0,), (1,)]
    job.assert_conserved()


def test_a_crash_between_the_drains_plan_and_its_end_reads_nothing_newer(spark: SparkSession, tmp_path: Path) -> None:
    from cojoin.checkpoints.control import plan_drain

    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    job = Job(spark, tmp_path, folders)
    assert "1 row of 'trades'" in job.run().ending()
    assert plan_drain(open_store(spark, job.checkpoint), 1)
    folders.add_trades(trades([(2, 1, 20)]))
    folders.add_customers(customers([(2, 1, 20)]))
    report = job.run(cj.Trigger.processing_time("0 seconds"))
    assert report.drained
    assert report.batch_id == 1
    assert [each.rows_in for each in report.inputs] == [1, 1]
    assert rows(job.out(), "trade_id", "version") == [(1, 1)]
    with refused("was drained after batch 1", kind=cj.CheckpointError):
        job.start()


@pytest.mark.slow
def test_a_processing_time_query_takes_what_comes_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5), (2, 1, 20)]))
    job = Job(spark, tmp_path, folders)
    query = job.start(cj.Trigger.processing_time("100 milliseconds"), name="a job")
    wait_for(query, lambda report: report.rows_out == 0 and report.inputs[0].rows_in == 1)
    folders.add_trades(trades([(2, 1, 30)]))
    wait_for(query, lambda report: report.rows_out == 1)
    assert query.is_active
    assert not query.await_termination(timeout=0.01)
    with refused("Cannot start query with name a job as a query with that name is already active"):
        job.joined().start(output=print, checkpoint=f"{tmp_path}/another", trigger=PAUSE, name="a job")
    query.stop()
    assert not query.is_active
    assert query.exception() is None
    assert query.await_termination()
    assert rows(job.out(), "trade_id", "version") == [(1, 1)]
    folders.add_trades(trades([(3, 1, 40)]))
    assert job.run(DRAIN).inputs[0].rows_in == 3
    assert rows(job.out(), "trade_id", "version") == [(1, 1), (2, 2), (3, 2)]
    job.assert_conserved()


class Uncaught:
    """Collects the errors that end threads of the JVM; by py4j it implements Java's handler of these."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def uncaughtException(self, thread: Any, error: Any) -> None:  # noqa: N802 - Java's name
        self.errors.append(f"{thread.getName()}: {error}")

    class Java:
        implements = ("java.lang.Thread$UncaughtExceptionHandler",)


def test_a_stop_in_the_midst_of_a_batch_ends_sparks_thread_without_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, 1, 30)]))
    folders.add_customers(customers([(1, 1, 5), (2, 1, 20)]))
    began, uncaught = threading.Event(), Uncaught()

    def linger(batches: Any) -> Any:
        time.sleep(60)
        yield from batches

    def write(frame: DataFrame, _: int) -> None:
        began.set()
        # As a sink's job that is interrupted: its error has the stack trace of the JVM.
        frame.sparkSession.range(1).mapInArrow(linger, "id long").collect()

    job = Job(spark, tmp_path, folders)
    job.output = write
    thread: Any = spark.sparkContext._jvm.java.lang.Thread  # type: ignore[union-attr]
    former = thread.getDefaultUncaughtExceptionHandler()
    query = job.start()
    try:
        thread.setDefaultUncaughtExceptionHandler(uncaught)
        assert began.wait(60)
        time.sleep(0.5)
        query.stop()
    finally:
        thread.setDefaultUncaughtExceptionHandler(former)
    assert query.await_termination()
    assert query.exception() is None
    assert uncaught.errors == []
    assert not job.manifests().batch_ids()


def wait_for(query: cj.Query, condition: Any) -> None:
    import time

    deadline = time.monotonic() + 240
    while query.progress is None or not condition(query.progress):
        assert query.is_active, query.exception()
        assert time.monotonic() < deadline, query.progress
        time.sleep(0.02)


@pytest.mark.slow
def test_batches_without_a_row_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([]))
    folders.add_customers(customers([]))
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    folders.add_trades(trades([]))
    job = Job(spark, tmp_path, folders)
    report = job.run()
    assert (report.batch_id, report.emitted) == (2, {"output": 0, "rejected": 0})
    assert [each.rows_in for each in report.inputs] == [1, 1]
    assert job.run(DRAIN).drained
    assert rows(job.out(), "trade_id", "version") == [(1, 1)]
    first = job.manifests().read(0)
    assert first is not None
    assert first.report.ending() == "paused: no row waits; the watermark is none"
    job.assert_conserved()


@pytest.mark.slow
def test_a_query_that_has_ended_is_kept_by_nobody(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's query and the function that writes its batches would keep each other, in two processes."""
    # pytest keeps what is logged, and with it the frames of the error.
    caplog.set_level(logging.CRITICAL + 1, "py4j")

    def fail(frame: DataFrame, batch_id: int) -> None:
        msg = f"batch {batch_id} has {frame.columns}"
        raise RuntimeError(msg)

    def ended(name: str, output: Any) -> weakref.ref[cj.Query]:
        folders = Folders(tmp_path / name)
        folders.add_trades(trades([(1, 7, 10)]))
        folders.add_customers(customers([(1, 7, 5)]))
        job = Job(spark, tmp_path / name, folders)
        job.output = output or job.output
        query = job.start(DRAIN)
        with contextlib.suppress(cj.QueryFailedError):
            query.await_termination()
        return weakref.ref(query)

    queries, deadline = [ended("well", None), ended("failed", fail)], time.monotonic() + 30
    while any(each() is not None for each in queries) and time.monotonic() < deadline:
        gc.collect()
        spark._jvm.System.gc()  # type: ignore[union-attr]
        time.sleep(0.2)
    assert [each() for each in queries] == [None, None]


def test_a_run_over_nothing_ends_and_may_be_drained(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, Folders(tmp_path))
    query = job.start(DRAIN)
    assert query.await_termination()
    assert query.progress is None


def test_an_error_of_a_source_is_told_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    job = Job(spark, tmp_path, folders)
    left, right = folders.frames(spark)
    broken = asof(connect(left.selectExpr("*", "cast('x' as int) broken"), right))
    message = job.fails(joined=broken)
    assert message.startswith('[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT"')
    assert_no_stack(message)


def assert_no_stack(message: str) -> None:
    for trace in ("\tat ", "Traceback", "py4j", "SQLSTATE", "stacktrace", "Streaming Query"):
        assert trace not in message, message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"trigger": "once"},
            "trigger: expected Trigger.available_now() or Trigger.processing_time('10 seconds')",
        ),
        ({"trigger": cj.Trigger}, "trigger: expected Trigger.available_now() or"),
        (
            {"output": "/lake/x"},
            (
                "output: expected cojoin.sinks.delta(...), cojoin.sinks.kafka(...), cojoin.sinks.parquet(...), "
                "cojoin.sinks.sql(...) or a callable, got '/lake/x'; did you mean cojoin.sinks.delta('/lake/x')?"
            ),
        ),
        ({"output": cj.sinks.delta}, "; call it with a location"),
        (
            {"output": None},
            "output: expected cojoin.sinks.delta(...), cojoin.sinks.kafka(...), cojoin.sinks.parquet(...), ",
        ),
        ({"rejected": 5}, "rejected: expected cojoin.sinks.delta(...)"),
        ({"checkpoint": ""}, "checkpoint: expected the path of a directory as a text or a pathlib.Path, got ''"),
        ({"checkpoint": None}, "checkpoint: expected the path of a directory as a text or a pathlib.Path, got None"),
        ({"name": 5}, "name: expected a text or None, got 5"),
    ],
)
def test_a_start_that_cannot_be_right_is_refused_and_writes_nothing(
    spark: SparkSession, folders: Folders, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    right = {"output": print, "checkpoint": f"{tmp_path}/checkpoint", "trigger": PAUSE}
    with refused(message):
        asof(folders.connect(spark)).start(**(right | settings))
    assert not list(tmp_path.iterdir())
