"""The state table's files: each row with content in one of its own, and of a task that fails none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.state_files import StateFolder, data_files, partition_folder, write_rows
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.state_stand_ins import Rows, rows_of_groups, without_spark

if TYPE_CHECKING:
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
