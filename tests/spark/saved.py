"""Queries on files that are saved and restored: what the tests of both share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_table import StateCleaner, StateTable
from cojoin.engine.state.segments import SegmentOptions
from cojoin.session.sessions import open_store
from tests.spark.data import ENRICHED_DDL, asof, connect, enriched_rows, table
from tests.spark.functions import EnrichTrades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.store import Store
    from tests.spark.data import Folders

DRAIN = cj.Trigger.available_now(drain=True)
PAUSE = cj.Trigger.available_now()


def in_segments(joined: cj.Joined) -> cj.Joined:
    """Have a join keep all rows of its state in segments and runs."""
    joined._plan = joined.plan.__class__(**{**vars(joined.plan), "segments": SegmentOptions(0)})
    return joined


@dataclass
class Saved:
    """One query with its checkpoint and its output, each below a folder of its own, which may be on an object store."""

    spark: SparkSession
    folder: Path | str
    folders: Folders
    key_groups: int = 4

    @property
    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint"

    @property
    def files(self) -> Store:
        return open_store(self.spark, self.checkpoint)

    @property
    def manifests(self) -> Manifests:
        return Manifests(self.files)

    @property
    def snapshots(self) -> Snapshots:
        return Snapshots(self.files)

    @property
    def cleaner(self) -> StateCleaner:
        return StateCleaner(self.spark, self.files)

    @property
    def state(self) -> StateTable:
        return StateTable(self.spark, self.files)

    def join(self, **settings: Any) -> cj.Joined:
        return asof(connect(*self.folders.sources(), key_groups=self.key_groups, **settings))

    def function(self, function: cj.KeyedCoProcessFunction | None = None, output: str = ENRICHED_DDL) -> cj.Joined:
        pair = connect(*self.folders.sources(), key_groups=self.key_groups)
        return pair.process(function or EnrichTrades(), output)

    def start(self, joined: cj.Joined | None = None, trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        options = {"checkpoint_interval": 1, "output": cj.sinks.delta(f"{self.folder}/out"), **options}
        return (joined or self.join()).start(checkpoint=self.checkpoint, trigger=trigger, **options)

    def run(self, joined: cj.Joined | None = None, trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        query = self.start(joined, trigger, **options)
        query.await_termination()
        return query

    def output(self, version: int | None = None) -> DataFrame:
        if version is None:
            return table(self.spark, f"{self.folder}/out")
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        return reader.load(f"{self.folder}/out")

    def output_at(self, batch_id: int) -> list[tuple[Any, ...]]:
        """Return the output as it was after a batch that has a snapshot."""
        snapshot = self.snapshots.read(batch_id)
        assert snapshot is not None
        version = snapshot.manifest.outputs["output"]["version"]
        return [] if version is None else enriched_rows(self.output(version))

    def rows(self) -> list[tuple[Any, ...]]:
        return enriched_rows(self.output())

    def assert_conserved(self) -> None:
        manifests = self.manifests
        reports = [manifest.report for batch_id in manifests.batch_ids() if (manifest := manifests.read(batch_id))]
        assert reports
        assert all(report.is_conserved for report in reports)
