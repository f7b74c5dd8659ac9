"""A Delta table as a sink: each batch one transaction, which carries the query's and the batch's ids.

A batch that is run again is skipped by them: exactly once. Where the table is plain and on a file system that every
worker reaches by a path, the workers write its parquet files themselves (``written_files``) and only the transaction is
Delta's; else Spark writes the rows. Which it is shows in the table's history as ``STREAMING UPDATE`` or ``WRITE``, and
nowhere else. A table that another application changed between the two is not written: the batch fails and is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.delta_files import append_files, plain_defaults, plain_shape, shape_of, table_log
from cojoin.locations import is_path
from cojoin.spark.sink import Sink, WriteContext
from cojoin.spark.written_files import FileTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.delta_files import WrittenFile

__all__ = ["DeltaSink"]

_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"


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
            .option("txnAppId", context.app_id)
            .option("txnVersion", context.batch_id)
            .options(**dict(self.options))
        )
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if is_path(self.location):
            writer.save(self.location)
        else:
            writer.saveAsTable(self.location)
        return self._place(table_log(frame.sparkSession, self.location).unsafeVolatileSnapshot().version())

    def prepare(self, session: SparkSession) -> None:
        """Have Delta read which transactions the table has seen: each write asks, and it takes a job on the log."""
        log = table_log(session, self.location)
        if log is not None and log.tableExists():
            log.unsafeVolatileSnapshot().transactions()

    def target(self, session: SparkSession, schema: pa.Schema, context: WriteContext) -> FileTarget | None:
        """Give the table's folder, where its files are plain ones that any worker may write."""
        del context
        if self.partition_by or self.options:
            return None
        if str(session.conf.get(_AUTO_COMPACT, "false")).lower() != "false":
            return None
        log = table_log(session, self.location)
        # A table by name that is not there yet has no place before Spark makes it.
        if log is None:
            return None
        if log.tableExists():
            is_plain = shape_of(log.unsafeVolatileSnapshot().metadata()) == plain_shape(schema)
        else:
            is_plain = plain_defaults(session)
        return FileTarget.at(session, log.dataPath().toString(), schema) if is_plain else None

    def commit(
        self, session: SparkSession, schema: pa.Schema, files: Sequence[WrittenFile], context: WriteContext
    ) -> dict[str, Any]:
        """Append files that lie in the table's folder, in a transaction that only takes effect once."""
        log = table_log(session, self.location)
        append_files(
            session,
            log,
            schema,
            files,
            app_id=context.app_id,
            version=context.batch_id,
            query_id=context.query_id,
            may_repeat=context.may_repeat,
        )
        return self._place(log.unsafeVolatileSnapshot().version())

    def describe(self) -> str:
        """Say where it writes."""
        return f"Delta {self.location}"

    def place(self) -> dict[str, Any]:
        """Give the table, without a version."""
        return self._place(None)

    def _place(self, version: int | None) -> dict[str, Any]:
        return {"delta": self.location, "version": version}
