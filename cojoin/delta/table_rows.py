"""Reads the rows of a small Delta table by pyarrow: its files whole, in the order in which they were written.

It is for tables of cojoin's own, such as ``progress``. A table whose rows are not those of its files as they are
(deletion vectors, column mapping, widened types, values of partitions) is read by Spark. A column that a file lacks is
null, as after a column was added.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.delta.plainness import why_not_plain
from cojoin.delta.table_log import TableLog, UnreadableLogError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.delta.actions import DataFile
    from cojoin.storage.store import Store

__all__ = ["TableRows"]


class TableRows:
    """The rows of a table at its newest version.

    Args:
        store: The store.
        folder: The table's folder below the store's root.

    Attributes:
        files: The table's files; empty where there is no table.
        why_not: Why only Spark reads its rows; None where they are read here.

    Raises:
        UnreadableLogError: A part of the table's log is gone or damaged.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder.strip("/")
        log = TableLog(store, folder)
        found = log.newest()
        self.files: Sequence[DataFile] = [] if found is None else log.files(found.version)
        self.why_not = None if found is None else why_not_plain(found.protocol, found.metadata)
        if found is not None and found.partition_columns:
            self.why_not = "its partition columns"
        if any(each.deletion_vector for each in self.files):
            self.why_not = "its deletion vectors"

    def largest(self, column: str) -> int | None:
        """Return the largest value of a column of integers, by the files' statistics; None where there are no rows."""
        found: list[int] = []
        for each in self.files:
            value = (each.counted().get("maxValues") or {}).get(column)
            if value is None and each.rows != 0:
                value = max(
                    (row for row in self._read(each, [column])[column].to_pylist() if row is not None), default=None
                )
            if value is not None:
                found.append(int(value))
        return max(found, default=None)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Return all rows, with the columns and types of a schema.

        Raises:
            UnreadableLogError: A file is gone or damaged.
        """
        tables = [self._as(self._read(each, None), schema) for each in self.files]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _read(self, file: DataFile, columns: list[str] | None) -> pa.Table:
        content = self._store.read_bytes(f"{self._folder}/{file.path}")
        try:
            return pq.read_table(io.BytesIO(content or b""), columns=columns)
        except (pa.ArrowException, ValueError, OSError) as error:
            why = "it is not there" if content is None else str(error).partition("\n")[0]
            msg = (
                f"Delta table {without_login(self._store.path(self._folder))}: file {file.path} can't be read: {why}; "
                f"put it back from a backup of the table"
            )
            raise UnreadableLogError(msg) from error

    @staticmethod
    def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)
