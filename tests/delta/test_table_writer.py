"""A commit takes effect once, on the version with which it was compared, and leaves what others have written."""

from __future__ import annotations

import json
import logging
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cojoin.delta import table_writer
from cojoin.delta.actions import DataFile
from cojoin.delta.deltalake_table import LostCommitError, TableConflictError, TableRefusedError
from cojoin.delta.table_log import TableLog, UnreadableLogError
from cojoin.delta.table_writer import Change, Committed, NewTable, TableWriter, why_not_creatable
from cojoin.errors import QueryFailedError
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import APP, FIELDS, SCHEMA, append, by_hand, commit, data_file, features, ids, writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FENCE = f"epoch-of-{APP}"


def never(_: Any) -> bool:
    return False


def log_of(folder: Path) -> TableLog:
    return TableLog(LocalStore(str(folder), "table"))


def test_batches_are_appended_once(tmp_path: Path) -> None:
    ours = writer(tmp_path)
    made = [append(ours, tmp_path, number) for number in (0, 1, 1, 2, 0)]
    assert [(each.version, each.is_new) for each in made] == [(0, True), (1, True), (1, False), (2, True), (2, False)]
    assert ids(tmp_path) == [0, 1, 2]
    assert {each.table_id for each in made} == {DeltaTable(str(tmp_path)).metadata().id}
    assert DeltaTable(str(tmp_path)).transaction_version(APP) == 2


def test_a_commit_shows_in_the_history_what_sparks_writer_shows(tmp_path: Path) -> None:
    change = Change({APP: 4, FENCE: 2}, SCHEMA, [data_file(tmp_path, [1, 2])], metadata="marker", query_id="0b8e")
    writer(tmp_path).commit(change, never, new=NewTable(SCHEMA))
    append(writer(tmp_path), tmp_path, 5)
    first, second = log_of(tmp_path).commits(-1)
    assert first.info["operationParameters"]["outputMode"] == "Append"
    assert (first.info["operationParameters"]["queryId"], first.info["operationParameters"]["epochId"]) == ("0b8e", "4")
    metrics = {"numOutputRows": "2", "numAddedFiles": "1", "numOutputBytes": str(change.added[0].size)}
    assert first.info["operationMetrics"] == {**metrics, "numRemovedFiles": "0"}
    assert (first.user_metadata, first.info["isBlindAppend"], first.info["isolationLevel"]) == (
        "marker",
        True,
        "Serializable",
    )
    assert (second.info["readVersion"], second.info["isBlindAppend"]) == (0, True)
    lines = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    written = [json.loads(each)["txn"] for each in lines if '"txn"' in each]
    assert {each["appId"]: each["version"] for each in written} == {APP: 4, FENCE: 2}
    assert all(each["lastUpdated"] > 1_700_000_000_000 for each in written)


def test_an_empty_table_with_properties_and_partitions(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("day", pa.date32()), pa.field("side", pa.string())])
    new = NewTable(schema, ["day", "side"], {"delta.appendOnly": "true", "delta.checkpointInterval": "7"})
    ours = writer(tmp_path)
    assert why_not_creatable({**new.properties, "delta.enableDeletionVectors": "true"}) == (
        "new tables have properties that only Spark gives: delta.enableDeletionVectors"
    )
    assert ours.commit(Change({FENCE: 1}), never, new=new).version == 0
    found = DeltaTable(str(tmp_path))
    assert found.metadata().configuration == {"delta.appendOnly": "true", "delta.checkpointInterval": "7"}
    assert (found.protocol().min_reader_version, found.protocol().min_writer_version) == (1, 2)
    file = data_file(tmp_path, [3], "day=2026-01-01/side=a%20b/x y%41.parquet", day="2026-01-01", side="a b")
    other = data_file(tmp_path, [4], "day=__HIVE_DEFAULT_PARTITION__/side=c/z.parquet", day=None, side="c")
    ours.commit(Change({APP: 0}, schema, [file, other]), never)
    assert log_of(tmp_path).files(1) == [file, other]
    assert ids(tmp_path) == [3, 4]
    assert (
        DeltaTable(str(tmp_path)).partitions()
        == [
            {"day": "2026-01-01", "side": "a b"},
            {"day": None, "side": "c"},
        ]
        or len(DeltaTable(str(tmp_path)).partitions()) == 2
    )
    for values, why in (
        ({"day": "2026-01-01"}, r"expected values of the partition columns \['day', 'side'\], got \['day'\]"),
        (
            {"day": None, "side": ""},
            "the value '' of the partition column 'side' is an empty text, which Spark reads as a null",
        ),
        ({"day": "1 May", "side": "c"}, "the value '1 May' of the partition column 'day' is not of its type date"),
    ):
        with pytest.raises(TableRefusedError, match=why):
            ours.commit(Change({APP: 1}, schema, [data_file(tmp_path, [5], **values)]), never)
    with pytest.raises(TableRefusedError, match=r"its property delta.appendOnly does not allow this commit"):
        ours.commit(Change({APP: 1}, removed=[file]), never)


def test_a_new_column_type_brings_its_feature(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us")), ("tags", pa.map_(pa.string(), pa.list_(pa.int32())))])
    writer(tmp_path).commit(Change({APP: 0}), never, new=NewTable(schema))
    assert "timestampNtz" in (DeltaTable(str(tmp_path)).protocol().reader_features or [])


def test_files_are_replaced_in_one_commit(tmp_path: Path) -> None:
    ours = writer(tmp_path)
    for number in range(4):
        append(ours, tmp_path, number)
    old = log_of(tmp_path).files(3)
    change = Change({"compaction": 0}, SCHEMA, [data_file(tmp_path, [0, 1, 2])], old[:3], changes_data=False)
    assert ours.commit(change, never).version == 4
    assert ids(tmp_path) == [0, 1, 2, 3]
    (last,) = log_of(tmp_path).commits(3)
    assert [each.path for each in last.removed] == [each.path for each in old[:3]]
    assert not any(each.changes_data for each in (*last.added, *last.removed))
    assert (last.info["isBlindAppend"], last.info["operationMetrics"]["numRemovedFiles"]) == (False, "3")
    assert ours.commit(Change({"compaction": 1}, removed=old[3:]), never).version == 5
    assert ids(tmp_path) == [0, 1, 2]
    with pytest.raises(TableRefusedError, match="1 files that this commit removes are gone"):
        ours.commit(Change({"compaction": 2}, removed=old[3:]), never)


def test_a_run_that_another_has_taken_over_can_not_commit(tmp_path: Path) -> None:
    ours, theirs = writer(tmp_path), writer(tmp_path)

    def compare(epoch: int, batch_id: int) -> Callable[[Callable[[str], int | None]], bool]:
        def compared(version: Callable[[str], int | None]) -> bool:
            if (version(FENCE) or 0) > epoch:
                msg = "fenced off"
                raise QueryFailedError(msg)
            if epoch == 1 and batch_id == 1 and not fenced:
                # Between our comparison and our commit.
                fenced.append(theirs.commit(Change({FENCE: 2}), never))
            return (-1 if version(APP) is None else version(APP) or 0) >= batch_id

        return compared

    fenced: list[Committed] = []
    ours.commit(Change({APP: 0, FENCE: 1}, SCHEMA, [data_file(tmp_path, [0])]), compare(1, 0), new=NewTable(SCHEMA))
    with pytest.raises(QueryFailedError, match="fenced off"):
        ours.commit(Change({APP: 1, FENCE: 1}, SCHEMA, [data_file(tmp_path, [1])]), compare(1, 1))
    assert fenced
    theirs.commit(Change({APP: 1, FENCE: 2}, SCHEMA, [data_file(tmp_path, [1])]), compare(2, 1))
    assert ids(tmp_path) == [0, 1]


def test_of_two_that_create_a_table_one_does(tmp_path: Path) -> None:
    ours, theirs = writer(tmp_path), writer(tmp_path)

    def compare(version: Callable[[str], int | None]) -> bool:
        if version("theirs") is None:
            append(theirs, tmp_path, 7, app_id="theirs")
        return False

    change = Change({APP: 0}, SCHEMA, [data_file(tmp_path, [0])])
    assert ours.commit(change, compare, new=NewTable(SCHEMA)).version == 1
    assert ids(tmp_path) == [0, 7]


@pytest.mark.parametrize("between", ["append", "delete", "optimize", "property", "checkpoint"])
def test_what_others_do_in_between_stays_and_the_comparison_is_made_anew(tmp_path: Path, between: str) -> None:
    ours = writer(tmp_path)
    for number in range(3):
        append(ours, tmp_path, number)
    compared = []

    def compare(version: Callable[[str], int | None]) -> bool:
        compared.append(version(APP))
        table = DeltaTable(str(tmp_path))
        if len(compared) > 1:
            return False
        if between == "append":
            write_deltalake(str(tmp_path), pa.table({"id": [9]}, schema=SCHEMA), mode="append")
        elif between == "delete":
            table.delete("id = 1")
        elif between == "optimize":
            table.optimize.compact()
        elif between == "property":
            table.alter.set_table_properties({"delta.logRetentionDuration": "interval 5 days"})
        else:
            table.create_checkpoint()
        return False

    made = ours.commit(Change({APP: 3}, SCHEMA, [data_file(tmp_path, [3])]), compare)
    expected = {"append": [0, 1, 2, 3, 9], "delete": [0, 2, 3]}
    assert ids(tmp_path) == expected.get(between, [0, 1, 2, 3])
    assert (made.version, len(compared)) == ((3, 1) if between == "checkpoint" else (4, 2))


@pytest.mark.parametrize("between", ["constraint", "column", "mapping"])
def test_what_others_change_in_between_is_refused_by_name(tmp_path: Path, between: str) -> None:
    ours = writer(tmp_path)
    append(ours, tmp_path, 0)
    before = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    metadata = next(json.loads(each)["metaData"] for each in before if '"metaData"' in each)

    def compare(_: Any) -> bool:
        if between == "constraint":
            DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "id >= 0"})
        elif between == "column":
            fields = [*FIELDS, {"name": "day", "type": "date", "nullable": True, "metadata": {}}]
            metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
            commit(tmp_path, 1, {"metaData": metadata})
        else:
            metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
            mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
            fields = [{**FIELDS[0], "metadata": mapped}]
            metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
            commit(tmp_path, 1, {"protocol": features(reader=["columnMapping"])}, {"metaData": metadata})
        return False

    why = {"constraint": "CHECK constraint 'positive'", "column": "in the table alone: day date", "mapping": "mapping"}
    with pytest.raises(TableRefusedError, match=why[between]):
        ours.commit(Change({APP: 1}, SCHEMA, [data_file(tmp_path, [1])]), compare)
    assert ids(tmp_path) == [0]


def test_others_that_are_always_first(tmp_path: Path) -> None:
    ours, theirs, compared = writer(tmp_path), writer(tmp_path), []
    append(ours, tmp_path, 0)

    def compare(_: Any) -> bool:
        compared.append(append(theirs, tmp_path, len(compared), app_id="theirs"))
        return False

    with pytest.raises(TableConflictError, match="others commit to it at the same time, in each of 5 tries"):
        ours.commit(Change({APP: 1}, SCHEMA, [data_file(tmp_path, [9])]), compare)
    assert len(compared) == 5
    assert 9 not in ids(tmp_path)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ours, good = writer(tmp_path), data_file(tmp_path)
    append(ours, tmp_path, 0)
    other = pa.schema([("id", pa.int32())])
    (tmp_path / "empty.parquet").touch()
    wrong = [
        (SCHEMA, DataFile("empty.parquet", 5), "empty.parquet: expected 5 bytes, found 0; check"),
        (SCHEMA, DataFile("none.parquet", 5), "none.parquet: expected 5 bytes, found no such file"),
        (SCHEMA, DataFile(good.path, good.size + 1), f"expected {good.size + 1} bytes, found {good.size}"),
        (other, good, "in the table alone: id long, in the files alone: id integer"),
        (None, good, "the files' columns are not known"),
        (SCHEMA, data_file(tmp_path, day="1"), r"expected values of the partition columns \[\], got \['day'\]"),
    ]
    for schema, file, why in wrong:
        with pytest.raises(TableRefusedError, match=why):
            ours.commit(Change({APP: 1}, schema, [file]), never)
    assert ids(tmp_path) == [0]


def test_columns_that_are_not_null(tmp_path: Path) -> None:
    by_hand(tmp_path, fields=[{**FIELDS[0], "nullable": False}])
    ours, file = writer(tmp_path), data_file(tmp_path)
    assert ours.commit(Change({APP: 0}, SCHEMA, [file]), never).version == 1
    for nulls, why in (('{"id":1}', "count 0 nulls in it, got 1"), ("{}", "count 0 nulls in it, got unknown")):
        bad = DataFile(file.path, file.size, 0, f'{{"numRecords":1,"nullCount":{nulls}}}')
        with pytest.raises(TableRefusedError, match=f"the column 'id' is NOT NULL.*{why}"):
            ours.commit(Change({APP: 1}, SCHEMA, [bad]), never)


def test_a_file_without_a_count_does_not_go_into_a_table_with_deletion_vectors(tmp_path: Path) -> None:
    by_hand(tmp_path, features(reader=["deletionVectors"]))
    file = data_file(tmp_path)
    with pytest.raises(TableRefusedError, match="expected statistics with the number of rows"):
        writer(tmp_path).commit(Change({APP: 1}, SCHEMA, [DataFile(file.path, file.size)]), never)


def test_a_table_that_was_made_anew_takes_the_commit_as_its_own(tmp_path: Path) -> None:
    ours = writer(tmp_path / "t")
    first = [append(ours, tmp_path / "t", number) for number in range(3)][-1]
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(QueryFailedError, match="it does not exist; create it first"):
        ours.commit(Change({APP: 3}), never)
    append(writer(tmp_path / "t"), tmp_path / "t", 0)
    made = append(ours, tmp_path / "t", 1)
    assert made.version == 1
    assert made.table_id != first.table_id


@pytest.mark.parametrize("what", ["gone", "that of another writer"])
def test_a_commit_that_another_writer_has_overwritten_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ours = writer(tmp_path, reads_back=True)
    append(ours, tmp_path, 0)
    real = DeltaTable.create_write_transaction

    def overwritten(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        real(table, *arguments, **options)
        place = tmp_path / "_delta_log" / f"{1:020d}.json"
        if what == "gone":
            place.unlink()
        else:
            place.write_text('{"txn":{"appId":"theirs","version":1}}\n')

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overwritten)
    with pytest.raises(LostCommitError, match=f"the commit of version 1 was made and is {what}") as caught:
        append(ours, tmp_path, 1)
    assert caught.value.version == 1
    monkeypatch.undo()
    assert append(ours, tmp_path, 1).version == (1 if what == "gone" else 2)


def test_a_commit_of_which_no_answer_came_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = writer(tmp_path)
    append(ours, tmp_path, 0)
    real = DeltaTable.create_write_transaction

    def unanswered(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        real(table, *arguments, **options)
        msg = "connection closed before message completed"
        raise OSError(msg)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unanswered)
    assert append(ours, tmp_path, 1) == Committed(DeltaTable(str(tmp_path)).metadata().id, 1, is_new=False)

    def refused(*_: Any, **__: Any) -> None:
        msg = "Permission denied"
        raise OSError(msg)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    with pytest.raises(QueryFailedError, match=r"Delta table .*: it can't be written: Permission denied; see that"):
        append(ours, tmp_path, 2)
    assert ids(tmp_path) == [0, 1]


def test_the_log_has_checkpoints_and_is_cleaned_by_the_tables_properties(tmp_path: Path) -> None:
    properties = {"delta.checkpointInterval": "3", "delta.logRetentionDuration": "interval 0 days"}
    for name, more in (("cleaned", {}), ("kept", {"delta.enableExpiredLogCleanup": "false"})):
        ours = writer(tmp_path / name)
        for number in range(8):
            append(ours, tmp_path / name, number, properties={**properties, **more})
        found = sorted(each.name for each in (tmp_path / name / "_delta_log").iterdir())
        checkpoints = [int(each[:20]) for each in found if ".checkpoint" in each]
        commits = [int(each[:20]) for each in found if each.endswith(".json")]
        assert (checkpoints[-1], commits[-1]) == (6, 7)
        assert (commits[0] == 0) == (name == "kept")
        assert ids(tmp_path / name) == list(range(8))
        assert log_of(tmp_path / name).newest().transaction(APP) == 7  # type: ignore[union-attr]


def test_without_its_property_the_log_has_a_checkpoint_at_every_tenth_version(tmp_path: Path) -> None:
    by_hand(tmp_path)
    ours = writer(tmp_path)
    for number in range(1, 21):
        append(ours, tmp_path, number)
        found = sorted(int(each.name[:20]) for each in (tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
        assert found == [10, 20][: number // 10]
    assert ids(tmp_path) == list(range(1, 21))


def test_a_checkpoint_that_fails_is_no_commits_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: DeltaTable) -> None:
        msg = "No space left on device"
        raise OSError(msg)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", refused)
    ours = writer(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            assert append(ours, tmp_path, number, properties={"delta.checkpointInterval": "2"}).version == number
    assert "can't be given a checkpoint of its log at version 2: No space left on device" in caplog.text


def test_a_folder_that_deltalake_takes_for_another_one_is_left_to_spark(tmp_path: Path) -> None:
    for name in ("a%41", "a\\b"):
        with pytest.raises(QueryFailedError, match="its path has characters that deltalake takes for a URL's"):
            TableWriter(LocalStore(str(tmp_path), "table"), name)
    for name in ("a b", "a#b", "a?b", "ä", "a[1]"):
        made = TableWriter(LocalStore(str(tmp_path), "table"), name)
        append(made, tmp_path / name, 0)
        append(made, tmp_path / name, 1)
        assert [each.name for each in (tmp_path / name / "_delta_log").iterdir()]
        assert ids(tmp_path / name) == [0, 1]


def test_the_statistics_of_many_files_are_those_written(tmp_path: Path) -> None:
    files = [data_file(tmp_path, [number]) for number in range(30)]
    writer(tmp_path).commit(Change({APP: 0}, SCHEMA, files), never, new=NewTable(SCHEMA))
    assert sorted(log_of(tmp_path).files(0), key=lambda each: each.path) == sorted(files, key=lambda each: each.path)
    assert pq.read_table(tmp_path / files[3].path)["id"].to_pylist() == [3]
    assert DeltaTable(str(tmp_path)).metadata().configuration == table_writer.DEFAULT_PROPERTIES


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_damaged_checkpoint_is_named_and_its_cure_helps(tmp_path: Path, *, is_complete: bool) -> None:
    """``deltalake`` opens no such table; Delta and ``TableLog`` read the commits instead, where these are complete."""
    for number in range(3):
        append(writer(tmp_path), tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    log = tmp_path / "_delta_log"
    checkpoint, commit = log / f"{2:020d}.checkpoint.parquet", log / f"{0:020d}.json"
    backup = checkpoint.read_bytes()
    checkpoint.write_bytes(b"PAR1 damaged")
    if is_complete:
        newest = log_of(tmp_path).newest()
        assert newest is not None
        assert newest.version == 2
    else:
        commit.unlink()
    with pytest.raises(UnreadableLogError) as caught:
        append(writer(tmp_path), tmp_path, 3)
    named = f"the checkpoint _delta_log/{checkpoint.name} can't be read: ArrowInvalid: "
    cure = "delete it and _delta_log/_last_checkpoint, or else put it back from a backup of the table"
    assert named in str(caught.value)
    assert str(caught.value).endswith(cure)
    if is_complete:
        checkpoint.unlink()
        (log / "_last_checkpoint").unlink()
    else:
        checkpoint.write_bytes(backup)
    assert append(writer(tmp_path), tmp_path, 3).version == 3
