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

_TRADES, _VERSIONS, _KEYS, _BATCHES = 100_000, 10_000, 2_000, 2


class ReplayGuard:
    """Replays two topics and then runs plain Spark, so that a cold session never makes the replay look fast."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        """Fill the topics.

        Args:
            spark: The session, with Spark's own Kafka source.
            broker: Where the topics go.
            folder: An empty folder for results.
        """
        self._spark, self._folder, self._numbers = spark, folder, count()
        history = make_history(_TRADES, _VERSIONS, keys=_KEYS)
        topics = "guarded-trades", "guarded-customers"
        self._replay = prepare(broker, history, folder, -(-_TRADES // _BATCHES), topics)

    def ratios(self) -> Iterator[float]:
        """Yield the replay's time over plain Spark's, measured anew each time.

        Raises:
            AssertionError: A result is wrong.
        """
        while True:
            own, floor = (self._seconds(name) for name in ("aligned", "plain"))
            print(f"replay: {own:.2f} s, plain: {floor:.2f} s", flush=True)
            yield own / floor

    def _seconds(self, name: str) -> float:
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
