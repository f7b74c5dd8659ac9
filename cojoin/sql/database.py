"""A table of a database as the sink needs it: one interface, and what differs between databases.

A ``Session`` is one connection with one transaction at a time. Its errors are ``DatabaseError``, whose message has the
server's own words, the cure, and no password.

Identifiers are quoted, and values are passed as parameters. (``postgres`` and ``sqlite`` are the databases.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa


class DatabaseError(QueryFailedError):
    """An error of a database.

    ``is_lost`` means that the connection is gone; ``is_passing`` that the transaction was in another one's way, and may
    be tried again.
    """

    def __init__(self, message: str, *, is_lost: bool = False, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_lost, self.is_passing = is_lost, is_passing


@dataclass(frozen=True)
class Column:
    """A column of a table: its type as the database writes it; ``is_needed`` means that each row must give a value."""

    name: str
    type: str
    is_needed: bool = False


class Session(ABC):
    """A connection to a database, in a transaction from its first statement on."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement with ``?`` for each value, and return its rows."""

    @abstractmethod
    def fetch(self, statement: str, schema: pa.Schema) -> pa.Table:
        """Run a query, and return its rows with the columns and types of a schema."""

    @abstractmethod
    def load(self, table: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
        """Add rows to a table, whose name is quoted, piece by piece."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll the transaction back; a connection that is gone has done so."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Database(ABC):
    """A database by its URL."""

    label: str
    locks_rows = True
    """Whether a query may lock the rows that it reads; without it, a transaction that writes locks all."""

    has_nan = True
    """Whether it stores a NaN as such."""

    longest_name = 63
    """The largest size of a name in bytes."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def place(self) -> str:
        """The URL without login and options, for messages and manifests."""
        return without_login(self.url).partition("?")[0].replace("***@", "")

    @abstractmethod
    def connect(self, application: str) -> Session:
        """Return a new connection, which names the application to the server."""

    @abstractmethod
    def fence_off(self, application: str) -> None:
        """End other sessions of an application, which may hold locks; where that can't be done, nothing is."""

    @abstractmethod
    def type_of(self, dtype: pa.DataType) -> str | None:
        """Return the database's type for a column; None where it has none."""

    @abstractmethod
    def takes(self, column: str, value: str) -> bool:
        """Return whether a column of one of the database's types takes all values of another of them."""

    @abstractmethod
    def columns(self, session: Session, table: str) -> list[Column]:
        """Return a table's columns; none where it does not exist. Names are quoted."""

    @abstractmethod
    def unique_keys(self, session: Session, table: str) -> list[frozenset[str]]:
        """Return the sets of columns of which each row of a table has other values."""

    @abstractmethod
    def lock(self, session: Session, table: str) -> None:
        """Let no other transaction write a table's rows until this one ends."""

    @abstractmethod
    def nullable(self, table: str, column: str) -> str:
        """Return what a user does so that a column may be null; names are quoted."""

    def quoted(self, name: str) -> str:
        """Return an identifier, quoted."""
        return '"' + name.replace('"', '""') + '"'

    def quoted_table(self, name: str) -> str:
        """Return a table's name, with its schema where a point separates it, quoted."""
        return ".".join(map(self.quoted, name.split(".")))

    def beside(self, table: str, name: str) -> str:
        """Return the quoted name of a table in the schema of another one."""
        schema, point, _ = table.rpartition(".")
        return self.quoted_table(f"{schema}{point}{name}")
