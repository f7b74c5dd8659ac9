"""A checkpoint serves one query of one shape; a written state serves none itself. A refusal writes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

import cojoin as cj
from cojoin.checkpoints.checkpoint import find_snapshot
from cojoin.checkpoints.identity import (
    WrittenState,
    check_free,
    claim_checkpoint,
    delete_unfinished,
    describe_query,
    describe_written,
    described_at,
    note_last_batch,
    note_sources,
    read_query,
    refuse_written,
)
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins.asof import AsofJoin
from cojoin.errors import CheckpointError
from cojoin.storage.object_store import ObjectStore
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
SCHEMA = pa.schema([("customer_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])


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


def query(*, operation: Any = None, key_groups: int = 8, **settings: Any) -> dict[str, Any]:
    left = InputSpec(
        **({"name": "trades", "schema": SCHEMA, "key": ("customer_id",), "event_time": "event_time"} | settings)
    )
    right = InputSpec("customers", SCHEMA, ("customer_id",), "event_time")
    return describe_query(operation or AsofJoin().describe(), (left, right), SCHEMA, key_groups)


def test_a_query_keeps_its_id(files: Store) -> None:
    first = claim_checkpoint(files, query())
    assert claim_checkpoint(files, query()) == first
    assert (
        claim_checkpoint(
            files, query(watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 s"), max_ahead_ms=5)
        )
        == first
    )


def test_a_description_that_is_written_between_two_looks_is_read(files: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks while a query starts for the first time finds first nothing, and then all of it."""
    names = type(files).names

    def late(store: Store, directory: str) -> list[str]:
        monkeypatch.undo()
        claim_checkpoint(store, query())
        store.write("lease.json", "{}")
        return names(store, directory)

    files.make_directory("")
    monkeypatch.setattr(type(files), "names", late)
    assert read_query(files)["query"] == query()


@pytest.mark.parametrize("stranger", ["offsets", "_delta_log", "part-0.parquet"])
def test_a_directory_that_is_no_checkpoint_of_ours_is_refused(files: Store, tmp_path: Path, stranger: str) -> None:
    (tmp_path / "checkpoint" / stranger).mkdir(parents=True)
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, query())
    assert str(caught.value) == (
        f"checkpoint {files.root}: the directory holds '{stranger}' and no query.json, so it is not a checkpoint of "
        f"cojoin's; name a query's checkpoint, or choose an empty directory for a new one"
    )
    assert files.names("") == [stranger]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '{"format": 5}', "no json"])
def test_a_query_json_that_is_damaged_or_someone_elses_is_refused(files: Store, text: str) -> None:
    files.write("query.json", text)
    for use in (read_query, lambda files: claim_checkpoint(files, query()), lambda files: note_sources(files, [])):
        with refused("query.json", "is damaged", "put it back from a backup", kind=cj.CheckpointError):
            use(files)


def test_a_checkpoint_whose_query_json_is_gone_is_told_as_such(files: Store) -> None:
    claim_checkpoint(files, query())
    files.write("manifest/000000000000.json", "")
    files.delete("query.json")
    for use in (read_query, lambda files: claim_checkpoint(files, query())):
        with refused("query.json", "is gone, and the rest of a checkpoint exists", "backup", kind=cj.CheckpointError):
            use(files)


def test_one_of_release_0_5_0_is_read_and_sealed_by_who_holds_it(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 4, "query_id": "x", "query": query(), "sources": [None, None]}))
    assert claim_checkpoint(files, query()) == "x"
    assert json.loads(files.read("query.json") or "")["format"] == 4
    assert note_sources(files, [None, None]) == "x"
    assert json.loads(files.read("query.json") or "")["format"] == 5
    assert claim_checkpoint(files, query()) == "x"
    described = query()
    del described["inputs"][1]["key"]
    files.write("query.json", json.dumps({"format": 4, "query_id": "x", "query": described, "sources": [None, None]}))
    with refused("query.json", "not of the shape that was written", "'key'", kind=cj.CheckpointError):
        read_query(files)


def test_an_empty_directory_and_what_a_crash_left_of_a_claim_may_be_claimed(files: Store, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / ".query.json.0f.tmp").write_text("{")
    assert claim_checkpoint(files, query())


def test_a_newer_format_asks_for_an_upgrade(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 6, "query_id": "x", "query": {}}))
    with pytest.raises(cj.CheckpointError, match="has the format 6, which is newer than 5: upgrade cojoin"):
        claim_checkpoint(files, query())


def test_an_older_format_is_refused(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 1, "query_id": "x", "query": {}}))
    with pytest.raises(cj.CheckpointError, match="has the format 1, that of an earlier version of cojoin"):
        claim_checkpoint(files, query())


def test_what_the_inputs_read_is_kept_without_being_compared(files: Store) -> None:
    first, source = claim_checkpoint(files, query()), {"format": "delta", "location": "/lake/trades"}
    assert read_query(files)["sources"] == [None, None]
    assert claim_checkpoint(files, query(), [source, None]) == first
    assert read_query(files)["sources"] == [None, None], "only who holds the checkpoint may change it"
    assert note_sources(files, [source, None]) == first
    assert read_query(files)["sources"] == [source, None]


def test_a_query_that_begins_to_need_the_clock_goes_on_and_the_state_stays_as_it_began(files: Store) -> None:
    first = claim_checkpoint(files, query())
    asked = query() | {"needs_clock": True}
    assert claim_checkpoint(files, asked) == first
    note_sources(files, [None, None], query=asked, last_batch=4)
    assert read_query(files)["query"]["needs_clock"] is False, "Spark's state has no timeouts"
    note_sources(files, [None, None], query=asked)
    assert read_query(files)["query"]["needs_clock"] is True, "no batch was planned, so there is no state"


def test_the_settings_with_which_batches_are_planned_are_kept(files: Store) -> None:
    claim_checkpoint(files, query(), settings={"time": {}})
    assert read_query(files)["settings"] == {"time": {}}
    note_sources(files, [None, None])
    assert read_query(files)["settings"] == {"time": {}}
    note_sources(files, [None, None], settings={"time": {"hold_left_until": 5}})
    assert read_query(files)["settings"] == {"time": {"hold_left_until": 5}}


def test_a_former_description_is_that_of_the_batches_before(files: Store) -> None:
    claim_checkpoint(files, query())
    noted, more = (query(schema=SCHEMA.append(pa.field(name, pa.string()))) for name in ("note", "more"))
    for described, last in ((query(), 2), (noted, 3), (noted, 5), (more, 7)):
        note_sources(files, [None, None], query=described, last_batch=last)
    stored = read_query(files)
    assert [described_at(stored, batch) for batch in (0, 3, 4, 7, 8)] == [query(), query(), noted, noted, more]
    assert len(stored["former"]) == 2
    # Batch 10 runs as it was planned, by a run that is interrupted before it has written what the query is now.
    note_last_batch(files, 3, 9)
    assert described_at(read_query(files), 9) == described_at(read_query(files), 10) == more
    newest = query(schema=SCHEMA.append(pa.field("newest", pa.string())))
    note_sources(files, [None, None], 3, query=newest, last_batch=10)
    stored = read_query(files)
    assert [described_at(stored, batch) for batch in (7, 8, 9, 10)] == [noted, more, more, newest]
    # Here the query has stayed as it was, and planned two batches more.
    note_last_batch(files, 4, 11)
    note_sources(files, [None, None], 4, query=query(), last_batch=14)
    assert [described_at(read_query(files), batch) for batch in (9, 10, 14, 15)] == [more, newest, newest, query()]


def test_the_description_of_a_later_run_stays(files: Store) -> None:
    claim_checkpoint(files, query())
    noted = query(schema=SCHEMA.append(pa.field("note", pa.string())))
    note_sources(files, [None, None], 2, query=noted, last_batch=4)
    before = files.read("query.json")
    for late in (lambda: note_sources(files, [None, None], 1, query=query()), lambda: note_last_batch(files, 1, 3)):
        with refused("fenced off: another run, of epoch 2, has begun meanwhile", kind=cj.QueryFailedError):
            late()
    assert files.read("query.json") == before


def test_no_refusal_shows_the_login_in_a_checkpoints_path() -> None:
    files = ObjectStore(MemoryStore(), "s3a://me:opensesame@lake/daily")
    claim_checkpoint(files, query())
    lease = Lease.acquire(files)
    other = InputSpec("orders", SCHEMA, ("customer_id",), "event_time")
    refusals: list[Callable[[], object]] = [
        lambda: check_free(files, "erase"),
        lambda: claim_checkpoint(files, query(name="orders")),
        lambda: find_snapshot(files),
        lambda: Lease.acquire(files, patience_seconds=0.0),
        lambda: check_evolution(read_query(files)["query"], describe_query({}, (other, other), SCHEMA, 8), files.named),
    ]
    for refuse in refusals:
        with pytest.raises(cj.CojoinError, match=r"s3a://\*\*\*@lake/daily") as caught:
            refuse()
        assert "opensesame" not in str(caught.value)
    lease.release()
