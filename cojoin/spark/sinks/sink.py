"""What every sink of a query is: a configuration, and the writer that a run of a query makes of it.

A sink says where an output goes. Its writer takes the output's rows of each batch, as a DataFrame or as files that the
workers wrote, and knows which batches are there already. A run asks it once at the start whether the output is as the
checkpoint left it, and at each batch, with rows or without, that the batch takes effect once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.spark.sinks.written_files import FileTarget
    from cojoin.storage.delta_files import WrittenFile

__all__ = ["OutputId", "Position", "Sink", "SinkWriter"]


@dataclass(frozen=True)
class OutputId:
    """Which output of which query.

    Attributes:
        query_id: The query's own id, the same for all its runs.
        name: Which of its outputs, such as ``"output"``.
    """

    query_id: str
    name: str

    @property
    def app_id(self) -> str:
        """What a Delta transaction says of who wrote it."""
        return f"cojoin-{self.query_id}-{self.name}"


@dataclass(frozen=True)
class Position:
    """Where a checkpoint says that a query stands, when a run begins.

    Attributes:
        checkpoint: The checkpoint's directory, for messages.
        next_batch: The batch that runs next: the one after the last that Spark has committed.
        written: What the newest manifest says of the output: its place, and the last batch that was written to it.
    """

    checkpoint: str
    next_batch: int
    written: Mapping[str, Any]

    @property
    def last_batch(self) -> int | None:
        """The last batch of which the checkpoint knows that it was written to the output."""
        found = self.written.get("batch_id")
        return None if found is None else int(found)

    def cure(self) -> str:
        """Return what to do where an output is ahead of the checkpoint, as the end of a message."""
        return (
            f"restore it into a new checkpoint, with restore_from=cojoin.Checkpoint({self.checkpoint!r}) and "
            f"cut_back_output=True or a new output, or put back the newest copy of the checkpoint"
        )


class Sink(ABC):
    """Where an output goes."""

    @abstractmethod
    def open(self, session: SparkSession, output: OutputId) -> SinkWriter:
        """Return what writes an output of one query; nothing is written yet."""

    def check_place(self, session: SparkSession, output: str) -> None:
        """See, before the query starts, that there is a place to write to, or that one can be made.

        Args:
            session: The session.
            output: Which of the query's outputs it takes, for messages.

        Raises:
            ConfigurationError: There is none: no file system, no such directory, or no right to it.
        """
        location = self.directory()
        if location is not None:
            try:
                CheckpointFiles(session, location, output).check_place()
            except CheckpointError as error:
                raise ConfigurationError(str(error)) from error

    def directory(self) -> str | None:
        """Return the directory that it writes to; None where it writes to none that has a path."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Return where it writes, for people."""

    def place(self) -> dict[str, Any]:
        """Return what a manifest says of it before anything was written."""
        return {}

    def check_columns(self, schema: pa.Schema, role: str) -> None:  # noqa: B027 - most take all columns
        """Refuse an output whose columns can't be written.

        Args:
            schema: The output's columns.
            role: Which output it is, for the message.

        Raises:
            ConfigurationError: As it says.
        """


class SinkWriter(ABC):
    """Writes one output of a query: each batch once, as a DataFrame or as files that the workers wrote."""

    def check(self, position: Position) -> None:  # noqa: B027 - not every output remembers its batches
        """Refuse an output that is not as the checkpoint left it; called once, before the first batch of a run.

        Raises:
            CheckpointError: Going on would write rows twice, or leave some out.
        """

    @abstractmethod
    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write a batch's rows; return what the manifest says of it."""

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return where the workers may write a batch's rows themselves, asked before each; None: by ``write``."""
        del schema, batch_id
        return None

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Make files count that the workers wrote to the target, at least one; return what the manifest says of it."""
        raise NotImplementedError

    def compare(self, marker: BatchMarker) -> None:  # noqa: B027 - most have nothing to compare with
        """Refuse a batch that is there already from another execution; nothing is written yet, by any output.

        Raises:
            QueryFailedError: The rows or the source offsets are others now; the message says what to do.
        """

    def write_nothing(self, marker: BatchMarker) -> None:  # noqa: B027 - most have nothing to do
        """See that a batch without rows has none in the output, from an earlier execution."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Do beforehand what does not depend on the rows; called between two batches, in a thread of its own."""
