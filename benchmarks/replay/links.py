"""A query on two topics, restored from another's snapshot or not: one of those that ``restores.py`` chains."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.session import set_partitions
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.session.sessions import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.storage.store import Store
    from tests.kafka.topics import Topics

__all__ = ["Link", "row_tuples"]

PATIENCE_SECONDS = 300


@dataclass
class Link:
    """One query of the chain.

    Attributes:
        spark: The session.
        folder: Where its checkpoint and its table are.
        topics: What it reads.
        key_groups: How many key groups it has.
        partitions: How many shuffle partitions.
        began: After which of the batches it began, counted over the whole chain; -1 at the beginning.
    """

    spark: SparkSession
    folder: Path
    topics: Topics
    key_groups: int
    partitions: int
    began: int = -1

    @property
    def table(self) -> str:
        """Where its output goes, unless it goes on in another's."""
        return str(self.folder / "enriched")

    @property
    def files(self) -> Store:
        """Its checkpoint."""
        return open_store(self.spark, str(self.folder / "checkpoint"))

    def start(self, trigger: cj.Trigger, batches: int, table: str | None = None, **options: Any) -> cj.Query:
        """Start it; restoring is over when this returns."""
        set_partitions(self.spark, self.partitions)
        joined = self.topics.connect(batches, self.key_groups).asof_join(suffixes=("", "_customer"))
        return joined.start(
            output=cj.sinks.delta(table or self.table),
            checkpoint=self.files.root,
            trigger=trigger,
            checkpoint_interval=1,
            retained_checkpoints=100,
            **options,
        )

    def position(self, snapshot: SnapshotIndex) -> int:
        """Say after which of the chain's batches a snapshot was taken: a restored query's first two read nothing."""
        return snapshot.batch_id if self.began < 0 else self.began + max(0, snapshot.batch_id - 1)

    def run_until(self, query: cj.Query, position: int) -> None:
        """Stop it once it has come so far, wherever it then is."""
        wanted = position if self.began < 0 else position - self.began + 1
        deadline = time.monotonic() + PATIENCE_SECONDS
        while query.is_active and (query.progress is None or query.progress.batch_id < wanted):
            assert time.monotonic() < deadline, f"batch {wanted} did not come"
            time.sleep(0.01)
        query.stop()
        if (error := query.exception()) is not None:
            raise error

    def snapshot(self, position: int) -> SnapshotIndex:
        """Return the snapshot of one of the chain's batches."""
        return next(each for each in Snapshots(self.files).all() if self.position(each) == position)

    def rows_at(self, snapshot: SnapshotIndex) -> list[tuple[Any, ...]]:
        """Return what its table held then."""
        written = snapshot.manifest.outputs["output"]
        return [] if written["version"] is None else self.rows(version=written["version"])

    def rows(self, **at: Any) -> list[tuple[Any, ...]]:
        """Return its table, as it is or was."""
        options = {"versionAsOf": at["version"]} if at else {}
        return _rows(self.spark.read.format("delta").options(**options).load(self.table))

    def broken_laws(self) -> list[str]:
        """Tell of batches in which rows vanished."""
        manifests = Manifests(self.files)
        found = [manifest.report for number in manifests.batch_ids() if (manifest := manifests.read(number))]
        return [f"{self.folder.name}, batch {each.batch_id}: not conserved" for each in found if not each.is_conserved]


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    # Times as epoch microseconds: no time zone can touch them.
    times = {"micros": F.unix_micros("event_time"), "customers_micros": F.unix_micros("customers_event_time")}
    return row_tuples(frame.withColumns(times).drop("topic", "topic_customer").toArrow())


def row_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return joined rows, times as epoch microseconds, in the order of the oracle's columns."""
    names: tuple[str, ...] = (
        "trade_id",
        "customer_id",
        "micros",
        "amount",
        "partition",
        "offset",
        "version_id",
        "customers_micros",
    )
    names += ("tier", "partition_customer", "offset_customer")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
