"""Tables of cojoin's writers have the same rows for every reader: Spark, deltalake, Polars and DuckDB."""

from __future__ import annotations

import json
import time
from datetime import date
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from cojoin.delta.actions import DataFile
from cojoin.delta.table_batches import TableBatches
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.storage.local_store import LocalStore
from cojoin.storage.parquet_files import WrittenFile
from tests.delta.tables import APP
from tests.spark.data import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_INNER = pa.schema([("id", pa.int64()), ("note", pa.string()), ("tags", pa.list_(pa.int32()))])
_OFTEN = {"delta.checkpointInterval": "3"}


def _file(folder: Path, rows: Sequence[tuple[int, str | None]], name: str, **values: str | None) -> DataFile:
    """Write a file of rows of an id and a note into a table's folder; those with a note have tags, too."""
    columns = {
        "id": [number for number, _ in rows],
        "note": [note for _, note in rows],
        "tags": [None if note is None else [number, None] for number, note in rows],
    }
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=_INNER), place)
    numbers = columns["id"]
    statistics = {
        "numRecords": len(rows),
        "minValues": {"id": min(numbers)},
        "maxValues": {"id": max(numbers)},
        "nullCount": {"id": 0, "note": sum(note is None for _, note in rows)},
    }
    return DataFile(name, place.stat().st_size, int(1000 * time.time()), json.dumps(statistics), values)


def _by_writer(root: Path) -> list[dict[str, Any]]:
    """Write a table with partitions whose values and files have characters that are escaped; return its rows."""
    folder = root / "t"
    schema = pa.schema([*_INNER, pa.field("day", pa.date32()), pa.field("side", pa.string())])
    ours = TableWriter(LocalStore(str(root)), "t")
    first, second = date(2026, 1, 1), None

    def commit(number: int, added: list[DataFile], removed: Sequence[DataFile] = ()) -> None:
        new = NewTable(schema, ["day", "side"], _OFTEN)
        ours.commit(Change({APP: number}, schema, added, removed), lambda _: False, new=new)

    # The folders are named as Spark names them: Polars takes the partition values from there, and not from the log.
    none = "__HIVE_DEFAULT_PARTITION__"
    places = [
        ("day=2026-01-01/side=a +%25", "2026-01-01", "a +%"),
        (f"day={none}/side=b%2Fü", None, "b/ü"),
        (f"day={none}/side={none}", None, None),
    ]
    for number, (folder_name, day, side) in enumerate(places):
        rows = [(10 * number, "x"), (10 * number + 1, None)]
        commit(number, [_file(folder, rows, f"{folder_name}/x y%41 {number}.parquet", day=day, side=side)])
    old = next(each for each in ours.files() if each.path.endswith("x y%41 0.parquet"))
    commit(3, [_file(folder, [(5, "z")], f"{places[0][0]}/new%.parquet", day="2026-01-01", side="a +%")], [old])
    commit(4, [_file(folder, [(6, None)], f"day=2026-01-01/side={none}/new.parquet", day="2026-01-01", side=None)])
    return [
        {"id": 5, "note": "z", "tags": [5, None], "day": first, "side": "a +%"},
        {"id": 6, "note": None, "tags": None, "day": first, "side": None},
        {"id": 10, "note": "x", "tags": [10, None], "day": second, "side": "b/ü"},
        {"id": 11, "note": None, "tags": None, "day": second, "side": "b/ü"},
        {"id": 20, "note": "x", "tags": [20, None], "day": second, "side": None},
        {"id": 21, "note": None, "tags": None, "day": second, "side": None},
    ]


def _by_batches(root: Path) -> list[dict[str, Any]]:
    """Write a query's batches, of which one replaces a file; return the table's rows."""
    ours = TableBatches(LocalStore(str(root)), "t", APP, 1, _OFTEN, replaces=True)

    def written(number: int, note: str | None) -> WrittenFile:
        file = _file(root / "t", [(number, note)], f"a b%25/part {number} {note}.parquet")
        return WrittenFile(file.path, 1, file.size, file.modified, file.statistics or "")

    for number in range(3):
        ours.append(_INNER, [written(number, None)], number, query_id="0b8e", is_done=lambda _: False)
    ours.replace(_INNER, lambda files: ([written(1, "new")], files[1:2]), 3, query_id="0b8e", is_done=lambda _: False)
    ours.append(_INNER, [written(4, "last")], 4, query_id="0b8e", is_done=lambda _: False)
    return [
        {"id": 0, "note": None, "tags": None},
        {"id": 1, "note": "new", "tags": [1, None]},
        {"id": 2, "note": None, "tags": None},
        {"id": 4, "note": "last", "tags": [4, None]},
    ]


def _of_duckdb(place: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        try:
            connection.execute("LOAD delta")
        except duckdb.Error:
            # Without its extension, DuckDB reads the files that deltalake lists.
            connection.register("listed", DeltaTable(place).to_pyarrow_dataset())
            found = connection.sql("SELECT * FROM listed")
        else:
            found = connection.sql(f"SELECT * FROM delta_scan('{place}')")
        return found.to_arrow_table().to_pylist()


@pytest.mark.parametrize("made", [_by_writer, _by_batches])
def test_every_reader_reads_the_same_rows(
    spark: SparkSession, tmp_path: Path, made: Callable[[Path], list[dict[str, Any]]]
) -> None:
    # Polars does not find a table below a folder with a blank; within the table, it does.
    expected, place = made(tmp_path), str(tmp_path / "t")
    log = tmp_path / "t" / "_delta_log"
    assert (log / f"{3:020d}.checkpoint.parquet").exists()
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    assert TableLog(LocalStore(place)).versions() == (3, 4)

    query = QueryBuilder().register("t", DeltaTable(place)).execute("SELECT * FROM t")
    found = {
        "spark": [each.asDict(recursive=True) for each in table(spark, tmp_path / "t").collect()],
        "deltalake": pa.table(query.read_all()).to_pylist(),
        "polars": pl.read_delta(place).to_dicts(),
        "polars, lazily": pl.scan_delta(place).filter(pl.col("id") >= 0).collect().to_dicts(),
        "duckdb": _of_duckdb(place),
    }
    for reader, rows in found.items():
        assert sorted(rows, key=lambda row: row["id"]) == expected, reader
