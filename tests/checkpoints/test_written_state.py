"""The note of a directory whose state no query has made: no query runs there, and unfinished it is no checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.checkpoints.identity import claim_checkpoint, describe_written, read_query
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.written_state import WrittenState, check_free, delete_unfinished, refuse_written
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from cojoin.storage.store import Store

QUERY = {
    "operator": "asof_join",
    "output": "a bigint",
    "key_groups": 2,
    "inputs": [
        {"name": name, "columns": "a bigint", "key": ["a"], "event_time": None, "partition": [], "sequence": []}
        for name in ("trades", "customers")
    ],
}


def test_a_directory_is_free_until_its_state_is_finished(files: Store) -> None:
    check_free(files, "write_state")
    lease = Lease.acquire(files)
    check_free(files, "write_state")
    note = WrittenState("write_state", "/lake/old", 3)
    note.write(files)
    files.write("state/part-0", "left")
    files.write("spark/sources/0/0", "left")
    check_free(files, "write_state")
    assert WrittenState.read(files) == note
    with pytest.raises(CheckpointError, match="was begun and not finished; write it again"):
        read_query(files)
    delete_unfinished(files)
    assert files.names("") == ["beats", "lease.json", "written.json"]
    describe_written(files, "the query", QUERY, (None, None))
    assert read_query(files)["query_id"] == "the query"
    lease.release()
    with pytest.raises(CheckpointError, match=r"write_state: the directory .* is a checkpoint already"):
        check_free(files, "write_state")
    for refuse in (refuse_written, lambda each: claim_checkpoint(each, QUERY)):
        with pytest.raises(CheckpointError, match="it holds a state that write_state has written, and no query runs"):
            refuse(files)


def test_a_directory_with_something_else_is_left_alone(files: Store) -> None:
    files.write("notes.txt", "mine")
    with pytest.raises(CheckpointError, match=r"erase: the directory .* holds 'notes.txt'; choose an empty one"):
        check_free(files, "erase")
    refuse_written(files)
