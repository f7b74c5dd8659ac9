"""A replay of topics that mislead, up to a time in their middle and then to their end, and what became of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.kafka.hard_topics import fill_hard
from tests.kafka.records import expected_join
from tests.kafka.replayed import historic, run
from tests.kafka.topics import assert_conserved, assert_joined

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["MIDDLE", "MIDDLE_MS", "Outcome", "offsets", "replay_hard"]

MIDDLE, MIDDLE_MS = "2026-03-12T13:00:00Z", 1_773_320_400_000


@dataclass(frozen=True)
class Outcome:
    """What became of a replay; pairs are of trades and versions.

    Attributes:
        rows: How many rows came in.
        until_middle: How many had come in when the first run had ended at the time in the middle.
        wanted_until_middle: How many records stand before it.
        rejected: What was rejected, by reason.
        too_far: How many are of the year 2100.
        late: How many rows were late, rejected or not.
        batches: How many batches there were.
        largest: The most offsets of an input in a batch.
        latest: The latest time or mark that a checkpoint's position names, less the clock, in milliseconds.
        fault: How the joined rows differ from those of pandas; empty where they do not.
        seconds: How long both runs took.
    """

    rows: tuple[int, ...]
    until_middle: tuple[int, ...]
    wanted_until_middle: tuple[int, ...]
    rejected: tuple[dict[str, int], ...]
    too_far: tuple[int, ...]
    late: int
    batches: int
    largest: int
    latest: int
    fault: str
    seconds: float

    @property
    def faults(self) -> list[str]:
        """What is wrong with it."""
        far = tuple({"too_far_ahead": count} if count else {} for count in self.too_far)
        found = {
            self.fault: bool(self.fault),
            f"{self.late:,} rows were late": bool(self.late),
            f"rejected {self.rejected}, expected {far}": self.rejected != far,
            f"up to {MIDDLE} {self.until_middle} rows, expected {self.wanted_until_middle}": (
                self.until_middle != self.wanted_until_middle
            ),
            f"a time {self.latest / 3_600_000:,.0f} h ahead of the clock": self.latest > 86_400_000,
        }
        return [said for said, is_wrong in found.items() if is_wrong]


def offsets(folder: Path) -> list[list[dict[str, Any]]]:
    """Return what Spark logged of both inputs, batch by batch, as far as it is kept."""
    log = folder / "checkpoint" / "spark" / "offsets"
    batches = sorted((each for each in log.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    return [[json.loads(line) for line in each.read_text().splitlines()[2:4]] for each in batches]


def replay_hard(
    spark: SparkSession, servers: str, folder: Path, kinds: Collection[str], *, seed: int, trades: int, limit: int
) -> Outcome:
    """Fill topics and replay them.

    Args:
        spark: The session.
        servers: The broker's address.
        folder: For the output and the checkpoint; the topics are called after it.
        kinds: Of the topics: some of ``hard_topics.KINDS``.
        seed: Of the random numbers.
        trades: How many there are; there are a tenth as many versions, but 300 at least: of fewer, compaction may find
            none that it could remove.
        limit: How many records of an input a batch may hold.
    """
    topics = fill_hard(servers, folder.name, kinds, seed=seed, trades=trades, versions=max(300, trades // 10))
    names = (servers, topics.trades, topics.customers)
    begun = time.monotonic()
    first = run(historic(*names, max_records=limit, to=MIDDLE), folder).progress
    logged = offsets(folder)
    last = run(historic(*names, max_records=limit), folder, drain=True).progress
    seconds = time.monotonic() - begun
    assert first is not None
    assert last is not None
    known = offsets(folder)
    sizes = [
        _read(end) - _read(begin)
        for some in (logged, known)
        for one, other in pairwise(some)
        for begin, end in zip(one, other, strict=True)
    ]
    times = [each[sign] or 0 for some in (logged, known) for one in some for each in one for sign in ("time", "mark")]
    fault = ""
    try:
        assert_joined(spark, str(folder / "out"), expected_join(topics.history))
        assert_conserved(spark, str(folder / "checkpoint"))
    except AssertionError as error:
        fault = str(error).splitlines()[0]
    return Outcome(
        rows=tuple(each.rows_in for each in last.inputs),
        until_middle=tuple(each.rows_in for each in first.inputs),
        wanted_until_middle=topics.before(MIDDLE_MS),
        rejected=tuple(dict(each.rejected) for each in last.inputs),
        too_far=topics.far,
        late=sum(each.late_applied + each.rejected.get("late", 0) for each in last.inputs),
        batches=last.batch_id + 1,
        largest=max(sizes),
        latest=max(times) - int(1000 * time.time()),
        fault=fault,
        seconds=seconds,
    )


def _read(offset: dict[str, Any]) -> int:
    return sum(at for numbers in offset["positions"].values() for at in numbers.values())
