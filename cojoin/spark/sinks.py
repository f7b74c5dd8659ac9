"""Where a query's outputs go.

Delta: each batch is one transaction that carries the query's and the batch's ids, so a batch that is run again is
skipped: exactly once. Parquet: a folder a batch, overwritten when the batch is run again: exactly once for readers of
the whole folder, between batches. A callable: gets ``(DataFrame, batch_id)`` and may get a batch twice; the id tells.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence  # noqa: TC003 - the alias needs them at run time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.errors import ConfigurationError
from cojoin.spark.delta_sink import DeltaSink
from cojoin.spark.sink import Sink, WriteContext
from cojoin.spark.written_files import FileTarget, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.delta_files import WrittenFile

__all__ = ["DeltaSink", "ParquetSink", "Sink", "SinkLike", "WriteContext", "as_sink", "delta", "parquet"]


SinkLike: TypeAlias = "Sink | Callable[[DataFrame, int], Any]"
"""A sink, or a callable that takes a batch's DataFrame and its id."""


# Spark and pyarrow read nothing that begins with an underscore.
_UNFINISHED = "_unfinished/"


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A folder of parquet files, with a folder for each batch.

    Attributes:
        path: The folder.
    """

    path: str

    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Write the batch's folder, in place of an earlier try's."""
        frame.write.mode("overwrite").parquet(self._folder(context))
        return {"parquet": self.path}

    def target(self, session: SparkSession, schema: pa.Schema, context: WriteContext) -> FileTarget | None:
        """Give a folder beside the batches' own that readers pass over, on a file system that any worker may write."""
        target = FileTarget.at(session, self._folder(context, _UNFINISHED), schema)
        if target is not None:
            # What an earlier try left there counts for nothing.
            shutil.rmtree(target.folder, ignore_errors=True)
        return target

    def commit(
        self, session: SparkSession, schema: pa.Schema, files: Sequence[WrittenFile], context: WriteContext
    ) -> dict[str, Any]:
        """Put the files in the batch's folder, in place of an earlier try's."""
        del schema
        written = Path(str(local_path(session, self._folder(context, _UNFINISHED))))
        folder = Path(str(local_path(session, self._folder(context))))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for each in files:
            (written / each.name).rename(folder / each.name)
        shutil.rmtree(written)
        return {"parquet": self.path}

    def _folder(self, context: WriteContext, within: str = "") -> str:
        return f"{self.path.rstrip('/')}/{within}batch_id={context.batch_id}"

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
