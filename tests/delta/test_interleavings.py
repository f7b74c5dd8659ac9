"""Two writers of one query beside others: each batch is there once, and none of a run that another has taken over.

A history is drawn: a writer commits, and at its comparison (so between what it has read and its commit) the other
writer, or a stranger by ``deltalake``, may commit first, some times over. What must hold is counted from the log's
files by this test's own few lines.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from cojoin.delta.deltalake_table import TableConflictError
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.errors import QueryFailedError
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import APP, SCHEMA, data_file, ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

FENCE, STRANGERS = f"epoch-of-{APP}", 1_000
STEP = st.tuples(
    st.sampled_from(["append", "append", "append", "fence", "replace"]),
    st.integers(0, 1),
    st.lists(st.sampled_from(["rival", "append", "delete", "optimize", "checkpoint"]), max_size=6),
)


class FencedError(QueryFailedError):
    """A run of a later epoch has fenced the table."""


class Run:
    """A run of the query: an epoch, and the batch that comes next, as it knows it."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch = world, epoch
        self.writer = TableWriter(LocalStore(str(world.folder), "table"))

    def compare(self, version: Callable[[str], int | None], others: list[str]) -> int:
        """Return the newest batch, after one of the others has committed."""
        if (version(FENCE) or 0) > self.epoch:
            raise FencedError
        if others:
            self.world.other(self, others.pop(0))
        found = version(APP)
        return -1 if found is None else found

    def step(self, kind: str, others: list[str]) -> None:
        if kind == "fence":
            self.epoch = self.world.epoch = self.world.epoch + 1
            self.commit(Change({FENCE: self.epoch}), lambda version: self.compare(version, others) < -1)
        elif kind == "append":
            batch_id = self.world.next
            change = Change({APP: batch_id, FENCE: self.epoch}, SCHEMA, [data_file(self.world.folder, [batch_id])])
            if self.commit(change, lambda version: self.compare(version, others) >= batch_id):
                self.world.next = max(self.world.next, batch_id + 1)
        else:
            self.replace(others)

    def replace(self, others: list[str]) -> None:
        log = TableLog(LocalStore(str(self.world.folder), "table"))
        found = log.newest()
        files = [] if found is None else log.files(found.version)[:2]
        kept = [data_file(self.world.folder, self.world.rows_of(each.path)) for each in files]
        change = Change({FENCE: self.epoch}, SCHEMA, kept, files, changes_data=False)
        self.commit(change, lambda version: self.compare(version, others) < -1)

    def commit(self, change: Change, compare: Any) -> bool:
        try:
            self.writer.commit(change, compare, new=None if change.removed else NewTable(SCHEMA))
        except FencedError:
            # It is over; the next step is a new run's.
            self.epoch = self.world.epoch = self.world.epoch + 1
            return False
        except TableConflictError:
            return False
        except QueryFailedError as error:
            if change.removed and "removed or replaced" in str(error):
                return False
            raise
        return True


class World:
    """One table, two runs, and strangers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.next, self.epoch, self.strange, self.deleted = folder, 0, 2, STRANGERS, set[int]()
        self.runs = (Run(self, 1), Run(self, 2))

    def rows_of(self, name: str) -> list[int]:
        import pyarrow.parquet as pq

        found: list[int] = pq.read_table(self.folder / name)["id"].to_pylist()
        return found

    def other(self, me: Run, kind: str) -> None:
        """Have someone else commit."""
        if kind == "rival":
            self.runs[me is self.runs[0]].step("append", [])
        elif kind == "append":
            self.strange += 1
            write_deltalake(str(self.folder), pa.table({"id": [self.strange]}, schema=SCHEMA), mode="append")
        elif DeltaTable.is_deltatable(str(self.folder)):
            table = DeltaTable(str(self.folder))
            if kind == "delete" and self.next:
                self.deleted.add(self.next - 1)
                table.delete(f"id = {self.next - 1}")
            elif kind == "optimize":
                table.optimize.compact()
            elif kind == "checkpoint":
                table.create_checkpoint()

    def check(self) -> None:
        """Check the whole log, and the rows."""
        newest, epoch, batches = -1, 0, list[int]()
        for place in sorted((self.folder / "_delta_log").glob("*.json")):
            actions = [json.loads(each) for each in place.read_text().splitlines()]
            written = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
            if APP in written:
                assert written[APP] > newest, "a batch twice, or one that goes back"
                newest = written[APP]
                batches.append(newest)
            if FENCE in written:
                assert written[FENCE] >= epoch, "a commit of a run that another has taken over"
                epoch = written[FENCE]
        rows = ids(self.folder)
        assert len(rows) == len(set(rows))
        assert {each for each in rows if each < STRANGERS} == set(batches) - self.deleted
        assert batches == list(range(self.next))
        assert {each for each in rows if each > STRANGERS} == set(range(STRANGERS + 1, self.strange + 1))


@given(st.lists(STEP, min_size=1, max_size=8))
def test_each_batch_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, list[str]]]
) -> None:
    world = World(tmp_path_factory.mktemp("t"))
    for kind, run, others in steps:
        world.runs[run].step(kind, list(others))
    with suppress(FileNotFoundError):
        if DeltaTable.is_deltatable(str(world.folder)):
            world.check()
