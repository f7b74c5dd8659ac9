"""The data files of the ``state`` table: tasks write them as plain Parquet, and return their rows without content.

A row with content gets a file of its own, in the folder of its batch and key group; the rows of a task without content
share one. The driver gets each row together with the name of its file, so what is known of the rows is what the files
have: a task that is run twice writes two files, and only those whose names have arrived are committed. A task that
fails deletes its files. Those of a killed task, or of one that is run twice, stay until the batch's snapshot is removed
(``state_cleaner``), for they are written under their names: hidden ones would be listed by nobody.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.delta.actions import DataFile
from cojoin.errors import CheckpointError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row

    from cojoin.storage.object_store import ObjectStore
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

__all__ = ["NO_SEGMENT", "PARTITIONS", "STATE_TABLE", "StateFolder", "data_files", "partition_folder", "write_rows"]

STATE_TABLE = "state"
"""The table's folder below the checkpoint."""

PARTITIONS = ("batch_id", "segment")
"""The columns by which the table is partitioned."""

NO_SEGMENT = "__HIVE_DEFAULT_PARTITION__"
_FILE = "file"
_FILE_SCHEMA = pa.schema([field for field in STATE_SCHEMA if field.name not in PARTITIONS])
_WRITTEN = pa.schema(
    [*(field for field in STATE_SCHEMA if field.name not in ("batch_id", "content")), (_FILE, pa.string())]
)


def partition_folder(batch_id: int, segment: int | None) -> str:
    """Return the folder of a partition, below the table's.

    >>> partition_folder(7, 3), partition_folder(7, None)
    ('batch_id=7/segment=3', 'batch_id=7/segment=__HIVE_DEFAULT_PARTITION__')
    """
    return f"batch_id={batch_id}/segment={NO_SEGMENT if segment is None else segment}"


@dataclass(frozen=True)
class StateFolder:
    """The table's folder as tasks reach it; it is serialized with them.

    Attributes:
        path: The folder: a local path, or one with the scheme of an object store.
        settings: How to reach the object store; None for a local path.
    """

    path: str
    settings: Settings | None = None

    @classmethod
    def of(cls, files: Store) -> StateFolder:
        """Return the folder of a checkpoint on a local disk or an object store."""
        path, settings = files.path(STATE_TABLE), files.for_tasks()
        if settings is None:
            return cls(path.removeprefix("file:"))
        return cls(path, replace(settings, prefix=f"{settings.prefix}/{STATE_TABLE}".lstrip("/")))

    def opened(self) -> _OpenFolder:
        """Return the folder, open for a task."""
        if self.settings is None:
            return _OpenFolder(self.path)
        from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - for local files, obstore is not loaded

        return _OpenFolder(self.path, ObjectStore.of(self.settings, self.path))


class _OpenFolder:
    """The table's folder in a task, with the names of the files that the task has written."""

    def __init__(self, path: str, objects: ObjectStore | None = None) -> None:
        self._path, self._objects = Path(path), objects
        self._names: list[str] = []

    def write(self, name: str, content: pa.Buffer) -> None:
        self._names.append(name)
        if self._objects is not None:
            self._objects.write_bytes(name, content.to_pybytes())
            return
        place = self._path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(memoryview(content))

    def delete_written(self) -> None:
        """Delete the files that were written, as far as that is possible."""
        for name in self._names:
            with contextlib.suppress(OSError, CheckpointError):
                if self._objects is not None:
                    self._objects.delete(name)
                else:
                    (self._path / name).unlink(missing_ok=True)


def write_rows(rows: DataFrame, folder: StateFolder, batch_id: int) -> list[Row]:
    """Write a snapshot's rows as files, in one Spark job.

    Args:
        rows: Rows of ``STATE_SCHEMA``.
        folder: The table's folder.
        batch_id: The snapshot's batch, which all rows have.

    Returns:
        The rows without content, each with a column ``file``: the file that has it, as ``data_files`` reads it.
    """
    written: list[Row] = rows.mapInArrow(for_workers(_Writer(folder, batch_id)), spark_schema(_WRITTEN)).collect()
    return written


def data_files(rows: Sequence[Any]) -> list[DataFile]:
    """Return the files that rows of ``write_rows`` name."""
    described = {row.file: row.segment for row in rows}
    return [_data_file(json.loads(text), segment) for text, segment in described.items()]


def _data_file(about: dict[str, Any], segment: int | None) -> DataFile:
    values = {"batch_id": str(about["batch_id"]), "segment": None if segment is None else str(segment)}
    statistics = json.dumps({"numRecords": about["rows"]})
    return DataFile(about["name"], about["size"], about["modified"], statistics, values)


@dataclass(frozen=True)
class _Writer:
    """Writes a task's rows; it is serialized with the tasks."""

    folder: StateFolder
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = self.folder.opened()
        without_content = []
        try:
            for row in (pa.Table.from_batches([batch.slice(n, 1)]) for batch in batches for n in range(len(batch))):
                segment = row.column("segment")[0].as_py()
                if segment is None:
                    without_content.append(row)
                else:
                    yield from self._write(folder, row, segment)
            if without_content:
                yield from self._write(folder, pa.concat_tables(without_content), None)
        except BaseException:
            folder.delete_written()
            raise
        # Idle workers keep their memory until the next task.
        pa.default_memory_pool().release_unused()

    def _write(self, folder: _OpenFolder, rows: pa.Table, segment: int | None) -> list[pa.RecordBatch]:
        """Write a file, and return its rows without their content."""
        name = f"{partition_folder(self.batch_id, segment)}/part-{uuid.uuid4()}.snappy.parquet"
        content = _parquet(rows.select(_FILE_SCHEMA.names).cast(_FILE_SCHEMA))
        folder.write(name, content)
        about = {"name": name, "size": content.size, "rows": len(rows), "batch_id": self.batch_id}
        text = json.dumps({**about, "modified": int(1000 * time.time())})
        with_file = rows.append_column(_FILE, pa.array([text] * len(rows), pa.string()))
        written: list[pa.RecordBatch] = with_file.select(_WRITTEN.names).cast(_WRITTEN).to_batches()
        return written


def _parquet(rows: pa.Table) -> pa.Buffer:
    """Return rows as a Parquet file; partitions are all that its readers choose by, so it has no statistics."""
    made = pa.BufferOutputStream()
    # The page checksums, as in Spark's files, show who reads one that a disk has changed it.
    pq.write_table(
        rows, made, store_schema=False, use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    return made.getvalue()
