"""The reader of a Delta table's stream, which chooses each batch's files in a process next to the driver.

Spark starts such a process for each table, and some more to look for the source and to plan with it, so this module
imports little. Tasks have about equal numbers of bytes. A file that is larger than a task's share is read by several
tasks, each of which reads the row groups that begin in its part of the rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from cojoin.delta.deltalake_table import deleted_rows
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_stream import Columns, Limits, Position, TableStream
from cojoin.engine.row_changes import COMMIT, COMMITTED_AT, DELETED
from cojoin.session.sealed import Sealed, sealed_call
from cojoin.spark.batch.parquet_rows import RANGES, RANGES_DDL
from cojoin.storage.file_systems import direct_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.delta.table_stream import Removals, StreamFile
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_LEAST_BYTES, _END = 4 << 20, 1 << 62


@dataclass(frozen=True)
class TableReading:
    """The description of a table that its reader needs; it is sent to a process on the driver, and has no connections.

    ``root`` is the table's folder, ``settings`` are those of its object store, or None. ``columns`` are those with
    which its rows are read. ``begin`` is the version whose commit is read first; None reads the whole table first, at
    version ``snapshot``, or at its newest one. ``tasks`` is the number of a batch's tasks.
    """

    root: str
    settings: Settings | None = field(repr=False)
    table_id: str
    columns: Columns
    limits: Limits = field(default_factory=Limits)
    removals: Removals | None = "fail"
    begin: int | None = None
    tasks: int = 1
    snapshot: int | None = None

    @property
    def store(self) -> Store:
        """The table's folder."""
        store = direct_store(self.root, lambda _: self.settings, "Delta table")
        assert store is not None
        return store

    def first(self, stream: TableStream) -> Position:
        """Return the position of a query that has read nothing."""
        if self.begin is not None:
            return Position(self.table_id, self.begin)
        first = stream.first()
        return first if self.snapshot is None else replace(first, version=self.snapshot)

    def stream(self) -> TableStream:
        """Return the stream of the table."""
        store = self.store
        return TableStream(TableLog(store), self.table_id, self.columns, self.removals, partial(deleted_rows, store))


class Ranges(InputPartition):
    """The ranges of rows that a task reads, as rows of ``RANGES``."""


def ranges_of(reading: TableReading, files: Sequence[StreamFile]) -> list[Ranges]:
    """Return the ranges of some files, a task at a time."""
    store, size = reading.store, sum(each.file.size for each in files)
    share = max(_LEAST_BYTES, -(-size // max(1, reading.tasks)))
    tasks: list[list[dict[str, Any]]] = []
    room = 0.0
    for kind, file, version, committed_at, deleted in files:
        values: dict[str, Any] = reading.columns.partition_values(file)
        if reading.removals is None:
            values |= {COMMIT: version, COMMITTED_AT: 1000 * committed_at}
            # A change file has the kind of each row in a column.
            values |= {} if kind == "cdc" else {DELETED: kind == "remove"}
        constants = json.dumps(values)
        place, rows = store.url(file.path), file.rows or 0
        parts = max(1, min(rows, -(-file.size // share)))
        for part in range(parts):
            if room <= 0:
                tasks.append([])
                room = share
            end = _END if part == parts - 1 else rows * (part + 1) // parts
            row = place, file.size, rows * part // parts, end, constants, deleted
            tasks[-1].append(dict(zip(RANGES.names, row, strict=True)))
            room -= file.size / parts
    return [Ranges(task) for task in tasks]


def data_source(name: str, reading: TableReading) -> type[DataSource]:
    """Return a data source class for a table, as ``cojoin.kafka.reader`` does for topics."""
    reader = Sealed(partial(_reader, reading))
    members = {
        "name": classmethod(lambda _: name),
        "schema": lambda _: RANGES_DDL,
        "streamReader": lambda *_, **_schema: reader(),
    }
    return type("DeltaDataSource", (DataSource,), members)


def _reader(reading: TableReading) -> DataSourceStreamReader:
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - Spark 4.1 has no such module
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """The reader that chooses the files of each batch."""

        def __init__(self) -> None:
            self._stream = reading.stream()
            self._until: int | None = None

        def __reduce__(self) -> tuple[Any, ...]:
            """Return the reader as it is sent to the workers."""
            return sealed_call(_reader, reading)

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return reading.first(self._stream).as_offset()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            self._until = self._stream.newest()

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            return ReadMaxFiles(reading.limits.files or _END)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
            newest, begin = self._stream.newest(), Position.of(start)
            is_first = begin == reading.first(self._stream)
            if is_first:
                self._stream.check_first(begin, newest)
            else:
                self._stream.check_reached(begin, newest)
            until = newest if self._until is None else self._until
            limits = Limits(None, None) if isinstance(limit, ReadAllAvailable) else reading.limits
            return self._stream.next(begin, until, limits).as_offset()

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            return ranges_of(reading, self._stream.files(Position.of(start), Position.of(end)))

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(partition.value, RANGES)

    return TableReader()
