"""The driver foresees each snapshot that the calls take, and few that they don't."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cojoin.checkpoints.due_snapshots import DueSnapshots
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from tests.seeds import SEED

GROUPS = 3


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
