"""A query that is about to start: what has been checked of it so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.batch.call import Plan
    from cojoin.spark.restore.restoration import RestoreOptions
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sources.sources import Source
    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["NewQuery"]


@dataclass(frozen=True)
class NewQuery:
    """A query that is about to start.

    Attributes:
        spark: The session.
        files: The directory of its checkpoint.
        plan: What the workers execute.
        description: What ``query.json`` says of it (``checkpoints.identity.describe_query``).
        sources: What the left and the right input read; None for a bare DataFrame.
        sinks: The sink of each output, by the output's name.
        allows: What the user allows where a checkpoint is restored.
    """

    spark: SparkSession
    files: CheckpointFiles
    plan: Plan
    description: Mapping[str, Any]
    sources: Sequence[Source | None]
    sinks: Mapping[str, Sink]
    allows: RestoreOptions

    @property
    def opened_sources(self) -> list[Source]:
        """The sources that are no bare DataFrames."""
        return [each for each in self.sources if each is not None]
