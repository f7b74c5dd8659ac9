"""A Delta table as a sink: each batch one transaction, which carries the query's and the batch's ids and a marker.

Every commit first asks the table which batches it has (``transactions``), so a batch takes effect once: after a crash,
beside a driver that was taken for dead, on a checkpoint that was put back. A batch that is there already is passed over
if its second execution is the same, by the source offsets and a digest of the rows that the commit carries
(``batch_marker``); else, or where the table is further than the checkpoint can have brought it, it is refused. Where
the table is plain and on a file system that every worker reaches by a path, the workers write its parquet files
themselves (``written_files``) and only the transaction is Delta's; else Spark writes the rows. Which it is shows in the
table's history as ``STREAMING UPDATE`` or ``WRITE``. A table whose columns another application changed between the two
is not written: the batch fails and is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from cojoin.checkpoints.outputs import find_commit
from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError, did_you_mean
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.spark.sinks.written_files import FileTarget
from cojoin.storage.delta_files import plain_defaults, plain_shape, shape_of, table_log
from cojoin.storage.locations import is_path
from cojoin.storage.transactions import TableTransactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.delta_files import WrittenFile

__all__ = ["DeltaSink", "DeltaWriter"]

_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
_USER_METADATA = "userMetadata"
_SESSION_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


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

    def open(self, session: SparkSession, output: OutputId) -> DeltaWriter:
        """Return what writes an output of one query into the table."""
        return DeltaWriter(session, self, output)

    def directory(self) -> str | None:
        """Return the table's folder; None where it has a name."""
        return self.location if is_path(self.location) else None

    def describe(self) -> str:
        """Return where it writes."""
        return f"Delta {self.location}"

    def place(self) -> dict[str, Any]:
        """Return the table, without a version."""
        return {"delta": self.location, "version": None}

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Refuse columns to partition by that the output does not have."""
        names = {name.lower() for name in schema.names}
        for column in self.partition_by:
            if column.lower() not in names:
                near = did_you_mean(column, schema.names)
                msg = f"{role}: sinks.delta: partition_by: the output has no column {column!r}{near}"
                raise ConfigurationError(msg)
        if len(self.partition_by) == len(names):
            msg = f"{role}: sinks.delta: partition_by: expected to leave columns for the files, got all of the output's"
            raise ConfigurationError(msg)


class DeltaWriter(SinkWriter):
    """Writes one output of a query into a Delta table."""

    def __init__(self, session: SparkSession, sink: DeltaSink, output: OutputId) -> None:
        self._session, self._sink, self._output = session, sink, output
        self._transactions = TableTransactions(session, sink.location, output.app_id)
        self._newest, self._after = -1, -1
        self._cure = "start the query again"

    def check(self, position: Position) -> None:
        """Refuse a table that has batches which the checkpoint knows nothing of, or lacks some that it knows."""
        written = position.written if position.written.get("delta") == self._sink.location else {}
        if written.get("id") is not None and written.get("batch_id") is not None:
            self._transactions.expect(written["id"], int(written["version"]), int(written["batch_id"]))
        table_id, self._newest = self._transactions.look()
        self._cure = position.cure()
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, Delta table {self._sink.location}"
        if self._newest > position.next_batch:
            msg = (
                f"{where}: it has the query's batches up to {self._newest}, and the checkpoint goes on with batch "
                f"{position.next_batch}: the checkpoint is older than its output, as one that was put back from a "
                f"backup. Going on would write rows twice or leave some out; {self._cure}"
            )
            raise CheckpointError(msg)
        known = written.get("batch_id")
        if known is None:
            return
        self._after = -1 if written.get("version") is None else int(written["version"]) - 1
        found = self._found_instead(known, table_id, written.get("id"))
        if found is not None:
            msg = (
                f"{where}: the checkpoint knows that batch {known} was written there, and {found}: it was deleted, "
                f"replaced, or put back from a backup. Going on would leave rows out; put the table back as it was, or "
                f"restore into a new checkpoint, with restore_from=cojoin.Checkpoint({position.checkpoint!r}) and a "
                f"new output"
            )
            raise CheckpointError(msg)

    def _found_instead(self, known: int, table_id: str | None, known_id: str | None) -> str | None:
        """Return what is there in the place of the table to which a batch was written; None where it is that table."""
        if table_id is None:
            return "there is no such table"
        if known_id not in (None, table_id):
            return "it is another table of that name"
        if self._newest < 0:
            return "it has none of the query's batches"
        return f"it has the query's batches up to {self._newest}" if self._newest < known else None

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Append the rows in a transaction that only takes effect once."""
        _, newest = self._transactions.look()
        if not self._is_there(newest, marker):
            options = dict(self._sink.options)
            writer = (
                self._with_valid_folders(frame)
                .write.format("delta")
                .mode("append")
                .options(**options)
                .option("txnAppId", self._output.app_id)
                .option("txnVersion", marker.batch_id)
                .option(_USER_METADATA, marker.to_json(options.get(_USER_METADATA) or self._session_metadata()))
            )
            if self._sink.partition_by:
                writer = writer.partitionBy(*self._sink.partition_by)
            if is_path(self._sink.location):
                writer.save(self._sink.location)
            else:
                writer.saveAsTable(self._sink.location)
            # Delta itself passes over a batch that another driver has committed meanwhile, and says nothing.
            self._transactions.look()
            self._compare(marker)
        return self._place()

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return the table's folder, where its files are plain ones that any worker may write."""
        del batch_id
        if self._sink.partition_by or self._sink.options:
            return None
        if str(self._session.conf.get(_AUTO_COMPACT, "false")).lower() != "false":
            return None
        log = table_log(self._session, self._sink.location)
        # A table by name that is not there yet has no place before Spark makes it.
        if log is None:
            return None
        if log.tableExists():
            is_plain = shape_of(log.unsafeVolatileSnapshot().metadata()) == plain_shape(schema)
        else:
            is_plain = plain_defaults(self._session)
        return FileTarget.at(self._session, log.dataPath().toString(), schema) if is_plain else None

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Append files that lie in the table's folder, in a transaction that only takes effect once."""
        self._transactions.append(
            schema,
            files,
            marker.batch_id,
            query_id=self._output.query_id,
            metadata=marker.to_json(self._session_metadata()),
            is_done=lambda newest: self._is_there(newest, marker),
        )
        return self._place()

    def compare(self, marker: BatchMarker) -> None:
        """Refuse a batch that the table has from another execution, also where this one has no rows for it."""
        # What was found at the start: what another driver writes meanwhile is the same batch of the same plan.
        self._is_there(self._newest, marker)

    def prepare(self) -> None:
        """Have Delta read which transactions the table has seen, if it must."""
        self._transactions.look()

    def _with_valid_folders(self, frame: DataFrame) -> DataFrame:
        """Have a text that is not UTF-8 stop the query where it would name a folder: the log would hold another."""
        log = table_log(self._session, self._sink.location)
        columns = {name.lower() for name in self._sink.partition_by}
        if log is not None and log.tableExists():
            stored = log.unsafeVolatileSnapshot().metadata().partitionColumns()
            columns |= {name.lower() for name in stored.mkString("\n").splitlines()}
        for field in frame.schema.fields:
            if field.name.lower() in columns and isinstance(field.dataType, StringType):
                quoted = "`" + field.name.replace("`", "``") + "`"
                frame = frame.withColumn(field.name, F.validate_utf8(F.col(quoted)))
        return frame

    def _is_there(self, newest: int, marker: BatchMarker) -> bool:
        """Return whether the table has a batch, from an execution that was the same as this one.

        Raises:
            QueryFailedError: It has the batch from another execution, or later ones.
        """
        if newest < marker.batch_id:
            return False
        if newest > marker.batch_id:
            msg = (
                f"the table has the query's batches up to {newest} already, so another run has gone on meanwhile; "
                f"nothing was written"
            )
            raise QueryFailedError(msg)
        self._compare(marker)
        return True

    def _compare(self, marker: BatchMarker) -> None:
        """Refuse a batch whose rows in the table are not those of this execution."""
        stored = self._stored(marker.batch_id)
        if stored is None:
            msg = (
                f"the table has the query's batch {marker.batch_id} already, and its log no longer says with which "
                f"rows; nothing was written: {self._cure}"
            )
            raise QueryFailedError(msg)
        differences = marker.differences(stored)
        if not differences:
            return
        changed = marker.changed_settings(stored)
        told = f" Since then {'; '.join(changed)}." if changed else ""
        cure = self._cure
        if stored.offsets == marker.offsets:
            cure = (
                f"start it once with the settings and the code that the batch was run with, and change them after "
                f"that run; where that can't be, {self._cure}"
            )
        msg = (
            f"the table has the query's batch {marker.batch_id} already, from another execution: "
            f"{'; '.join(differences)}.{told} Nothing was written: {cure}"
        )
        raise QueryFailedError(msg)

    def _stored(self, batch_id: int) -> BatchMarker | None:
        """Return the marker of a batch that the table has; None where its log no longer says."""
        stored = BatchMarker.from_json(self._transactions.metadata(batch_id))
        if stored is not None:
            return stored
        commit = None
        # The checkpoint's version is only where to begin: others may have written since.
        for after in dict.fromkeys((self._after, -1)):
            commit = commit or find_commit(
                self._session, self._sink.location, self._output.app_id, batch_id, after=after
            )
        if commit is None:
            return None
        # Release 0.5.0 wrote no markers; Delta counts the rows.
        legacy = None if commit.rows is None else BatchMarker(batch_id, commit.rows, None, None)
        return BatchMarker.from_json(commit.metadata) or legacy

    def _session_metadata(self) -> str | None:
        found = self._session.conf.get(_SESSION_METADATA, None)
        return None if found is None else str(found)

    def _place(self) -> dict[str, Any]:
        snapshot = table_log(self._session, self._sink.location).unsafeVolatileSnapshot()
        return {**self._sink.place(), "version": int(snapshot.version()), "id": str(snapshot.metadata().id())}
