"""Parquet files written by the Python workers, so that output rows do not pass through the JVM.

A call that emits many rows of an output at once writes them to its own file (``CallFiles``). A later step of the same
task writes all other rows, to one file per output (``write_files``), so that small batches make few files. On object
stores only this step writes, since its function carries the store's credentials. Calls get their targets by a property
of the job, which Spark's event log records. In the task's result a line of JSON per file replaces the written rows. The
driver then publishes the files; until then readers do not see them. A call or a step that fails removes its files. A
killed task, or one in which a later call fails, leaves unpublished files.

Integers, dates and times are stored as differences (``DELTA_BINARY_PACKED``), which Spark reads since 3.3. Texts and
nested columns get a dictionary; other numbers rarely gain by one. Compared with pyarrow's defaults, writing takes two
thirds of the time, and the files three quarters of the space. With ``spark.cojoin.output=spark`` in the session's
settings Spark writes all rows.

An open file has the rows of one row group in memory. Writing takes a third to a half of the time of Spark's own
writer, and no copy in the JVM.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.engine.values.codec import read_message
from cojoin.engine.values.types import is_tagged
from cojoin.errors import QueryFailedError
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of, is_left_to_spark
from cojoin.spark.batch.batch_facts import check_places
from cojoin.storage.locations import without_login
from cojoin.storage.object_store_settings import client_of
from cojoin.storage.parquet_files import FloatBounds, WrittenFile, columns_with_statistics, file_statistics, leaves
from cojoin.storage.place_tokens import CURE, this_host, unseen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

OUTPUT_SETTING = "spark.cojoin.output"
_CODECS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
"""pyarrow's names of the parquet codecs, by Spark's names; with any other codec Spark writes the rows."""

_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 1_000_000, 128 << 20
_OWN_FILE_ROWS = 50_000
"""The least number of rows emitted at once that a call writes to its own file."""

_LINE = b"{"
"""The first byte of a file's line of JSON; an Arrow message begins with other bytes."""

_PLAIN = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)


@dataclass(frozen=True)
class FileTarget:
    """The folder and format of an output's files.

    The driver and all workers reach the folder by its path; it is created if it does not exist. ``compression`` is
    pyarrow's name of the codec. ``settings`` are those of an object store, which may hold credentials.
    """

    folder: str
    schema: pa.Schema
    compression: str = "snappy"
    settings: Settings | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the folder is in a file system, not on an object store; only then may calls write files."""
        return self.settings is None

    def as_dict(self) -> dict[str, str]:
        """Return the folder and the codec as JSON values."""
        return {"folder": self.folder, "compression": self.compression}

    @classmethod
    def at(
        cls, session: SparkSession, location: str, schema: pa.Schema, store: Store | None = None
    ) -> FileTarget | None:
        """Return a location as a target; None if the workers can't write the same files to it as Spark.

        ``store`` is the folder's store; with None, only a local folder is a target.
        """
        adapter = adapter_of(session)
        if is_left_to_spark(session, OUTPUT_SETTING) or adapter.encrypts_files():
            return None
        codec = _CODECS.get(str(session.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower())
        if codec is None or not can_be_written(schema):
            return None
        settings = None if store is None else store.for_tasks()
        if settings is not None:
            return cls(location, schema, codec, settings)
        folder = adapter.local_path(location) if adapter.shares_paths else None
        return None if folder is None else cls(folder, schema, codec)


def can_be_written(schema: pa.Schema) -> bool:
    """Return whether Spark reads the types of all columns from pyarrow's files as it does from its own.

    >>> can_be_written(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    True
    >>> can_be_written(pa.schema([("took", pa.duration("us"))]))
    False
    """
    return all(_can_be_written(field.type) for field in schema)


def check_seen(folder: str, files: Sequence[WrittenFile]) -> None:
    """Raise a QueryFailedError unless the driver sees the files that it is about to publish; Delta checks none."""
    missing = unseen(folder, [(each.name, each.size) for each in files])
    if missing:
        msg = (
            f"the driver, on {this_host()}, does not see {len(missing)} of the {len(files)} files that the workers "
            f"have written to {folder}, or not in full, such as {missing[0]}; nothing was committed: {CURE}"
        )
        raise QueryFailedError(msg)


def _can_be_written(dtype: pa.DataType) -> bool:
    if pa.types.is_struct(dtype):
        # The table's metadata must declare a variant; its bytes alone are not enough.
        return not is_tagged(dtype) and all(_can_be_written(field.type) for field in dtype)
    if pa.types.is_list(dtype):
        return _can_be_written(dtype.value_type)
    if pa.types.is_map(dtype):
        return _can_be_written(dtype.key_type) and _can_be_written(dtype.item_type)
    return any(is_kind(dtype) for is_kind in _PLAIN)


def write_files(emitted: DataFrame, targets: Mapping[int, FileTarget]) -> DataFrame:
    """Write the rows of the outputs in ``targets`` to files, and return a line of JSON per file instead of these rows.

    Rows are ``(kind, payload)``; a kind is the number of an output, by which ``targets`` has it. Rows of other outputs,
    and the lines of files that calls have written, are returned unchanged. A line is a ``WrittenFile``.
    """
    return emitted.mapInArrow(for_workers(_Writer(dict(targets))), emitted.schema)


def _encodings(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Return the paths of the columns that are stored as differences, and of those with a dictionary."""
    types = pa.types
    packed: list[str] = []
    with_dictionary: list[str] = []
    for column in schema:
        if types.is_integer(column.type) or types.is_date32(column.type) or types.is_timestamp(column.type):
            packed.append(column.name)
        elif types.is_string(column.type) or types.is_nested(column.type):
            with_dictionary += leaves(column)
    return packed, with_dictionary


class CallFiles:
    """The files that one call or one task writes itself, at most one for each output in ``targets``, by kind."""

    def __init__(self, targets: Mapping[int, FileTarget]) -> None:
        self._targets = targets
        self._files: dict[int, TargetFile] = {}

    def take(self, kind: int, rows: pa.Table) -> bool:
        """Write rows to the output's file; return False, without writing, if they are few or it has no target."""
        if kind not in self._targets or rows.num_rows < _OWN_FILE_ROWS:
            return False
        for batch in rows.to_batches():
            self.add(kind, batch)
        return True

    def add(self, kind: int, batch: pa.RecordBatch) -> None:
        """Write rows to the output's file."""
        if kind not in self._files:
            self._files[kind] = TargetFile(self._targets[kind])
        self._files[kind].add(batch)

    def complete(self) -> list[tuple[int, bytes]]:
        """Complete the files, and return their lines, each with its kind."""
        lines = [(kind, file.close().to_json()) for kind, file in self._files.items()]
        if lines:
            # Otherwise an idle worker would keep this memory until its next task.
            pa.default_memory_pool().release_unused()
        return lines

    def keep(self) -> None:
        """Leave the files to the driver, as the call has succeeded."""
        self._files = {}

    def remove(self) -> None:
        """Remove the files, complete or not, unless they were left to the driver."""
        for file in self._files.values():
            file.remove()


@dataclass(frozen=True)
class _Writer:
    targets: dict[int, FileTarget]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_places()
        files, of_calls, schema = CallFiles(self.targets), list[Path](), None
        try:
            for batch in batches:
                schema = batch.schema
                kinds = batch.column(0).to_pylist()
                messages = (payload.as_buffer() for payload in batch.column(1))
                is_passed_on = [not self._writes(*each, files, of_calls) for each in zip(kinds, messages, strict=True)]
                if any(is_passed_on):
                    yield batch.filter(pa.array(is_passed_on))
            lines = files.complete()
        except BaseException:
            files.remove()
            for path in of_calls:
                path.unlink(missing_ok=True)
            raise
        if lines:
            yield pa.RecordBatch.from_arrays(
                [pa.array([kind for kind, _ in lines], pa.int8()), pa.array([line for _, line in lines], pa.binary())],
                schema=schema,
            )

    def _writes(self, kind: int, message: pa.Buffer, files: CallFiles, of_calls: list[Path]) -> bool:
        """Write the rows of a message; return False, without writing, if it is a line or its output has no target.

        ``files`` receives the rows by kind, and ``of_calls`` the path of a file that a call has written.
        """
        if kind not in self.targets:
            return False
        target = self.targets[kind]
        if message[:1].to_pybytes() == _LINE:
            of_calls.append(Path(target.folder) / WrittenFile.read(message.to_pybytes()).name)
            return False
        files.add(kind, read_message(message, target.schema))
        return True


class _Upload:
    """An object that is being written, as a Python file for pyarrow; a small object takes one request."""

    def __init__(self, folder: str, settings: Settings, name: str) -> None:
        import obstore  # noqa: PLC0415 - queries on local files do not load it

        self._path, self._name, self.closed, self.size = f"{folder}/{name}", name, False, 0
        with self._errors():
            self._client = client_of(settings)
            self._writer = obstore.open_writer(self._client, name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the store's errors as a QueryFailedError, without signed URLs."""
        from cojoin.storage.object_store import ERRORS, explained  # noqa: PLC0415

        try:
            yield
        except ERRORS as error:
            why, cure = explained(error)
            msg = f"{without_login(self._path)} can't be written: {'; '.join(filter(None, (why, cure)))}"
            raise QueryFailedError(msg) from None

    def write(self, data: Any) -> int:
        with self._errors():
            self._writer.write(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: a part is sent once it is full."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._errors():
                self._writer.close()

    def remove(self) -> None:
        """Abort the upload, so that no sent part is left; delete the object if it is complete."""
        with contextlib.suppress(QueryFailedError), self._errors():
            if self.closed:
                self._client.delete(self._name)
            else:
                self.closed = True
                self._writer.__exit__(QueryFailedError, None, None)


class TargetFile:
    """A file of a target that is being written; ``prefix`` begins its name."""

    def __init__(self, target: FileTarget, prefix: str = "part") -> None:
        self._name = f"{prefix}-{uuid.uuid4()}.{target.compression}.parquet"
        self._path, self._upload = Path(target.folder) / self._name, None
        if target.settings is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self._upload = _Upload(target.folder, target.settings, self._name)
        # Delta and Spark declare all columns of an output as nullable.
        self._schema = pa.schema([field.with_nullable(True) for field in target.schema])
        packed, with_dictionary = _encodings(self._schema)
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._path if self._upload is None else pa.PythonFile(self._upload, mode="w"),
            self._schema,
            compression=target.compression,
            store_schema=False,
            version="2.6",
            # As in Spark's files, so that readers detect pages that a disk has corrupted.
            write_page_checksum=True,
            use_dictionary=with_dictionary,
            column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
            write_statistics=columns_with_statistics(self._schema),
            metadata_collector=self._footers,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._waiting_rows = self._waiting_bytes = 0
        self._floats = FloatBounds(self._schema)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows, a row group at a time."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        table = pa.Table.from_batches(self._waiting).cast(self._schema)
        self._floats.add(table)
        self._writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> WrittenFile:
        """Complete the file, and return its description."""
        if self._waiting:
            self._write_waiting()
        self._writer.close()
        statistics = file_statistics(self._footers[-1], self._schema, self._floats)
        if self._upload is not None:
            self._upload.close()
            return WrittenFile(self._name, self._rows, self._upload.size, int(1000 * time.time()), statistics)
        about = self._path.stat()
        return WrittenFile(self._name, self._rows, about.st_size, about.st_mtime_ns // 1_000_000, statistics)

    def remove(self) -> None:
        """Remove the file, complete or not."""
        # The footer may not fit on a full disk.
        with contextlib.suppress(OSError, pa.ArrowException, QueryFailedError):
            self._writer.close()
        if self._upload is None:
            self._path.unlink(missing_ok=True)
        else:
            self._upload.remove()
