"""Upserts into Delta tables: the final table is that of all rows at once, whatever the batches, for every rule."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cojoin.delta.table_batches import TableBatches
from cojoin.engine.upsert import Upsert
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.written_files import FileTarget
from cojoin.spark.sinks import delta_upsert
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows
from cojoin.spark.sinks.delta_upsert import LeftToSparkError, TableUpsert
from cojoin.storage.local_store import LocalStore
from tests.seeds import SEED, SEED_TEXT
from tests.spark.sinks.upserted import RULES, SCHEMA, cut, drawn, expected, ids, spelled, written

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cojoin.storage.parquet_files import WrittenFile

pytestmark = pytest.mark.push

_OTHERS = 1_000
"""The least id of a row that another writer has written."""


class Table:
    """A table that one query upserts, and others may write."""

    def __init__(self, folder: Path, rule: Upsert, order: Sequence[str] = ("at",)) -> None:
        self.folder, self.rule, self.order = folder, rule, order
        self.store, self.batches = LocalStore(str(folder), "table"), 0
        self.counts: dict[str, int] = {}

    def upsert(self, rows: pa.Table, files: int = 1, *, may_leave: bool = False, between: Any = None) -> None:
        """Upsert rows as the next batch; ``between`` is called once the change is planned."""
        target, parts = FileTarget(str(self.folder), SCHEMA), written(self.folder, rows, files)
        source = FileRows(self.store)
        batch = BatchRows(source, SCHEMA, self.rule, self.order, parts)
        change = TableUpsert(self.store, source, target, batch, may_leave=may_leave)
        named: list[WrittenFile] = []
        waiting = [] if between is None else [between]

        def plan(present: Any) -> Any:
            added, removed = change(present)
            named[:] = added
            for call in waiting[:1]:
                waiting.clear()
                call()
            return added, removed

        number = self.batches
        committed = TableBatches(self.store, "", "cojoin-x-output", 1, replaces=True).replace(
            self.rule.stored(SCHEMA), plan, number, query_id="x", is_done=lambda newest: newest >= number
        )
        assert committed.is_new
        change.clean(named)
        self.batches, self.counts = number + 1, change.counts

    def rows(self) -> list[dict[str, Any]]:
        if not self.batches:
            return []
        found = QueryBuilder().register("rows", DeltaTable(str(self.folder))).execute("select * from rows").read_all()
        return pa.table(found).to_pylist()

    def files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.parquet")}


def check_history(folder: Path, seed: str) -> None:
    """Upsert random rows in random batches, beside another writer, and compare the table."""
    draw = random.Random(seed)
    rule = draw.choice(RULES)
    rows = drawn(draw, draw.randint(0, 60), 0, 100)
    table, others = Table(folder, rule), list[dict[str, Any]]()
    totals = dict.fromkeys(("inserted", "updated", "deleted", "superseded", "null_keys"), 0)

    def other_writer() -> None:
        row = {"id": _OTHERS + len(others), "zone": f"z{len(others)}", "at": None, "price": 0.5, "gone": None}
        row = {name: row[name] for name in rule.stored(SCHEMA).names}
        others.append(row)
        write_deltalake(str(folder), pa.Table.from_pylist([row], rule.stored(SCHEMA)), mode="append")

    for batch in cut(draw, rows, rule):
        if not batch.num_rows:
            continue
        between = other_writer if table.batches and draw.random() < 0.3 else None
        table.upsert(batch, draw.randint(1, 3), between=between)
        totals = {name: count + table.counts[name] for name, count in totals.items()}
        if draw.random() < 0.2:
            DeltaTable(str(folder)).optimize.compact()
    found, wanted = spelled(table.rows()), spelled([*expected(rows, rule), *others])
    assert found == wanted, f"{SEED_TEXT} {seed}"
    stored = totals["inserted"] - totals["deleted"]
    if rule.deletes is None:
        assert stored == len(wanted) - len(others), seed
        assert rows.num_rows == sum(totals.values()), seed
    named = {file.rpartition("/")[2] for file in DeltaTable(str(folder)).file_uris()} if table.batches else set()
    optimized = {name for name in table.files() if name.startswith("part-0000")}
    removed = table.files() - named - optimized
    assert not {name for name in removed if f'"path":"{name}"' not in log_of(folder)}, (
        "a file is left that no commit named"
    )


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "_delta_log").glob("*.json")).replace('": "', '":"')


def test_the_table_does_not_depend_on_the_batches(tmp_path: Path) -> None:
    for number in range(15):
        check_history(tmp_path / str(number), f"{SEED} {number}")


@pytest.mark.slow
def test_many_tables_do_not_depend_on_the_batches(tmp_path: Path) -> None:
    for number in range(25, 125):
        check_history(tmp_path / str(number), f"{SEED} {number}")


def test_new_keys_are_appended_by_the_workers_own_files(tmp_path: Path) -> None:
    table = Table(tmp_path, Upsert(("id",)))
    table.upsert(ids(*range(10)), files=2)
    table.upsert(ids(*range(10, 20)), files=2)
    # Between the files' bounds, so that only the keys tell.
    table.upsert(ids(25))
    table.upsert(ids(22))
    assert not [name for name in table.files() if name.startswith("kept-")]
    assert table.counts == {"inserted": 1, "updated": 0, "deleted": 0, "superseded": 0, "null_keys": 0}
    table.upsert(ids(3, 22, price=2.0))
    assert table.counts["updated"] == 2
    kept = [name for name in table.files() if name.startswith("kept-")]
    assert len(kept) == 1, "the kept rows of all changed files are in one"
    assert sorted(row["id"] for row in table.rows()) == [*range(20), 22, 25]


def test_files_whose_statistics_rule_a_key_out_are_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path, Upsert(("id",)))
    for first in range(0, 50, 10):
        table.upsert(ids(*range(first, first + 10)))
    for path in tmp_path.glob("part-*.parquet"):
        if path.name not in _holding(tmp_path, 25):
            path.rename(path.with_suffix(".away"))
    # The files of other keys are gone, and nothing looks for them.
    table.upsert(ids(25, price=9.0))
    assert table.counts["updated"] == 1


def _holding(folder: Path, key: int) -> set[str]:
    actions = DeltaTable(str(folder)).get_add_actions(flatten=True)
    rows = pa.table(actions).to_pylist()
    return {row["path"] for row in rows if row["min.id"] <= key <= row["max.id"]}


def test_a_key_that_comes_twice_ends_the_query_where_it_must_not(tmp_path: Path) -> None:
    table = Table(tmp_path, Upsert(("id",), "error"))
    with pytest.raises(QueryFailedError, match=r"the batch has id=4, which comes 2 times; nothing was written"):
        table.upsert(ids(3, 4, 4))
    table.upsert(ids(3, 4))
    with pytest.raises(QueryFailedError, match=r"the table has id=4 already; nothing was written"):
        table.upsert(ids(5, 4))
    assert sorted(row["id"] for row in table.rows()) == [3, 4]


def test_a_change_between_planning_and_commit_is_planned_again(tmp_path: Path) -> None:
    table = Table(tmp_path, Upsert(("id",)))
    table.upsert(ids(1, 2, 3))

    def others_move_it() -> None:
        DeltaTable(str(tmp_path)).delete("id = 2")
        rows = pa.Table.from_pylist([{"id": 7, "zone": "o", "at": None, "price": 1.0, "gone": None}], SCHEMA)
        write_deltalake(str(tmp_path), rows, mode="append")

    table.upsert(ids(3, 7, price=5.0), between=others_move_it)
    assert {row["id"]: row["price"] for row in table.rows()} == {1: 1.0, 3: 5.0, 7: 5.0}
    assert table.counts["updated"] == 2, "as of the version on which the commit is made"


def test_large_changes_are_left_to_spark_where_it_can_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_upsert, "MOST_BYTES", 100)
    table = Table(tmp_path, Upsert(("id",)))
    with pytest.raises(LeftToSparkError, match=r"the batch has 0 MB, more than 0 MB"):
        delta_upsert.check_size("the batch", [60, 60])
    table.upsert(ids(1))
    monkeypatch.setattr(delta_upsert, "MOST_BYTES", 2_000)
    table.upsert(ids(2))
    table.upsert(ids(3))
    assert sum(file.stat().st_size for file in tmp_path.glob("*.parquet")) > 2_000
    with pytest.raises(LeftToSparkError, match="the part of the table that it changes has 0 MB, more than 0 MB"):
        table.upsert(ids(1, 2, 3), may_leave=True)
