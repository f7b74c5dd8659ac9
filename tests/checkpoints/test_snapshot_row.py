"""A key group's row has content only where it changed; the driver foresees each snapshot."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.checkpoints.snapshot_row import (
    STATE_SCHEMA,
    DueSnapshots,
    SnapshotCadence,
    files_of,
    open_content,
    snapshot_row,
)
from cojoin.engine.state.named_files import NamedFiles
from cojoin.engine.state.segmented_table import SegmentedTable, flush
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.state.waiting_rows import WaitingRows
from tests.seeds import SEED
from tests.segments import MemoryStore

HEADER: dict[str, Any] = {"watermark": 5, "processing_time": 1_000, "saved": None}
TABLES = {"held1": pa.table({"id": pa.array([1, 2]), "@value": ["a", None]}), "held2": pa.table({"id": pa.array([3])})}
GROUPS = 3


def content_of(row: pa.Table) -> Any:
    return row.column("content")[0].as_py()


def test_a_row_holds_the_tables_and_describes_them() -> None:
    row, saved = snapshot_row(3, 7, HEADER, TABLES)
    assert row.schema == STATE_SCHEMA
    (values,) = row.to_pylist()
    assert (values["batch_id"], values["key_group"], values["segment"]) == (7, 3, 3)
    assert "saved" not in values["header"]
    assert [(each["name"], each["rows"], each["columns"]) for each in values["tables"]] == [
        ("held1", 2, "id bigint, `@value` string"),
        ("held2", 1, "id bigint"),
    ]
    assert saved == {"batch_id": 7, "time": 1_000, "content_batch_id": 7, "fingerprint": values["fingerprint"]}
    assert open_content(values["content"], values["fingerprint"], "here") == (NamedFiles(), TABLES)


def test_what_did_not_change_is_not_written_again() -> None:
    _, saved = snapshot_row(3, 7, HEADER, TABLES)
    row, again = snapshot_row(3, 9, {**HEADER, "watermark": 6, "saved": saved}, TABLES)
    assert content_of(row) is None
    assert row.column("segment")[0].as_py() is None
    assert row.column("content_batch_id")[0].as_py() == 7
    assert again["batch_id"] == 9
    assert again["content_batch_id"] == 7
    changed, _ = snapshot_row(3, 11, {**HEADER, "saved": again}, {**TABLES, "held2": TABLES["held2"].slice(0, 0)})
    assert content_of(changed) is not None
    assert changed.column("content_batch_id")[0].as_py() == 11


def test_content_that_is_not_what_was_written_is_refused() -> None:
    row, saved = snapshot_row(0, 1, HEADER, TABLES)
    content, fingerprint = content_of(row), saved["fingerprint"]
    with pytest.raises(cj.CodecError, match=r"here: .*truncated.*; restore another snapshot"):
        open_content(content[:-1], fingerprint, "here")
    with pytest.raises(cj.CodecError, match=r"here: .*got 9; upgrade cojoin"):
        open_content(content[:6] + b"\x09" + content[7:], fingerprint, "here")
    other, _ = snapshot_row(0, 1, HEADER, {"held1": TABLES["held1"].slice(1)})
    with pytest.raises(cj.CodecError, match="here: expected content with the fingerprint"):
        open_content(content_of(other), fingerprint, "here")
    with pytest.raises(cj.CodecError, match="here: its content is missing"):
        open_content(None, fingerprint, "here")


def test_rows_in_files_are_named_and_not_copied() -> None:
    store = MemoryStore()
    context = SegmentContext(store, SegmentOptions(limit_bytes=0), 3, 6)
    kept = SegmentedTable(pa.table({"id": [1, 2], "tier": ["gold", "none"]}), ["id"], "versions")
    kept.flush(context)
    kept.memtable = pa.table({"id": [7], "tier": ["iron"]})
    kept.rows += 1
    flushed = flush({"versions": kept}, None)
    waiting = WaitingRows(TABLES["held1"], lambda rows: rows.column(0).to_numpy())
    waiting.flush(context)
    header = {**HEADER, "segments": flushed.described, "runs": {"held1": waiting.describe()}}
    row, saved = snapshot_row(3, 7, header, {**flushed.tables, "held1": waiting.memory})
    (values,) = row.to_pylist()
    assert [(each["name"], each["rows"]) for each in values["tables"]] == [("versions", 3), ("held1", 2)]
    assert {"segments", "runs"}.isdisjoint(json.loads(values["header"]))
    assert files_of(values["header"]) == sorted(store.files)
    content, fingerprint = values["content"], values["fingerprint"]
    assert values["content_bytes"] == len(content)
    files, stored = open_content(content, fingerprint, "here")
    tables = files.whole(stored, store)
    assert sorted(tables["versions"].column("id").to_pylist()) == [1, 2, 7]
    assert tables["held1"] == TABLES["held1"]
    files.check(store)
    # Nothing is written where only the time has gone on.
    again, _ = snapshot_row(3, 9, {**header, "saved": saved}, {**flushed.tables, "held1": waiting.memory})
    assert content_of(again) is None
    assert files_of(again.column("header")[0].as_py()) == sorted(store.files)
    # A state that is written anew has the header of another, and none of its files.
    anew, _ = snapshot_row(3, 9, json.loads(values["header"]) | {"saved": None}, TABLES)
    assert files_of(anew.column("header")[0].as_py()) == []
    # Release 0.6 and earlier ones read format 2, and take all rows of a snapshot to be in it.
    assert content[6] == 3
    gone, kept_content = store.files.popitem()
    with pytest.raises(cj.CheckpointError, match=rf"segment memory:/{gone}: .* missing; restore a snapshot"):
        files.check(store)
    store.files[gone] = kept_content[:-1]
    with pytest.raises(cj.CodecError, match=rf"segment memory:/{gone}: expected .* bytes"):
        files.check(store)


def test_a_snapshot_is_due_by_batches_or_by_the_batches_own_time() -> None:
    every_third = SnapshotCadence.of(3)
    assert [batch for batch in range(7) if every_third.is_due({"batch_id": 2, "time": 0}, batch, 0)] == [5, 6]
    assert every_third.is_due(None, 2, 0)
    assert not every_third.is_due(None, 1, 0)
    minutes = SnapshotCadence.of("2 minutes")
    assert not minutes.is_due(None, 5, 10**12), "the first batch only begins to count"
    assert not minutes.is_due({"batch_id": 0, "time": 1_000}, 9, 120_999)
    assert minutes.is_due({"batch_id": 0, "time": 1_000}, 9, 121_000)
    assert not SnapshotCadence.of(None).is_due({"batch_id": 0, "time": 0}, 10**6, 10**15)


@pytest.mark.parametrize(
    ("declared", "said"), [(0, "at least 1 batch, got 0"), ("0 seconds", "longer than zero"), ("soon", "'soon'")]
)
def test_an_interval_that_is_none_is_refused(declared: Any, said: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=said):
        SnapshotCadence.of(declared)


def told(group: int, batch_id: int, time: int) -> dict[str, Any]:
    return {"key_group": group, "saved": {"batch_id": batch_id, "time": time}}


def test_a_run_that_goes_on_knows_nothing_until_each_key_group_was_called() -> None:
    due = DueSnapshots(SnapshotCadence.of("1 minute"), GROUPS, is_new=False)
    due.observe([told(0, 5, 0), told(1, 5, 0)])
    assert due.may_have(7, 1_000)
    due.observe([told(2, 5, 0)])
    assert not due.may_have(8, 1_000)


def test_the_first_batch_of_a_new_query_may_have_one_where_each_batch_has() -> None:
    assert DueSnapshots(SnapshotCadence.of(1), GROUPS, is_new=True).may_have(0, 0)
    assert not DueSnapshots(SnapshotCadence.of(2), GROUPS, is_new=True).may_have(0, 0)
    assert not DueSnapshots(SnapshotCadence.of("1 minute"), GROUPS, is_new=True).may_have(0, 10**12)
    assert not DueSnapshots(SnapshotCadence.of(None), GROUPS, is_new=True).may_have(0, 10**12)


@pytest.mark.parametrize("cadence", [SnapshotCadence.of(each) for each in (1, 3, "10 seconds", None)], ids=str)
@pytest.mark.parametrize("is_new", [True, False])
def test_no_snapshot_comes_unforeseen(cadence: SnapshotCadence, is_new: bool) -> None:
    draw = random.Random(f"{SEED} {cadence} {is_new}")
    last: dict[int, dict[str, Any] | None] = dict.fromkeys(
        range(GROUPS), None if is_new else {"batch_id": 3, "time": 0}
    )
    due, time, foreseen, taken = DueSnapshots(cadence, GROUPS, is_new=is_new), 1_000, 0, 0
    for batch_id in range(4, 200):
        time += draw.randint(1, 5_000)
        called = draw.sample(range(GROUPS), draw.randint(1, GROUPS))
        # The driver looks a little later than the batch was planned.
        may_have = due.may_have(batch_id, time + draw.randint(0, 50))
        statistics = []
        for group in called:
            is_due = cadence.is_due(last[group], batch_id, time)
            assert may_have or not is_due, (batch_id, group)
            taken += is_due
            if is_due or last[group] is None:
                last[group] = {"batch_id": batch_id if is_due else batch_id - 1, "time": time}
            statistics.append({"key_group": group, "saved": last[group]})
        due.observe(statistics)
        foreseen += may_have
    assert bool(taken) == (cadence != SnapshotCadence())
    assert is_new <= (foreseen <= max(1, 3 * taken))
