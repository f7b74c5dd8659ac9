"""Laws that hold whatever arrives: late rows, null keys and times, poisoned timestamps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins import AsofJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from tests.programs import OUTPUT, Ledger
from tests.streams import AMOUNTS, AT, TAGS, TIERS, Delivery, Rows, Streams, assert_conserved, map_side, run, specs

if TYPE_CHECKING:
    from cojoin.engine.input_spec import InputSpec

NOW, MAX_AHEAD = 30, 10
OPERATIONS: dict[str, Any] = {
    "asof": AsofJoin(suffixes=("", "_customer")),
    "unmatched": AsofJoin(suffixes=("", "_customer")),
    "event_time": KeyedCoProcess(Ledger(), OUTPUT),
    "arrival": KeyedCoProcess(Ledger(), OUTPUT, order="arrival"),
}
LATE = {
    "asof": ("reject", "apply"),
    "unmatched": ("reject", "apply"),
    "event_time": ("reject", "reject"),
    "arrival": ("apply", "apply"),
}


def rows(*payload: st.SearchStrategy[Any]) -> st.SearchStrategy[Rows]:
    micros = st.none() | st.integers(-5, 45).map(lambda milli: milli * 1_000 + 7) | st.just(10**18)
    keys = st.sampled_from([None, "a", "a", "b"])
    start = (keys, st.integers(1, 2), micros, st.integers(0, 1), st.integers(0, 3))
    return st.lists(st.tuples(*start, *payload), max_size=5)


BATCHES = st.lists(st.tuples(rows(AMOUNTS, TAGS), rows(TIERS)), min_size=1, max_size=5)
DELAYS = st.tuples(st.sampled_from([0, 5]), st.sampled_from([0, 5]))


def readable(rejected: Any) -> list[dict[str, Any]]:
    """Leave out what Python's datetimes can't show; the row's JSON has it too."""
    return rejected.drop_columns(["event_time"]).to_pylist()


def inputs(name: str, delays: tuple[int, int]) -> Any:
    """Declare the inputs; one operation lets left rows with a null key out unmatched."""
    left, right = specs(delays, max_ahead_ms=MAX_AHEAD)
    return replace(left, null_key="unmatched" if name == "unmatched" else "reject"), right


def verdict(row: tuple[Any, ...], watermark: int, spec: InputSpec) -> str | None:
    if row[AT] is None:
        return "null_event_time"
    if row[AT] // 1_000 > NOW + MAX_AHEAD:
        return "too_far_ahead"
    if row[0] is None and spec.null_key == "reject":
        return "null_key"
    return "late" if row[AT] // 1_000 <= watermark else None


@pytest.mark.parametrize("name", OPERATIONS)
@given(BATCHES, DELAYS, st.sets(st.integers(0, 4)), st.sampled_from([1, 3]))
def test_nothing_vanishes_whatever_arrives(
    name: str, batches: list[tuple[Rows, Rows]], delays: tuple[int, int], restarts: set[int], key_groups: int
) -> None:
    streams = Streams(inputs(name, delays), ([], []))
    delivery = Delivery(batches, key_groups, frozenset(restarts))
    outcome = run(OPERATIONS[name].create_operator, streams, delivery, now=NOW)
    counted = sum(sum(each["rejected"].values()) for report in outcome.reports for each in report["inputs"])
    assert len(outcome.rejections()) == counted
    assert all(each["buffered"] == 0 for report in outcome.reports for each in report["inputs"])


@pytest.mark.parametrize("name", OPERATIONS)
@given(BATCHES, DELAYS)
def test_a_row_is_judged_by_the_watermark_before_its_batch(
    name: str, batches: list[tuple[Rows, Rows]], delays: tuple[int, int]
) -> None:
    streams = Streams(inputs(name, delays), ([], []))
    operator = OPERATIONS[name].create_operator(*streams.inputs)
    for batch in batches:
        watermark, late_applied = operator.report()["watermark"], [each.late_applied for each in operator.counts]
        emissions = list(operator.process(map_side(streams, batch, 1, NOW)[0]))
        rejected = [row for each in emissions if each.kind == "rejected" for row in readable(each.table)]
        verdicts = [
            [verdict(row, watermark, spec) for row in side] for spec, side in zip(streams.inputs, batch, strict=True)
        ]
        for side, spec in enumerate(streams.inputs):
            applies = LATE[name][side] == "apply"
            expected = [each for each in verdicts[side] if each and not (each == "late" and applies)]
            assert sorted(row["reason"] for row in rejected if row["input"] == spec.name) == sorted(expected)
            late = verdicts[side].count("late") if applies else 0
            assert operator.counts[side].late_applied - late_applied[side] == late
        assert {row["watermark"] for row in rejected} <= {None if watermark == -(1 << 63) else watermark}
        assert operator.report()["watermark"] >= watermark
        assert_conserved([operator.report()])
