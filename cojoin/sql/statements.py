"""The statements of the SQL sink, in the words that PostgreSQL and SQLite share; identifiers in them are quoted.

Values are parameters, each a ``?``. ``t`` is the output's table and ``s`` the staging table of one session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.engine.values.rows import free_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from cojoin.engine.upsert import Upsert
    from cojoin.sql.database import Database

FENCE = "cojoin_fence"
"""The table of the queries that write to a database: their epochs, and the last batch of each with its marker."""

PLACE = "cojoin_place"
"""The column of the staging table with the place of a row among those of its batch that stay."""

_OWN = "WHERE query_id = ? AND output = ?"
_STAGING, _SUPERSEDED = '"cojoin_staging"', '"cojoin_superseded"'

RETIRED = (1 << 63) - 1
"""The epoch of a query whose table another query continues, which was restored from its checkpoint."""


class FenceStatements:
    """The statements about an output's row in the fence table, which is in the schema of the output's table."""

    def __init__(self, database: Database, table: str) -> None:
        self.name = database.beside(table, FENCE)
        lock = " FOR UPDATE" if database.locks_rows else ""
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {self.name} (query_id text, output text, target text, epoch bigint, "
            f"batch_id bigint, marker text, PRIMARY KEY (query_id, output))"
        )
        self.read = f"SELECT epoch, batch_id, marker FROM {self.name} {_OWN}{lock}"
        self.insert = f"INSERT INTO {self.name} VALUES (?, ?, ?, ?, ?, NULL)"
        self.set_epoch = f"UPDATE {self.name} SET epoch = ? {_OWN}"
        self.set_batch = f"UPDATE {self.name} SET epoch = ?, batch_id = ?, marker = ? {_OWN}"
        self.others = f"SELECT query_id FROM {self.name} WHERE target = ? AND query_id <> ? AND epoch <> {RETIRED}"

    def restore(self, names: Sequence[str], batch_id: int) -> str:
        """Return the statement by which a user restores a row that is gone: of a query, an output and its table."""
        values = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
        return f"INSERT INTO {self.name} VALUES ({values}, 0, {batch_id}, NULL)"


def create_table(database: Database, table: str, schema: pa.Schema, key: Sequence[str]) -> str:
    """Return the statement that creates the output's table where it does not exist."""
    primary = f", PRIMARY KEY ({', '.join(map(database.quoted, key))})" if key else ""
    return f"CREATE TABLE IF NOT EXISTS {table} ({_columns(database, schema)}{primary})"


def _columns(database: Database, schema: pa.Schema) -> str:
    return ", ".join(f"{database.quoted(column.name)} {database.type_of(column.type)}" for column in schema)


class UpsertStatements:
    """The statements of an upsert: a batch's rows are staged, compared with stored ones, and written from there."""

    staging, superseded = _STAGING, _SUPERSEDED

    def __init__(self, database: Database, table: str, rule: Upsert, schema: pa.Schema) -> None:
        names, keys = ([database.quoted(name) for name in each] for each in (schema.names, rule.key))
        self.place = free_name(PLACE, [*schema.names, *([] if rule.deletes is None else [rule.deletes])])
        place = database.quoted(self.place)
        same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        both = f"{_STAGING} s JOIN {table} t ON {same}"
        is_mark = "false" if rule.deletes is None else f"s.{database.quoted(rule.deletes)}"
        mark = "" if rule.deletes is None else f", {database.quoted(rule.deletes)} boolean"
        self.stage = (
            f"DROP TABLE IF EXISTS {_STAGING}",
            f"CREATE TEMPORARY TABLE {_STAGING} ({place} bigint, {_columns(database, schema)}{mark})",
        )
        self.stored = f"SELECT {', '.join(f't.{name}' for name in names)} FROM {both}"
        self.stage_superseded = (
            f"DROP TABLE IF EXISTS {_SUPERSEDED}",
            f"CREATE TEMPORARY TABLE {_SUPERSEDED} ({place} bigint)",
        )
        self.leave_out = (
            f"DELETE FROM {_STAGING} WHERE {place} IN (SELECT {place} FROM {_SUPERSEDED})",
            f"DROP TABLE {_SUPERSEDED}",
        )
        self.count_stored = f"SELECT count(*), count(CASE WHEN {is_mark} THEN 1 END) FROM {both}"
        listed = ", ".join(f"s.{key}" for key in keys)
        self.first_stored = f"SELECT {listed} FROM {both} ORDER BY {listed} LIMIT 1"
        self.remove = (
            f"DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {_STAGING} s WHERE {same} AND {is_mark})",
            f"DELETE FROM {_STAGING} AS s WHERE {is_mark}",
        )
        self.count_staged = f"SELECT count(*) FROM {_STAGING}"
        updates = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
        keeps_first = rule.conflict == "first" and not rule.order_by
        action = "DO NOTHING" if keeps_first else f"DO UPDATE SET {updates}"
        columns = ", ".join(names)
        # Without a condition, SQLite would take ON for a join's.
        rows = f"SELECT {columns} FROM {_STAGING} WHERE true"
        self.write = (
            f"INSERT INTO {table} ({columns}) {rows} ON CONFLICT ({', '.join(keys)}) {action}",
            f"DROP TABLE {_STAGING}",
        )
