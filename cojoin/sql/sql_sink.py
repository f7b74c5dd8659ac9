"""A table of a database as a sink: a batch's rows and the query's fence row are written in one transaction.

The table ``cojoin_fence``, in the output's schema, has a row for each output of a query: the epoch of the query's
lease, the last batch, and that batch's marker. Each transaction locks the row first, so two drivers never write at
once, and compares it: a run of a later epoch has fenced this one off; the same batch is skipped, if its marker is the
same; a later batch, or another marker, fails the batch. Where the answer to a commit is lost, the row shows after
connecting again whether it was made. A batch whose connection was lost before, or that was in another transaction's
way, is tried again, three times in all.

A run that takes over writes its epoch before it reads anything. Its predecessor may be suspended in a transaction that
holds the row, so its sessions are ended first.

The workers write a batch's rows as parquet files into a folder of the checkpoint, and the driver sends them to a
staging table of its session, a row group at a time. One statement writes them from there to the table. Of several rows
of a key one stays, by the rule and code of all upserts (``engine.upsert``). With ``order_by`` the stored rows of the
batch's keys are read by the driver, and compared.

The table is created where it does not exist, with the key as its primary key. One that exists needs a unique index on
the key's columns, the output's columns in types that take their values, and no further column that needs a value.
"""

from __future__ import annotations

import contextlib
import logging
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.delta.table_batches import FencedOffError
from cojoin.engine.upsert import Conflict, Upsert, already_stored, is_same_rule, spelled_rule
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError
from cojoin.session.sessions import open_store
from cojoin.spark.batch.direct_reader import why_by_columns
from cojoin.spark.batch.written_files import FileTarget
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows, KeyWarnings, UnfitFileError
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.sql.database import DatabaseError
from cojoin.sql.postgres import Postgres
from cojoin.sql.sqlite import Sqlite
from cojoin.sql.statements import FENCE, RETIRED, FenceStatements, UpsertStatements, create_table
from cojoin.storage.locations import without_login
from cojoin.storage.parquet_files import WrittenFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.sql.database import Database, Session
    from cojoin.storage.store import Store

_TRIES, _PAUSE_SECONDS = 3, 2.0
_NO_BATCH = -1

_log = logging.getLogger("cojoin")


@dataclass(frozen=True)
class SqlSink(Sink):
    """A table of a database; ``cojoin.sinks.sql`` makes one.

    Attributes:
        url: The database, which may have a password.
        table: The table, with its schema before a point where it has one.
        upsert: The rule by which one row of each key stays; None where rows are inserted.
    """

    url: str = field(repr=False)
    table: str
    upsert: Upsert | None = None

    @property
    def database(self) -> Database:
        """The database."""
        return open_database(self.url, "sinks.sql")

    def open(self, session: SparkSession, output: OutputId) -> SqlWriter:
        """Return the writer of a query's output to the table."""
        return SqlWriter(session, self, output)

    def describe(self) -> str:
        """Return the database and the table, for messages."""
        return f"{self.database.label} {self.database.place}, table {self.table}"

    def place(self) -> dict[str, Any]:
        """Return the manifest's entry for the table, without login."""
        rule = {} if self.upsert is None else {"upsert": self.upsert.as_dict()}
        return {"sql": f"{self.database.place} {self.table}", **rule}

    def unique_place(self) -> str:
        """Return the database and the table."""
        return f"{self.database.place} {self.table}"

    def check_place(self, session: SparkSession, output: str) -> None:
        """Check, before the query starts, that the database can be reached.

        Raises:
            EnvironmentSetupError: Its package is not installed.
            ConfigurationError: It refuses the connection, or does not answer.
        """
        del session
        with _at_start(output):
            self.database.connect("cojoin").close()

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Check that the database has types for the output's columns.

        Raises:
            ConfigurationError: It has none for a column.
        """
        for name in (*self.table.split("."), *schema.names):
            if len(name.encode()) > self.database.longest_name:
                msg = (
                    f"{role}: {self.describe()}: the name {name!r} has {len(name.encode())} bytes, and "
                    f"{self.database.label} cuts names after {self.database.longest_name}: rename it"
                )
                raise ConfigurationError(msg)
        for column in schema:
            if self.database.type_of(column.type) is None:
                msg = (
                    f"{role}: {self.describe()}: column {column.name!r} is {type_to_ddl(column.type)}, for which "
                    f"cojoin has no type of {self.database.label}: leave it out, or make a text of it, before the join"
                )
                raise ConfigurationError(msg)

    def check_order(self, schema: pa.Schema, order: Sequence[str] | None, role: str) -> None:
        """Check the rule of an upsert by the output's columns."""
        if self.upsert is None:
            return
        rule = self.upsert.within(schema, order, role)
        floats = [name for name in rule.order_by if pa.types.is_floating(schema.field(name).type)]
        if floats and not self.database.has_nan:
            msg = (
                f"{role}: order_by: {self.database.label} has no NaN and stores a null, which is the least value and "
                f"not the greatest; order by another column than {floats[0]!r}, or write to PostgreSQL"
            )
            raise ConfigurationError(msg)

    def continues_output_of(self, written: Mapping[str, Any], former: OutputId, *, successor: str, ends: bool) -> bool:
        """Return whether a restored query upserts into the old one's table; with ``ends``, the old one is retired.

        Raises:
            CheckpointError: It would insert rows again, or upsert by another rule.
        """
        del successor
        if written.get("sql") != self.place()["sql"]:
            return False
        goes_to = f"restore_from: {former.name} goes to {self.describe()}, which"
        if self.upsert is None:
            msg = (
                f"{goes_to} has the old query's rows from after the snapshot, and the table would have them twice; "
                f"name a new table"
            )
            raise CheckpointError(msg)
        if not is_same_rule(written.get("upsert"), self.place()["upsert"]):
            rule = spelled_rule(written.get("upsert"))
            msg = f"{goes_to} the old query has written {rule}; give the same arguments, or name a new table"
            raise CheckpointError(msg)
        if ends:
            statements = FenceStatements(self.database, self.table)
            with closing(self.database.connect("cojoin")) as session:
                session.execute(statements.create)
                session.execute(statements.set_epoch, [RETIRED, former.query_id, former.name])
                session.commit()
        return True

    def check_table(self, session: SparkSession, schema: pa.Schema, role: str) -> None:
        """Check that an output's columns fit those of the table, if it exists."""
        del session
        rule = None if self.upsert is None else self.upsert.within(schema, (), role)
        with _at_start(role):
            connection = self.database.connect("cojoin")
            try:
                faults = list(self._misfits(connection, schema if rule is None else rule.stored(schema), rule))
            finally:
                connection.rollback()
                connection.close()
        if faults:
            msg = f"{role}: {self.describe()}: the output does not fit the existing table: {'; '.join(faults)}"
            raise ConfigurationError(msg)

    def _misfits(self, connection: Session, schema: pa.Schema, rule: Upsert | None) -> Iterator[str]:
        """Yield each misfit of an output's columns in the table's, with what to do; none without a table."""
        database = self.database
        table = database.quoted_table(self.table)
        columns = {column.name: column for column in database.columns(connection, table)}
        if not columns:
            return
        for output in schema:
            wanted, column = str(database.type_of(output.type)), columns.pop(output.name, None)
            if column is None:
                added = f"ALTER TABLE {table} ADD COLUMN {database.quoted(output.name)} {wanted}"
                yield f"the table has no column {output.name!r}: {added}"
            elif not database.takes(column.type, wanted):
                yield (
                    f"column {output.name!r} is {column.type} in the table, and the output's {wanted} does not fit: "
                    f"cast it before the join, or write to another table"
                )
        for column in columns.values():
            if column.is_needed:
                cure = database.nullable(table, database.quoted(column.name))
                yield f"column {column.name!r} of the table is NOT NULL, and the output has none of the name: {cure}"
        if rule is not None and frozenset(rule.key) not in database.unique_keys(connection, table):
            keys = ", ".join(map(database.quoted, rule.key))
            name = database.quoted("_".join((*self.table.split(".")[-1:], *rule.key))[:40])
            yield f"it has no unique index on upsert={list(rule.key)}: CREATE UNIQUE INDEX {name} ON {table} ({keys})"


def sql(
    url: str,
    table: str,
    *,
    upsert: str | Sequence[str] = (),
    conflict: Conflict = "last",
    order_by: str | Sequence[str] | None = None,
    deletes: str | None = None,
) -> SqlSink:
    """Return a sink that writes to a table of PostgreSQL or SQLite, exactly once, and fences off a replaced driver.

    A batch's rows and the query's row in the table ``cojoin_fence`` are one transaction. The table is created where it
    does not exist, with the key as its primary key. One that exists needs a unique index on the key's columns alone,
    which is neither partial, nor deferrable, nor on expressions, nor takes different texts for one key. Columns are
    numbers, texts, binaries, booleans, dates and times; SQLite stores a NaN as null, and PostgreSQL no NUL characters.

    Args:
        url: ``postgresql://user:password@host:5432/database``, with libpq's options, such as ``?sslmode=verify-full``;
            or ``sqlite:////data/shop.db``, a file on the driver's disk. No message or checkpoint has the password.
        table: The table's name, with its schema before a point where it has one. Upper and lower case differ.
        upsert: As of ``sinks.delta``. Empty: rows are inserted.
        conflict: As of ``sinks.delta``.
        order_by: As of ``sinks.delta``.
        deletes: As of ``sinks.delta``.

    Returns:
        The sink, for ``Joined.start``.

    Raises:
        ConfigurationError: The URL, the table or the rule is invalid.
        EnvironmentSetupError: psycopg is not installed: ``pip install "cojoin[sql]"``.

    Example:
        >>> sql("postgresql://me:secret@host/shop", "sales.newest", upsert="trade_id").describe()
        'PostgreSQL postgresql://host/shop, table sales.newest'
    """
    open_database(url, "sinks.sql")
    if (
        not isinstance(table, str)
        or not all(table.split("."))
        or table.count(".") > 1
        or table.rpartition(".")[2] == FENCE
    ):
        msg = f"sinks.sql: table: expected a table's name, or schema.table, that is not {FENCE}, got {table!r}"
        raise ConfigurationError(msg)
    return SqlSink(url, table, Upsert.of(upsert, conflict, order_by, deletes, "sinks.sql"))


def open_database(url: str, label: str) -> Database:
    """Return the database of a URL; ``label`` is the argument, for messages.

    Raises:
        ConfigurationError: It is not a URL of a database that cojoin writes.
    """
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
    if scheme in {"postgresql", "postgres"}:
        return Postgres(url)
    if scheme == "sqlite":
        return Sqlite(url)
    shown = without_login(url) if isinstance(url, str) else repr(url)
    hint = ""
    if scheme == "jdbc":
        hint = (
            "; it is not a JDBC URL, and needs no jar: leave out jdbc:, as in postgresql://user:password@host/database"
        )
    elif scheme:
        hint = (
            "; for any other database pass a callable, which may get a batch twice: output=lambda frame, batch_id: ..."
        )
    msg = f"{label}: expected a URL postgresql://... or sqlite:///path, got {shown}{hint}"
    raise ConfigurationError(msg)


@contextlib.contextmanager
def _at_start(role: str) -> Iterator[None]:
    """Raise an error of the database as a ``ConfigurationError`` that names the output."""
    try:
        yield
    except DatabaseError as error:
        msg = f"{role}: {error}"
        raise ConfigurationError(msg) from None


@dataclass(frozen=True)
class _Fence:
    """The row of an output in the fence table."""

    epoch: int
    batch_id: int
    marker: BatchMarker | None


class SqlWriter(SinkWriter):
    """Writes one output of a query to a table of a database."""

    def __init__(self, session: SparkSession, sink: SqlSink, output: OutputId) -> None:
        self._spark, self._sink, self._output, self._database = session, sink, output, sink.database
        self._table = self._database.quoted_table(sink.table)
        self._fence = FenceStatements(self._database, sink.table)
        self._application = f"cojoin-{output.query_id}-{output.name}"
        assert output.schema is not None
        self._schema = output.schema
        self._rule = None if sink.upsert is None else sink.upsert.within(output.schema, output.order, output.name)
        label = f"{output.name} to {sink.describe()}"
        self._warnings = KeyWarnings(label, () if self._rule is None else self._rule.key)
        self._connection: Session | None = None
        self._store: Store | None = None
        self._cure = "start the query again"
        # The newest batch that the table has had in this run.
        self._newest = _NO_BATCH

    def check(self, position: Position) -> None:
        """Raise a CheckpointError unless the table has the batches that the checkpoint records, and no later ones."""
        self._cure = position.cure()
        self._store = open_store(self._spark, f"{position.checkpoint}/staged/{self._output.name}")
        # Files of a run that was killed.
        self._store.delete_directory("")
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, {self._sink.describe()}"
        position.check_rule(where, None if self._rule is None else self._rule.as_dict())
        if self._output.takes_over:
            self._database.fence_off(self._application)
        fence = self._transact(lambda session: self._prepared(session, position, where))
        cure = "restore into a new checkpoint with a new table, or put back the newest copy of the checkpoint"
        position.check_not_behind(where, fence.batch_id, cure)
        last = position.last_batch
        if last is not None and fence.batch_id < last:
            msg = (
                f"{where}: the checkpoint records that batch {last} was written to it, and it has the query's batches "
                f"up to {fence.batch_id}: the database was put back from a backup. Going on would leave rows out; put "
                f"back a newer copy, or restore into a new checkpoint with a new table"
            )
            raise CheckpointError(msg)
        self._newest = fence.batch_id

    def _prepared(self, session: Session, position: Position, where: str) -> _Fence:
        """Return the output's row in the fence table, in which the run's epoch is now; make both tables."""
        session.execute(self._fence.create)
        fence = self._read(session)
        if fence is None and position.last_batch is not None:
            restore = self._fence.restore([*self._identity, self._sink.table], position.last_batch)
            msg = (
                f"{where}: the query has written batch {position.last_batch} to it, and its row in {self._fence.name} "
                f"is gone: it was deleted, or the database was put back from a backup. Where the table has all rows up "
                f"to that batch, run: {restore}; else restore into a new "
                f"checkpoint with a new table"
            )
            raise CheckpointError(msg)
        if fence is None:
            values = [self._output.query_id, self._output.name, self._sink.table, self._epoch, _NO_BATCH]
            session.execute(self._fence.insert, values)
            self._warn_of_others(session)
        else:
            self._check_epoch(fence)
            session.execute(self._fence.set_epoch, [self._epoch, *self._identity])
        if fence is not None and fence.batch_id != _NO_BATCH and not self._database.columns(session, self._table):
            msg = (
                f"{where}: the query has written batch {fence.batch_id} to it, and the table is gone. Going on would "
                f"leave rows out; put it back as it was, or restore into a new checkpoint with a new table"
            )
            raise CheckpointError(msg)
        rule = self._rule
        key, schema = ((), self._schema) if rule is None else (rule.key, rule.stored(self._schema))
        session.execute(create_table(self._database, self._table, schema, key))
        return fence or _Fence(self._epoch, _NO_BATCH, None)

    def _warn_of_others(self, session: Session) -> None:
        others = session.execute(self._fence.others, [self._sink.table, self._output.query_id])
        if others:
            names = ", ".join(str(name) for (name,) in others)
            _log.warning(
                "%s: other queries have written it, too: %s; where keys are the same, give order_by=, so that the "
                "greater row stays",
                self._sink.describe(),
                names,
            )

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return a folder of the checkpoint for the workers' files; None if they can't write them."""
        assert self._store is not None
        why = why_by_columns(schema, ())
        folder = self._store.path(str(batch_id))
        return None if why else FileTarget.at(self._spark, folder, schema, open_store(self._spark, folder))

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write a batch's rows, which Spark writes as files first; return the manifest's entry."""
        assert self._store is not None
        folder = self._store.path(str(marker.batch_id))
        frame.write.mode("overwrite").parquet(folder)
        store = open_store(self._spark, folder)
        names = [name for name in store.names("") if name.endswith(".parquet")]
        files = [WrittenFile(name, _rows_in(store, name), 0, 0, "") for name in sorted(names)]
        return self.commit(self._schema, files, marker)

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Write the rows of files in a transaction with the fence row; return the manifest's entry."""
        assert self._store is not None
        self.upserts = None
        folder = str(marker.batch_id)
        source = FileRows(open_store(self._spark, self._store.path(folder)))
        try:
            if self._rule is None:
                self._run(marker, lambda session: session.load(self._table, schema, source.read_all(files, schema)))
            else:
                batch = BatchRows(source, schema, self._rule, self._output.order or (), files)
                counts = self._run(marker, lambda session: self._upsert(session, batch))
                if counts is not None:
                    self.upserts = counts
                    self._warnings.give(marker.batch_id, marker.rows, counts, batch.duplicate)
        except UnfitFileError as error:
            raise QueryFailedError(str(error)) from error
        self._newest = marker.batch_id
        self._store.delete_directory(folder)
        return self._place()

    def _run(self, marker: BatchMarker, write: Callable[[Session], Any]) -> Any:
        """Return the result of writing a batch's rows and its fence row; None where the table has the batch."""

        def work(session: Session) -> Any:
            if self._has_batch(session, marker):
                return None
            result = write(session)
            values = [self._epoch, marker.batch_id, marker.to_json(), *self._identity]
            session.execute(self._fence.set_batch, values)
            return result

        return self._transact(work, lambda: self._is_done(marker))

    def compare(self, marker: BatchMarker) -> None:
        """Raise a QueryFailedError if the table has this batch from a different execution, or later batches."""
        self._transact(lambda session: self._has_batch(session, marker))

    def _upsert(self, session: Session, batch: BatchRows) -> dict[str, int]:
        """Write the rows that stay to the table, by a staging table; return their counts."""
        rule, schema = batch.rule, batch.stored_schema
        do = UpsertStatements(self._database, self._table, rule, schema)
        mark = [] if rule.deletes is None else [(rule.deletes, pa.bool_())]
        loaded = pa.schema([(do.place, pa.int64()), *schema, *mark])
        _run_all(session, do.stage)
        session.load(do.staging, loaded, _numbered(batch, loaded))
        if rule.order_by or rule.conflict == "error":
            # Other jobs may write rows of these keys until here, and wait from here on.
            self._database.lock(session, self._table)
        superseded = self._leave_out(session, batch, do) if rule.order_by else 0
        ((stored, deleted),) = session.execute(do.count_stored)
        if rule.conflict == "error" and stored:
            (row,) = session.execute(do.first_stored)
            key = ", ".join(f"{name}={value!r}" for name, value in zip(rule.key, row, strict=True))
            raise QueryFailedError(already_stored(key))
        if rule.deletes is not None:
            _run_all(session, do.remove)
        ((staged,),) = session.execute(do.count_staged)
        _run_all(session, do.write)
        both = int(stored) - int(deleted)
        keeps_first = rule.conflict == "first" and not rule.order_by
        return {
            "inserted": int(staged) - both,
            "updated": 0 if keeps_first else both,
            "deleted": int(deleted),
            "superseded": batch.superseded + superseded + (both if keeps_first else 0),
            "null_keys": batch.null_keys,
        }

    def _leave_out(self, session: Session, batch: BatchRows, do: UpsertStatements) -> int:
        """Delete staged rows that the stored row of their key supersedes; return how many."""
        stored = session.fetch(do.stored, batch.stored_schema)
        losers = np.flatnonzero(~batch.rule.winners(stored, batch.columns.select(batch.stored_schema.names)))
        if len(losers):
            places = pa.table({do.place: losers})
            _run_all(session, do.stage_superseded)
            session.load(do.superseded, places.schema, [places])
            _run_all(session, do.leave_out)
        return len(losers)

    def _has_batch(self, session: Session, marker: BatchMarker) -> bool:
        """Return whether the table has a batch from the same execution, with the fence row locked."""
        fence = self._read(session)
        if fence is None:
            msg = (
                f"the query's row in {self._fence.name} is gone: it was deleted, or the database was put back from a "
                f"backup; nothing was written: start the query again"
            )
            raise QueryFailedError(msg)
        self._check_epoch(fence)
        if not marker.is_reached(fence.batch_id, self._newest, "the table"):
            return False
        if fence.marker is not None:
            marker.compare(fence.marker, "the table", self._cure)
        return True

    def _is_done(self, marker: BatchMarker) -> bool:
        """Return, after a lost commit, whether it was made."""
        return bool(self._transact(lambda session: self._has_batch(session, marker)))

    def _check_epoch(self, fence: _Fence) -> None:
        if fence.epoch > self._epoch:
            other = f"another run of this query has taken over at epoch {fence.epoch}"
            if fence.epoch == RETIRED:
                other = "a query that was restored from this one's checkpoint continues the table"
            msg = (
                f"{self._sink.describe()}: fenced off: {other}; this one held epoch {self._epoch} and stops without a "
                f"write"
            )
            raise FencedOffError(msg, fence.epoch)

    def _read(self, session: Session) -> _Fence | None:
        """Return the output's row in the fence table, and lock it; None without one."""
        rows = session.execute(self._fence.read, self._identity)
        return _Fence(int(rows[0][0]), int(rows[0][1]), BatchMarker.from_json(rows[0][2])) if rows else None

    def _transact(self, work: Callable[[Session], Any], is_done: Callable[[], bool] = lambda: False) -> Any:
        """Return the result of some work in one transaction, which is tried again where the connection is lost.

        ``is_done`` is asked where the answer to a commit was lost: whether it was made. Its result is None then.
        """
        for number in range(_TRIES):
            is_committing = False
            try:
                session = self._connected()
                result = work(session)
                is_committing = True
                session.commit()
            except BaseException as error:
                is_lost = isinstance(error, DatabaseError) and error.is_lost
                is_passing = isinstance(error, DatabaseError) and error.is_passing
                self._disconnect(rolls_back=not is_lost)
                if not (is_lost or is_passing) or number == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_SECONDS * number)
                if is_committing and is_done():
                    return None
            else:
                return result
        raise AssertionError

    def _connected(self) -> Session:
        if self._connection is None:
            self._connection = self._database.connect(self._application)
        return self._connection

    def _disconnect(self, *, rolls_back: bool) -> None:
        if self._connection is not None:
            if rolls_back:
                self._connection.rollback()
            self._connection.close()
            self._connection = None

    @property
    def _epoch(self) -> int:
        return self._output.epoch or 0

    @property
    def _identity(self) -> list[Any]:
        return [self._output.query_id, self._output.name]

    def _place(self) -> dict[str, Any]:
        rule = {} if self._rule is None else {"upsert": self._rule.as_dict()}
        return {**self._sink.place(), **rule}


def _run_all(session: Session, statements: Sequence[str]) -> None:
    for statement in statements:
        session.execute(statement)


def _numbered(batch: BatchRows, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows that stay, each with its place among them."""
    first = 0
    for rows in batch.read(np.ones(len(batch.places), dtype=bool)):
        places: NDArray[np.int64] = np.arange(first, first + rows.num_rows)
        columns = [pa.array(places), *rows.columns]
        if len(schema) > len(columns):
            columns.append(pa.array(batch.removes[first : first + rows.num_rows]))
        first += rows.num_rows
        yield pa.Table.from_arrays(columns, schema=schema)


def _rows_in(store: Store, name: str) -> int:
    return int(pq.read_metadata(pa.BufferReader(store.read_bytes(name) or b"")).num_rows)
