"""The base classes of sinks: ``Sink`` is a configuration, and ``SinkWriter`` writes one output of a running query.

A sink's writer receives the rows of each batch, as a DataFrame or as files that the workers wrote, and looks up which
batches the output already has. At its start, a run checks once that the output is as the checkpoint left it. For each
batch, with rows or without, the writer ensures that it takes effect once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.upsert import is_same_rule, spelled_rule
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.sessions import check_full, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.batch.written_files import FileTarget
    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.spark.sources.source import Source
    from cojoin.storage.parquet_files import WrittenFile


@dataclass(frozen=True)
class OutputId:
    """The identity of an output of a query, by the query's id and the output's name.

    ``epoch`` is that of the run's lease, with which an output may fence off earlier runs; None outside of a run.
    ``takes_over`` means that an earlier run may still be suspended somewhere, so that it has to be fenced off;
    ``schema`` has the columns of a table that is created for that before its first row. ``order`` are the columns by
    which the output's rows are emitted in order over all batches; None where they are not.
    """

    query_id: str
    name: str
    epoch: int | None = None
    takes_over: bool = False
    schema: pa.Schema | None = field(default=None, compare=False)
    order: tuple[str, ...] | None = None

    @property
    def app_id(self) -> str:
        """The application id of the output's Delta transactions."""
        return f"cojoin-{self.query_id}-{self.name}"


@dataclass(frozen=True)
class Position:
    """A query's position according to its checkpoint, at the start of a run.

    ``next_batch`` is the one after the last in Spark's commit log; ``is_planned`` means that Spark has planned it
    already, so that an earlier run may have written it. ``written`` is the newest manifest's entry for the output.
    """

    checkpoint: str
    next_batch: int
    written: Mapping[str, Any]
    is_planned: bool = False

    @property
    def last_batch(self) -> int | None:
        """The last batch that was written to the output according to the checkpoint; None if there is none."""
        batch_id = self.written.get("batch_id")
        return None if batch_id is None else int(batch_id)

    def check_not_behind(self, where: str, newest: int, cure: str) -> None:
        """Raise a CheckpointError if an output has later batches than the next one; ``cure`` is the advice."""
        if newest > self.next_batch:
            msg = (
                f"{where}: it has the query's batches up to {newest}, and the checkpoint continues with batch "
                f"{self.next_batch}: the checkpoint is older than its output, as one that was put back from a backup. "
                f"Going on would write rows twice or leave some out; {cure}"
            )
            raise CheckpointError(msg)

    def check_rule(self, where: str, rule: Mapping[str, Any] | None) -> None:
        """Raise a CheckpointError unless the output was written by the rule of upserts, or by appends as now."""
        former = self.written.get("upsert")
        if self.last_batch is not None and not is_same_rule(former, rule):
            msg = (
                f"{where}: the query has written it {spelled_rule(former)} and would now write it "
                f"{spelled_rule(rule)}, so that its rows would not be those of one rule. Start with the arguments of "
                f"then; or restore into a new checkpoint, with restore_from=cojoin.Snapshot({self.checkpoint!r}) and a "
                f"new output"
            )
            raise CheckpointError(msg)

    def cure(self, output: str = "cut_back_output=True or a new output") -> str:
        """Return the advice for an output that is ahead of the checkpoint, as the end of a message."""
        return (
            f"restore it into a new checkpoint, with restore_from=cojoin.Snapshot({self.checkpoint!r}) and {output}, "
            f"or put back the newest copy of the checkpoint"
        )


class Sink(ABC):
    """A description of where an output goes, made by a function of ``cojoin.sinks``."""

    @abstractmethod
    def open(self, session: SparkSession, output: OutputId) -> SinkWriter:
        """Return the writer of a query's output; nothing is written yet."""

    def check_place(self, session: SparkSession, output: str) -> None:
        """Check, before the query starts, that the directory exists or can be created.

        Raises:
            ConfigurationError: The file system does not exist, or the directory can't be created or written; or, with
                Spark Connect, the path is relative.
        """
        location = self.directory()
        check_full(session, output, location)
        if location is not None:
            try:
                open_store(session, location, output).check_place()
            except CheckpointError as error:
                raise ConfigurationError(str(error)) from error

    def directory(self) -> str | None:
        """Return the directory that it writes to; None if it has no path."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Return where it writes, for messages."""

    def place(self) -> dict[str, Any]:
        """Return a manifest's entry for it before anything is written."""
        return {}

    def unique_place(self) -> str | None:
        """Return a text that distinguishes its place from other sinks'; None with a directory, or if it is unknown."""
        return None

    def check_inputs(self, sources: Sequence[Source], output: str) -> None:  # noqa: B027 - directories are compared
        """Check that the place is not one that the query reads, where it is not a directory.

        Raises:
            ConfigurationError: It is.
        """

    def continues_output_of(self, written: Mapping[str, Any], former: OutputId, *, successor: str, ends: bool) -> bool:
        """Return whether a restored query continues in the place of the query whose snapshot it begins with.

        Raises:
            CheckpointError: It would, and something was written to it after the snapshot.
        """
        del written, former, successor, ends
        return False

    def check_columns(self, schema: pa.Schema, role: str) -> None:  # noqa: B027 - most take all columns
        """Check that an output's columns can be written.

        Raises:
            ConfigurationError: They can't be written.
        """

    def check_order(self, schema: pa.Schema, order: Sequence[str] | None, role: str) -> None:  # noqa: B027
        """Check that rows can be compared, where of the rows of a key one stays.

        Raises:
            ConfigurationError: They can't be compared.
        """

    def check_writer(self, session: SparkSession, schema: pa.Schema, role: str) -> None:  # noqa: B027 - most need none
        """Check, before the query starts, that the session has the classes that write the output, and the store suits.

        Raises:
            EnvironmentSetupError: The session lacks something; the message names it.
            ConfigurationError: The output's store does not refuse a commit where another was first.
        """

    def check_table(self, session: SparkSession, schema: pa.Schema, role: str) -> None:  # noqa: B027 - most have none
        """Check that an output's columns fit those of a table that exists, before the query starts.

        Raises:
            ConfigurationError: They do not fit; the message names each column.
        """


class SinkWriter(ABC):
    """Writes one output of a query: each batch once, as a DataFrame or as files that the workers wrote.

    ``why_spark`` is the reason why Spark writes the rows of a Delta table, as ``target`` has decided; None where the
    workers do, and for other outputs. ``upserts`` has the counts of the last batch, as ``BatchReport`` has them; None
    where its rows were appended, or the output had them already.
    """

    upsert_rule: Mapping[str, Any] | None = None
    """The rule by which it upserts; None where it appends."""

    why_spark: str | None = None
    upserts: Mapping[str, int] | None = None

    def check(self, position: Position) -> None:  # noqa: B027 - not every output remembers its batches
        """Raise a CheckpointError if continuing would write rows twice or lose some; called at the start of a run."""

    def notes(self) -> list[str]:
        """Return the warnings about the output for the start, after ``check``."""
        return []

    @abstractmethod
    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write a batch's rows, and return the manifest's entry for the output."""

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return the folder to which the workers may write a batch's rows; None if ``write`` must write them."""
        del schema, batch_id
        return None

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Publish the files, at least one, that the workers wrote to the target; return the manifest's entry."""
        raise NotImplementedError

    def compare(self, marker: BatchMarker) -> None:  # noqa: B027 - most have nothing to compare with
        """Raise a QueryFailedError if the output has the batch from a different execution.

        It is called before any output writes; the message has the advice.
        """

    def write_nothing(self, marker: BatchMarker, check: Callable[[], None] = lambda: None) -> None:  # noqa: B027
        """Remove the rows of an earlier execution of a batch that now has none.

        ``check`` is called only before something is removed, and raises an error if another run has taken over.
        """

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare the next batch; called between two batches in a separate thread."""
