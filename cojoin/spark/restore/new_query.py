"""A query that is about to start, with those of its parts that are already checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.spark.sources.delta_static import StaticTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.engine.plan import Plan
    from cojoin.spark.restore.restoration import RestoreOptions
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sources.sources import Source
    from cojoin.storage.store import Store

__all__ = ["NewQuery"]


@dataclass(frozen=True)
class NewQuery:
    """A query that is about to start.

    Attributes:
        spark: The session.
        files: The directory of its checkpoint.
        plan: What the workers execute.
        description: The query's description for ``query.json`` (``checkpoints.identity.describe_query``).
        sources: The sources of the left and the right input; None for a bare DataFrame.
        sinks: The sink of each output, by the output's name.
        allows: What the user allows if a checkpoint is restored.
    """

    spark: SparkSession
    files: Store
    plan: Plan
    description: Mapping[str, Any]
    sources: Sequence[Source | None]
    sinks: Mapping[str, Sink]
    allows: RestoreOptions

    @property
    def streamed_sources(self) -> list[Source]:
        """Those of the opened sources that Spark reads as streams, each with a line in the offset log."""
        return [each for each in self.opened_sources if not isinstance(each, StaticTable)]

    @property
    def opened_sources(self) -> list[Source]:
        """The sources of those inputs that are not bare DataFrames."""
        return [each for each in self.sources if each is not None]
