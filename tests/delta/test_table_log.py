"""The log and the rows read as files equal what ``deltalake`` reads; what is gone or damaged is named."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cojoin.delta.deltalake_table import deleted_rows
from cojoin.delta.table_log import TableLog, TableRows, UnreadableLogError, commit_name
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import FIELDS, PLAIN, append, by_hand, commit, data_file, deleting, features, writer
from tests.seeds import SEED

if TYPE_CHECKING:
    from pathlib import Path
METADATA = {"id": "0b8e", "schemaString": "{}", "partitionColumns": ["day"]}
ADD = {"path": "a%20b.parquet", "size": 5, "modificationTime": 1, "dataChange": False, "stats": '{"numRecords":2}'}
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])


def log_of(folder: Path) -> TableLog:
    return TableLog(LocalStore(str(folder), "table"))


def same(folder: Path, log: TableLog, version: int | None = None) -> None:
    """Compare a version with what ``deltalake`` reads."""
    theirs = DeltaTable(str(folder), version=version)
    ours = log.newest() if version is None else log.at(version)
    assert ours is not None
    assert (ours.version, ours.table_id) == (theirs.version(), theirs.metadata().id)
    assert ours.properties == theirs.metadata().configuration
    assert list(ours.partition_columns) == theirs.metadata().partition_columns
    assert json.loads(ours.schema_text) == json.loads(theirs.schema().to_json())
    assert {each: ours.transaction(each) for each in "abc"} == {
        each: theirs.transaction_version(each) for each in "abc"
    }
    added = pa.table(theirs.get_add_actions()).to_pylist()
    found = log.files(ours.version)
    assert {(each.path, each.size, each.rows) for each in found} == {
        (unquote(each["path"]), each["size_bytes"], each["num_records"]) for each in added
    }
    assert [each.modified for each in found] == sorted(each.modified for each in found)


def test_random_tables_of_another_writer_are_read_as_it_reads_them(tmp_path: Path) -> None:
    draws, folder = random.Random(SEED), tmp_path / "my table"
    log, kept = log_of(folder), 0
    assert log.newest() is None
    for number in range(25):
        rows = pa.table({"id": [number, number + 1], "day": ["x y", draws.choice("ab%")]})
        table = DeltaTable(str(folder)) if number else None
        kind = draws.choice(["append", "append", "ours", "delete", "optimize", "checkpoint"]) if table else "append"
        if kind == "append":
            write_deltalake(
                str(folder), rows, mode="append", partition_by=["day"], configuration={"delta.checkpointInterval": "7"}
            )
        elif table is not None and kind == "ours":
            commit(folder, table.version() + 1, {"txn": {"appId": draws.choice("ab"), "version": number}})
        elif table is not None and kind == "delete":
            table.delete(f"id = {draws.randrange(number)}")
        elif table is not None and kind == "optimize":
            table.optimize.compact()
        elif table is not None:
            table.create_checkpoint()
            kept = table.version()
        same(folder, log)
    for version in draws.sample(range(DeltaTable(str(folder)).version() + 1), 5):
        same(folder, log_of(folder), version)
    first = log_of(folder).newest()
    for version in range(kept):
        # The checkpoint has all that these commits did.
        (folder / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)
    if kept:
        same(folder, log_of(folder))
        assert log_of(folder).newest() == first


def test_a_commit_says_what_it_did(tmp_path: Path) -> None:
    ours = writer(tmp_path)
    append(ours, tmp_path, 0)
    append(ours, tmp_path, 1)
    DeltaTable(str(tmp_path)).delete("id = 0")
    first, second, third = log_of(tmp_path).commits(-1)
    assert [first.user_metadata, second.user_metadata] == ["batch 0", "batch 1"]
    assert (second.info["isBlindAppend"], second.info["operationMetrics"]["numOutputRows"]) == (True, "1")
    assert (third.info["operation"], len(third.removed), third.applications) == ("DELETE", 1, {})
    assert third.removed[0].path == first.added[0].path
    assert [each.version for each in log_of(tmp_path).commits(0, 1)] == [1]


def test_a_commit_that_its_writer_adds_is_the_next_one_or_is_read(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(str(tmp_path), pa.table({"id": [number]}), mode="append")
        if number == 1:
            log = log_of(tmp_path)
            assert log.newest() is not None
    contents = [(tmp_path / commit_name(version)).read_bytes() for version in range(4)]
    # It is not the one after the last that is known.
    log.add(3, contents[3])
    assert log.newest(1).version == 1  # type: ignore[union-attr]
    log.add(2, contents[2])
    assert log.newest(2).version == 2  # type: ignore[union-attr]
    same(tmp_path, log)
    log.forget()
    same(tmp_path, log)


def test_a_table_that_is_made_anew_is_another_one(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t")
    for number in range(3):
        append(writer(tmp_path / "t"), tmp_path / "t", number)
    before = log.newest()
    assert before is not None
    shutil.rmtree(tmp_path / "t")
    assert log.newest() is None
    append(writer(tmp_path / "t"), tmp_path / "t", 7)
    after = log.newest()
    assert after is not None
    assert (after.version, before.version) == (0, 2)
    assert after.table_id != before.table_id


def test_a_feature_that_nobody_knows_does_not_hide_the_application_ids(tmp_path: Path) -> None:
    fields = [*FIELDS, {"name": "where", "type": "geometry(OGC:CRS84)", "nullable": True, "metadata": {}}]
    by_hand(
        tmp_path, features(reader=["fromTheFuture"]), fields=fields, actions=[{"txn": {"appId": "a", "version": 3}}]
    )
    found = log_of(tmp_path).newest()
    assert found is not None
    assert found.transaction("a") == 3
    assert found.protocol.features == {"fromTheFuture"}


def checkpoint(folder: Path, name: str, *actions: dict[str, Any]) -> None:
    """Write a checkpoint's file by hand: a column for each kind of action."""
    kinds = sorted({kind for each in actions for kind in each})
    rows = [{kind: each.get(kind) for kind in kinds} for each in actions]
    place = folder / "_delta_log" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".json"):
        place.write_text("\n".join(map(json.dumps, actions)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), place)


@pytest.mark.parametrize("kind", ["whole", "parts", "v2 parquet", "v2 json"])
def test_checkpoints_of_every_kind(tmp_path: Path, kind: str) -> None:
    state = [{"protocol": PLAIN}, {"metaData": METADATA}, {"txn": {"appId": "a", "version": 3}}]
    one, two = {"add": ADD}, {"add": {**ADD, "path": "c.parquet"}}
    begin = f"{4:020d}.checkpoint"
    if kind == "whole":
        checkpoint(tmp_path, f"{begin}.parquet", *state, one, two)
    elif kind == "parts":
        checkpoint(tmp_path, f"{begin}.{1:010d}.{2:010d}.parquet", *state, one)
        checkpoint(tmp_path, f"{begin}.{2:010d}.{2:010d}.parquet", two)
        # Of a later one, a part is not written yet.
        checkpoint(tmp_path, f"{5:020d}.checkpoint.{1:010d}.{2:010d}.parquet", *state)
    else:
        side = [{"sidecar": {"path": f"{each}.parquet", "sizeInBytes": 1, "modificationTime": 1}} for each in "xy"]
        checkpoint(tmp_path, "_sidecars/x.parquet", one)
        checkpoint(tmp_path, "_sidecars/y.parquet", two)
        name = f"{begin}.80a083e8-7026-4e79-81be-64bd76c43a11.{kind.split()[1]}"
        checkpoint(tmp_path, name, {"checkpointMetadata": {"version": 4}}, *state, *side)
    commit(tmp_path, 5, {"txn": {"appId": "a", "version": 4}}, {"remove": {"path": "c.parquet", "dataChange": True}})
    log = log_of(tmp_path)
    found = log.newest()
    assert found is not None
    assert (found.version, found.transaction("a"), found.partition_columns) == (5, 4, ("day",))
    assert log.at(4).transaction("a") == 3
    assert [(each.path, each.rows) for each in log.files(5)] == [("a b.parquet", 2)]
    assert [each.path for each in log.files(4)] == ["a b.parquet", "c.parquet"]


def test_a_file_with_another_deletion_vector_is_one_file(tmp_path: Path) -> None:
    vectors = [{"storageType": "u", "pathOrInlineDv": each, "offset": 1} for each in "ab"]
    by_hand(tmp_path, features(reader=["deletionVectors"]), actions=[{"add": ADD}])
    before: dict[str, Any] = {}
    for version, vector in enumerate(vectors, 1):
        removed = {"remove": {"path": ADD["path"], "dataChange": True, **before}}
        before = {"deletionVector": vector}
        commit(tmp_path, version, {"add": {**ADD, **before}}, removed)
    assert [each.deletion_vector for each in log_of(tmp_path).files(2)] == [vectors[1]]


def test_a_log_that_was_cleaned_names_its_oldest_commit(tmp_path: Path) -> None:
    for number in range(4):
        append(writer(tmp_path), tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    log = log_of(tmp_path)
    assert log.earliest() == 3
    with pytest.raises(UnreadableLogError, match="the commit of version 1 is not in its log: its oldest commit is 3"):
        list(log.commits(0))
    with pytest.raises(UnreadableLogError, match="version 0 is not in its log"):
        log.at(2)
    with pytest.raises(UnreadableLogError, match="version 9 does not exist; the newest is 3"):
        log.at(9)
    with pytest.raises(UnreadableLogError, match="version 9 does not exist; the newest is 3"):
        log.files(9)


def test_a_damaged_checkpoint_is_passed_over_or_named(tmp_path: Path) -> None:
    for number in range(3):
        append(writer(tmp_path), tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{2:020d}.checkpoint.parquet").write_bytes(b"PAR1 damaged")
    assert log_of(tmp_path).at(2).transaction("cojoin-0b8e-output") == 2
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(UnreadableLogError, match=r"checkpoint _delta_log/0{19}2.checkpoint.parquet can't be read"):
        log_of(tmp_path).newest()


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    append(writer(tmp_path), tmp_path, 0)
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"txn":{"appId":"a"')
    with pytest.raises(UnreadableLogError, match=r"_delta_log/0{19}1.json can't be read: JSONDecodeError"):
        log_of(tmp_path).newest()


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_a_commit_without_an_action_is_not_a_version_without_changes(tmp_path: Path, content: bytes) -> None:
    for number in range(2):
        append(writer(tmp_path), tmp_path, number)
    log, place = log_of(tmp_path), tmp_path / commit_name(2)
    before = log.newest()
    append(writer(tmp_path), tmp_path, 2)
    whole = place.read_bytes()
    place.write_bytes(content)
    for read in (log.newest, log_of(tmp_path).newest, lambda: log.commit(2), lambda: log.files(2)):
        with pytest.raises(UnreadableLogError, match=r"_delta_log/0{19}2.json is empty.* Start again once it is whole"):
            read()
    with pytest.raises(UnreadableLogError, match="is empty"):
        append(writer(tmp_path), tmp_path, 3)
    # Nothing of it was kept.
    assert log.last_read == before
    place.write_bytes(whole)
    same(tmp_path, log)


def test_files_of_one_moment_are_in_the_order_of_their_paths_as_the_log_has_them(tmp_path: Path) -> None:
    paths = ["day=a%20b/0", "day=a%257C/0", "day=a%7Cb/0", "day=a-b/0", "day=ab/0", "day=%C3%A4/0", "file%201", "file1"]
    drawn = random.Random(SEED).sample(paths, len(paths))
    adds = [{"add": {**ADD, "path": path, "partitionValues": {}}} for path in drawn]
    earlier = {"add": {**ADD, "path": "z", "partitionValues": {}, "modificationTime": 0}}
    by_hand(tmp_path, actions=[*adds[:4], earlier])
    commit(tmp_path, 1, *adds[4:])
    # As Delta's source numbers them: by the bytes of what is in the log.
    expected = ["z", *map(unquote, sorted(paths))]
    assert [each.path for each in log_of(tmp_path).files(1)] == expected
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(2):
        (tmp_path / commit_name(version)).unlink()
    assert [each.path for each in log_of(tmp_path).files(1)] == expected


def test_deleted_rows_are_those_of_the_file_with_the_whole_path(tmp_path: Path) -> None:
    folder, actions = tmp_path / "my table", list[dict[str, Any]]()
    deleted = {"x.parquet": (0, 1), "d/x.parquet": (2, 3), "e f/d/x.parquet": (1, 9), "a%20b|ä.parquet": (0,)}
    for path, rows in deleted.items():
        file = data_file(folder, range(10), path)
        vector = {"deletionVector": deleting(*rows), "partitionValues": {}}
        actions.append({"add": {**ADD, "path": quote(path), "size": file.size, "stats": file.statistics, **vector}})
    by_hand(folder, features(reader=["deletionVectors"]), actions=actions)
    (tmp_path / "link").symlink_to(folder)
    for root in (folder, tmp_path / "link"):
        found = deleted_rows(LocalStore(str(root), "table"), 0, [*deleted, "another/x.parquet"])
        assert {
            path: tuple(row for row in range(10) if bits[row // 8] >> row % 8 & 1) for path, bits in found.items()
        } == deleted


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
    with pytest.raises(UnreadableLogError, match=f"file {place.name} can't be read: it is missing"):
        found.read(SCHEMA)
