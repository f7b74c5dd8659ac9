"""Writers of snapshots, and a session without Spark for them: its jobs run here, and its files are read by pyarrow."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from cojoin.checkpoints import state_commits, state_table, stored_state
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, snapshot_row
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_commits import Claim, StateCommits
from cojoin.checkpoints.state_table import StateCleaner, StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.reports import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

__all__ = ["Rows", "SnapshotWriter", "StandInSession", "rows_of_groups", "without_spark"]

_EPOCHS = itertools.count(1)


class _Row(dict[str, Any]):
    """A row as Spark collects it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(self)


@dataclass
class Rows:
    """A frame of Arrow's batches, one for each task; what a task does is done once for each of them.

    Attributes:
        tasks: The rows of each task.
        run_again: The tasks that Spark executes twice, of which the second result counts.
    """

    tasks: Sequence[pa.Table]
    run_again: frozenset[int] = frozenset()

    def mapInArrow(self, function: Any, _: Any) -> Rows:  # noqa: N802 - Spark's name
        done = []
        for number, task in enumerate(self.tasks):
            batches = task.to_batches(max_chunksize=2)
            if number in self.run_again:
                list(function(iter(batches)))
            made = list(function(iter(batches)))
            if made:
                done.append(pa.Table.from_batches(made))
        return Rows(done)

    def selectExpr(self, *names: str) -> Rows:  # noqa: N802 - Spark's name
        return Rows([each.select(list(names)) for each in self.tasks])

    def collect(self) -> list[_Row]:
        rows = (row for task in self.tasks for row in task.to_pylist())
        return [_Row({name: _as_rows(value) for name, value in row.items()}) for row in rows]


def _as_rows(value: Any) -> Any:
    return [_Row(each) for each in value] if isinstance(value, list) else value


@dataclass
class StandInSession:
    """A session of which only the state table's reader asks something."""

    columns: Any = None

    @property
    def read(self) -> StandInSession:
        return self

    def format(self, name: str) -> StandInSession:
        msg = f"[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {name}"
        raise PySparkException(msg)

    def schema(self, columns: Any) -> StandInSession:
        return StandInSession(columns)

    def parquet(self, *paths: str) -> Rows:
        """Return a frame, as Spark does, which looks for the files now and reads them later."""
        places = [re.sub(r"\\(.)", r"\1", path.removeprefix("file:")) for path in paths]
        for missing in (each for each in places if not Path(each).exists()):
            msg = f"[PATH_NOT_FOUND] Path does not exist: {missing}"
            raise PySparkException(msg)
        return Rows([pq.ParquetFile(each).read(self.columns.names) for each in places])

    def range(self, _: int) -> StandInSession:
        return self

    def selectExpr(self, *_: str) -> Rows:  # noqa: N802 - Spark's name
        """Return a frame without rows, of which ``empty_frame`` makes columns."""
        return Rows([])

    def createDataFrame(self, rows: pa.Table | list[Any], _: Any = None) -> Rows:  # noqa: N802 - Spark's name
        return Rows([rows] if rows else [])


class SnapshotWriter:
    """Writes snapshots of two key groups as a query would: group 0 changes with each, group 1 only in the first."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.files = LocalStore(str(folder))
        self.table, self.snapshots = StateTable(spark, self.files), Snapshots(self.files)
        self.commits = StateCommits(spark, self.files)
        self.cleaner = StateCleaner(spark, self.files)
        self.saved: list[Any] = [None, None]

    def write(self, batch_id: int, groups: int = 2, kind: Any = "checkpoint", clock: int = 0, **how: Any) -> Any:
        rows = []
        for group in range(groups):
            tables = {"versions": pa.table({"id": pa.array([group, batch_id if group == 0 else -1])})}
            header = {"processing_time": clock + 60_000 * batch_id, "watermark": batch_id, "saved": self.saved[group]}
            row, self.saved[group] = snapshot_row(group, batch_id, header, tables)
            rows.append(row)
        frame = self.spark.createDataFrame(pa.concat_tables(rows))
        how.setdefault("claim", Claim.of_run(next(_EPOCHS), batch_id))
        return self.table.write(frame, manifest(batch_id), kind, 2, remembered=True, **how)

    def rows_of(self, batch_id: int) -> list[tuple[Any, ...]]:
        snapshot = self.snapshots.read(batch_id)
        assert snapshot is not None
        self.table.check(snapshot)
        state = StoredState.of_snapshot(self.table, snapshot)
        assert [json.dumps(header["watermark"]) for header in state.headers] == [str(batch_id)] * 2
        return sorted(tuple(row.asDict().values()) for row in state.rows("versions").collect())


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the state table take a ``StandInSession``."""
    monkeypatch.setattr(state_commits, "adapter_of", lambda _: SimpleNamespace(encrypts_files=lambda: False))
    monkeypatch.setattr(state_commits, "default_properties", lambda _: {})
    for module in (state_commits, state_table, stored_state):
        monkeypatch.setattr(module, "for_workers", lambda function: function)


def rows_of_groups(batch_id: int, groups: Sequence[int] = (0, 1), *, clock: int = 0, saved: Any = None) -> pa.Table:
    """Return the rows of a snapshot, one for each key group."""
    made = []
    for group in groups:
        header = {"processing_time": clock + batch_id, "watermark": batch_id, "saved": (saved or {}).get(group)}
        tables = {"versions": pa.table({"id": pa.array([group, batch_id])})}
        row, _ = snapshot_row(group, batch_id, header, tables)
        made.append(row)
    return pa.concat_tables([STATE_SCHEMA.empty_table(), *made])
