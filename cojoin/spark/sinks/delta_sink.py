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

*Upserts.* With ``upsert=`` of the rows of a key one stays (``Upsert``). A plain table's files are written again where
they hold replaced rows (``delta_upsert``); any other table gets one MERGE by Spark (``delta_merge``). The manifest has
the rule, since a run without it, or with another key, would store rows twice.

A table of rejected rows that a former version has made lacks the columns of the batch. It gets them with the first
batch that has rows, by Spark's writer. Where that is not possible, the start warns.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
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

from cojoin.checkpoints.output_tables import TableTransactions, save_rows
from cojoin.delta.table_writer import NewTable, why_not_creatable
from cojoin.engine.input_spec import REJECTED_SCHEMA, STAMPED_SCHEMA
from cojoin.engine.upsert import is_same_rule
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError, QueryFailedError, did_you_mean
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import (
    check_sparks_delta,
    check_table_name,
    columns_of,
    default_properties,
    read_table,
    table_in_sql,
)
from cojoin.session.sessions import adapter_of, empty_frame, is_left_to_spark
from cojoin.session.spark_errors import SPARK_ERRORS, names_other_commit
from cojoin.spark.batch.direct_reader import why_by_columns
from cojoin.spark.batch.written_files import OUTPUT_SETTING, FileTarget, check_seen
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows, KeyWarnings, UnfitFileError
from cojoin.spark.sinks.delta_merge import merge, no_merge
from cojoin.spark.sinks.delta_upsert import LeftToSparkError, TableUpsert, check_size
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.spark.sources.delta_stream import has_delta
from cojoin.storage.locations import is_path, literally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from cojoin.delta.actions import DataFile
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_writer import Committed
    from cojoin.engine.upsert import Upsert
    from cojoin.storage.parquet_files import WrittenFile
    from cojoin.storage.store import Store

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


_log = logging.getLogger("cojoin")

_STAMPS = tuple(name for name in STAMPED_SCHEMA.names if name not in REJECTED_SCHEMA.names)
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
_USER_METADATA = "userMetadata"
_MERGES = "spark.databricks.delta.schema.autoMerge.enabled"
_TRIES = 5
_OF_UPSERTS = {"mergeschema", "usermetadata"}
_APPENDS = "delta.appendOnly"
_KEPT = "delta.setTransactionRetentionDuration"
_OTHER_SCHEMA = {"overwriteschema", "replacewhere"}
_SESSION_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table, by path or by name; ``cojoin.sinks.delta`` makes one.

    Attributes:
        location: A path, or a table's name.
        partition_by: The columns by which a new table is partitioned.
        options: Delta's writer options.
        upsert: The rule by which one row of each key stays; None where rows are appended.
    """

    location: str
    partition_by: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    upsert: Upsert | None = None

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
        rule = {} if self.upsert is None else {"upsert": self.upsert.as_dict()}
        return {"delta": self.location, "version": None, **rule}

    def has_rule_of(self, written: Mapping[str, Any]) -> bool:
        """Return whether a manifest's entry has the same rule of upserts, or none as this; case is ignored."""
        return is_same_rule(written.get("upsert"), self.place().get("upsert"))

    def check_order(self, schema: pa.Schema, order: Sequence[str] | None, role: str) -> None:
        """Check the rule of an upsert by the output's columns."""
        if self.upsert is None:
            return
        rule = self.upsert.within(schema, order, role)
        other = [name for name, _ in self.options if name.lower() not in _OF_UPSERTS]
        if other:
            msg = f"{role}: sinks.delta: options: upserts take mergeSchema and userMetadata, got {', '.join(other)}"
            raise ConfigurationError(msg)
        if rule.deletes is not None and rule.deletes.lower() in {name.lower() for name in self.partition_by}:
            msg = f"{role}: sinks.delta: partition_by: the column {rule.deletes!r} of deletes= is not stored"
            raise ConfigurationError(msg)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return those of an output's columns that the table has."""
        return schema if self.upsert is None else self.upsert.within(schema, (), "").stored(schema)

    def transactions(self, session: SparkSession, app_id: str, epoch: int | None = None) -> TableTransactions:
        """Return the commits of an application to the table."""
        return TableTransactions(session, self.location, app_id, epoch, replaces=self.upsert is not None)

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Check that the output has the columns of ``partition_by`` and at least one other.

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

    def check_place(self, session: SparkSession, output: str) -> None:
        """Check, before the query starts, that the directory can be written, or that the name can be a Delta table's.

        Raises:
            ConfigurationError: As for any sink; or the name's catalog or schema does not exist, or a table of another
                format has the name.
        """
        super().check_place(session, output)
        if not is_path(self.location):
            try:
                check_table_name(session, self.location)
            except EnvironmentSetupError:
                raise
            except ConfigurationError as error:
                msg = f"{output}: {error}"
                raise ConfigurationError(msg) from error

    def check_writer(self, session: SparkSession, schema: pa.Schema, role: str) -> None:
        """Check that Spark has Delta's classes where only it can write the table; else, that the table's store suits.

        Raises:
            EnvironmentSetupError: It has none; the message has the reason why Spark writes.
            ConfigurationError: With Spark Connect: an upsert that only Spark could write; or the table's store has no
                conditional writes, so that a commit would replace that of another writer.
        """
        transactions = self.transactions(session, "")
        _, why = self.target(session, schema, transactions)
        if why is None:
            try:
                transactions.batches().store.check_conditional_writes()
            except CheckpointError as error:
                msg = f"{role}: {error}"
                raise ConfigurationError(msg) from error
            return
        if self.upsert is not None and not adapter_of(session).copies_settings:
            msg = f"{role}: {self.describe()}: {no_merge(why)}"
            raise ConfigurationError(msg)
        check_sparks_delta(session, why, f"{role}: {self.describe()}")

    def target(
        self, session: SparkSession, schema: pa.Schema, transactions: TableTransactions
    ) -> tuple[FileTarget | None, str | None]:
        """Return the target of the files that the workers write; None where Spark writes the rows, and the reason."""
        why = self._why_spark(session, schema, transactions)
        store = None if why else transactions.store()
        target = None if store is None else FileTarget.at(session, store.path(""), schema, store)
        if store is not None and target is None:
            why = "the workers can't write its files: a type, a codec, encryption, or a path outside of file systems"
            if is_left_to_spark(session, OUTPUT_SETTING):
                why = f"{OUTPUT_SETTING} is spark"
        return target, why

    def _why_spark(self, session: SparkSession, schema: pa.Schema, transactions: TableTransactions) -> str | None:
        if self.partition_by:
            return f"partition_by={list(self.partition_by)}"
        if self.options:
            return f"the writer's options {', '.join(name for name, _ in self.options)}"
        if str(session.conf.get(_AUTO_COMPACT, "false")).lower() != "false":
            return f"the session's setting {_AUTO_COMPACT}"
        why = transactions.why_spark(self.stored(schema))
        return why_by_columns(schema, ()) if why is None and self.upsert is not None else why

    def check_table(self, session: SparkSession, schema: pa.Schema, role: str) -> None:
        """Check that an output's columns fit those of the table, if it exists."""
        if {name.lower() for name, _ in self.options} & _OTHER_SCHEMA:
            return
        schema = self.stored(schema)
        merges = self.merges(str(session.conf.get(_MERGES, "false")))
        table = read_table(session, self.location)
        columns = None if table is None else columns_of(table)
        if columns is None:
            return
        if self.upsert is not None and table is not None and table.properties.get(_APPENDS, "").lower() == "true":
            msg = (
                f"{role}: {self.describe()}: it takes no upserts, by its property {_APPENDS}; leave out upsert=, "
                f"or run: ALTER TABLE {table_in_sql(session, self.location)} UNSET TBLPROPERTIES ('{_APPENDS}')"
            )
            raise ConfigurationError(msg)
        name = table_in_sql(session, self.location)
        faults = list(misfits(columns, spark_schema(schema), name, casts=not is_path(self.location), merges=merges))
        if self.upsert is not None:
            # Values that are cast may be one value in the table, or none that equals the row's.
            rule = self.upsert.within(schema, (), role)
            compared = spark_schema(pa.schema([schema.field(each) for each in (*rule.key, *rule.order_by)]))
            faults = faults or list(misfits(columns, compared, name, casts=False, merges=merges))
        if faults:
            msg = f"{role}: {self.describe()}: the output does not fit the existing table: {'; '.join(faults)}"
            raise ConfigurationError(msg)


class DeltaWriter(SinkWriter):
    """Writes one output of a query into a Delta table."""

    def __init__(self, session: SparkSession, sink: DeltaSink, output: OutputId) -> None:
        self._session, self._sink, self._output = session, sink, output
        self._transactions = sink.transactions(session, output.app_id, output.epoch)
        # The newest batch that the table has had in this run.
        self._newest, self._cure = -1, "start the query again"
        self._folder: str | None = None
        self._table_id: str | None = None
        rule, schema = sink.upsert, output.schema
        self._rule = None if rule is None or schema is None else rule.within(schema, output.order, output.name)
        self.upsert_rule = None if self._rule is None else self._rule.as_dict()
        label = f"{output.name} to {sink.describe()}"
        self._warnings = KeyWarnings(label, () if self._rule is None else self._rule.key)
        # The columns that an older table of rejected rows gets with its next rows, and those that it can't get. A batch
        # may be in the table already without them, so each commit may add them.
        self._added: tuple[str, ...] = ()
        self._left_out: tuple[str, ...] = ()

    def check(self, position: Position) -> None:
        """Raise a CheckpointError unless the table has the batches that the checkpoint records, and no later ones."""
        written = position.written if "delta" in position.written else {}
        if self._output.takes_over:
            # Earlier commits of a former run are seen below; afterwards it can't commit, nor create the table.
            self._fence()
        self._table_id, self._newest = self._transactions.look()
        if self._table_id is not None and self._output.schema == STAMPED_SCHEMA:
            self._compare_columns()
        self._cure = position.cure()
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, Delta table {self._sink.location}"
        position.check_not_behind(where, self._newest, self._cure)
        known = written.get("batch_id")
        if "delta" in position.written:
            position.check_rule(where, self.upsert_rule)
        if known is None:
            return
        difference = self._difference(known, self._table_id, written.get("id"))
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
        """Return the warnings: an older table of rejected rows, other queries that upsert, batches that expire."""
        notes = [] if self._rule is None or self._rule.order_by else self._notes_of_others()
        kept = self._kept()
        if kept is not None:
            where = table_in_sql(self._session, self._sink.location)
            notes.append(
                f"output {self._output.name!r}, Delta table {self._sink.location}: with its property {_KEPT} = {kept}, "
                f"Delta may forget the query's batches after that time without rows, and the next start would be "
                f"refused; to keep them, run: ALTER TABLE {where} UNSET TBLPROPERTIES ('{_KEPT}')"
            )
        if not self._left_out:
            return notes
        note = (
            f"output {self._output.name!r}, Delta table {self._sink.location}: it gets no column "
            f"{' and '.join(self._left_out)}, since the sink has mergeSchema=false, or its own column of that name has "
            f"another type; leave the option out, or rename the column"
        )
        return [*notes, note]

    def _kept(self) -> str | None:
        """Return after which time Delta forgets the batches of a table without new ones; None where it never does."""
        table = self._transactions.last_read
        return None if table is None else table.properties.get(_KEPT)

    def _notes_of_others(self) -> list[str]:
        """Return a warning where other queries have written the table, and this one has not."""
        table = self._transactions.table()
        applications = () if table is None else table.applications
        others = [name for name in applications if name.startswith("cojoin-") and name != self._output.app_id]
        if not others or self._output.app_id in applications:
            return []
        note = (
            f"output {self._output.name!r}, Delta table {self._sink.location}: other queries have written it, such as "
            f"{others[0]}; where keys are the same, the later batch replaces the row: give order_by=, so that the "
            f"greater row stays"
        )
        return [note]

    def _difference(self, known: int, table_id: str | None, known_id: str | None) -> str | None:
        """Return how the table differs from the one to which a batch was written; None if it is that table."""
        if table_id is None:
            return "the table does not exist"
        if known_id not in (None, table_id):
            return "it is another table of that name"
        if self._newest < 0:
            kept = self._kept()
            why = "" if kept is None else f" (its property {_KEPT} = {kept} lets Delta forget them)"
            return f"it has none of the query's batches{why}"
        return f"it has the query's batches up to {self._newest}" if self._newest < known else None

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Append or upsert a batch's rows in a transaction that takes effect once; return the manifest's entry."""
        self.upserts = None
        _, newest = self._transactions.look()
        if not self._has_batch(newest, marker):
            # Another writer may have upgraded the table since the start.
            check_sparks_delta(self._session, self.why_spark)
            if self._rule is not None:
                self._merge(self._rule, frame, marker)
                return self._written(marker, self._transactions.table())
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
            except SPARK_ERRORS as error:
                # Where another run has taken over, or another writer has changed the columns, this raises that.
                self._transactions.look()
                schema = self._output.schema
                if isinstance(error, AnalysisException) and schema not in (None, STAMPED_SCHEMA):
                    self._sink.check_table(self._session, schema, self._output.name)
                raise
            # Delta silently skips a batch that another driver has committed in the meantime.
            self._transactions.look()
            self._compare(marker)
        return self._written(marker, self._transactions.table())

    def _has_batch(self, newest: int, marker: BatchMarker) -> bool:
        """Return whether the table has a batch, by the newest that it has; QueryFailedError: from another execution."""
        has_it = marker.is_reached(newest, self._newest, "the table")
        if has_it:
            self._compare(marker)
        return has_it

    def _compare(self, marker: BatchMarker) -> None:
        """Raise a QueryFailedError if the batch's rows in the table are not those of this execution."""
        commit = self._transactions.commit_of(marker.batch_id)
        # Release 0.5.0 wrote no markers, but Delta counted the rows.
        counted = (
            None if commit is None or commit.rows is None else BatchMarker(marker.batch_id, commit.rows, None, None)
        )
        stored = counted if commit is None else BatchMarker.from_json(commit.user_metadata) or counted
        if stored is None:
            msg = (
                f"the table has the query's batch {marker.batch_id} already, and its log no longer has the marker of "
                f"that batch; nothing was written: {self._cure}"
            )
            raise QueryFailedError(msg)
        marker.compare(stored, "the table", self._cure)

    def _merge(self, rule: Upsert, frame: DataFrame, marker: BatchMarker) -> None:
        """Upsert a batch by Spark's MERGE; set its counts."""
        if not adapter_of(self._session).copies_settings:
            raise QueryFailedError(no_merge(str(self.why_spark)))
        options = {name.lower(): value for name, value in self._sink.options}
        metadata = marker.to_json(options.get("usermetadata") or self._session_metadata())
        frame = self._with_valid_folders(frame)
        stored = frame.limit(0) if rule.deletes is None else frame.limit(0).drop(rule.deletes)
        table = self._transactions.table()
        columns = None if table is None else columns_of(table)
        names = set() if columns is None else {name.lower() for name in columns.names}
        merges = self._sink.merges(str(self._session.conf.get(_MERGES, "false")))
        if table is None or (merges and {name.lower() for name in stored.columns} - names):
            # The table without rows, or the columns that it lacks; a MERGE makes neither.
            self._save(stored.write.format("delta").mode("append").options(**dict(self._sink.options)))
        null_keys = 0
        for number in range(_TRIES):
            try:
                transaction = self._output.app_id, marker.batch_id
                null_keys = merge(frame, self._sink.location, rule, self._output.order or (), transaction, metadata)
                break
            except SPARK_ERRORS as error:
                # Where another run has taken over, that is the reason, which this raises.
                self._transactions.look()
                # Another writer of the same files was first.
                if not names_other_commit(error) or number == _TRIES - 1:
                    raise
        self._transactions.look()
        self._compare(marker)
        commit = self._transactions.commit_of(marker.batch_id)
        metrics = {} if commit is None else commit.info.get("operationMetrics") or {}
        counts = {
            name: int(metrics.get(f"numTargetRows{name.title()}", 0)) for name in ("inserted", "updated", "deleted")
        }
        # A row that removes none is neither of them.
        rest = int(metrics.get("numSourceRows", 0)) if rule.deletes is not None else sum(counts.values())
        self.upserts = counts | {"superseded": marker.rows - null_keys - rest, "null_keys": null_keys}
        self._warnings.give(marker.batch_id, marker.rows, self.upserts)

    def _fence(self) -> None:
        """Fence the table off from earlier runs; if it does not exist, create it empty, as a batch would."""
        schema, properties = self._output.schema, default_properties(self._session)
        schema = None if schema is None else self._sink.stored(schema)
        is_sparks = bool(self._sink.options or why_not_creatable(properties))

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
        save_rows(writer, self._sink.location)

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return the table's folder as a target; None if the workers can't write its files (partitions, properties)."""
        del batch_id
        target = self._plain_target(schema)
        self._folder = target.folder if target is not None and target.is_local else None
        return target

    def _plain_target(self, schema: pa.Schema) -> FileTarget | None:
        target, self.why_spark = self._sink.target(self._session, schema, self._transactions)
        if self._added or self._left_out:
            self.why_spark = f"the table lacks the columns {', '.join((*self._added, *self._left_out))}"
        return target if self.why_spark is None else None

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Append or upsert files in the table's folder in a transaction that takes effect once; return the entry."""
        self.upserts = None
        if self._folder is not None:
            # The commit looks for each file, too; this names the reason that hosts of their own disks have.
            check_seen(self._folder, files)
        if self._rule is not None:
            return self._upsert(self._rule, schema, files, marker)
        committed = self._transactions.batches().append(
            schema,
            files,
            marker.batch_id,
            query_id=self._output.query_id,
            metadata=marker.to_json(self._session_metadata()),
            is_done=lambda newest: self._has_batch(newest, marker),
        )
        return self._written(marker, committed)

    def _upsert(
        self, rule: Upsert, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker
    ) -> dict[str, Any]:
        """Upsert files in the table's folder; by Spark's MERGE where only Spark can, or where the change is large."""
        target, store = self._plain_target(schema), self._transactions.store()
        assert store is not None
        if target is None:
            return self._merge_files(store, schema, files, marker, str(self.why_spark))
        source = FileRows(store)
        may_leave = has_delta(self._session) and adapter_of(self._session).copies_settings
        try:
            if may_leave:
                check_size("the batch", (file.size for file in files))
            batch = BatchRows(source, schema, rule, self._output.order or (), files)
            upsert = TableUpsert(store, source, target, batch, may_leave=may_leave)
            committed, added = self._replace(upsert, batch.stored_schema, marker)
        except (LeftToSparkError, UnfitFileError) as reason:
            return self._merge_files(store, schema, files, marker, str(reason))
        if committed.is_new:
            upsert.clean(added)
            self.upserts = upsert.counts
            self._warnings.give(marker.batch_id, marker.rows, upsert.counts, batch.duplicate)
        return self._written(marker, committed)

    def _merge_files(
        self, store: Store, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker, why: str
    ) -> dict[str, Any]:
        """Upsert files in the table's folder by Spark's MERGE, and delete them."""
        self.why_spark = why
        _log.info("batch %s: %s: Spark merges it: %s", marker.batch_id, self._sink.describe(), why)
        reader = self._session.read.schema(spark_schema(schema))
        place = self.write(reader.parquet(*(literally(store.path(file.name)) for file in files)), marker)
        for file in files:
            with contextlib.suppress(Exception):
                store.delete(file.name)
        return place

    def _replace(
        self, upsert: TableUpsert, schema: pa.Schema, marker: BatchMarker
    ) -> tuple[Committed, Sequence[WrittenFile]]:
        added: list[WrittenFile] = []

        def plan(present: Sequence[DataFile]) -> tuple[Sequence[WrittenFile], Sequence[DataFile]]:
            planned, removed = upsert(present)
            added[:] = planned
            return planned, removed

        committed = self._transactions.batches().replace(
            schema,
            plan,
            marker.batch_id,
            query_id=self._output.query_id,
            metadata=marker.to_json(self._session_metadata()),
            is_done=lambda newest: self._has_batch(newest, marker),
        )
        return committed, added

    def compare(self, marker: BatchMarker) -> None:
        """Raise a QueryFailedError if the table has this batch from a different execution, or later batches."""
        # The batches seen so far suffice: those that another driver writes since then are of the same plan.
        self._has_batch(self._newest, marker)

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

    def _written(self, marker: BatchMarker, table: TableVersion | Committed | None) -> dict[str, Any]:
        """Note a batch that the table has, and return the manifest's entry."""
        if table is None:
            msg = "the table is gone right after it was written; nothing else was lost: start the query again"
            raise QueryFailedError(msg)
        if self._newest >= 0 and table.table_id != self._table_id:
            msg = (
                f"the table's id was {self._table_id} and is {table.table_id}: it was replaced while the query ran, "
                f"and its former rows are gone. Put the former table back, or restore the query into a new checkpoint "
                f"with a new output"
            )
            raise QueryFailedError(msg)
        self._newest, self._table_id = marker.batch_id, table.table_id
        rule = {} if self.upsert_rule is None else {"upsert": self.upsert_rule}
        return {**self._sink.place(), **rule, "version": table.version, "id": table.table_id}
