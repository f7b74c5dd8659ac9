"""Three weeks of event time are replayed: bounded, killed, live, beside a broker that falls silent.

The partitions of both topics go at speeds of their own, one is empty, one stops half way, one is silent for days, and
for eight hours nothing comes anywhere.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.kafka.positions import positions_of
from cojoin.session.sessions import open_store
from tests.kafka import history as histories
from tests.kafka import replaying_driver
from tests.kafka.hard_replay import offsets
from tests.kafka.lags import committed, lags
from tests.kafka.live_writer import LiveWriter
from tests.kafka.records import PARTITIONS, expected_join
from tests.kafka.replayed import (
    add_partitions,
    delete_before,
    historic,
    join,
    make,
    pairs,
    rejected,
    row,
    run,
    start,
    version,
    write,
)
from tests.kafka.test_client import silent
from tests.kafka.topics import assert_conserved, assert_joined
from tests.seeds import SEED, drawn
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.engine.batch_report import BatchReport
    from tests.kafka.history import History
    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

LIMIT = 9_000
DRIFT, BOUND = 600_000, 5_000
MIDDLE, LATER = "2026-03-12T13:00:00Z", "2026-03-16T20:00:00Z"
LIVE_BATCHES = 3
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def history() -> History:
    """20,000 trades and 2,000 versions."""
    return histories.make_history()


@pytest.fixture(scope="module")
def topics(broker: Broker, history: History) -> tuple[str, str, str]:
    """The servers and both topics, filled."""
    return filled(broker, history, "replay")


def filled(broker: Broker, history: History, name: str) -> tuple[str, str, str]:
    names = (f"{name}-trades", f"{name}-customers")
    servers = make(broker, *names, partitions=PARTITIONS)
    for topic, records in zip(names, (history.trades, history.customers), strict=True):
        histories.fill(servers, topic, records)
    return servers, *names


def part(history: History, begin: str | None, end: str | None) -> Any:
    """Return the records between two times as offsets cut them: from each partition's first that is not earlier."""
    records = []
    for frame in (history.trades, history.customers):
        millis = frame["micros"] // 1000
        latest = millis.groupby(frame["partition"]).cummax()
        kept = frame
        if begin is not None:
            kept = kept[latest >= millis_of(begin)]
        if end is not None:
            kept = kept[latest < millis_of(end)]
        records.append(kept)
    return replace(history, trades=records[0], customers=records[1])


def millis_of(moment: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)


def assert_nothing_late(report: BatchReport, history: Any) -> None:
    sizes = (len(history.trades), len(history.customers))
    assert [(each.rows_in, each.done) for each in report.inputs] == [(size, size) for size in sizes]
    assert [(dict(each.rejected), each.late_applied) for each in report.inputs] == [({}, 0), ({}, 0)]


@pytest.mark.slow  # A replay is compared with its oracle by the guards, too.
def test_two_bounded_runs_equal_the_oracle(
    spark: SparkSession, topics: tuple[str, str, str], history: History, tmp_path: Path
) -> None:
    first = run(historic(*topics, max_records=LIMIT, to=MIDDLE), tmp_path)
    until = part(history, None, MIDDLE)
    assert first.progress is not None
    assert [each.rows_in for each in first.progress.inputs] == [len(until.trades), len(until.customers)]
    assert not first.progress.drained
    assert millis_of(MIDDLE) - 2 * DRIFT < first.progress.watermark < millis_of(MIDDLE)
    # Nothing is beyond it, so nothing more is read.
    again = run(historic(*topics, max_records=LIMIT, to=MIDDLE), tmp_path)
    assert again.batches == 0

    query = run(historic(*topics, max_records=LIMIT), tmp_path, drain=True)
    assert_joined(spark, str(tmp_path / "out"), expected_join(history))
    assert query.progress is not None
    assert query.progress.drained
    assert_nothing_late(query.progress, history)
    reports = assert_conserved(spark, str(tmp_path / "checkpoint"))
    most = [
        histories.largest_in_a_window(each["micros"], DRIFT + BOUND) for each in (history.trades, history.customers)
    ]
    buffered = [max(report.inputs[side].buffered for report in reports) for side in range(2)]
    assert all(found <= 3 * held for found, held in zip(buffered, most, strict=True)), (buffered, most)
    logged = offsets(tmp_path)
    assert all(one["time"] == other["time"] for one, other in logged)
    assert len(logged) <= 8
    # Each batch brings rows to both sides until one is at its end, and all but the last end at a time of their own.
    assert len({one["time"] for one, _ in logged[:-1]}) == len(logged) - 1


@pytest.mark.slow
def test_a_stretch_from_the_middle_is_drained_at_its_end(
    spark: SparkSession, topics: tuple[str, str, str], history: History, tmp_path: Path
) -> None:
    sources: list[list[str]] = []

    class Sources(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - Spark's name

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            sources.append([each.description for each in event.progress.sources])

        def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802 - Spark's name

    listener = Sources()
    spark.streams.addListener(listener)
    try:
        query = run(historic(*topics, from_=MIDDLE, to=LATER, max_records=2_000), tmp_path, drain=True)
        wait_until(lambda: len(sources) >= query.batches)
    finally:
        spark.streams.removeListener(listener)
    # The drain reads nothing of the inputs, so Spark starts no process for them.
    assert all("Python" in each for read in sources[:-1] for each in read[:2]), sources
    assert not any("Python" in each for each in sources[-1]), sources
    stretch = part(part(history, MIDDLE, None), None, LATER)
    assert query.progress is not None
    assert query.progress.drained
    assert_nothing_late(query.progress, stretch)
    assert_joined(spark, str(tmp_path / "out"), expected_join(stretch))
    read = [sum(each.rows_in for each in report.inputs) for report in assert_conserved(spark, f"{tmp_path}/checkpoint")]
    assert len(read) <= 4
    assert read[0] > 0
    # Of the trades' third partition and the versions' last nothing is left after the beginning.
    assert stretch.trades["partition"].max() < 2


@pytest.mark.slow
@pytest.mark.parametrize("kills", drawn([1, 2], 1))
def test_killed_then_live(spark: SparkSession, broker: Broker, history: History, tmp_path: Path, kills: int) -> None:
    servers, trades, customers = filled(broker, history, f"killed-{kills}")
    where = (servers, trades, customers, str(LIMIT))
    # The second batch or the third: its rows are in the table, and no manifest says so.
    batch = random.Random(SEED).randrange(1, 3)
    run_until_killed(tmp_path, "inside", *where, str(batch))
    manifests = Manifests(open_store(spark, str(tmp_path / "checkpoint")))
    assert manifests.batch_ids() == [*range(batch)]
    assert (tmp_path / "out" / "_delta_log" / f"{batch:020d}.json").exists()
    # The commit to the consumer group follows the batch, and may be what the kill has cut off; it is never ahead.
    last = manifests.last()
    assert last is not None
    ends = {each: at for line in last.offsets[:-1] for each, at in positions_of(json.loads(line)).items()}
    assert all(at <= ends[each] for each, at in committed(servers, trades, trades, customers).items())
    if kills > 1:
        run_until_killed(tmp_path, "between", *where)
        assert manifests.batch_ids() == [*range(batch + 1)]

    joined = historic(servers, trades, customers, idle=replaying_driver.IDLE, max_records=LIMIT, group=trades)
    with LiveWriter(servers, (trades, customers), history, seconds=120, begin=history.end) as writer:
        live = start(joined, tmp_path, cj.Trigger.processing_time("1 second"))
        wait_until(lambda: not live.is_active or live.batches == LIVE_BATCHES)
    total = len(history.trades) + len(history.customers) + writer.written()
    wait_until(lambda: not live.is_active or read_by(live) == total)
    live.stop()
    assert live.exception() is None
    records = writer.records()
    assert live.progress is not None
    assert live.progress.rows_out > len(history.trades)
    query = run(joined, tmp_path, drain=True)
    assert_joined(spark, str(tmp_path / "out"), expected_join(records))
    assert query.progress is not None
    assert_nothing_late(query.progress, records)
    assert_conserved(spark, str(tmp_path / "checkpoint"))
    assert {*lags(spark, servers, trades).values()} == {0}


@pytest.mark.slow
def test_a_broker_that_falls_silent_ends_nothing_or_tells(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "silent-l", "silent-r")
    write(servers, "silent-l", [row(each, each) for each in range(6)])
    write(servers, "silent-r", [version(each, each - 0.5) for each in range(6)])
    patient = start(join(servers, "silent-l", "silent-r", max_records=3), tmp_path)
    wait_until(lambda: patient.batches or not patient.is_active)
    with silent(broker, 8):
        time.sleep(8)
    patient.await_termination(progress=False)
    assert patient.progress is not None
    assert patient.progress.inputs[0].rows_in == 6

    write(servers, "silent-l", [row(each, each) for each in range(6, 12)])
    impatient = start(join(servers, "silent-l", "silent-r", max_records=3, patience="3 seconds"), tmp_path)
    wait_until(lambda: impatient.batches or not impatient.is_active)
    with silent(broker), refused("source kafka silent-", servers, "patience=", kind=cj.QueryFailedError):
        impatient.await_termination(60, progress=False)
    run(join(servers, "silent-l", "silent-r"), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(each, min(each, 5)) for each in range(12)]


@pytest.mark.slow
def test_new_partitions_and_topics_join_in(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "grows-l-0", "grows-r")
    named: dict[str, Any] = {"topic_pattern": "grows-l-.*", "idle": "1 second"}

    def joined() -> cj.Joined:
        return growing(servers, **named)

    write(servers, "grows-l-0", [row(each, each) for each in range(3)])
    write(servers, "grows-r", [version(7, 0)])
    live = start(joined(), tmp_path, cj.Trigger.processing_time("0.3 seconds"))
    wait_until(lambda: read_by(live) == 4 or not live.is_active)
    add_partitions(servers, "grows-l-0", 2)
    write(servers, "grows-l-0", [row(10, 10, 1), row(11, 11, 1)])
    wait_until(lambda: read_by(live) == 6 or not live.is_active)
    make(broker, "grows-l-1")
    write(servers, "grows-l-1", [row(20, 20), row(21, 21)])
    wait_until(lambda: read_by(live) == 8 or not live.is_active)
    live.stop()
    assert live.exception() is None
    add_partitions(servers, "grows-r", 2)
    write(servers, "grows-r", [version(8, 29.5, 1)])
    make(broker, "grows-l-2")
    write(servers, "grows-l-2", [row(30, 30)])
    query = run(joined(), tmp_path, drain=True)
    assert query.progress is not None
    assert len(query.progress.inputs[0].partitions) == 4
    numbers = (0, 1, 2, 10, 11, 20, 21, 30)
    assert pairs(spark, tmp_path) == [(each, 8 if each == 30 else 7) for each in numbers]
    assert rejected_or_none(spark, tmp_path) == []


@pytest.mark.slow
def test_a_savepoint_goes_on_in_another_query(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "saved-l", "saved-r", partitions=2)
    write(servers, "saved-l", [row(each, 5 * each, each % 2) for each in range(10)])
    write(servers, "saved-r", [version(0, 0), version(5, 24, 1)])
    old = run(join(servers, "saved-l", "saved-r"), tmp_path / "old", checkpoint_interval=None)
    saved = old.savepoint()
    assert len(pairs(spark, tmp_path / "old")) in range(3, 9)
    write(servers, "saved-l", [row(each, 5 * each, each % 2) for each in range(10, 20)])
    write(servers, "saved-r", [version(15, 74, 1)])

    other = join(servers, "saved-l", "saved-r", key_groups=3, max_records=9)
    run(other, tmp_path / "new", drain=True, restore_from=saved)
    expected = [(each, 15 if each > 14 else 5 if each > 4 else 0) for each in range(20)]
    assert sorted(pairs(spark, tmp_path / "old") + pairs(spark, tmp_path / "new")) == expected

    delete_before(servers, "saved-l", 8)
    again = {"drain": True, "restore_from": saved}
    with refused("saved-l", "partition 0", "3 records", "allow_data_loss=True", kind=cj.CheckpointError):
        run(other, tmp_path / "lost", **again)
    assert not (tmp_path / "lost").exists()


def growing(servers: str, *, idle: str, topic_pattern: str) -> cj.Joined:
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_idleness(idle)
    one, other = (
        cj.Input(cj.kafka.source(servers, **options), key="k", event_time="at", name=name, watermark=strategy)
        for name, options in (
            ("left", {"topic_pattern": topic_pattern, "schema": "id long, k long, at timestamp"}),
            ("right", {"topics": "grows-r", "schema": "k long, at timestamp, v long"}),
        )
    )
    return cj.connect(one, other, key_groups=2).asof_join(suffixes=("", "_right"))


def rejected_or_none(spark: SparkSession, folder: Path) -> list[Any]:
    return rejected(spark, folder) if (folder / "checkpoint" / "rejected").exists() else []


def read_by(query: cj.Query) -> int:
    return 0 if query.progress is None else sum(each.rows_in for each in query.progress.inputs)


def run_until_killed(folder: Path, name: str, *arguments: str) -> None:
    """Run a driver, and kill it, its Java process and all, where it says that it is."""
    reached, log = folder / f"{name}-reached", folder / f"{name}.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", replaying_driver.__name__, str(folder), str(reached), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group of its own, which Python workers leave but do not outlive
        )
    try:
        wait_until(lambda: reached.exists() or driver.poll() is not None)
        assert reached.exists(), log.read_text()[-4000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"nothing happened within {PATIENCE_SECONDS} s"
        time.sleep(0.02)
