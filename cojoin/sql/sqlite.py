"""SQLite by Python's own module, for the first minute without a server: a file on the driver's disk.

Times are stored as texts that sort like them, in UTC where they have a zone, decimals as texts, booleans as 0 and 1. A
NaN is stored as null, as SQLite has none. Only one process writes at a time; another one waits for up to 60 seconds.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from cojoin.errors import ConfigurationError
from cojoin.sql.database import Column, Database, DatabaseError, Session
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PATIENCE_SECONDS = 60.0
_CURES = (
    ("locked", "another process writes to it, or was suspended in a write: end it, and start the query again"),
    ("full", "make room on the disk, and start the query again, which continues where it stopped"),
    ("unable to open", "see that the folder exists, and that the driver may write in it"),
    ("constraint", "a constraint of the table does not allow a row: drop it, or leave out the row before the join"),
    ("not a database", "name a file of SQLite, or a new one"),
)
_TEXT_OF_TIME = "%Y-%m-%d %H:%M:%S"


class Sqlite(Database):
    """A SQLite database in a file."""

    label = "SQLite"
    locks_rows = False
    has_nan = False
    longest_name = 1_000

    def __init__(self, url: str) -> None:
        super().__init__(url)
        _, separator, path = url.partition("://")
        if not separator or not path.startswith("/") or path == "/":
            msg = f"sinks.sql: expected the path of a file, as in sqlite:////data/shop.db, got {without_login(url)}"
            raise ConfigurationError(msg)
        # As SQLAlchemy writes it: three slashes before a relative path, four before an absolute one.
        self.path = unquote(path[1:])

    def connect(self, application: str) -> SqliteSession:
        """Return a new connection."""
        del application
        with self.errors():
            connection = sqlite3.connect(
                self.path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA synchronous = FULL")
        return SqliteSession(self, connection)

    def fence_off(self, application: str) -> None:
        """Do nothing: SQLite has no sessions that another process could end."""

    def type_of(self, dtype: pa.DataType) -> str | None:
        """Return SQLite's type for a column; None where it has none."""
        types = pa.types
        if types.is_signed_integer(dtype) or types.is_boolean(dtype):
            return "INTEGER"
        if types.is_floating(dtype):
            return "REAL"
        if types.is_binary(dtype):
            return "BLOB"
        is_text = types.is_string(dtype) or types.is_date32(dtype) or types.is_timestamp(dtype)
        return "TEXT" if is_text or types.is_decimal(dtype) else None

    def takes(self, column: str, value: str) -> bool:
        """Return whether a column has a type, or none."""
        return column.upper() in {value, "", "ANY"}

    def columns(self, session: Session, table: str) -> list[Column]:
        """Return a table's columns; none where it does not exist."""
        rows = session.execute(f"PRAGMA table_info({table})")
        return [Column(row[1], row[2], bool(row[3]) and row[4] is None) for row in rows]

    def unique_keys(self, session: Session, table: str) -> list[frozenset[str]]:
        """Return the columns of the primary key and of each unique index."""
        columns = session.execute(f"PRAGMA table_info({table})")
        numbers = [row[1] for row in columns if row[5]]
        # An INTEGER PRIMARY KEY is the row's number, and has no index.
        is_number = len(numbers) == 1 and next(row[2] for row in columns if row[5]).upper() == "INTEGER"
        keys = [frozenset(numbers)] if is_number else []
        for row in session.execute(f"PRAGMA index_list({table})"):
            if row[2] and not row[4]:
                parts = session.execute(f"PRAGMA index_xinfo({self.quoted(row[1])})")
                names = [part[2] for part in parts if part[5]]
                # Another collation takes different texts for one key.
                is_exact = all(part[4] == "BINARY" for part in parts if part[5])
                keys += [frozenset(names)] if is_exact and None not in names else []
        return [key for key in keys if key]

    def nullable(self, table: str, column: str) -> str:
        """Return the advice: SQLite can't change a column."""
        return f"make table {table} again without NOT NULL at {column}, or write to another table"

    def lock(self, session: Session, table: str) -> None:
        """Do nothing: a transaction that writes locks the file."""

    def quoted_table(self, name: str) -> str:
        """Return a table's name, quoted; SQLite has no schemas."""
        return self.quoted(name)

    def beside(self, table: str, name: str) -> str:
        """Return the quoted name of a table."""
        del table
        return self.quoted(name)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise SQLite's errors as a ``DatabaseError``."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            cure = next((cure for sign, cure in _CURES if sign in str(error)), "see that the file is not damaged")
            msg = f"{self.label} {self.path}: {error}; {cure}"
            raise DatabaseError(msg) from None


class SqliteSession(Session):
    """A connection of ``sqlite3``."""

    def __init__(self, database: Sqlite, connection: sqlite3.Connection) -> None:
        self._database, self._connection = database, connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self._database.errors():
            self._begin()
            return self._connection.execute(statement, list(values)).fetchall()

    def fetch(self, statement: str, schema: pa.Schema) -> pa.Table:
        """Run a query, and return its rows."""
        rows = self.execute(statement)
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [_array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def load(self, table: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
        """Add rows to a table."""
        names = ", ".join(map(self._database.quoted, schema.names))
        statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(schema.names))})"  # noqa: S608
        for part in rows:
            columns = [_values(column) for column in part.columns]
            with self._database.errors():
                self._begin()
                self._connection.executemany(statement, zip(*columns, strict=True))

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction."""
        with self._database.errors():
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Roll the transaction back."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as SQLite stores them.

    >>> _values(pa.chunked_array([pa.array([0], pa.timestamp("us", "UTC"))]))
    ['1970-01-01 00:00:00.000000']
    """
    types, dtype = pa.types, column.type
    if types.is_timestamp(dtype):
        column = pc.strftime(column.cast(pa.timestamp("us")), format=_TEXT_OF_TIME)
    elif types.is_date32(dtype) or types.is_decimal(dtype):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


def _array(values: list[Any], dtype: pa.DataType) -> pa.Array:
    """Return values of a column as ``_values`` has stored them.

    >>> _array(["1970-01-01 00:00:00.000001"], pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    [1]
    """
    types = pa.types
    if types.is_timestamp(dtype):
        return pa.array(values, pa.string()).cast(pa.timestamp("us")).cast(pa.int64()).cast(dtype)
    if types.is_date32(dtype) or types.is_decimal(dtype):
        return pa.array(values, pa.string()).cast(dtype)
    if types.is_boolean(dtype):
        return pa.array([None if value is None else bool(value) for value in values], dtype)
    return pa.array(values, dtype)
