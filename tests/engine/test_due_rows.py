"""The due rows come key after key, in the declared order, however many are decoded at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine import due_rows
from cojoin.engine.due_rows import DueRows
from cojoin.errors import FunctionError
from tests.engine.test_keyed_process_operator import Teller, customer, feed, operator, trade
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
        for code, rows in DueRows(due, specs(), "Teller").by_key([0, 1, 2], codes, by_time=by_time)
    }
    # In arrival order the left rows come first, by sequence and content: here by time.
    assert found == expected


def test_a_time_that_python_cannot_show_is_told_with_its_input() -> None:
    said = r"Teller: input 'trades', column 'at' of the row Row\(.*\) has a time beyond the years 1 to 9999"
    with pytest.raises(FunctionError, match=said):
        feed(operator(Teller()), [("a", 1, 10**18, 0, 0, 1.0, None)], [], ends=True)


@pytest.mark.parametrize("dtype", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
@pytest.mark.parametrize("more", [[], ["number"]])
@pytest.mark.parametrize("side", [0, 1])
def test_a_key_that_python_cannot_show_is_told_with_its_row_before_any_callback(
    dtype: pa.DataType, more: list[str], side: int
) -> None:
    far = 3_000_000 if dtype == pa.date32() else 3_000_000 * 86_400_000_000
    days = [pa.array([0, value], pa.int32() if dtype == pa.date32() else pa.int64()).cast(dtype) for value in (1, far)]
    times = pa.array([1, 2]).cast(pa.timestamp("us", "UTC"))
    tables = [pa.table({"day": days[each == side], "number": [7, 8], "at": times}) for each in (0, 1)]
    names = ("trades", "customers")
    inputs = [
        cj.Input(table, key=["day", *more], event_time="at", name=name)
        for table, name in zip(tables, names, strict=True)
    ]
    joined = cj.connect(*inputs).process(Teller(), "x int")
    said = rf"^Teller: input '{names[side]}', column 'day' of the row Row\(day='.*3000000 days.*', number=8, .*a filter"
    with pytest.raises(FunctionError, match=said):
        joined.to_arrow()
    with pytest.raises(FunctionError, match=said):
        list(joined.steps())
