"""Rows are read by pyarrow as ``deltalake`` reads them, or are left to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cojoin.delta.table_log import UnreadableLogError
from cojoin.delta.table_rows import TableRows
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import by_hand, features

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])


def rows_of(folder: Path) -> TableRows:
    return TableRows(LocalStore(str(folder.parent)), folder.name)


def test_the_rows_of_files_with_and_without_a_column(tmp_path: Path) -> None:
    place = tmp_path / "a table"
    assert rows_of(place).read(SCHEMA) == SCHEMA.empty_table()
    assert rows_of(place).largest("id") is None
    write_deltalake(str(place), pa.table({"id": [3, 1]}), mode="append")
    more = pa.table({"id": [2], "at": [5], "tags": [["a", None]]}, schema=SCHEMA)
    write_deltalake(str(place), more, mode="append", schema_mode="merge")
    DeltaTable(str(place)).delete("id = 1")
    found = rows_of(place)
    assert found.why_not is None
    query = QueryBuilder().register("t", DeltaTable(str(place)))
    theirs = pa.table(query.execute("select id, at, tags from t order by id").read_all())
    assert found.read(SCHEMA).sort_by("id").to_pylist() == theirs.to_pylist()
    assert found.largest("id") == 3


def test_without_statistics_the_column_is_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [3, 9], "more": [1, 2]}))
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace("maxValues", "unknown"))
    assert rows_of(tmp_path / "t").largest("id") == 9


def test_what_is_not_in_the_files_as_it_is_is_left_to_spark(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "p"), pa.table({"id": [1], "day": ["a"]}), partition_by=["day"])
    assert rows_of(tmp_path / "p").why_not == "its partition columns"
    by_hand(tmp_path / "m", features(reader=["typeWidening"]))
    assert rows_of(tmp_path / "m").why_not == "its feature 'typeWidening'"
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    add = {"path": "a.parquet", "size": 1, "partitionValues": {}, "deletionVector": vector}
    by_hand(tmp_path / "v", features(reader=["deletionVectors"]), actions=[{"add": add}])
    assert rows_of(tmp_path / "v").why_not == "its deletion vectors"


def test_a_file_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    found = rows_of(tmp_path / "t")
    place = tmp_path / "t" / found.files[0].path
    place.write_bytes(b"damaged")
    with pytest.raises(UnreadableLogError, match=f"file {place.name} can't be read: .*; put it back from a backup"):
        found.read(SCHEMA)
    place.unlink()
    with pytest.raises(UnreadableLogError, match=f"file {place.name} can't be read: it is not there"):
        found.read(SCHEMA)
