"""A stream of a table gives each appended file once, however its batches are cut and wherever it is continued."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cojoin.delta import table_log
from cojoin.delta.actions import Protocol
from cojoin.delta.table_log import TableLog, UnreadableLogError
from cojoin.delta.table_stream import Columns, Limits, Position, TableStream, why_unreadable
from cojoin.errors import QueryFailedError
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import FIELDS, PLAIN, by_hand, commit, features
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from cojoin.delta.table_stream import Removals

ALL = Limits(None, None)


def append(folder: Path, *ids: int) -> None:
    """Append rows to a table."""
    write_deltalake(str(folder), pa.table({"id": list(ids)}), mode="append")


def stream_of(folder: Path, removals: Removals | None = "fail") -> TableStream:
    log = TableLog(LocalStore(str(folder)))
    table = log.newest()
    assert table is not None
    return TableStream(log, table.table_id, Columns.of(table.metadata), removals)


def batches(
    folder: Path, begin: Position, limits: Limits, removals: Removals = "fail"
) -> list[tuple[Position, list[str]]]:
    """Return the batches from a position to the table's newest version: where each ends, and its files' paths."""
    stream, found = stream_of(folder, removals), list[tuple[Position, list[str]]]()
    until = stream.newest()
    while (end := stream.next(begin, until, limits)) != begin:
        found.append((end, [each.file.path for each in stream.files(begin, end)]))
        # Another process chooses the same files of the same positions.
        assert [each.file.path for each in stream_of(folder, removals).files(begin, end)] == found[-1][1]
        begin = Position.of(json.loads(json.dumps(end.as_offset())))
        assert begin == end
    return found


def ids(folder: Path, paths: list[str]) -> list[int]:
    return [each for path in paths for each in pq.read_table(folder / path)["id"].to_pylist()]


def test_each_appended_row_comes_once_whatever_the_limits_and_the_stops(tmp_path: Path) -> None:
    draws, written = random.Random(SEED), 0
    for _ in range(draws.randrange(1, 6)):
        append(tmp_path, written, written + 1)
        written += 2
    position, seen = stream_of(tmp_path).first(), list[int]()
    for _ in range(12):
        kind = draws.choice(["append", "append", "optimize", "checkpoint", "property", "nothing"])
        if kind == "append":
            append(tmp_path, *range(written, written + 3))
            written += 3
        elif kind == "optimize":
            DeltaTable(str(tmp_path)).optimize.compact()
        elif kind == "checkpoint":
            DeltaTable(str(tmp_path)).create_checkpoint()
        elif kind == "property":
            DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
        limits = draws.choice([Limits(1), Limits(2), Limits(1_000), ALL, Limits(None, 1), Limits(None, 2_000)])
        for end, paths in batches(tmp_path, position, limits)[: draws.randrange(1, 5)]:
            assert limits.files is None or len(paths) <= limits.files
            seen += ids(tmp_path, paths)
            position = end
    for _, paths in batches(tmp_path, position, ALL):
        seen += ids(tmp_path, paths)
    assert sorted(seen) == list(range(written))


def test_a_first_batch_that_is_repeated_has_the_files_that_its_end_names(tmp_path: Path) -> None:
    for number in range(5):
        append(tmp_path, number)
    stream = stream_of(tmp_path)
    first = stream.first()
    ends = [stream.next(first, 4, Limits(2)), stream.next(first, 4, ALL)]
    assert ends == [Position(first.table_id, 4, 1, in_snapshot=True), Position(first.table_id, 5)]
    append(tmp_path, 5)
    # A later start finds more commits, and repeats the batch by its end.
    assert [len(stream_of(tmp_path).files(first, end)) for end in ends] == [2, 5]


def test_the_first_batch_of_an_earlier_snapshot_ends_with_it_and_its_end_shows_the_version(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, number)
    stream = stream_of(tmp_path)
    first = replace(stream.first(), version=1)
    ends = [stream.next(first, 2, ALL), stream.next(first, 2, Limits(1))]
    assert ends == [Position(first.table_id, 2), Position(first.table_id, 1, 0, in_snapshot=True)]
    # Whichever version a start has taken for the first, the planned batch has its own.
    for begin in (first, stream.first(), replace(first, version=2)):
        assert [len(stream_of(tmp_path).files(begin, end)) for end in ends] == [2, 1]
    assert [paths for _, paths in batches(tmp_path, ends[1], ALL)] != []


def test_a_table_without_rows_is_read_to_its_end_and_then_its_first_rows(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))
    ((end, paths),) = batches(tmp_path, stream_of(tmp_path).first(), ALL)
    assert (end.version, end.index, end.in_snapshot, paths) == (1, -1, False, [])
    append(tmp_path, 7)
    ((_, paths),) = batches(tmp_path, end, ALL)
    assert ids(tmp_path, paths) == [7]


def test_commits_that_remove_rows_end_the_stream_unless_an_option_names_them(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    append(tmp_path, 3)
    begin = stream_of(tmp_path).next(stream_of(tmp_path).first(), 1, ALL)
    table = DeltaTable(str(tmp_path))
    table.delete("id = 3")
    table.update({"id": "id + 10"}, predicate="id = 1")
    append(tmp_path, 4)
    with pytest.raises(QueryFailedError, match=r"version 2 of the Delta table .* has deleted rows, and a stream .*"):
        batches(tmp_path, begin, ALL)
    with pytest.raises(QueryFailedError, match=r"version 3 of the Delta table .* has updated or deleted rows"):
        batches(tmp_path, begin, ALL, "ignore_deletes")
    read = {
        removals: sorted(each for _, paths in batches(tmp_path, begin, ALL, removals) for each in ids(tmp_path, paths))
        for removals in ("skip_commit", "ignore_changes")
    }
    assert read == {"skip_commit": [4], "ignore_changes": [2, 4, 11]}


def test_a_table_that_was_made_again_or_has_other_columns_ends_the_stream(tmp_path: Path) -> None:
    append(tmp_path / "a", 1)
    stream = stream_of(tmp_path / "a")
    begin = stream.next(stream.first(), 0, ALL)
    write_deltalake(str(tmp_path / "a"), pa.table({"id": [2], "tier": ["gold"]}), mode="append", schema_mode="merge")
    with pytest.raises(QueryFailedError, match="have changed in version 1 since the query was built"):
        stream.next(begin, stream.newest(), ALL)
    # Built again, it reads the older commits with the new columns.
    assert stream_of(tmp_path / "a").next(begin, 1, ALL).version == 2
    append(tmp_path / "b", 1)
    other = TableStream(TableLog(LocalStore(str(tmp_path / "b"))), begin.table_id, Columns({}, (), {}))
    with pytest.raises(QueryFailedError, match="it was made again, as another table; start a new query"):
        other.newest()


def test_positions_of_a_table_that_was_made_again_are_refused_whatever_the_other_table_has(tmp_path: Path) -> None:
    append(tmp_path / "a", 1)
    stream = stream_of(tmp_path / "a")
    begin = stream.next(stream.first(), 0, ALL)
    append(tmp_path / "a", 2)
    end = stream.next(begin, stream.newest(), ALL)
    started = stream_of(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    for number in (7, 8, 9):
        append(tmp_path / "a", number)
    again = stream_of(tmp_path / "a")
    for plan in (partial(again.next, begin, 2, ALL), partial(again.files, begin, end)):
        with pytest.raises(QueryFailedError, match=f"is of a table with the id {begin.table_id}, and the present"):
            plan()
    # It was made again after the start, and the batch that is planned again needs no look at what is new.
    with pytest.raises(QueryFailedError, match="it was made again, as another table"):
        started.files(begin, end)


def test_a_table_whose_columns_change_before_the_first_look_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1], "tier": ["gold"]}))
    stream = stream_of(tmp_path)
    renamed = pa.table({"id": [1], "level": ["gold"]})
    write_deltalake(str(tmp_path), renamed, mode="overwrite", schema_mode="overwrite")
    told = (
        r"columns have changed by version 1, since the inputs .* \(the column 'tier' was dropped and 'level' was added"
    )
    with pytest.raises(QueryFailedError, match=told):
        stream.next(stream.first(), stream.newest(), ALL)


def test_a_table_that_was_put_back_is_refused_before_it_grows_again(tmp_path: Path) -> None:
    append(tmp_path / "a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "kept")
    append(tmp_path / "a", 2)
    begin = stream_of(tmp_path / "a").next(stream_of(tmp_path / "a").first(), 1, ALL)
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "kept", tmp_path / "a")
    stream = stream_of(tmp_path / "a")
    with pytest.raises(QueryFailedError, match="has read its version 1, and the newest version is 0: it was put back"):
        stream.check_reached(begin, stream.newest())
    for within in (Position(begin.table_id, 1, 0), Position(begin.table_id, 1, 0, in_snapshot=True)):
        with pytest.raises(QueryFailedError, match="has read its version 1"):
            stream.check_reached(within, 0)
    stream.check_reached(Position(begin.table_id, 1), 0)


def test_a_table_that_was_replaced_in_its_log_is_not_read_across_the_replacement(tmp_path: Path) -> None:
    append(tmp_path, 1)
    former = stream_of(tmp_path)
    write_deltalake(str(tmp_path), pa.table({"id": [2]}), mode="overwrite", schema_mode="overwrite")
    first, log = (tmp_path / "_delta_log" / f"{number:020}.json" for number in range(2))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (metadata,) = (each["metaData"] for each in map(json.loads, first.read_text().splitlines()) if "metaData" in each)
    actions = [each for each in actions if "metaData" not in each] + [{"metaData": {**metadata, "id": "another"}}]
    log.write_text("\n".join(map(json.dumps, actions)))
    stream = stream_of(tmp_path, "skip_commit")
    with pytest.raises(QueryFailedError, match="made again, as another table"):
        stream.next(Position("another", 0), 1, ALL)
    # One version of it, as a static table is read.
    assert [each.version for each in former.snapshot(0)] == [0]


def test_a_commit_that_is_gone_from_the_log_names_the_ways_to_continue(tmp_path: Path) -> None:
    append(tmp_path, 1)
    begin = stream_of(tmp_path).next(stream_of(tmp_path).first(), 0, ALL)
    for number in (2, 3):
        append(tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(QueryFailedError, match=r"commit of version 1 is not in its log: .*allow_data_loss=True"):
        stream_of(tmp_path).next(begin, 2, ALL)


def test_a_stream_ends_where_its_table_gets_a_feature_that_readers_must_know(tmp_path: Path) -> None:
    append(tmp_path, 1)
    stream = stream_of(tmp_path)
    read = stream.next(stream.first(), 0, ALL)
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
    upgrade = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps(upgrade))
    with pytest.raises(QueryFailedError, match=r"since version 1 its feature 'fromTheFuture' needs Delta's own source"):
        stream.next(read, 1, ALL)


def protocol_of(*features: str, writers_alone: Sequence[str] = ()) -> Protocol:
    """Return a protocol that names its features: those of readers, and those that only writers must know."""
    named = {"readerFeatures": features, "writerFeatures": [*features, *writers_alone]}
    return Protocol.of({"minReaderVersion": 3, "minWriterVersion": 7, **named})


def test_tables_whose_files_do_not_simply_hold_the_rows_are_left_to_deltas_own_source() -> None:
    plain = Protocol(1, 2, frozenset())
    assert why_unreadable(plain, {}) is None
    deleted = protocol_of("deletionVectors", "timestampNtz", "v2Checkpoint")
    assert why_unreadable(deleted, {}) is None
    assert why_unreadable(deleted, {}, of_changes=True) == "its feature 'deletionVectors'"
    by_name, by_id = ({"configuration": {"delta.columnMapping.mode": mode}} for mode in ("name", "id"))
    assert why_unreadable(Protocol(2, 5, frozenset({"columnMapping"})), by_name) is None
    assert why_unreadable(Protocol(2, 5, frozenset({"columnMapping"})), by_id) == "its column mapping by id"
    assert why_unreadable(protocol_of("typeWidening"), {}) == "its feature 'typeWidening'"
    assert why_unreadable(protocol_of("timestampNtz", "fromTheFuture"), {}) == "its feature 'fromTheFuture'"
    assert why_unreadable(protocol_of(writers_alone=["fromTheFuture", "rowTracking"]), {}) is None
    assert why_unreadable(Protocol(4, 7, frozenset()), {}) == "its reader protocol 4"


RECORDS = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
ID = "0b8e"
"""The id of a table that is written by hand."""


def added(path: str, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "size": 9, "partitionValues": {}, "dataChange": True, **more}}


def removed(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "size": 9, "partitionValues": {}, "dataChange": True, **more}}


def column(name: str, dtype: Any = "string", stored: str | None = None) -> dict[str, Any]:
    metadata = {} if stored is None else {"delta.columnMapping.physicalName": stored}
    return {"name": name, "type": dtype, "nullable": True, "metadata": metadata}


def metadata_of(*fields: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": [*FIELDS, *fields]})
    return {"metaData": {"id": ID, "schemaString": schema, "partitionColumns": [], "configuration": properties or {}}}


VECTOR = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1, "sizeInBytes": 36, "cardinality": 1}


def test_changes_between_deletion_vectors_are_refused_wherever_they_come_up(tmp_path: Path) -> None:
    by_hand(tmp_path, properties=RECORDS, actions=[added("a")])
    connected = stream_of(tmp_path, None)
    commit(tmp_path, 1, {"protocol": features("changeDataFeed", reader=["deletionVectors"])})
    # They were switched on after the inputs were connected, and before the first start.
    told = "its feature 'deletionVectors' needs Delta's own source: set spark.cojoin.delta=spark in the session"
    with pytest.raises(QueryFailedError, match=told):
        connected.next(Position(ID, 1, -1, in_snapshot=True), connected.newest(), ALL)
    commit(tmp_path, 2, removed("a"), added("a", deletionVector=VECTOR))
    commit(tmp_path, 3, {"protocol": {**PLAIN, "minWriterVersion": 4}})
    # They were dropped since.
    for begin in (Position(ID, 2), Position(ID, 1, -1, in_snapshot=True)):
        with pytest.raises(QueryFailedError, match=told):
            stream_of(tmp_path, None).next(begin, 3, ALL)
    commit(tmp_path, 4, added("b"))
    commit(tmp_path, 5, removed("b"), added("b", deletionVector=VECTOR))
    log, columns = TableLog(LocalStore(str(tmp_path))), Columns.of(metadata_of()["metaData"])
    stream = TableStream(log, ID, columns, None, lambda _, paths: dict.fromkeys(paths, b"\1"))
    with pytest.raises(QueryFailedError, match=r"the changes of version 5 can't be read: b has a deletion vector, "):
        stream.next(Position(ID, 4), stream.newest(), ALL)


def test_a_removal_without_the_files_partition_or_size_is_refused_in_a_feed(tmp_path: Path) -> None:
    by_hand(tmp_path, properties=RECORDS, partitions=["id"], actions=[added("a", partitionValues={"id": "1"})])
    commit(tmp_path, 1, removed("a", partitionValues={"id": "1"}))
    assert [each.kind for each in stream_of(tmp_path, None).files(Position(ID, 1), Position(ID, 2))] == ["remove"]
    commit(tmp_path, 2, removed("a"))
    commit(tmp_path, 3, removed("a", partitionValues={"id": "1"}, size=None))
    for version in (2, 3):
        with pytest.raises(
            QueryFailedError, match=f"version {version} .*: the removal of a lacks the file's size or its"
        ):
            stream_of(tmp_path, None).next(Position(ID, version), version, ALL)


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        (Limits(2), ["ab", "xyz", "uv", "c"]),
        (Limits(4), ["ab", "xyz", "uvc"]),
        (Limits(5), ["abxyz", "uvc"]),
        (Limits(None, 18), ["ab", "xyz", "uv", "c"]),
        (Limits(None, 44), ["ab", "xyz", "uvc"]),
        (Limits(None, 45), ["abxyz", "uvc"]),
        (ALL, ["abxyzuvc"]),
    ],
)
def test_a_commits_change_files_are_read_at_once_and_where_all_are_within_the_limits(
    tmp_path: Path, limits: Limits, batches: list[str]
) -> None:
    by_hand(tmp_path, properties=RECORDS)
    commit(tmp_path, 1, added("a"), added("b"))
    for version, paths in ((2, "xyz"), (3, "uv")):
        changes = ({"cdc": {"path": path, "size": 9, "partitionValues": {}, "dataChange": False}} for path in paths)
        commit(tmp_path, version, *changes, added(f"{version}"), removed(f"before {version}"))
    commit(tmp_path, 4, added("c"))
    stream, begin, found = stream_of(tmp_path, None), Position(ID, 1), list[str]()
    while (end := stream.next(begin, 4, limits)) != begin:
        found.append("".join(each.file.path for each in stream.files(begin, end)))
        begin = end
    assert found == batches


def test_the_times_of_commits_are_the_same_in_whichever_batches_they_are_read(tmp_path: Path) -> None:
    draws, count = random.Random(SEED), random.Random(SEED).randrange(5, 130)
    by_hand(tmp_path, properties=RECORDS)
    written = [draws.randrange(1_000_000, 1_000_000 + 40) for _ in range(count)]
    kept = {version: 7_000_000 + version for version in range(count) if draws.random() < 0.1}
    for version in range(1, count):
        info = {"inCommitTimestamp": kept[version]} if version in kept else {}
        commit(tmp_path, version, {"commitInfo": info}, added(f"{version}"))
    for version, time in enumerate(written):
        os.utime(tmp_path / "_delta_log" / f"{version:020}.json", ns=(time * 1_000_000, time * 1_000_000))
    # Of files' times alone, from the hundredth commit before on.
    expected = {
        version: kept.get(
            version, max(written[each] + version - each for each in range(max(0, version - 100), version + 1))
        )
        for version in range(1, count)
    }
    for limit in (1, draws.randrange(2, 20), None):
        begin, seen, stream = Position(ID, 1), dict[int, int](), stream_of(tmp_path, None)
        while (end := stream.next(begin, count - 1, Limits(limit))) != begin:
            # Another start goes on here, or this one does.
            stream = draws.choice([stream, stream_of(tmp_path, None)])
            seen |= {each.version: each.committed_at for each in stream.files(begin, end)}
            begin = end
        assert seen == expected, f"seed {SEED}"
    end = Position(ID, count - 1, 0, in_snapshot=True)
    snapshot = stream_of(tmp_path, None).files(Position(ID, count - 1, -1, in_snapshot=True), end)
    assert [each.committed_at for each in snapshot] == [expected[count - 1]]


def test_a_commit_that_the_log_has_removed_moves_no_time_and_ends_no_stream(tmp_path: Path) -> None:
    by_hand(tmp_path, properties=RECORDS, actions=[added("a"), added("b"), added("c")])
    commit(tmp_path, 1, {"commitInfo": {}})
    log = tmp_path / "_delta_log"
    lines = [line for line in (log / f"{0:020}.json").read_text().splitlines() if "commitInfo" not in line]
    (log / f"{1:020}.checkpoint.0b8e.json").write_text("\n".join(lines))
    (log / f"{0:020}.json").unlink()
    os.utime(log / f"{1:020}.json", ns=(7_000_000, 7_000_000))
    for again in (False, True):
        stream, begin, found = stream_of(tmp_path, None), Position(ID, 1, -1, in_snapshot=True), []
        while (end := stream.next(begin, 1, Limits(1))) != begin:
            found += [(each.file.path, each.committed_at) for each in stream.files(begin, end)]
            stream = stream_of(tmp_path, None) if again else stream
            begin = end
        assert found == [("a", 7), ("b", 7), ("c", 7)]


def test_columns_that_were_renamed_are_not_null_in_the_versions_before(tmp_path: Path) -> None:
    mapped = features(reader=["columnMapping"])
    by_hand(tmp_path / "mapped", mapped, fields=[*FIELDS, column("tier", stored="col-1")], properties=MAPPED)
    commit(tmp_path / "mapped", 1, added("a"))
    commit(tmp_path / "mapped", 2, metadata_of(column("tier")), removed("a", dataChange=False))
    by_hand(tmp_path / "plain", fields=[*FIELDS, column("tier")])
    commit(tmp_path / "plain", 1, added("a"))
    commit(tmp_path / "plain", 2, metadata_of(column("level")))
    for name, why in (
        ("mapped", "'tier' has another type, or another name in its files"),
        ("plain", "'tier' was dropped and 'level' was added, perhaps as its new name"),
    ):
        told = rf"since version 1, which the query reads, the column {why}; start a new query with its own checkpoint"
        begin = Position(ID, 1)
        for plan in (lambda stream, at: stream.next(at, 2, ALL), lambda stream, at: stream.files(at, Position(ID, 2))):
            with pytest.raises(QueryFailedError, match=told):
                plan(stream_of(tmp_path / name), begin)
        assert stream_of(tmp_path / name).next(Position(ID, 2), 2, ALL) == Position(ID, 3)
    # The log can't tell what the columns were.
    actions = [{"protocol": mapped}, metadata_of(column("tier"))]
    commit(tmp_path / "mapped", 2, *actions)
    place = tmp_path / "mapped" / "_delta_log"
    (place / f"{2:020}.json").with_suffix(".checkpoint.0b8e.json").write_text("\n".join(map(json.dumps, actions)))
    (place / f"{0:020}.json").unlink()
    with pytest.raises(QueryFailedError, match="the columns of version 1 may have had other names; start a new query"):
        stream_of(tmp_path / "mapped").next(Position(ID, 1), 2, ALL)


def test_columns_and_fields_that_were_added_or_dropped_since_do_not_end_a_start(tmp_path: Path) -> None:
    inner = [column("a")]
    by_hand(tmp_path, fields=[*FIELDS, column("part", {"type": "struct", "fields": inner}), column("old")])
    commit(tmp_path, 1, added("a"))
    part = column("part", {"type": "struct", "fields": [*inner, column("b")]})
    texts = column("old"), column("new")
    commit(tmp_path, 2, metadata_of(part, *texts))
    assert stream_of(tmp_path).next(Position(ID, 1), 2, ALL) == Position(ID, 3)
    stream, columns = stream_of(tmp_path, "skip_commit"), Columns.of(metadata_of(part, *texts)["metaData"])
    assert stream.next(Position(ID, 2), 2, ALL) == Position(ID, 3)
    # Nor is a column, or a part of one, null in silence from a version on, also after a start that had nothing to read.
    idle = stream_of(tmp_path, "skip_commit")
    assert idle.next(Position(ID, 3), 2, ALL) == Position(ID, 3)
    for gone, fewer in (
        ("old", (part, column("new"))),
        ("part.b", (column("part", {"type": "struct", "fields": inner}), *texts)),
    ):
        commit(tmp_path, 3, metadata_of(*fewer), removed("a"), added("b"))
        told = rf"^Delta table .*: the columns .* have changed in version 3 since .*\(the column '{gone}' was dropped\)"
        for each in (stream, idle):
            with pytest.raises(QueryFailedError, match=told):
                each.next(Position(ID, 3), 3, ALL)
    assert stream_of(tmp_path, "skip_commit").next(Position(ID, 3), 3, ALL) == Position(ID, 4)
    commit(tmp_path, 4, metadata_of(column("more")))
    late = TableStream(TableLog(LocalStore(str(tmp_path))), ID, columns)
    with pytest.raises(QueryFailedError, match="columns have changed by version 4, since the inputs were connected"):
        late.next(Position(ID, 4), late.newest(), ALL)


def test_a_column_that_was_away_for_some_versions_before_the_start_is_null_there(tmp_path: Path) -> None:
    by_hand(tmp_path, fields=[*FIELDS, column("old")])
    commit(tmp_path, 1, metadata_of(), removed("a"), added("a"))
    commit(tmp_path, 2, added("b"))
    commit(tmp_path, 3, metadata_of(column("old")), removed("a"), added("c"))
    stream = stream_of(tmp_path, "skip_commit")
    assert [each.file.path for each in stream.files(Position(ID, 1), Position(ID, 4))] == ["b"]


def test_a_misfit_of_columns_names_the_column_and_both_at_once_are_a_renaming() -> None:
    def columns(*fields: Mapping[str, Any], by: Sequence[str] = ()) -> Columns:
        metadata = metadata_of(*fields)["metaData"]
        return Columns.of({**metadata, "partitionColumns": by})

    def of(name: str, *fields: Mapping[str, Any]) -> dict[str, Any]:
        return column(
            name, {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": fields}}
        )

    one, other = column("one"), column("other")
    for now, before, told in (
        (columns(one, other), columns(other, one), (None, None)),
        (columns(one, other), columns(one), (None, "the column 'other' was added")),
        (columns(one), columns(one, other), (None, "the column 'other' was dropped")),
        (columns(of("in", one)), columns(of("in", one, other)), (None, "the column 'in.other' was dropped")),
        (
            columns(one),
            columns(other),
            ("the column 'other' was dropped and 'one' was added, perhaps as its new name",),
        ),
        (
            columns(of("in", column("one", "long"))),
            columns(of("in", one)),
            ("the column 'in.one' has another type, or another name in its files",),
        ),
        (columns(one), columns(one, by=["id"]), ("its partition columns have changed from id to none",)),
    ):
        assert now.misfit(before) == told[0]
        assert now.misfit(before, exactly=True) == told[-1]


def test_a_newest_commit_that_is_empty_is_read_with_a_later_look_unless_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(table_log.time, "monotonic", lambda: clock[0])
    by_hand(tmp_path, actions=[added("a")])
    stream = stream_of(tmp_path)
    position, seen = stream.first(), list[str]()

    def look() -> None:
        nonlocal position
        end = stream.next(position, stream.newest(), ALL)
        if end != position:
            seen.extend(each.file.path for each in stream.files(position, end))
        position = end

    look()
    place = tmp_path / "_delta_log" / f"{2:020}.json"
    commit(tmp_path, 1, added("b"))
    place.touch()
    for _ in range(3):
        look()
        assert seen == ["a", "b"]
        clock[0] += 20
    # A stream that begins now does not pass over the commit, and this one does so for a minute at most.
    told = rf"{place.name} is empty, .* still being copied, or was cut off. Start again once it is whole"
    with pytest.raises(UnreadableLogError, match=told):
        stream_of(tmp_path)
    clock[0] += 1
    with pytest.raises(UnreadableLogError, match=told):
        look()
    commit(tmp_path, 2, added("c"))
    look()
    commit(tmp_path, 3, added("d"))
    look()
    assert seen == ["a", "b", "c", "d"]
    # No writer makes a commit before the one in front of it is whole.
    (tmp_path / "_delta_log" / f"{4:020}.json").touch()
    look()
    commit(tmp_path, 5, added("f"))
    with pytest.raises(UnreadableLogError, match=r"4\.json is empty"):
        look()
    commit(tmp_path, 4, added("e"))
    look()
    assert seen == [*"abcdef"]
    (tmp_path / "_delta_log" / f"{6:020}.json").touch()

    def exists(store: LocalStore, name: str) -> bool:
        """Let both be made between the two looks."""
        del store
        for version in (6, 7):
            commit(tmp_path, version, added(f"{version}"))
        return (tmp_path / name).exists()

    monkeypatch.setattr(LocalStore, "exists", exists)
    look()
    look()
    assert seen == [*"abcdef67"]


def test_a_table_that_was_put_back_and_has_grown_again_while_it_is_read_is_refused(tmp_path: Path) -> None:
    by_hand(tmp_path)
    for version in (1, 2):
        commit(tmp_path, version, added(f"{version}"))
    stream, other = stream_of(tmp_path), stream_of(tmp_path)
    assert stream.newest() == 2
    for version in (2, 3):
        commit(tmp_path, version, added(f"again {version}"))
    told = "version 2 is not the one that the query has read: the table was put back from"
    with pytest.raises(QueryFailedError, match=told):
        stream.newest()
    (tmp_path / "_delta_log" / f"{2:020}.json").unlink()
    (tmp_path / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(QueryFailedError, match=told):
        other.newest()
    # A query that was suspended finds that the log has removed what is old.
    stream = stream_of(tmp_path)
    lines = [
        line
        for line in (tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
        if "commitInfo" not in line
    ]
    (tmp_path / "_delta_log" / f"{2:020}.checkpoint.0b8e.json").write_text("\n".join(lines))
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    commit(tmp_path, 3, added("3"))
    assert stream.newest() == 3


def test_a_position_at_a_change_of_columns_is_one_of_deltas_own_source(tmp_path: Path) -> None:
    by_hand(tmp_path, actions=[added("a"), added("b")])
    within = Position.of(
        {"sourceVersion": 3, "reservoirId": ID, "reservoirVersion": 0, "index": -20, "isStartingVersion": False}
    )
    with pytest.raises(
        QueryFailedError, match=r"stopped at a change of its columns in version 0, .*schemaTrackingLocation"
    ):
        stream_of(tmp_path).next(within, 0, ALL)
    with pytest.raises(QueryFailedError, match="schemaTrackingLocation"):
        stream_of(tmp_path).files(within, Position(ID, 1))
