"""Rows with a null key, in memory: unmatched where the join keeps their side, refused with the reason elsewhere."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import cojoin as cj
from cojoin.errors import ConfigurationError

TIMES = [pd.Timestamp(f"2026-01-15 09:0{minute}", tz="UTC") for minute in range(4)]
TRADES = pd.DataFrame({"id": pd.array([None, 7, None, 7], "Int64"), "event_time": TIMES, "amount": [1, 2, 3, 4]})
CUSTOMERS = pd.DataFrame({"id": pd.array([7, None], "Int64"), "event_time": TIMES[1:3], "tier": ["gold", "lost"]})


def pair(left: str = "reject", right: str = "reject") -> cj.ConnectedInputs:
    return cj.connect(
        cj.Input(TRADES, "id", "event_time", "trades", null_key=left),  # type: ignore[arg-type]
        cj.Input(CUSTOMERS, "id", "event_time", "customers", null_key=right),  # type: ignore[arg-type]
    )


def tiers(joined: cj.Joined) -> list[tuple[Any, Any]]:
    table = joined.run().output
    return sorted(zip(table["amount"].to_pylist(), table["tier"].to_pylist(), strict=True), key=str)


def test_no_left_row_is_missing_from_a_left_join() -> None:
    expected = [(1, None), (2, "gold"), (3, None), (4, "gold")]
    for joined in (
        pair("unmatched").asof_join(),
        pair("unmatched").temporal_join(),
        pair("unmatched").interval_join("-1 hour", "0 s", how="left"),
    ):
        assert tiers(joined) == expected
        assert joined.run().rejected["input"].to_pylist() == ["customers"]
    both = pair("unmatched", "unmatched").interval_join("-1 hour", "0 s", how="full")
    assert tiers(both) == sorted([*expected, (None, "lost")], key=str)
    assert both.run().rejected.num_rows == 0
    assert both.run().report.is_conserved


def test_they_come_out_at_their_own_time_and_late_ones_are_late() -> None:
    steps = list(pair("unmatched").asof_join(direction="forward").steps(batches=[(1, 2), (1, 0), (2, 0)]))
    emitted = [step.output["amount"].to_pylist() for step in steps]
    # A row of a key would wait for the end, since it looks ahead without a limit.
    assert emitted == [[], [1], [2], [3, 4]]
    backwards = cj.Input(TRADES.iloc[[3, 0, 2]], "id", "event_time", "trades", null_key="unmatched")
    customers = cj.Input(CUSTOMERS, "id", "event_time", "customers")
    late = list(cj.connect(backwards, customers).asof_join().steps(batches=[(1, 2), (2, 0)]))
    assert late[1].rejected["reason"].to_pylist() == ["late"]
    assert [step.output["amount"].to_pylist() for step in late] == [[], [], [3, 4]]


@pytest.mark.parametrize(
    ("join", "told"),
    [
        (lambda: pair("unmatched").asof_join("inner"), "emits no row of 'trades' without a match"),
        (lambda: pair("unmatched").temporal_join("inner"), "with how='inner'"),
        (lambda: pair("unmatched").interval_join("0 s", "1 s"), "how='left', or 'full' of an interval join"),
        (lambda: pair("unmatched").interval_join("0 s", "1 s", "right"), "with how='right'"),
        (lambda: pair(right="unmatched").asof_join(), "interval_join with how='right' or 'full'"),
        (lambda: pair(right="unmatched").temporal_join(), "emits no row of 'customers' without a match"),
        (lambda: pair(right="unmatched").interval_join("0 s", "1 s", "left"), "leave null_key= out"),
    ],
)
def test_a_join_that_would_emit_none_of_them_refuses_them(join: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match="null_key='unmatched'") as error:
        join()
    assert told in str(error.value)


def test_a_function_is_called_by_key_and_refuses_them() -> None:
    class Nothing(cj.KeyedCoProcessFunction):
        def process_element1(self, trade: Any, ctx: cj.Context) -> None: ...

        def process_element2(self, customer: Any, ctx: cj.Context) -> None: ...

    with pytest.raises(ConfigurationError, match="a function is called by key"):
        pair("unmatched").process(Nothing(), "x int")


def test_another_word_is_refused_and_the_setting_is_shown() -> None:
    with pytest.raises(ConfigurationError, match="input 'trades': null_key: expected 'reject' or 'unmatched'"):
        cj.Input(TRADES, "id", "event_time", "trades", null_key="keep")  # type: ignore[arg-type]
    assert "null_key unmatched" in repr(cj.Input(TRADES, "id", "event_time", null_key="unmatched"))


def test_a_diff_tells_of_the_setting_and_of_the_rows() -> None:
    found = cj.diff(pair().asof_join(), pair("unmatched").asof_join())
    assert found.settings["left input's null_key"] == ("reject", "unmatched")
    assert found.only_in_b.num_rows == 2
