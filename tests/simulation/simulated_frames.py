"""Rows with as much of Spark's DataFrames as the driver's code uses, and Spark's writer of simulated Delta tables."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from cojoin.checkpoints.state_commits import partition_folder
from cojoin.storage.parquet_files import WrittenFile
from tests.simulation.simulated_clock import scheduler
from tests.simulation.simulated_delta import Row, Transaction, active_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.checkpoints.state_commits import StateFolder
    from tests.simulation.simulated_disk import Disk

__all__ = ["Frame", "Functions", "TableFrame", "delete_rows", "read_rows", "write_rows", "write_state_rows"]

_BATCHES = re.compile(r"batch_id IN \(([\d, ]+)\)")
_PARTITION = re.compile(r"batch_id = (\d+) AND segment (?:= (\d+)|IS NULL)")


class Functions:
    """What the progress table uses of ``pyspark.sql.functions``."""

    @staticmethod
    def max(name: str) -> Callable[[list[dict[str, Any]]], Any]:
        return lambda rows: max((row[name] for row in rows), default=None)


class Frame:
    """Rows, with as much of a DataFrame as the code uses of it.

    Args:
        disk: Where they are written to.
        rows: A function that returns the rows; called at each action, as Spark computes a frame anew.
    """

    def __init__(self, disk: Disk, rows: Callable[[], list[dict[str, Any]]]) -> None:
        self._disk, self._rows = disk, rows

    def selectExpr(self, *_: str) -> Frame:  # noqa: N802 - Spark's name
        """Return the same rows: only those of an empty frame are selected so."""
        return self

    @property
    def write(self) -> _Writer:
        return _Writer(self._disk, self._rows)

    @property
    def schema(self) -> Any:
        return Row({"fields": []})

    def limit(self, count: int) -> Frame:
        return Frame(self._disk, lambda: self._rows()[:count] if count else [])

    def coalesce(self, _: int) -> Frame:
        return self

    def drop(self, *_: str) -> Frame:
        return self

    def mapInArrow(self, *_: Any) -> Frame:  # noqa: N802
        """Return the rows that the check of a snapshot expects: each content is whole where it can be read."""
        return Frame(self._disk, lambda: [{"key_group": each["key_group"], "fault": None} for each in self._rows()])

    def agg(self, largest: Callable[[list[dict[str, Any]]], Any]) -> Frame:
        self._largest = largest
        return self

    def first(self) -> tuple[Any]:
        return (self._largest(self._rows()),)

    def collect(self) -> list[Row]:
        return [Row(each) for each in self._rows()]


class _Writer:
    """Spark's writer of Delta tables: each save is a transaction of Delta's."""

    def __init__(self, disk: Disk, rows: Callable[[], list[dict[str, Any]]]) -> None:
        self._disk, self._rows = disk, rows
        self._options: dict[str, Any] = {}
        self._partition_by: tuple[str, ...] = ()

    def format(self, _: str) -> _Writer:
        return self

    def mode(self, _: str) -> _Writer:
        return self

    def partitionBy(self, *names: str) -> _Writer:  # noqa: N802
        self._partition_by = names
        return self

    def option(self, name: str, value: Any) -> _Writer:
        self._options[name] = value
        return self

    def options(self, **values: Any) -> _Writer:
        self._options |= values
        return self

    def save(self, path: str) -> None:
        """Append the rows, or replace those of some partitions, unless the application has written that version."""
        transaction, applications = Transaction(self._disk, path, self._partition_by), dict[str, int]()
        if "txnAppId" in self._options:
            app_id, version = self._options["txnAppId"], int(self._options["txnVersion"])
            if transaction.application(app_id) >= version:
                return
            applications = {app_id: version}
        replaced, kept = self._options.get("replaceWhere", ""), list[dict[str, Any]]()
        batches = _BATCHES.fullmatch(replaced)
        if batches is not None:
            kept = transaction.replaces({int(each) for each in batches[1].split(",")})
        elif replaced:
            transaction.touches = _folders(replaced)
        rows = [*kept, *self._rows()]
        # Without rows, Spark writes a file of none.
        parts = [_state_part(each) for each in rows] if self._partition_by else [("", {}, rows)]
        added = []
        for folder, values, part in parts:
            file = write_rows(self._disk, transaction.table, f"{folder}part-{uuid.uuid4()}.parquet", part)
            about = {"path": file.name, "size": file.size, "modificationTime": file.modified, "stats": file.statistics}
            added.append({"add": {**about, "partitionValues": values, "dataChange": True}})
        transaction.commit(applications, self._options.get("userMetadata"), [*transaction.removals(), *added])


class TableFrame(Frame):
    """The rows of a Delta table; the files are looked up at each action.

    Args:
        disk: The disk.
        path: The table.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        def read() -> list[dict[str, Any]]:
            return [row for name in active_files(disk, path) for row in read_rows(disk, f"{path}/{name}")]

        super().__init__(disk, read)


def delete_rows(disk: Disk, statement: str) -> None:
    """Delete the rows of some partitions of the state table, as Delta's ``DELETE`` does."""
    transaction = Transaction(disk, statement.split("`")[1])
    transaction.touches = _folders(statement)
    gone = transaction.removals()
    if gone:
        transaction.commit({}, None, gone)


def _folders(condition: str) -> tuple[str, ...]:
    """Return the folders of the partitions that a condition names."""
    found = _PARTITION.findall(condition)
    if not found:
        return (f"batch_id={condition.rpartition('= ')[2]}/",)
    return tuple(f"{partition_folder(int(batch), int(segment) if segment else None)}/" for batch, segment in found)


def _state_part(row: Mapping[str, Any]) -> tuple[str, dict[str, str | None], list[Mapping[str, Any]]]:
    """Return the folder of a row of the state table, the values of its partition, and the row."""
    values = {name: None if row[name] is None else str(row[name]) for name in ("batch_id", "segment")}
    return f"{partition_folder(row['batch_id'], row['segment'])}/", values, [row]


def write_state_rows(rows: Frame, folder: StateFolder, batch_id: int) -> list[Row]:
    """Write a snapshot's rows as ``state_commits.write_rows`` does; a row with content has a file of its own."""
    found = rows.collect()
    parts = [[each] for each in found if each.segment is not None]
    parts += [some] if (some := [each for each in found if each.segment is None]) else []
    written = []
    for part in parts:
        name = f"{partition_folder(batch_id, part[0].segment)}/part-{uuid.uuid4()}.snappy.parquet"
        file = write_rows(rows._disk, folder.path, name, [each.asDict() for each in part])
        about = {"name": name, "size": file.size, "rows": len(part), "batch_id": batch_id, "modified": file.modified}
        written += [Row({**each.asDict(), "file": json.dumps(about)}) for each in part]
    return written


def write_rows(disk: Disk, folder: str, name: str, rows: Sequence[Mapping[str, Any]]) -> WrittenFile:
    """Write a data file."""
    path, content = f"{folder}/{name}", json.dumps(list(rows)).encode()
    disk.operate("write rows", path, lambda: disk.put(path, content), error=Py4JError, torn=lambda: disk.torn_at(path))
    ids = [row["batch_id"] for row in rows if "batch_id" in row]
    statistics = {"numRecords": len(rows), **({"maxValues": {"batch_id": max(ids)}} if ids else {})}
    return WrittenFile(name, len(rows), len(content), int(1000 * scheduler().now), json.dumps(statistics))


def read_rows(disk: Disk, path: str) -> list[dict[str, Any]]:
    """Read a data file.

    Raises:
        Py4JError: It is gone.
    """

    def effect() -> bytes | None:
        file = disk.files.get(path)
        return None if file is None else file.content

    content = disk.operate("read", path, effect, error=Py4JError)
    if content is None:
        msg = f"FileNotFoundException: {path} does not exist"
        raise Py4JError(msg)
    found: list[dict[str, Any]] = json.loads(content)
    return found
