"""A Delta table as a sink: each batch is one transaction with the query's id, the batch's id and a marker.

Every commit first looks up which batches the table has (``output_tables``), so a batch takes effect once: also after a
crash, with a second driver that still runs, and with a checkpoint that was restored from a backup. A batch that the
table already has is skipped if the commit's marker has the same source offsets and the same digest of the rows
(``batch_marker``). Otherwise the batch fails with an error that names the differences. It also fails if the table has
later batches than the checkpoint.

If the table is plain and on a file system that every worker reaches by a path, the workers write its parquet files
themselves (``written_files``), and the driver commits them without the JVM. Otherwise Spark writes and commits the
rows. If another application changes the table's columns between the writing of the files and the commit, the batch
fails and is run again.

An output's columns are compared with an existing table before the query starts (``misfits``), since Delta itself
reports a misfit only at the first rows. By path, Delta appends columns of the table's own types, and integers of up to
32 bits to wider ones of these. By name, Spark casts to the table's types what it can cast. A column that the table
lacks is refused, unless Delta merges schemas. One that the output lacks becomes null, where the table allows that.
Names are compared without their case. Values are not checked, such as a null in a column that is NOT NULL.

A table of rejected rows that a former version has made lacks the columns of the batch. It gets them with the first
batch that has rows, by Spark's writer. Where that is not possible, the start warns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cojoin.checkpoints.output_tables import TableTransactions
from cojoin.delta.table_writer import NewTable, unknown_properties
from cojoin.engine.input_spec import REJECTED_SCHEMA, STAMPED_SCHEMA
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError, QueryFailedError, did_you_mean
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import columns_of, default_properties, read_table, table_in_sql
from cojoin.session.sessions import adapter_of, empty_frame
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.spark.batch.written_files import FileTarget, check_seen
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_writer import Committed
    from cojoin.storage.parquet_files import WrittenFile

_SMALL = (ByteType, ShortType, IntegerType)
"""The integers that Parquet stores as 32 bits, the narrower ones first."""

_TIMES = (DateType, TimestampType, TimestampNTZType)
_FILLED = ("CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.start")
"""The metadata of a column for which Delta makes a value."""


def misfits(table: StructType, output: StructType, where: str, *, casts: bool, merges: bool) -> Iterator[str]:
    """Yield each misfit of an output's columns in a table's, with what to do.

    ``where`` is the table, as SQL names it. ``casts`` means that Spark casts to the table's types, as it does by name,
    and ``merges`` that Delta adds missing columns, and widens types.
    """
    columns = {field.name.lower(): field for field in table.fields}
    missing = [field for field in output.fields if field.name.lower() not in columns]
    if missing and not merges:
        added = ", ".join(f"{back_quoted(field.name)} {field.dataType.simpleString()}" for field in missing)
        names = f"column{'s' * (len(missing) > 1)} {', '.join(repr(field.name) for field in missing)}"
        yield (
            f'the table has no {names}: give the sink options={{"mergeSchema": "true"}}, or run: '
            f"ALTER TABLE {where} ADD COLUMNS ({added})"
        )
    for field in output.fields:
        column = columns.pop(field.name.lower(), None)
        if column is not None and not _fits(column.dataType, field.dataType, casts=casts, merges=merges):
            yield (
                f"column {field.name!r} is {column.dataType.simpleString()} in the table and "
                f"{field.dataType.simpleString()} in the output: cast it before the join, or write to another table"
            )
    for field in columns.values():
        if not field.nullable and not any(mark in field.metadata for mark in _FILLED):
            name = back_quoted(field.name)
            yield (
                f"column {field.name!r} of the table is NOT NULL, and the output has none of the name: "
                f"ALTER TABLE {where} ALTER COLUMN {name} DROP NOT NULL"
            )


def _fits(table: DataType, output: DataType, *, casts: bool, merges: bool) -> bool:
    if isinstance(output, NullType):
        return True
    if isinstance(table, StructType) and isinstance(output, StructType):
        return not any(misfits(table, output, "", casts=casts, merges=merges))
    if isinstance(table, ArrayType) and isinstance(output, ArrayType):
        return _fits(table.elementType, output.elementType, casts=casts, merges=merges)
    if isinstance(table, MapType) and isinstance(output, MapType):
        pairs = ((table.keyType, output.keyType), (table.valueType, output.valueType))
        return all(_fits(*pair, casts=casts, merges=merges) for pair in pairs)
    if table == output or (isinstance(table, StringType) and isinstance(output, StringType)):
        return True
    return _widens(table, output, merges=merges) or (casts and _is_cast(table, output))


def _widens(table: DataType, output: DataType, *, merges: bool) -> bool:
    """Return whether both are integers that Delta takes for one, or numbers that it may widen."""
    if merges and isinstance(table, NumericType) and isinstance(output, NumericType):
        return True
    if not isinstance(table, _SMALL) or not isinstance(output, _SMALL):
        return False
    return _SMALL.index(type(output)) <= _SMALL.index(type(table))


def _is_cast(table: DataType, output: DataType) -> bool:
    """Return whether Spark can cast the output's type to the table's; single values may still fail."""
    nested = (StructType, ArrayType, MapType)
    if isinstance(table, StringType):
        return True
    if isinstance(table, nested) or isinstance(output, nested):
        return False
    numbers = (NumericType, BooleanType)
    if isinstance(output, (StringType, *numbers)) and isinstance(table, (BinaryType, TimestampType, *numbers)):
        return True
    if isinstance(output, TimestampType) and isinstance(table, numbers):
        return True
    return isinstance(output, StringType) or (isinstance(table, _TIMES) and isinstance(output, _TIMES))


class _StoredMarkers:
    """The markers of one output of a query in a Delta table.

    ``cure`` is the advice where a batch is from another execution, as the end of a sentence.
    """

    def __init__(self, transactions: TableTransactions) -> None:
        self._transactions = transactions
        self.cure = "start the query again"

    def has_batch(self, newest: int, marker: BatchMarker) -> bool:
        """Return whether the table has a batch from the same execution.

        A QueryFailedError means that it has the batch from a different execution, or later batches.
        """
        if newest < marker.batch_id:
            return False
        if newest > marker.batch_id:
            msg = (
                f"the table has the query's batches up to {newest} already, so another run has gone on meanwhile; "
                f"nothing was written"
            )
            raise QueryFailedError(msg)
        self.compare(marker)
        return True

    def compare(self, marker: BatchMarker) -> None:
        """Raise a QueryFailedError if the batch's rows in the table are not those of this execution."""
        stored = self._stored(marker.batch_id)
        if stored is None:
            msg = (
                f"the table has the query's batch {marker.batch_id} already, and its log no longer has the marker of "
                f"that batch; nothing was written: {self.cure}"
            )
            raise QueryFailedError(msg)
        refusal = marker.refusal(stored, "the table", self.cure)
        if refusal is not None:
            raise QueryFailedError(refusal)

    def _stored(self, batch_id: int) -> BatchMarker | None:
        """Return the marker of a batch in the table; None if the table's log no longer has it."""
        commit = self._transactions.commit_of(batch_id)
        if commit is None:
            return None
        # Release 0.5.0 wrote no markers, but Delta counted the rows.
        legacy = None if commit.rows is None else BatchMarker(batch_id, commit.rows, None, None)
        return BatchMarker.from_json(commit.user_metadata) or legacy


_STAMPS = tuple(name for name in STAMPED_SCHEMA.names if name not in REJECTED_SCHEMA.names)
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
_USER_METADATA = "userMetadata"
_MERGES = "spark.databricks.delta.schema.autoMerge.enabled"
_OTHER_SCHEMA = {"overwriteschema", "replacewhere"}
_SESSION_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table, by path or by name; ``cojoin.sinks.delta`` makes one.

    Attributes:
        location: A path, or a table's name.
        partition_by: The columns by which a new table is partitioned.
        options: Delta's writer options.
    """

    location: str
    partition_by: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def open(self, session: SparkSession, output: OutputId) -> DeltaWriter:
        """Return the writer of a query's output to the table."""
        return DeltaWriter(session, self, output)

    def directory(self) -> str | None:
        """Return the table's folder; None if the location is a table's name."""
        return self.location if is_path(self.location) else None

    def describe(self) -> str:
        """Return the table's location, for messages."""
        return f"Delta {self.location}"

    def place(self) -> dict[str, Any]:
        """Return the manifest's entry for the table before anything is written: its location without a version."""
        return {"delta": self.location, "version": None}

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Check that the output has the columns of ``partition_by`` and at least one other.

        Args:
            schema: The output's columns.
            role: The output, for the message.

        Raises:
            ConfigurationError: It does not.
        """
        names = {name.lower() for name in schema.names}
        for column in self.partition_by:
            if column.lower() not in names:
                near = did_you_mean(column, schema.names)
                msg = f"{role}: sinks.delta: partition_by: the output has no column {column!r}{near}"
                raise ConfigurationError(msg)
        if len(self.partition_by) == len(names):
            msg = f"{role}: sinks.delta: partition_by: expected to leave columns for the files, got all of the output's"
            raise ConfigurationError(msg)

    def merges(self, otherwise: str) -> bool:
        """Return whether the table gets columns that it lacks; without the option it is ``otherwise``."""
        options = {name.lower(): value for name, value in self.options}
        return options.get("mergeschema", otherwise).lower() == "true"

    def check_writer(self, session: SparkSession, schema: pa.Schema, role: str) -> None:
        """Check that Spark has Delta's classes where only Spark can write the table.

        Raises:
            EnvironmentSetupError: It has none; the message has the reason why Spark writes.
        """
        why = self.why_spark(session, schema, TableTransactions(session, self.location, ""))
        if why is None:
            return
        try:
            adapter_of(session).check_delta()
        except EnvironmentSetupError as error:
            msg = f"{role}: {self.describe()}: only Spark writes it ({why}), and {error}"
            raise EnvironmentSetupError(msg) from error

    def why_spark(self, session: SparkSession, schema: pa.Schema, transactions: TableTransactions) -> str | None:
        """Return why Spark writes the rows and commits them; None where the workers write files of the table.

        Args:
            session: The session.
            schema: The output's columns.
            transactions: The commits to the table.
        """
        if self.partition_by:
            return f"partition_by={list(self.partition_by)}"
        if self.options:
            return f"the writer's options {', '.join(name for name, _ in self.options)}"
        if str(session.conf.get(_AUTO_COMPACT, "false")).lower() != "false":
            return f"the session's setting {_AUTO_COMPACT}"
        why = transactions.why_spark(schema)
        store = None if why else transactions.store()
        if store is not None and FileTarget.at(session, store.path(""), schema, store) is None:
            return "the workers can't write its files: a type, a codec, encryption, or a path outside of file systems"
        return why

    def check_table(self, session: SparkSession, schema: pa.Schema, role: str) -> None:
        """Check that an output's columns fit those of the table, if it exists."""
        if {name.lower() for name, _ in self.options} & _OTHER_SCHEMA:
            return
        merges = self.merges(str(session.conf.get(_MERGES, "false")))
        table = read_table(session, self.location)
        columns = None if table is None else columns_of(table)
        if columns is None:
            return
        name = table_in_sql(session, self.location)
        faults = list(misfits(columns, spark_schema(schema), name, casts=not is_path(self.location), merges=merges))
        if faults:
            msg = f"{role}: {self.describe()}: the output does not fit the existing table: {'; '.join(faults)}"
            raise ConfigurationError(msg)


class DeltaWriter(SinkWriter):
    """Writes one output of a query into a Delta table."""

    def __init__(self, session: SparkSession, sink: DeltaSink, output: OutputId) -> None:
        self._session, self._sink, self._output = session, sink, output
        self._transactions = TableTransactions(session, sink.location, output.app_id, output.epoch)
        self._markers = _StoredMarkers(self._transactions)
        self._newest = -1
        self._folder: str | None = None
        # The columns that an older table of rejected rows gets with its next rows, and those that it can't get. A batch
        # may be in the table already without them, so each commit may add them.
        self._added: tuple[str, ...] = ()
        self._left_out: tuple[str, ...] = ()

    def check(self, position: Position) -> None:
        """Raise a CheckpointError unless the table has the batches that the checkpoint records, and no later ones."""
        written = position.written if position.written.get("delta") == self._sink.location else {}
        if self._output.takes_over:
            # Earlier commits of a former run are seen below; afterwards it can't commit, nor create the table.
            self._fence()
        table_id, self._newest = self._transactions.look()
        if table_id is not None and self._output.schema == STAMPED_SCHEMA:
            self._compare_columns()
        self._markers.cure = position.cure()
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, Delta table {self._sink.location}"
        if self._newest > position.next_batch:
            msg = (
                f"{where}: it has the query's batches up to {self._newest}, and the checkpoint continues with batch "
                f"{position.next_batch}: the checkpoint is older than its output, as one that was put back from a "
                f"backup. Going on would write rows twice or leave some out; {self._markers.cure}"
            )
            raise CheckpointError(msg)
        known = written.get("batch_id")
        if known is None:
            return
        difference = self._difference(known, table_id, written.get("id"))
        if difference is not None:
            msg = (
                f"{where}: the checkpoint records that batch {known} was written to it, and {difference}: it was "
                f"deleted, replaced, or put back from a backup. Going on would leave rows out; put the table back as "
                f"it was, or restore into a new checkpoint, with "
                f"restore_from=cojoin.Snapshot({position.checkpoint!r}) and a new output"
            )
            raise CheckpointError(msg)

    def _compare_columns(self) -> None:
        """Set which of the columns of the batch an existing table lacks, and which of them it can't get."""
        table = self._transactions.table()
        columns = None if table is None else columns_of(table)
        if columns is None:
            return
        types = {field.name.lower(): field.dataType for field in columns.fields}
        wanted = {field.name: field.dataType for field in spark_schema(STAMPED_SCHEMA).fields}
        missing = tuple(name for name in _STAMPS if name not in types)
        merges = self._sink.merges("true")
        others = tuple(name for name in _STAMPS if name in types and types[name] != wanted[name])
        self._added, self._left_out = (missing, others) if merges else ((), (*missing, *others))

    def notes(self) -> list[str]:
        """Return the warnings about an older table of rejected rows."""
        if not self._left_out:
            return []
        note = (
            f"output {self._output.name!r}, Delta table {self._sink.location}: it gets no column "
            f"{' and '.join(self._left_out)}, since the sink has mergeSchema=false, or its own column of that name has "
            f"another type; leave the option out, or rename the column"
        )
        return [note]

    def _difference(self, known: int, table_id: str | None, known_id: str | None) -> str | None:
        """Return how the table differs from the one to which a batch was written; None if it is that table."""
        if table_id is None:
            return "the table does not exist"
        if known_id not in (None, table_id):
            return "it is another table of that name"
        if self._newest < 0:
            return "it has none of the query's batches"
        return f"it has the query's batches up to {self._newest}" if self._newest < known else None

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Append a batch's rows in a transaction that takes effect once; return the manifest's entry."""
        _, newest = self._transactions.look()
        if not self._markers.has_batch(newest, marker):
            options = dict(self._sink.options) | ({"mergeSchema": "true"} if self._added else {})
            writer = (
                self._with_valid_folders(frame.drop(*self._left_out))
                .write.format("delta")
                .mode("append")
                .options(**options)
                .option("txnAppId", self._output.app_id)
                .option("txnVersion", marker.batch_id)
                .option(_USER_METADATA, marker.to_json(options.get(_USER_METADATA) or self._session_metadata()))
            )
            try:
                self._save(writer)
            except SPARK_ERRORS:
                # Where another run has taken over, that is the reason, which this raises.
                self._transactions.look()
                raise
            # Delta silently skips a batch that another driver has committed in the meantime.
            self._transactions.look()
            self._markers.compare(marker)
        return self._place(self._transactions.table())

    def _fence(self) -> None:
        """Fence the table off from earlier runs; if it does not exist, create it empty, as a batch would."""
        schema, properties = self._output.schema, default_properties(self._session)
        is_sparks = bool(self._sink.options or unknown_properties(properties))

        def create(applications: Mapping[str, int]) -> None:
            # Delta skips a commit of transaction ids that it has; that of a new table always takes effect.
            empty = empty_frame(self._session, schema)
            writer = empty.write.format("delta").mode("append").options(**dict(self._sink.options))
            for app_id, version in applications.items():
                writer = writer.option("txnAppId", app_id).option("txnVersion", version)
            self._save(writer)

        new = None if schema is None or is_sparks else NewTable(schema, self._sink.partition_by, properties)
        self._transactions.fence(self._output.query_id, new, None if schema is None else create)

    def _save(self, writer: DataFrameWriter) -> None:
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        if is_path(self._sink.location):
            writer.save(self._sink.location)
        else:
            writer.saveAsTable(self._sink.location)

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return the table's folder as a target; None if the workers can't write its files (partitions, properties)."""
        del batch_id
        target = self._plain_target(schema)
        self._folder = target.folder if target is not None and target.is_local else None
        return target

    def _plain_target(self, schema: pa.Schema) -> FileTarget | None:
        self.why_spark = self._sink.why_spark(self._session, schema, self._transactions)
        if self._added or self._left_out:
            self.why_spark = f"the table lacks the columns {', '.join((*self._added, *self._left_out))}"
        if self.why_spark is not None:
            return None
        store = self._transactions.store()
        return None if store is None else FileTarget.at(self._session, store.path(""), schema, store)

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Append files in the table's folder in a transaction that takes effect once; return the manifest's entry."""
        if self._folder is not None:
            # The commit looks for each file, too; this names the reason that hosts of their own disks have.
            check_seen(self._folder, files)
        committed = self._transactions.append(
            schema,
            files,
            marker.batch_id,
            query_id=self._output.query_id,
            metadata=marker.to_json(self._session_metadata()),
            is_done=lambda newest: self._markers.has_batch(newest, marker),
        )
        return self._place(committed)

    def compare(self, marker: BatchMarker) -> None:
        """Raise a QueryFailedError if the table has this batch from a different execution, or later batches."""
        # The batches listed at the start suffice: those that another driver writes since then are of the same plan.
        self._markers.has_batch(self._newest, marker)

    def prepare(self) -> None:
        """Read the table's transactions in advance."""
        self._transactions.look()

    def _with_valid_folders(self, frame: DataFrame) -> DataFrame:
        """Return the rows such that a partition value of invalid UTF-8 fails: Delta's log would hold another value."""
        table = self._transactions.table()
        named = self._sink.partition_by if table is None else (*self._sink.partition_by, *table.partition_columns)
        columns = {name.lower() for name in named}
        for field in frame.schema.fields:
            if field.name.lower() in columns and isinstance(field.dataType, StringType):
                quoted = back_quoted(field.name)
                frame = frame.withColumn(field.name, F.validate_utf8(F.col(quoted)))
        return frame

    def _session_metadata(self) -> str | None:
        metadata = self._session.conf.get(_SESSION_METADATA, None)
        return None if metadata is None else str(metadata)

    def _place(self, table: TableVersion | Committed | None) -> dict[str, Any]:
        if table is None:
            msg = "the table is gone right after it was written; nothing else was lost: start the query again"
            raise QueryFailedError(msg)
        return {**self._sink.place(), "version": table.version, "id": table.table_id}
