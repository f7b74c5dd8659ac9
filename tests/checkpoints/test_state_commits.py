"""The state table's files and commits: a claim decides which writer's rows the table has."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cojoin.checkpoints import state_commits
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.state_commits import (
    SAVEPOINTS,
    Claim,
    ClaimGoneError,
    StateCommits,
    StateFolder,
    data_files,
    partition_folder,
    write_rows,
)
from cojoin.delta.deltalake_table import TableRefusedError
from cojoin.delta.table_checks import nullable_schema
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import TableWriter
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.state_stand_ins import Rows, StandInSession, rows_of_groups, without_spark
from tests.delta.tables import by_hand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFolder:
    without_spark(monkeypatch)
    return StateFolder.of(LocalStore(str(tmp_path)))


def pointing(batch_id: int, group: int) -> pa.Table:
    """Return a row whose content an earlier snapshot has."""
    row = rows_of_groups(batch_id, [group]).to_pylist()[0]
    return pa.Table.from_pylist([{**row, "segment": None, "content": None, "content_batch_id": 3}], STATE_SCHEMA)


def written_below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_rows_with_content_get_files_of_their_own(folder: StateFolder, tmp_path: Path) -> None:
    one = pa.concat_tables([rows_of_groups(7, [0]), pointing(7, 1), pointing(7, 2)])
    rows = Rows([one, STATE_SCHEMA.empty_table(), rows_of_groups(7, [3])])
    written = write_rows(rows, folder, 7)
    files = data_files(written)
    state = tmp_path / "state"
    assert sorted(each.path for each in files) == written_below(state)
    assert {each.path.rpartition("/")[0]: each.rows for each in files} == {
        partition_folder(7, 0): 1,
        partition_folder(7, None): 2,
        partition_folder(7, 3): 1,
    }
    expected = pa.concat_tables([one, rows_of_groups(7, [3])])
    for each in files:
        content = pq.ParquetFile(state / each.path).read()
        assert each.size == (state / each.path).stat().st_size
        assert content.schema.names == [name for name in STATE_SCHEMA.names if name not in ("batch_id", "segment")]
        assert all(field.nullable for field in content.schema)
        segment = each.partition_values["segment"]
        assert each.partition_values == {"batch_id": "7", "segment": segment}
        wanted = [row for row in expected.to_pylist() if str(row["segment"]) == str(segment)]
        assert content.to_pylist() == [{name: row[name] for name in content.schema.names} for row in wanted]
    assert [row.key_group for row in written] == [0, 1, 2, 3]
    assert [row.seal for row in written] == expected["seal"].to_pylist()
    assert not hasattr(written[0], "content")


def test_a_task_that_is_run_again_writes_other_files(folder: StateFolder, tmp_path: Path) -> None:
    rows = Rows([rows_of_groups(7, [0]), rows_of_groups(7, [1])], frozenset([1]))
    files = data_files(write_rows(rows, folder, 7))
    assert len(written_below(tmp_path / "state")) == 3
    assert sorted(each.partition_values["segment"] or "" for each in files) == ["0", "1"]


def test_a_task_that_fails_deletes_its_files(folder: StateFolder, tmp_path: Path) -> None:
    def batches() -> Any:
        yield from rows_of_groups(7, [0, 1]).to_batches()
        msg = "the state is damaged"
        raise ValueError(msg)

    class Failing(Rows):
        def mapInArrow(self, function: Any, _: Any) -> Rows:  # noqa: N802 - Spark's name
            list(function(batches()))
            return self

    with pytest.raises(ValueError, match="is damaged"):
        write_rows(Failing([]), folder, 7)
    assert written_below(tmp_path) == []


def test_large_types_of_arrow_are_written_as_those_of_the_table(folder: StateFolder, tmp_path: Path) -> None:
    """As Spark sends them with ``spark.sql.execution.arrow.useLargeVarTypes``."""
    rows = rows_of_groups(7, [0])
    large = pa.schema(
        [
            pa.field(
                each.name, {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(each.type, each.type)
            )
            for each in rows.schema
        ]
    )
    (file,) = data_files(write_rows(Rows([rows.cast(large)]), folder, 7))
    assert pq.ParquetFile(tmp_path / "state" / file.path).read()["content"].type == pa.binary()
    assert json.loads(file.statistics or "") == {"numRecords": 1}


class Writer:
    """One of the writers of a checkpoint's state table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, LocalStore(str(folder))
        self.commits = StateCommits(StandInSession(), self.files)

    def replace(self, batch_id: int, claim: Claim, *, clock: int = 0) -> Any:
        rows = Rows([rows_of_groups(batch_id, clock=clock)])
        return self.commits.replace(rows, batch_id, claim)

    def clocks(self) -> dict[int, list[int]]:
        """Return for each batch what its rows' headers have as the clock, as ``deltalake`` reads the table."""
        found: dict[int, list[int]] = {}
        for row in DeltaTable(str(self.folder / "state")).to_pyarrow_table().to_pylist():
            found.setdefault(row["batch_id"], []).append(json.loads(row["header"])["processing_time"] - row["batch_id"])
        return found


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    without_spark(monkeypatch)
    return Writer(tmp_path)


def before_the_next_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let something happen once, after the next writer has looked at the table and before its commit."""
    real = TableWriter._put

    def put(self: TableWriter, *arguments: Any) -> Any:
        monkeypatch.setattr(TableWriter, "_put", real)
        act()
        return real(self, *arguments)

    monkeypatch.setattr(TableWriter, "_put", put)


def test_rows_replace_those_of_an_earlier_attempt_alone(writer: Writer) -> None:
    assert len(writer.replace(3, Claim.of_run(1, 3))) == 2
    assert len(writer.replace(4, Claim.of_run(1, 4))) == 2
    assert len(writer.replace(3, Claim.of_run(2, 3), clock=5)) == 2
    assert writer.clocks() == {3: [5, 5], 4: [0, 0]}
    table = DeltaTable(str(writer.folder / "state"))
    assert table.metadata().partition_columns == ["batch_id", "segment"]
    fields = json.loads(table.schema().to_json())["fields"]
    assert fields == nullable_schema(STATE_SCHEMA)["fields"]
    assert table.history(1)[0]["isBlindAppend"] is False


def test_a_claim_that_has_gone_on_is_refused(writer: Writer) -> None:
    writer.replace(3, Claim.of_run(2, 3))
    version = DeltaTable(str(writer.folder / "state")).version()
    with pytest.raises(ClaimGoneError, match="is outdated"):
        writer.replace(3, Claim.of_run(1, 3), clock=5)
    assert writer.clocks() == {3: [0, 0]}
    assert DeltaTable(str(writer.folder / "state")).version() == version
    assert not writer.commits.has_claim(Claim.of_run(1, 3))
    assert writer.commits.has_claim(Claim.of_run(2, 3))


@pytest.mark.parametrize("epoch", [1, 2])
def test_another_run_that_commits_between_look_and_commit(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    other = Writer(writer.folder)
    writer.replace(3, Claim.of_run(1, 3))
    before_the_next_commit(monkeypatch, lambda: other.replace(4, Claim.of_run(epoch, 4), clock=7))
    if epoch == 2:
        with pytest.raises(ClaimGoneError):
            writer.replace(3, Claim.of_run(1, 5), clock=5)
        assert writer.clocks() == {3: [0, 0], 4: [7, 7]}
    else:
        writer.replace(3, Claim.of_run(1, 5), clock=5)
        assert writer.clocks() == {3: [5, 5], 4: [7, 7]}


def test_a_savepoint_of_the_same_batch_that_comes_first_is_replaced(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is another application's: what is removed must be looked up on the version of the commit."""
    other = Writer(writer.folder)
    writer.replace(2, Claim.of_run(1, 2))
    before_the_next_commit(monkeypatch, lambda: other.replace(3, other.commits.next_savepoint(), clock=7))
    writer.replace(3, Claim.of_run(1, 3), clock=5)
    assert writer.clocks() == {2: [0, 0], 3: [5, 5]}


@pytest.mark.parametrize("is_over", [True, False])
def test_files_that_a_cleaning_has_deleted_are_no_ones_disk(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    """The cleaning comes between the look at the claim and that for the files."""
    real, other = TableWriter._check, Writer(writer.folder)
    writer.replace(2, Claim.of_run(1, 2))

    def check(self: TableWriter, *arguments: Any) -> None:
        monkeypatch.setattr(TableWriter, "_check", real)
        if is_over:
            other.commits.end_savepoints()
        shutil.rmtree(writer.folder / "state" / "batch_id=3")
        real(self, *arguments)

    monkeypatch.setattr(TableWriter, "_check", check)
    with pytest.raises(ClaimGoneError if is_over else TableRefusedError):
        writer.replace(3, writer.commits.next_savepoint())
    assert writer.clocks() == {2: [0, 0]}


def test_a_commit_whose_answer_was_lost_is_found(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TableWriter._put

    def put(self: TableWriter, *arguments: Any) -> Any:
        assert real(self, *arguments) is None
        self._table.close()
        return OSError("the answer was lost")

    writer.replace(3, Claim.of_run(1, 3))
    with monkeypatch.context() as lost:
        lost.setattr(TableWriter, "_put", put)
        assert writer.replace(3, Claim.of_run(1, 4), clock=5) is None, "the table is asked for its rows"
    assert writer.clocks() == {3: [5, 5]}
    with monkeypatch.context() as lost:
        lost.setattr(TableWriter, "_put", put)
        paths = writer.commits.files()
        assert writer.commits.remove(paths, [], None)
        assert writer.clocks() == {}


def test_files_are_removed_as_far_as_they_are_there(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.replace(3, Claim.of_run(1, 3))
    noted = writer.commits.files()
    assert sorted(noted.values()) == [(3, 0), (3, 1)]
    before_the_next_commit(monkeypatch, lambda: Writer(writer.folder).replace(3, Claim.of_run(1, 4), clock=5))
    assert writer.commits.remove(noted, [*noted.values()], None)
    assert writer.clocks() == {3: [5, 5]}, "what was written since is no file that was noted"
    version = DeltaTable(str(writer.folder / "state")).version()
    assert writer.commits.remove(noted, [*noted.values()], None)
    assert DeltaTable(str(writer.folder / "state")).version() == version


def test_a_savepoint_that_was_written_since_others_were_ended_stops_a_removal(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Writer(writer.folder)
    writer.replace(3, Claim.of_run(1, 3))
    begun, ended = other.commits.next_savepoint(), writer.commits.end_savepoints()
    with pytest.raises(ClaimGoneError):
        other.replace(4, begun)
    noted = writer.commits.files()
    before_the_next_commit(monkeypatch, lambda: other.replace(4, other.commits.next_savepoint()))
    assert not writer.commits.remove(noted, [], ended)
    assert writer.clocks() == {3: [0, 0], 4: [0, 0]}
    late, ended = other.commits.next_savepoint(), writer.commits.end_savepoints()
    assert writer.commits.remove(noted, [], ended)
    with pytest.raises(ClaimGoneError):
        other.replace(5, late)
    assert writer.clocks() == {4: [0, 0]}


def test_two_cleanings_that_end_savepoints_by_one_claim_both_remove(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Writer(writer.folder)
    for batch_id in (3, 4):
        writer.replace(batch_id, Claim.of_run(1, batch_id))
    ended, noted = writer.commits.end_savepoints(), writer.commits.files()
    ours, theirs = ({path for path, (batch_id, _) in noted.items() if batch_id == each} for each in (3, 4))
    before_the_next_commit(monkeypatch, lambda: other.commits.remove(theirs, [], ended))
    assert not writer.commits.remove(ours, [], ended), "its claim is there, and its files, too: it looks again"
    assert writer.clocks() == {3: [0, 0]}
    assert writer.commits.remove(ours, [], writer.commits.end_savepoints())
    assert writer.clocks() == {}


def test_a_fence_keeps_earlier_runs_out(writer: Writer) -> None:
    writer.commits.fence_runs(1)
    assert not writer.files.exists("state"), "there is nothing to protect"
    writer.commits.create()
    other = Writer(writer.folder)
    other.commits.create()
    writer.replace(3, Claim.of_run(1, 3))
    other.commits.fence_runs(2)
    with pytest.raises(ClaimGoneError):
        writer.replace(4, Claim.of_run(1, 4))
    version = DeltaTable(str(writer.folder / "state")).version()
    other.commits.fence_runs(2)
    other.commits.fence_runs(1)
    assert DeltaTable(str(writer.folder / "state")).version() == version
    other.replace(4, Claim.of_run(2, 4))
    assert writer.clocks() == {3: [0, 0], 4: [0, 0]}


def test_two_that_create_the_table_at_once_make_one(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    before_the_next_commit(monkeypatch, Writer(writer.folder).commits.create)
    writer.commits.create()
    table = DeltaTable(str(writer.folder / "state"))
    assert (table.version(), table.metadata().configuration) == (0, {"delta.checkpointInterval": "10"})


def test_others_may_write_in_between(writer: Writer) -> None:
    place = str(writer.folder / "state")
    for batch_id in range(12):
        writer.replace(batch_id, Claim.of_run(1, batch_id))
        if batch_id == 5:
            DeltaTable(place).optimize.compact()
            DeltaTable(place).delete("batch_id = 4")
    writer.replace(3, Claim.of_run(2, 3), clock=9)
    assert writer.clocks() == {each: [9 if each == 3 else 0] * 2 for each in range(12) if each != 4}
    assert any("checkpoint.parquet" in each for each in writer.files.names("state/_delta_log"))
    assert TableLog(writer.files, "state").newest() is not None


@pytest.mark.parametrize("where", ["a property", "a feature", "a place", "encryption", "defaults"])
def test_what_this_does_not_serve_is_sparks(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, where: str, tmp_path: Path
) -> None:
    folder = tmp_path / ("a%41" if where == "a place" else "c")
    fields = nullable_schema(STATE_SCHEMA)["fields"]
    if where == "a property":
        by_hand(folder / "state", fields=fields, properties={"delta.appendOnly": "true"})
    elif where == "a feature":
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
        by_hand(folder / "state", {**protocol, "writerFeatures": ["deletionVectors"]}, fields=fields)
    elif where == "encryption":
        monkeypatch.setattr(state_commits, "adapter_of", lambda _: SimpleNamespace(encrypts_files=lambda: True))
    elif where == "defaults":
        monkeypatch.setattr(state_commits, "default_properties", lambda _: {"delta.enableDeletionVectors": "true"})
    assert writer.commits._writer() is not None or where in ("encryption", "defaults")
    assert Writer(folder).commits._writer() is None


def test_the_last_savepoints_number_is_read_from_the_log(writer: Writer) -> None:
    assert 0 < writer.commits.next_savepoint().version <= 1 << 31
    writer.commits.create()
    ended = writer.commits.end_savepoints()
    assert ended.app_id == SAVEPOINTS
    assert Writer(writer.folder).commits.next_savepoint().version > ended.version


def test_a_strangers_rows_are_removed_with_their_batch(writer: Writer) -> None:
    writer.replace(3, Claim.of_run(1, 3))
    rows = rows_of_groups(3, [0], clock=99)
    write_deltalake(str(writer.folder / "state"), pa.table(rows), mode="append", partition_by=["batch_id", "segment"])
    writer.replace(3, Claim.of_run(2, 3), clock=5)
    assert writer.clocks() == {3: [5, 5]}
