"""What every sink of a query is: it takes one output's rows of each batch, and can tell where they went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.delta_files import WrittenFile
    from cojoin.spark.written_files import FileTarget

__all__ = ["Sink", "WriteContext"]


@dataclass(frozen=True)
class WriteContext:
    """Which write of which query this is.

    Attributes:
        query_id: The query's own id, the same for all its runs.
        output: Which of its outputs, such as ``"output"``.
        batch_id: The micro-batch, counted from 0 in one checkpoint.
        may_repeat: Whether an earlier run may have made this write already: only a run's first batch is run again.
    """

    query_id: str
    output: str
    batch_id: int
    may_repeat: bool = True

    @property
    def app_id(self) -> str:
        """What a Delta transaction says of who wrote it."""
        return f"cojoin-{self.query_id}-{self.output}"


class Sink(ABC):
    """Takes one output of each batch: as a DataFrame, or, where it names a target, as files that the workers wrote."""

    @abstractmethod
    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Write a batch's rows; gives what the manifest says of it."""

    def target(self, session: SparkSession, schema: pa.Schema, context: WriteContext) -> FileTarget | None:
        """Say where the workers may write a batch's rows themselves; asked before each batch. None: by ``write``."""
        del session, schema, context
        return None

    def commit(
        self, session: SparkSession, schema: pa.Schema, files: Sequence[WrittenFile], context: WriteContext
    ) -> dict[str, Any]:
        """Make files count that the workers wrote to the target, at least one; gives what the manifest says of it."""
        raise NotImplementedError

    def prepare(self, session: SparkSession) -> None:  # noqa: B027 - most have nothing to prepare
        """Do beforehand what does not depend on the rows; called between two batches, in a thread of its own."""

    @abstractmethod
    def describe(self) -> str:
        """Say where it writes, for people."""

    def place(self) -> dict[str, Any]:
        """Give what a manifest says of it before anything was written."""
        return {}
