"""Killing drivers and workers that write to a Kafka topic, while a consumer of committed records counts.

What must come of it: the rows as pandas has them, each once; a key's in one partition, in the order of their event
times; every manifest's counts conserved. The consumer runs from before the first record, and sees only what it must.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

import cojoin as cj
from benchmarks.differences import differences
from benchmarks.kills.drivers import Driver
from benchmarks.kills.kill_points import FILES
from benchmarks.kills.killed_driver import Job, Step
from benchmarks.kills.killing import Kill, die
from benchmarks.kills.leavings import broken_laws, left_behind, rejected, write_files
from benchmarks.kills.topic_points import TOPIC_POINTS, WORKER
from benchmarks.kills.verdicts import Verdict
from tests.spark.data import Folders, generate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typing_extensions import Self

    from benchmarks.kills.points import Point
    from benchmarks.kills.topic_points import Mortal
    from tests.servers.broker import Broker

__all__ = ["Counting", "TopicKilling", "topic_faults"]

PARTITIONS = 3
PATIENCE_SECONDS = 60


class Counting:
    """A consumer of committed records that reads a topic inside its ``with`` block, from its beginning.

    Args:
        servers: The broker's address.
        topic: The topic.
    """

    def __init__(self, servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": f"counting-{topic}", "enable.auto.commit": False}
        settings |= {"isolation.level": "read_committed", "auto.offset.reset": "error"}
        # A consumer takes one call at a time, and one that reads leaves no time for another's question.
        self._consumer, self._asked, self._topic = Consumer(settings), Consumer(settings), topic
        self._read: dict[int, list[tuple[bytes, dict[str, Any]]]] = {each: [] for each in range(PARTITIONS)}
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        self._asked.close()

    def all(self) -> dict[int, list[tuple[bytes, dict[str, Any]]]]:
        """Return what it read, once it has come to the end: each partition's keys and values."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        ends = {
            each: self._asked.get_watermark_offsets(TopicPartition(self._topic, each), PATIENCE_SECONDS)[1]
            for each in range(PARTITIONS)
        }
        while any(self._next[each] < end for each, end in ends.items()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(self._next[each] >= end for each, end in ends.items()), f"a consumer waits: {self._next}, {ends}"
        return self._read

    def _run(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, each, 0) for each in range(PARTITIONS)])
        while not self._stopping.is_set():
            record = self._consumer.poll(0.05)
            if record is not None and record.error() is None:
                self._read[record.partition()].append((record.key(), json.loads(record.value())))
            # Past the markers of transactions there are no records.
            for place in self._consumer.position([TopicPartition(self._topic, each) for each in range(PARTITIONS)]):
                self._next[place.partition] = max(place.offset, self._next[place.partition])


def topic_faults(wanted: list[Any], read: dict[int, list[tuple[bytes, dict[str, Any]]]]) -> list[str]:
    """Return how a topic's records differ from an oracle's rows, and keys whose order or partition is wrong."""
    rows, last, places = [], {}, {}
    faults = []
    for partition, records in read.items():
        for key, row in records:
            at = datetime.fromisoformat(row["event_time"])
            micros = int(at.timestamp()) * 1_000_000 + at.microsecond
            rows.append((row["trade_id"], micros, row.get("amount"), row.get("version"), row.get("tier")))
            if (micros, row["position"]) < last.get(key, (0, 0)):
                faults.append(f"key {key!r}: trade {row['trade_id']} comes after a later one")
            last[key] = (micros, row["position"])
            if places.setdefault(key, partition) != partition:
                faults.append(f"key {key!r}: in partitions {places[key]} and {partition}")
    return faults + differences(wanted, sorted(rows, key=lambda row: row[0]), "the topic")


class TopicKilling:
    """Kills drivers and workers, starts their jobs again, and sees what the consumer has counted.

    Args:
        spark: The session that starts them again.
        folder: Where everything goes.
        seed: Chooses batches and victims.
        broker: The broker.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int, broker: Broker) -> None:
        self._spark, self._folder, self._seed, self._broker = spark, folder, seed, broker
        self._choice = random.Random(seed)
        self._streams, self._data = generate(trades=300, customers=80, seed=seed), folder / "data"
        write_files(self._streams, Folders(self._data))

    def choose(self, kills: int) -> list[tuple[Point, Mortal]]:
        """Choose points and victims, as evenly over both as may be."""
        every: list[tuple[Point, Mortal]] = []
        victims: tuple[Mortal, ...] = ("both", "worker", "JVM", "Python")
        for turn in itertools.count():
            for number, point in enumerate(TOPIC_POINTS):
                among = victims if point.phase == WORKER else tuple(each for each in victims if each != "worker")
                every.append((point, among[(number + turn + self._seed) % len(among)]))
                if len(every) == kills:
                    return every
        raise AssertionError

    def run(self, kills: int) -> Iterator[Verdict]:
        """Kill so often, one after the other."""
        for number, (point, victim) in enumerate(self.choose(kills)):
            yield self.kill(number, point, victim)

    def kill(self, number: int, point: Point, victim: Mortal) -> Verdict:
        """Kill once, start the job again, and judge."""
        folder, batch = self._folder / f"topic-{number}", self._choice.randrange(0, FILES - 1)
        topic = f"killed-{self._seed}-{number}"
        self._broker.create_topic(topic, PARTITIONS)
        servers = self._broker.bootstrap_servers
        job = Job(str(folder), str(folder), str(self._data), topic, batch, servers=servers)
        kill = Kill(point, Step(job, point.phase, point.name, victim))
        with Counting(servers, topic) as counting:
            with Driver([kill.step]) as driver:
                death = die(driver, kill)
            found = left_behind(job.files())
            faults = [death.fault] if death.fault else self._examine(job, counting)
        return Verdict(point.phase, victim, point.name, f"batch {batch}; {found}", None, faults)

    def _examine(self, job: Job, counting: Counting) -> list[str]:
        saved = job.saved(self._spark)
        try:
            last = saved.manifests.last()
            if last is None or not last.report.drained:
                job.start(self._spark).await_termination(progress=False)
        except cj.CojoinError as error:
            return [f"{type(error).__name__}: {error}"]
        faults = topic_faults(self._streams.enriched(), counting.all()) + broken_laws(saved)
        dead = rejected(self._spark, f"{job.checkpoint}/rejected")
        return faults + differences([(number,) for number in range(FILES * 2)], dead, "rejected")
