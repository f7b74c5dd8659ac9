"""A job on Kafka that is cut by one restore after another, each into other key groups and shuffle partitions.

    python -m benchmarks.replay.restores [--restores 10] [--seed N] [--smoke]

A real broker holds 100,000 trades and 20,000 versions in 4 partitions each. The first query joins them as of and takes
a snapshot with every batch; it is stopped a few batches after the first cut, and a new query, with a checkpoint and a
table of its own, goes on from its snapshot at the cut; so does the next from that one, until after the last restore one
drains. What each table held at the cut, all together, and the last table whole must be the oracle's rows, each once. At
every cut a fork with yet other key groups is drained as well and compared, so that each restore is judged by itself.
At the end one restore goes on in the old query's own table, cutting back what was written after the snapshot.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from benchmarks.differences import differences
from benchmarks.replay.links import Link, row_tuples
from benchmarks.session import make_session
from cojoin.engine.display import text_table
from tests.kafka.history import fill
from tests.kafka.records import PARTITIONS, Records, expected_join, make_records
from tests.kafka.topics import Topics
from tests.seeds import SEED
from tests.servers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES, SMOKE_BATCHES = 16, 6
"""In how many batches the topics are read, where nothing cuts."""

KEY_GROUPS = (16, 4, 64, 1, 7, 32, 3, 16, 5, 64, 2)
SHUFFLE_PARTITIONS = (2, 3, 5, 1, 2, 4, 1, 3, 2, 5, 1)
DRAIN, PAUSE = cj.Trigger.available_now(drain=True), cj.Trigger.available_now()
HEADER = ("restore", "batch", "key groups", "partitions", "seconds", "rows of state", "fork", "what came out")


class Chain:
    """The queries, one restored from the other, and the rows that they give together."""

    def __init__(
        self, spark: SparkSession, folder: Path, topics: Topics, expected: list[Any], seed: int, batches: int
    ) -> None:
        self._spark, self._folder, self._topics, self._expected = spark, folder, topics, expected
        self._batches = batches
        self._choice = random.Random(seed)
        self.faults: list[str] = []
        self.table: list[tuple[str, ...]] = [HEADER]

    def run(self, restores: int) -> None:
        """Cut the job as often."""
        cuts = [*sorted(self._choice.sample(range(self._batches - 1), restores)), self._batches]
        link, rows = self._link("query-0", 0, -1), list[tuple[Any, ...]]()
        # Some run on behind the cut, so the snapshot is not their newest and what followed is read again.
        link.run_until(link.start(PAUSE, self._batches), cuts[0] + self._choice.randrange(3))
        for number, (cut, following) in enumerate(pairwise(cuts), start=1):
            snapshot = link.snapshot(cut)
            rows += link.rows_at(snapshot)
            at = cj.Snapshot(link.files.root, at=snapshot.batch_id)
            before, link = link, self._link(f"query-{number}", number, cut)
            started = time.perf_counter()
            query = link.start(DRAIN if number == restores else PAUSE, self._batches, restore_from=at)
            seconds = time.perf_counter() - started
            if number == restores:
                query.await_termination(progress=False)
            else:
                link.run_until(query, min(following + self._choice.randrange(3), self._batches - 1))
            fork, verdict = self._fork(number, cut, at, rows)
            self.faults += before.broken_laws() + ([] if number < restores else link.broken_laws())
            key_groups, partitions = (
                f"{old} to {new}"
                for old, new in ((before.key_groups, link.key_groups), (before.partitions, link.partitions))
            )
            measured = f"{seconds:.1f}", f"{snapshot.rows:,}"
            self._tell(f"{number}", f"{cut}", key_groups, partitions, *measured, f"{fork}", verdict)
        self._conclude("the chain's tables together", rows + link.rows())

    def run_in_the_same_table(self) -> None:
        """Restore once into the old query's own table, after it went on for some batches."""
        old, cut = self._link("old", 0, -1), self._choice.randrange(1, self._batches - 3)
        old.run_until(old.start(PAUSE, self._batches), cut + 2)
        new, snapshot = self._link("taken-over", 2, cut), old.snapshot(cut)
        at = cj.Snapshot(old.files.root, at=snapshot.batch_id)
        started = time.perf_counter()
        query = new.start(DRAIN, batches=2, table=old.table, restore_from=at, cut_back_output=True)
        measured = f"{time.perf_counter() - started:.1f}", f"{snapshot.rows:,}"
        query.await_termination(progress=False)
        key_groups, partitions = (
            f"{one} to {two}" for one, two in ((old.key_groups, new.key_groups), (old.partitions, new.partitions))
        )
        self.faults += old.broken_laws() + new.broken_laws()
        verdict = self._conclude("the same table, cut back", old.rows())
        self._tell("same table", f"{cut}", key_groups, partitions, *measured, "", verdict)

    def _fork(self, number: int, cut: int, at: cj.Snapshot, before: list[tuple[Any, ...]]) -> tuple[int, str]:
        """Drain another query from the same snapshot, whose rows and those before it must be all."""
        fork = self._link(f"fork-{number}", number + self._choice.randrange(1, 5), cut)
        fork.start(DRAIN, batches=2, restore_from=at).await_termination(progress=False)
        self.faults += fork.broken_laws()
        return fork.key_groups, self._conclude(f"the fork at batch {cut}", before + fork.rows())

    def _conclude(self, what: str, rows: list[tuple[Any, ...]]) -> str:
        told = differences(self._expected, rows, what)
        self.faults += told
        return "differs" if told else "equal"

    def _tell(self, *cells: str) -> None:
        self.table.append(cells)
        print(*cells, sep="  ", flush=True)

    def _link(self, name: str, number: int, began: int) -> Link:
        key_groups = KEY_GROUPS[number % len(KEY_GROUPS)]
        partitions = SHUFFLE_PARTITIONS[number % len(SHUFFLE_PARTITIONS)]
        return Link(self._spark, self._folder / name, self._topics, key_groups, partitions, began)


def fill_topics(broker: Broker, records: Records) -> Topics:
    """Make both topics and write the records."""
    for name, rows in (("trades", records.trades), ("customers", records.customers)):
        broker.create_topic(name, PARTITIONS)
        fill(broker.bootstrap_servers, name, rows)
    return Topics(broker.bootstrap_servers, "trades", "customers", (len(records.trades), len(records.customers)))


def main() -> None:
    """Run the chain, print what each restore did, and say whether all rows are there once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restores", type=int, default=10, choices=range(1, 13), help="how often the job is cut")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="chooses the batches; else COJOIN_SEED, or another each time"
    )
    parser.add_argument("--smoke", action="store_true", help="two restores, to see that everything works")
    arguments = parser.parse_args()
    seed = arguments.seed
    print(f"seed {seed}", flush=True)
    records, batches = make_records(), SMOKE_BATCHES if arguments.smoke else BATCHES
    with tempfile.TemporaryDirectory(prefix="cojoin-restores-") as folder, Broker() as broker:
        spark = make_session("restores", Path(folder), kafka=True)
        topics = fill_topics(broker, records)
        chain = Chain(spark, Path(folder), topics, row_tuples(expected_join(records)), seed, batches)
        chain.run(min(arguments.restores, 2) if arguments.smoke else arguments.restores)
        chain.run_in_the_same_table()
        spark.stop()
    print(f"\n{text_table(chain.table)}\n")
    print("\n".join(chain.faults) if chain.faults else "equal, row for row")
    raise SystemExit(1 if chain.faults else 0)


if __name__ == "__main__":
    main()
