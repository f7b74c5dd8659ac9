"""The due rows come key after key, in the declared order, however many are decoded at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cojoin.engine import due_rows
from cojoin.engine.due_rows import DueRows
from tests.engine.test_keyed_process_operator import customer, trade
from tests.streams import CUSTOMERS, TRADES, specs, table


@pytest.mark.parametrize("chunk_rows", [1, 3, 50_000])
@pytest.mark.parametrize(
    ("by_time", "expected"),
    [
        (True, {0: [("customer", 5), ("trade", 5), ("trade", 7)], 1: [], 2: [("trade", 1), ("customer", 9)]}),
        (False, {0: [("trade", 5), ("trade", 7), ("customer", 5)], 1: [], 2: [("trade", 1), ("customer", 9)]}),
    ],
)
def test_rows_come_key_after_key_in_the_declared_order(
    monkeypatch: pytest.MonkeyPatch, chunk_rows: int, by_time: bool, expected: Any
) -> None:
    monkeypatch.setattr(due_rows, "_CHUNK_ROWS", chunk_rows)
    due = table([trade(7, "a"), trade(1, "c"), trade(5, "a")], TRADES), table([customer(9), customer(5)], CUSTOMERS)
    codes = np.array([0, 2, 0]), np.array([2, 0])
    found = {
        code: [(("trade", "customer")[is_right], timestamp) for timestamp, is_right, _ in rows]
        for code, rows in DueRows(due, specs()).by_key([0, 1, 2], codes, by_time=by_time)
    }
    # In arrival order the left rows come first, by sequence and content: here by time.
    assert found == expected
