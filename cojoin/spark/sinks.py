"""Where a query's outputs go.

Delta: each batch is one transaction that carries the query's and the batch's ids, so a batch that is run again is
skipped: exactly once. Parquet: a folder a batch, overwritten when the batch is run again: exactly once for readers of
the whole folder, between batches. A callable: gets ``(DataFrame, batch_id)`` and may get a batch twice; the id tells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence  # noqa: TC003 - the alias needs them at run time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.errors import ConfigurationError
from cojoin.locations import is_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaSink", "ParquetSink", "Sink", "SinkLike", "WriteContext", "as_sink", "delta", "parquet"]


@dataclass(frozen=True)
class WriteContext:
    """Which write of which query this is.

    Attributes:
        query_id: The query's own id, the same for all its runs.
        output: Which of its outputs, such as ``"output"``.
        batch_id: The micro-batch, counted from 0 in one checkpoint.
    """

    query_id: str
    output: str
    batch_id: int


class Sink(ABC):
    """Takes one output of each batch."""

    @abstractmethod
    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Write a batch's rows; gives what the manifest says of it."""

    def prepare(self, session: SparkSession) -> None:  # noqa: B027 - most sinks have nothing to prepare
        """Do beforehand what does not depend on the rows; called between two batches, in a thread of its own."""

    @abstractmethod
    def describe(self) -> str:
        """Say where it writes, for people."""

    def place(self) -> dict[str, Any]:
        """Give what a manifest says of it before anything was written."""
        return {}


SinkLike: TypeAlias = "Sink | Callable[[DataFrame, int], Any]"
"""A sink, or a callable that takes a batch's DataFrame and its id."""


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table, by path or by name.

    Attributes:
        location: A path, or a table's name.
        partition_by: The columns that the table is partitioned by.
        options: Delta's writer options.
    """

    location: str
    partition_by: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Append the rows in a transaction that only takes effect once."""
        writer = (
            frame.write.format("delta")
            .mode("append")
            .option("txnAppId", f"cojoin-{context.query_id}-{context.output}")
            .option("txnVersion", context.batch_id)
            .options(**dict(self.options))
        )
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if is_path(self.location):
            writer.save(self.location)
        else:
            writer.saveAsTable(self.location)
        return {"delta": self.location, "version": int(self._snapshot(frame.sparkSession).version())}

    def prepare(self, session: SparkSession) -> None:
        """Have Delta read which transactions the table has seen: each write asks, and it takes a job on the log."""
        self._snapshot(session).transactions()

    def _snapshot(self, session: SparkSession) -> Any:
        """Give the table's newest snapshot that this JVM knows: it wrote the last one itself, and still holds it."""
        jvm: Any = session._jvm  # noqa: SLF001 - Delta's Python package has no cheaper way
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        if is_path(self.location):
            table = log.forTable(session._jsparkSession, self.location)  # noqa: SLF001
        else:
            parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
            table = log.forTable(session._jsparkSession, parser.parseTableIdentifier(self.location))  # noqa: SLF001
        return table.unsafeVolatileSnapshot()

    def describe(self) -> str:
        """Say where it writes."""
        return f"Delta {self.location}"

    def place(self) -> dict[str, Any]:
        """Give the table, without a version."""
        return {"delta": self.location, "version": None}


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A folder of parquet files, with a folder for each batch.

    Attributes:
        path: The folder.
    """

    path: str

    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Write the batch's folder, in place of an earlier try's."""
        folder = f"{self.path.rstrip('/')}/batch_id={context.batch_id}"
        frame.write.mode("overwrite").parquet(folder)
        return {"parquet": self.path}

    def describe(self) -> str:
        """Say where it writes."""
        return f"parquet {self.path}"

    def place(self) -> dict[str, Any]:
        """Give the folder."""
        return {"parquet": self.path}


@dataclass(frozen=True)
class CallableSink(Sink):
    """A user's function.

    Attributes:
        function: Takes the batch's DataFrame and its id.
    """

    function: Callable[[DataFrame, int], Any]

    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Call the function."""
        self.function(frame, context.batch_id)
        return {"callable": self.describe()}

    def describe(self) -> str:
        """Say which function it is."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


def delta(location: str, *, partition_by: str | Sequence[str] = (), options: dict[str, Any] | None = None) -> DeltaSink:
    """Append to a Delta table, exactly once.

    Args:
        location: A path (with a ``/``), or a table's name. It is made if it is not there.
        partition_by: The columns that a new table is partitioned by.
        options: Delta's writer options, such as ``mergeSchema``.
    """
    if not isinstance(location, str) or not location:
        msg = f"sinks.delta: expected a path or a table's name, got {location!r}"
        raise ConfigurationError(msg)
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return DeltaSink(location, columns, tuple((name, str(value)) for name, value in (options or {}).items()))


def parquet(path: str) -> ParquetSink:
    """Write a folder of parquet files for each batch, below ``path``."""
    if not isinstance(path, str) or not path:
        msg = f"sinks.parquet: expected a path, got {path!r}"
        raise ConfigurationError(msg)
    return ParquetSink(path)


def as_sink(declared: Any, role: str) -> Sink:
    """Take a sink or a callable.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(declared, Sink):
        return declared
    if callable(declared) and declared not in (delta, parquet):
        return CallableSink(declared)
    hint = f"; did you mean cojoin.sinks.delta({declared!r})?" if isinstance(declared, str) else ""
    if callable(declared):
        hint = "; call it with a location"
    msg = f"{role}: expected cojoin.sinks.delta(...), cojoin.sinks.parquet(...) or a callable, got {declared!r}{hint}"
    raise ConfigurationError(msg)
