"""Processes that commit to one table at the same moment: every version is one commit, and none is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cojoin.delta.deltalake_table import TableConflictError
from cojoin.delta.table_log import TableLog
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import append, ids, writer

pytestmark = pytest.mark.push

_COMMITS, _PROCESSES = 25, 3


def test_each_commit_of_each_process_is_there_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.delta.test_two_processes", str(tmp_path / "t")]
    running = [subprocess.Popen([*command, str(number)]) for number in range(_PROCESSES)]
    assert [each.wait(timeout=120) for each in running] == [0] * _PROCESSES
    expected = [1_000 * number + each for number in range(_PROCESSES) for each in range(_COMMITS)]
    assert ids(tmp_path / "t") == expected
    commits = list(TableLog(LocalStore(str(tmp_path / "t"))).commits(-1))
    assert len(commits) == len(expected)
    assert sorted(file.path for each in commits for file in each.added) == sorted(
        each.path for each in TableLog(LocalStore(str(tmp_path / "t"))).files(len(commits) - 1)
    )


def main(folder: Path, number: int) -> None:
    """Append batches, each until it is there: the others may be first more often than one commit tries."""
    ours, often = writer(folder), {"delta.checkpointInterval": "20"}
    for batch_id in range(1_000 * number, 1_000 * number + _COMMITS):
        while True:
            try:
                append(ours, folder, batch_id, app_id=f"process {number}", properties=often)
            except TableConflictError:
                continue
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
