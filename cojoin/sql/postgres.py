"""PostgreSQL by psycopg: rows are sent by COPY as CSV, which pyarrow writes.

TLS and all else that libpq knows are options of the URL, such as ``?sslmode=verify-full&sslrootcert=/etc/ca.pem``.
Where they are not set: a connection is given up after 10 seconds, and a server that does not answer is noticed after
some 30 (``keepalives``, ``tcp_user_timeout``). A lock is awaited for a minute. The server ends a transaction that
stands still for 5 minutes, so that a driver that was suspended in it holds no locks for longer.

A driver that takes over ends the sessions of its predecessors, which have the same name and user
(``pg_terminate_backend``).
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages
from cojoin.sql.database import Column, Database, DatabaseError, Session
from cojoin.storage.locations import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_LIMITS = {"lock_timeout": "60s", "idle_in_transaction_session_timeout": "5min"}
_APPLICATION_BYTES = 63

_CURES = (
    (("28",), "correct the user or the password in the URL"),
    (("3D000",), "create the database, or correct its name in the URL"),
    (("42501",), "give the user the rights to read and write the table, and to create tables in its schema"),
    (("3F000",), "create the schema, or correct its name"),
    (("22021",), "PostgreSQL stores no NUL character: replace it in the text before the join"),
    (("42P01", "42703"), "the table was changed or dropped meanwhile: start the query again"),
    (("53",), "make room on the server, or give it more connections; then start the query again, which continues"),
    (("55P03", "40P01", "57014"), "another session holds locks on the table: end it, and start the query again"),
    (("23",), "a constraint of the table does not allow a row: drop it, or leave out the row before the join"),
    (("22",), "a value does not fit its column: widen the column, or change the value before the join"),
    (("08", "57P", "25P03"), "see that the server runs and is reached; then start the query again, which continues"),
)
_PASSING = ("40001", "40P01")
_LOST = ("08", "57P01", "57P02", "57P03", "25P03")

_INTEGERS = ("smallint", "integer", "bigint", "numeric")
_FLOATS = ("real", "double precision")


class Postgres(Database):
    """A PostgreSQL database."""

    label = "PostgreSQL"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not _is_plain(url.partition("://")[2]):
            msg = (
                "sinks.sql: expected a URL such as postgresql://user:password@host/shop, got one in which a character "
                "of the login or the names stands for itself: percent-encode it, @ as %40, / as %2F, ? as %3F"
            )
            raise ConfigurationError(msg)

    def nullable(self, table: str, column: str) -> str:
        """Return the statement."""
        return f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"

    def connect(self, application: str) -> PostgresSession:
        """Return a new connection."""
        check_packages("sinks.sql", "sql", "psycopg")
        import psycopg  # noqa: PLC0415 - it is an extra

        known = {name for name, _ in parse_qsl(urlsplit(self.url).query)}
        options: dict[str, Any] = {name: value for name, value in _DEFAULTS.items() if name not in known}
        with self.errors():
            connection = psycopg.connect(self.url, application_name=_shortened(application), **options)
            try:
                for name, value in _LIMITS.items():
                    if "options" not in known:
                        connection.execute(f"SET {name} = '{value}'")
                connection.execute("SET TIME ZONE 'UTC'")
                connection.commit()
            except BaseException:
                connection.close()
                raise
        return PostgresSession(self, connection)

    def fence_off(self, application: str) -> None:
        """End other sessions of an application and this user; one that may not do so leaves them."""
        session = self.connect(application)
        try:
            with contextlib.suppress(DatabaseError):
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = ? AND usename = current_user AND pid <> pg_backend_pid()",
                    [_shortened(application)],
                )
            session.rollback()
        finally:
            session.close()

    def type_of(self, dtype: pa.DataType) -> str | None:
        """Return PostgreSQL's type for a column; None where it has none."""
        types = pa.types
        if types.is_decimal(dtype):
            return f"numeric({dtype.precision},{dtype.scale})"
        if types.is_timestamp(dtype):
            return "timestamp without time zone" if dtype.tz is None else "timestamp with time zone"
        for is_kind, name in (
            (types.is_boolean, "boolean"),
            (types.is_int8, "smallint"),
            (types.is_int16, "smallint"),
            (types.is_int32, "integer"),
            (types.is_int64, "bigint"),
            (types.is_float32, "real"),
            (types.is_float64, "double precision"),
            (types.is_string, "text"),
            (types.is_binary, "bytea"),
            (types.is_date32, "date"),
        ):
            if is_kind(dtype):
                return name
        return None

    def takes(self, column: str, value: str) -> bool:
        """Return whether a column takes all values of a type.

        >>> database = Postgres("postgresql://host/shop")
        >>> database.takes("bigint", "integer"), database.takes("integer", "bigint"), database.takes("text", "date")
        (True, False, False)
        >>> database.takes("numeric(12,4)", "numeric(10,2)"), database.takes("numeric(12,1)", "numeric(10,2)")
        (True, False)
        """
        if value.startswith("numeric") and column.startswith("numeric("):
            return all(one >= two for one, two in zip(_digits(column), _digits(value), strict=True))
        column, value = _plain(column), _plain(value)
        if value in _INTEGERS and column in _INTEGERS:
            return _INTEGERS.index(column) >= _INTEGERS.index(value)
        if value in _FLOATS and column in _FLOATS:
            return _FLOATS.index(column) >= _FLOATS.index(value)
        return column == value or (value == "text" and column == "character varying")

    def columns(self, session: Session, table: str) -> list[Column]:
        """Return a table's columns; none where it does not exist."""
        rows = session.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
            "FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [table],
        )
        return [Column(*row) for row in rows]

    def unique_keys(self, session: Session, table: str) -> list[frozenset[str]]:
        """Return the columns of each unique index."""
        rows = session.execute(
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY(indkey[0:indnkeyatts - 1]) WHERE indrelid = to_regclass(?) AND indisunique "
            "AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL AND NOT EXISTS (SELECT 1 FROM "
            "pg_collation WHERE pg_collation.oid = ANY(indcollation) AND NOT collisdeterministic) GROUP BY indexrelid",
            [table],
        )
        return [frozenset(names) for (names,) in rows]

    def lock(self, session: Session, table: str) -> None:
        """Let other transactions read the table, and wait before they write it."""
        session.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise psycopg's errors as a ``DatabaseError``, without the password."""
        import psycopg  # noqa: PLC0415

        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or ""
            diagnosis = error.diag
            where = (diagnosis.context or "").partition("\n")[0]
            words = [
                diagnosis.message_primary or str(error).strip().partition("\n")[0],
                diagnosis.message_detail,
                where,
            ]
            text = ": ".join(" ".join(each.split()) for each in words if each)
            cure = next((cure for signs, cure in _CURES if state.startswith(signs)), None)
            is_lost = state.startswith(_LOST) or (not state and isinstance(error, psycopg.OperationalError))
            cure = cure or (_CURES[-1][1] if is_lost else "see the server's log")
            if not state and "authentication failed" in text:
                cure = _CURES[0][1]
            msg = f"{self.label} {self.place}: {self._masked(text)}; {cure}"
            is_lost = is_lost and cure != _CURES[0][1]
            raise DatabaseError(msg, is_lost=is_lost, is_passing=state in _PASSING) from None

    def _masked(self, text: str) -> str:
        parts = urlsplit(self.url)
        password = parts.password
        of_options = dict(parse_qsl(parts.query)).get("password")
        for secret in (password, None if password is None else unquote(password), of_options):
            if secret:
                text = text.replace(secret, MASK)
        return text


def _is_plain(rest: str) -> bool:
    """Return whether a URL after its scheme has no ambiguous character, so that no part of a password is shown.

    >>> _is_plain("me:secret@host:5432,other/shop?sslmode=require"), _is_plain("me:pa/ss@host/shop")
    (True, False)
    """
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    login, _, hosts = authority.rpartition("@")
    return not (
        re.search(r"[@#\[\]\s]", login)
        or re.search(r"[@#]", path)
        or not all(_HOST.fullmatch(host) for host in hosts.split(","))
        or not all("=" in option for option in query.split("&") if query)
    )


_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]@#]*)(:\d*)?")


class PostgresSession(Session):
    """A connection of psycopg."""

    def __init__(self, database: Postgres, connection: Any) -> None:
        self._database, self._connection = database, connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self._database.errors():
            # psycopg's own placeholders; without values a % stands for itself.
            text = statement.replace("%", "%%").replace("?", "%s") if values else statement
            cursor = self._connection.execute(text, list(values) or None)
            return list(cursor.fetchall()) if cursor.description else []

    def fetch(self, statement: str, schema: pa.Schema) -> pa.Table:
        """Run a query, and return its rows."""
        rows = self.execute(statement)
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [
            pa.array([bytes(value) if isinstance(value, memoryview) else value for value in values], field.type)
            for values, field in zip(columns, schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def load(self, table: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
        """Add rows to a table by COPY."""
        options = pa.csv.WriteOptions(include_header=False, batch_size=16_384)
        names = ", ".join(map(self._database.quoted, schema.names))
        statement = f"COPY {table} ({names}) FROM STDIN (FORMAT CSV)"
        with self._database.errors(), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for part in rows:
                sink = pa.BufferOutputStream()
                pa.csv.write_csv(_spelled(part), sink, options)
                copy.write(memoryview(sink.getvalue()))

    def commit(self) -> None:
        """Commit the transaction."""
        with self._database.errors():
            self._connection.commit()

    def rollback(self) -> None:
        """Roll the transaction back."""
        with contextlib.suppress(DatabaseError), self._database.errors():
            self._connection.rollback()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(Exception):
            self._connection.close()


def _spelled(rows: pa.Table) -> pa.Table:
    r"""Return rows whose values pyarrow's CSV has as PostgreSQL reads them.

    >>> print(_spelled(pa.table({"raw": [b"ab"]}))["raw"][0])
    \x6162
    """
    columns = []
    for column in rows.columns:
        if pa.types.is_binary(column.type):
            texts = [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
            columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
        elif pa.types.is_decimal(column.type):
            columns.append(pc.cast(column, pa.string()))
        else:
            columns.append(column)
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _plain(name: str) -> str:
    return name.partition("(")[0].strip() if not name.startswith("timestamp") else name


def _digits(numeric: str) -> tuple[int, int]:
    """Return how many digits a type has before and after the point, of which bigint has 19."""
    if "(" not in numeric:
        return 19, 0
    precision, scale = (int(part) for part in numeric.partition("(")[2].rstrip(")").split(","))
    return precision - scale, scale


def _shortened(application: str) -> str:
    return application.encode()[:_APPLICATION_BYTES].decode(errors="ignore")
