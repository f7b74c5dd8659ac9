"""Rows with as much of Spark's DataFrames as the driver's code uses, on simulated Delta tables.

A condition on the columns by which a table is partitioned chooses the files that are read, as Delta does: a reader is
not hurt by files of other partitions that were deleted meanwhile.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from py4j.protocol import Py4JError

from tests.simulation.simulated_delta import NO_SEGMENT, DeltaLog, Row, active_files, commit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.simulation.simulated_disk import Disk

__all__ = ["DeltaFrame", "Functions", "TableFrame", "read_rows", "write_rows"]


class _Condition:
    """A condition on a row, as ``pyspark.sql.functions`` builds them.

    Args:
        columns: The columns that it looks at.
        holds: Return whether it holds for a row, or what a column has.
    """

    def __init__(self, columns: frozenset[str], holds: Callable[[Mapping[str, Any]], Any]) -> None:
        self.columns, self.holds = columns, holds

    def __eq__(self, other: object) -> _Condition:  # type: ignore[override]
        return _Condition(self.columns, lambda row: self.holds(row) == other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: _Condition) -> _Condition:
        return _Condition(self.columns | other.columns, lambda row: self.holds(row) and other.holds(row))

    def __or__(self, other: _Condition) -> _Condition:
        return _Condition(self.columns | other.columns, lambda row: self.holds(row) or other.holds(row))

    def isin(self, values: Sequence[Any]) -> _Condition:
        return _Condition(self.columns, lambda row: self.holds(row) in values)


class Functions:
    """What the state table uses of ``pyspark.sql.functions``."""

    @staticmethod
    def col(name: str) -> _Condition:
        return _Condition(frozenset((name,)), lambda row: row[name])

    @staticmethod
    def max(name: str) -> Callable[[list[dict[str, Any]]], Any]:
        return lambda rows: max((row[name] for row in rows), default=None)


class DeltaFrame:
    """Rows, with as much of a DataFrame as the code uses of it.

    Args:
        disk: Where they are written to.
        rows: A function that returns the rows; called at each action, as Spark computes a frame anew.
    """

    def __init__(self, disk: Disk, rows: Callable[[], list[dict[str, Any]]]) -> None:
        self.disk = self._disk = disk
        self._rows = rows
        self._options: dict[str, Any] = {}
        self._mode = ""
        self._is_partitioned = False

    @property
    def write(self) -> DeltaFrame:
        return DeltaFrame(self._disk, self._rows)

    @property
    def schema(self) -> Any:
        return Row({"fields": []})

    def format(self, _: str) -> DeltaFrame:
        return self

    def mode(self, mode: str) -> DeltaFrame:
        self._mode = mode
        return self

    def partitionBy(self, *_: str) -> DeltaFrame:  # noqa: N802
        self._is_partitioned = True
        return self

    def option(self, name: str, value: Any) -> DeltaFrame:
        self._options[name] = value
        return self

    def options(self, **values: Any) -> DeltaFrame:
        self._options |= values
        return self

    def where(self, condition: _Condition) -> DeltaFrame:
        return DeltaFrame(self._disk, lambda: [each for each in self._rows() if condition.holds(each)])

    def drop(self, *names: str) -> DeltaFrame:
        return DeltaFrame(
            self._disk, lambda: [{k: v for k, v in each.items() if k not in names} for each in self._rows()]
        )

    def select(self, *names: str) -> DeltaFrame:
        return DeltaFrame(self._disk, lambda: [{name: each[name] for name in names} for each in self._rows()])

    def mapInArrow(self, *_: Any) -> DeltaFrame:  # noqa: N802
        """Return the rows that the check of a snapshot expects: each content is whole where it can be read."""
        return DeltaFrame(
            self._disk, lambda: [{"key_group": each["key_group"], "fault": None} for each in self._rows()]
        )

    def agg(self, largest: Callable[[list[dict[str, Any]]], Any]) -> DeltaFrame:
        self._largest = largest
        return self

    def first(self) -> tuple[Any]:
        return (self._largest(self._rows()),)

    def collect(self) -> list[Row]:
        return [Row(each) for each in self._rows()]

    def save(self, path: str) -> None:
        """Append the rows to a table in a transaction, or replace those of one batch."""
        log = DeltaLog(self._disk, path)
        transaction = log.startTransaction()
        actions: list[dict[str, Any]] = []
        if transaction.readVersion() < 0:
            actions.append({"metaData": {"id": str(uuid.uuid4())}})
        applications = {}
        if "txnAppId" in self._options:
            app_id, version = self._options["txnAppId"], int(self._options["txnVersion"])
            if transaction.txnVersion(app_id) >= version:
                return
            applications = {app_id: version}
        if "replaceWhere" in self._options:
            batch_id = int(str(self._options["replaceWhere"]).rpartition("=")[2])
            transaction.touches = {batch_id}
            active = active_files(self._disk, log.table, transaction.readVersion())
            actions += [{"remove": {"path": name}} for name in active if name.startswith(f"batch_id={batch_id}/")]
            parts = [(_partition(row), [row]) for row in self._rows()]
        else:
            rows = self._rows()
            # Without rows, Spark writes a file of none, but no partition.
            parts = [] if self._is_partitioned and not rows else [({}, rows)]
        for values, rows in parts:
            folder = "".join(f"{name}={NO_SEGMENT if value is None else value}/" for name, value in values.items())
            name = f"{folder}part-{uuid.uuid4()}.parquet"
            write_rows(self._disk, f"{log.table}/{name}", rows)
            actions.append({"add": {"path": quote(name, safe="/="), "partitionValues": values, "dataChange": True}})
        commit(transaction, applications, "", self._options.get("userMetadata"), actions)


class TableFrame(DeltaFrame):
    """The rows of a Delta table; the files are looked up at each action.

    Args:
        disk: The disk.
        path: The table.
        conditions: What was asked of the rows.
    """

    def __init__(self, disk: Disk, path: str, *conditions: _Condition) -> None:
        super().__init__(disk, self._read)
        self._path, self._conditions = path, conditions

    def where(self, condition: _Condition) -> TableFrame:
        return TableFrame(self._disk, self._path, *self._conditions, condition)

    def _read(self) -> list[dict[str, Any]]:
        rows = [
            row
            for name, action in active_files(self._disk, self._path).items()
            if all(_may_hold(each, action["partitionValues"]) for each in self._conditions)
            for row in read_rows(self._disk, f"{self._path}/{name}")
        ]
        return [row for row in rows if all(each.holds(row) for each in self._conditions)]


def _partition(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the values of a row's partition, as Delta's log has them."""
    return {name: None if row[name] is None else str(row[name]) for name in ("batch_id", "segment")}


def _may_hold(condition: _Condition, partition: Mapping[str, str | None]) -> bool:
    values = {column: None if value is None else int(value) for column, value in partition.items()}
    return not condition.columns <= values.keys() or bool(condition.holds(values))


def write_rows(disk: Disk, path: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write a data file, and return its content."""
    content = json.dumps(list(rows)).encode()
    disk.operate("write rows", path, lambda: disk.put(path, content), error=Py4JError, torn=lambda: disk.torn_at(path))
    return content


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
