"""Delta tables that change between the moment at which a batch is planned and the moment at which it is read."""

from __future__ import annotations

import shutil
import time
import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

import cojoin as cj
from cojoin.spark.query import input_checks
from tests.seeds import drawn
from tests.spark.query.test_query import wait_for
from tests.spark.sources.changed_tables import HAS_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

AT = pa.timestamp("us", "UTC")
FILES, ROWS = 4, 3
"""So many that a start does not look at each file."""

EXPECTED = [(number, "gold") for number in range(FILES * ROWS)]
BACK = r"put it back as it was, and start the query again"


def rows_of(number: int, **more: Any) -> pa.Table:
    ids = [*range(number * ROWS, (number + 1) * ROWS)]
    return pa.table({"id": ids, "at": pa.array([1_000_000 * each for each in ids], AT), **more})


def second_file(table: Path) -> Path:
    """Return the file of the batch that is planned."""
    (added,) = DeltaTable(str(table)).history()[-2:-1]
    log = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    assert added["version"] == 1
    return table / next(each["path"] for each in log if each["min.id"] == ROWS)


def vacuum(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def make_again(table: Path) -> None:
    """Make another table in the same place, whose log has as many commits and more."""
    shutil.rmtree(table)
    for number in range(90, 90 + 2 * FILES):
        write_deltalake(str(table), rows_of(number), mode="append")


def put_back(table: Path) -> None:
    for version in range(1, FILES):
        (table / "_delta_log" / f"{version:020}.json").unlink()


def rename_column(table: Path) -> None:
    shutil.rmtree(table)
    write_deltalake(str(table), rows_of(0).rename_columns(["number", "at"]))


def upgrade(table: Path) -> None:
    DeltaTable(str(table)).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


def truncate(table: Path) -> None:
    file = second_file(table)
    file.write_bytes(file.read_bytes()[:-20])


CHANGES: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "vacuumed": (vacuum, rf"left/.*parquet is gone, .*: VACUUM removes .*; {BACK}, or start a new"),
    "overwritten": (
        lambda table: write_deltalake(str(table), rows_of(90), mode="overwrite"),
        "version 4 of the Delta table .*left has updated or deleted rows, and a stream .*skipChangeCommits",
    ),
    "restored": (lambda table: DeltaTable(str(table)).restore(0), "version 4 of the Delta table .*left has deleted"),
    "renamed": (lambda table: table.rename(table.with_name("other")), "input 'left': .*: the Delta table does not"),
    "made again": (make_again, "Delta table .*left: a part of what .* is of a table with the id .*: it was made again"),
    "put back": (put_back, "Delta table .*left: the query has read its version 3, and the newest version is 0"),
    "made with other columns": (rename_column, "input 'left' has no key column 'id'; valid are 'number', 'at'"),
    "upgraded": (upgrade, None),
    "a file removed": (lambda table: second_file(table).unlink(), f"left/.*parquet is gone, .*{BACK}"),
    "a file cut off": (truncate, f"left/.*parquet can't be read: .*{BACK}"),
}


class StopError(Exception):
    """Ends the first run in the midst of a batch."""


@pytest.mark.slow
@HAS_LIMITS
@pytest.mark.parametrize("change", drawn(CHANGES, 2))
def test_a_batch_gives_the_same_rows_or_names_what_has_changed_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    folders = [tmp_path / name for name in ("left", "right")]
    for number in range(FILES):
        write_deltalake(str(folders[0]), rows_of(number), mode="append")
        write_deltalake(str(folders[1]), rows_of(number, tier=["gold"] * ROWS), mode="append")
    seen: dict[int, list[tuple[int, str]]] = {}

    def run(dies_at: int | None = None) -> None:
        def keep(frame: Any, batch_id: int) -> None:
            if batch_id == dies_at:
                raise StopError
            seen[batch_id] = [(row.id, row.tier) for row in frame.collect()]

        inputs = [
            cj.Input(cj.sources.delta(str(each), options={"maxFilesPerTrigger": "1"}), "id", "at", name=each.name)
            for each in folders
        ]
        joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_right"))
        trigger = cj.Trigger.available_now(drain=True)
        joined.start(output=keep, checkpoint=str(tmp_path / "checkpoint"), trigger=trigger).await_termination()

    with pytest.raises(cj.QueryFailedError, match="StopError"):
        run(dies_at=1)
    kept = tmp_path / "kept"
    shutil.copytree(folders[0], kept)
    make, message = CHANGES[change]
    make(folders[0])
    if message is None:
        run()
    else:
        with pytest.raises(cj.CojoinError, match=message):
            run()
        shutil.rmtree(folders[0], ignore_errors=True)
        shutil.copytree(kept, folders[0])
        run()
    assert sorted(row for rows in seen.values() for row in rows) == EXPECTED


@pytest.mark.slow
@HAS_LIMITS
@pytest.mark.usefixtures("spark")
def test_a_commit_that_is_still_empty_while_a_query_runs_is_read_once_it_is_whole(tmp_path: Path) -> None:
    left, right, whole = (tmp_path / name for name in ("left", "right", "whole"))
    write_deltalake(str(left), rows_of(0))
    for number in range(2):
        write_deltalake(str(right), rows_of(number, tier=["gold"] * ROWS), mode="append")
    shutil.copytree(left, whole)
    write_deltalake(str(whole), rows_of(1), mode="append")
    inputs = [cj.Input(cj.sources.delta(str(each)), "id", "at", name=each.name) for each in (left, right)]
    seen = list[int]()
    query = (
        cj.connect(*inputs, key_groups=2)
        .asof_join(suffixes=("", "_right"))
        .start(
            output=lambda frame, _: seen.extend(row.id for row in frame.collect()),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=cj.Trigger.processing_time("100 milliseconds"),
        )
    )
    wait_for(query, lambda report: report.inputs[0].rows_in == ROWS)
    commit = left / "_delta_log" / f"{1:020}.json"
    for file in whole.glob("*.parquet"):
        shutil.copy2(file, left)
    commit.touch()
    # It is looked at some times.
    time.sleep(3)
    shutil.copyfile(whole / "_delta_log" / commit.name, commit)
    # That of the last moment waits.
    wait_for(query, lambda report: report.rows_out == 2 * ROWS - 1)
    query.stop()
    assert sorted(seen) == [*range(2 * ROWS - 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_table_that_was_put_back_and_has_grown_again_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_checks, "_CLOCKS_DIFFER_MS", 0)
    left, right, backup = (tmp_path / name for name in ("left", "right", "backup"))
    write_deltalake(str(right), rows_of(0, tier=["gold"] * ROWS))

    def append(*numbers: int) -> None:
        for number in numbers:
            write_deltalake(str(left), rows_of(number), mode="append")

    def warned() -> list[str]:
        """Run the daily job, and return its warnings of missing rows."""
        inputs = [cj.Input(cj.sources.delta(str(each)), "id", "at", name=each.name) for each in (left, right)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            query = (
                cj.connect(*inputs, key_groups=2)
                .asof_join(suffixes=("", "_right"))
                .start(
                    output=cj.sinks.delta(f"{tmp_path}/out"),
                    checkpoint=str(tmp_path / "checkpoint"),
                    trigger=cj.Trigger.available_now(),
                )
            )
        query.await_termination()
        return [str(each.message) for each in caught if issubclass(each.category, cj.MissingRowsWarning)]

    append(0)
    shutil.copytree(left, backup)
    append(1)
    assert warned() == []
    append(2)
    assert warned() == []
    shutil.rmtree(left)
    shutil.copytree(backup, left)
    append(3, 4, 5)
    (line,) = warned()
    assert line.startswith(f"input 'left': Delta table {left}: the batch ")
    assert " has read up to version 2, and that version is of " in line
