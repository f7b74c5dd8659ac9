"""The way through Kafka: two topics replayed into Delta, beside plain Spark that reads, decodes and writes them."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.replay.job import prepare
from benchmarks.replay.process import find_faults, run_join, run_plain
from tests.kafka.history import make_history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

__all__ = ["ReplayGuard"]

_TRADES, _KEYS, _BATCHES = 100_000, 2_000, 2


class ReplayGuard:
    """Replays two topics and then runs plain Spark, so that a cold session never makes the replay look fast."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, trades: int = _TRADES) -> None:
        """Fill the topics.

        Args:
            spark: The session, with Spark's own Kafka source.
            broker: Where the topics go.
            folder: An empty folder for results.
            trades: How many trades; for each ten there is a customer's version.
        """
        self._spark, self._folder, self._numbers = spark, folder, count()
        history = make_history(trades, trades // 10, keys=_KEYS)
        topics = "guarded-trades", "guarded-customers"
        self._replay = prepare(broker, history, folder, -(-trades // _BATCHES), topics)

    def ratios(self) -> Iterator[float]:
        """Yield the replay's time over plain Spark's, measured anew each time.

        Raises:
            AssertionError: A result is wrong.
        """
        while True:
            own, floor = (self.seconds(name) for name in ("aligned", "plain"))
            print(f"replay: {own:.2f} s, plain: {floor:.2f} s", flush=True)
            yield own / floor

    def seconds(self, name: str) -> float:
        """Run a replay, or plain Spark, once and return its seconds.

        Raises:
            AssertionError: Its result is wrong.
        """
        work = self._folder / f"{next(self._numbers)}"
        work.mkdir()
        started = time.perf_counter()
        if name == "plain":
            run_plain(self._replay, work)
        else:
            run_join(name, self._replay, work)
        seconds = time.perf_counter() - started
        written = self._spark.read.format("delta").load(str(work / "out"))
        if name == "plain":
            assert written.count() == sum(self._replay.sizes)
        else:
            assert not (faults := find_faults(self._replay.expected(), written)), faults
        return seconds
