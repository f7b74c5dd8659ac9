from __future__ import annotations

from typing import Any

import pytest

from cojoin.errors import CheckpointError, CodecError
from cojoin.testing import AsofJoin, Harness, HarnessInput, IntervalJoin, TemporalJoin, Watermark
from tests.testing.functions import CUSTOMERS, TRADES, EnrichTrades, enrich

OPERATIONS: dict[str, Any] = {
    "asof": AsofJoin(),
    "nearest": AsofJoin(direction="nearest", tolerance="10 ms"),
    "interval": IntervalJoin("-5 ms", "5 ms", "full"),
    "temporal": TemporalJoin(),
}


def make(name: str, key_groups: int) -> Harness:
    if name == "function":
        return enrich(key_groups=key_groups)
    customers = HarnessInput("id string, tier string", key="id", name="customers")
    return Harness.of(OPERATIONS[name], input1=TRADES, input2=customers, key_groups=key_groups)


def first_half(harness: Harness) -> None:
    for number, key in enumerate("abcdefgh"):
        harness.process_element2((key, f"tier {key}"), 10 + number)
        harness.process_element1((key, number, 1.0), 14)
    harness.process_element1((None, 99, 1.0), 14)
    harness.process_watermark(13)


def second_half(harness: Harness) -> None:
    harness.process_element1(("a", 100, 1.0), 30)
    harness.process_watermark(25)
    harness.end_input()


@pytest.mark.push
@pytest.mark.parametrize("name", ["function", *OPERATIONS])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_a_restore_into_any_number_of_key_groups_changes_nothing(name: str, before: int, after: int) -> None:
    whole = make(name, 1)
    first_half(whole)
    second_half(whole)
    first, second = make(name, before), make(name, after)
    first_half(first)
    second.restore(first.snapshot())
    assert second.report().inputs == first.report().inputs
    assert second.report().rows_out == first.report().rows_out
    assert second.timers() == first.timers()
    assert [second.buffered(side) for side in (1, 2)] == [first.buffered(side) for side in (1, 2)]
    second_half(second)
    assert sorted(map(repr, first.output + second.output)) == sorted(map(repr, whole.output))
    assert second.report().inputs == whole.report().inputs
    assert second.report().rows_out == whole.report().rows_out


def test_a_restore_goes_on_in_place() -> None:
    harness = enrich(processing_time=5)
    harness.process_element2(("a", "gold"), 10)
    data = harness.snapshot()
    harness.set_processing_time(50)
    harness.process_watermark(20)
    assert harness.state("a") == {"tier": "gold"}
    harness.restore(data)
    assert (harness.state("a"), harness.current_watermark() < 0) == ({}, True)
    harness.process_watermark(30)
    assert harness.take() == [Watermark(20), Watermark(30)]
    assert harness.report().processing_time == 5


def test_a_restore_may_change_the_function() -> None:
    class Louder(EnrichTrades):
        def process_element1(self, trade: Any, ctx: Any) -> Any:
            return [(trade.trade_id, self.tier.value().upper())]

    old = enrich()
    old.process_element2(("a", "gold"), 10)
    old.process_watermark(10)
    new = Harness(Louder(), "trade_id long, tier string", input1=TRADES, input2=CUSTOMERS)
    new.restore(old.snapshot())
    new.process_element1(("a", 7, 1.0), 11)
    new.process_watermark(11)
    assert new.output == [(7, "GOLD")]


@pytest.mark.push
@pytest.mark.parametrize("name", ["function", *OPERATIONS])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 1)])
def test_a_restore_may_add_columns_and_widen_them(name: str, before: int, after: int) -> None:
    trades = HarnessInput("matched boolean, customer_id string, trade_id long, amount double", "customer_id", name="l")
    customers = HarnessInput("id string, rank int, tier string, note string", key="id", name="customers")
    key = {"input1": trades, "key_groups": after}
    wider = (
        enrich(**key) if name == "function" else Harness.of(OPERATIONS[name], input2=customers, **key)  # type: ignore[arg-type]
    )
    old, whole = make(name, before), make(name, 1)
    for harness in (old, whole):
        first_half(harness)
    wider.restore(old.snapshot())
    second_half(whole)
    wider.process_element1((None, "a", 100, 1.0), 30)
    wider.process_watermark(25)
    wider.end_input()
    names = {"matched", "rank", "note"}
    rows = [{column: value for column, value in row.as_dict().items() if column not in names} for row in wider.output]
    assert sorted(map(repr, [row.as_dict() for row in old.output] + rows)) == sorted(
        repr(row.as_dict()) for row in whole.output
    )
    assert {row.as_dict().get("matched") for row in wider.output} == {None}
    assert wider.report().rows_out == whole.report().rows_out


def test_a_restore_into_other_key_groups_keeps_the_key() -> None:
    harness = make("asof", 2)
    first_half(harness)
    other = HarnessInput("id string, customer string, tier string", key="customer", name="customers")
    with pytest.raises(CheckpointError, match="table 'held2' has no column 'customer', which is part of the query"):
        Harness.of(AsofJoin(), input1=TRADES, input2=other).restore(harness.snapshot())
    longer = HarnessInput("customer_id string, trade_id long, amount double", key="trade_id", name="trades")
    numbered = HarnessInput("id long, tier string", key="id", name="customers")
    with pytest.raises(CheckpointError, match="column 'id', which must keep its type, changes from string to bigint"):
        Harness.of(AsofJoin(), input1=longer, input2=numbered, key_groups=2).restore(harness.snapshot())


def test_a_drained_harness_stays_so() -> None:
    harness = enrich()
    harness.end_input()
    again = enrich()
    again.restore(harness.snapshot())
    with pytest.raises(AssertionError, match="the inputs have ended"):
        again.process_watermark(1)


def test_what_is_no_snapshot_of_a_harness_is_refused() -> None:
    harness = enrich()
    with pytest.raises(CodecError, match="expected them to begin with"):
        harness.restore(b"something else, long enough")
    with pytest.raises(CodecError, match="got the state of a single operator"):
        harness.restore(harness._run.operators[0].snapshot())
    with pytest.raises(CheckpointError, match="the checkpoint was written by AsofJoinOperator"):
        harness.restore(make("asof", 1).snapshot())
    other = HarnessInput("customer_id string, tier long", key="customer_id", name="customers")
    with pytest.raises(CheckpointError, match="column 'tier' changes from string to bigint"):
        enrich(input2=other).restore(harness.snapshot())


def test_key_groups_share_the_keys_and_the_watermark() -> None:
    harness = make("function", 3)
    first_half(harness)
    held = [operator.report()["inputs"][0]["rows_in"] for operator in harness._run.operators]
    assert sum(held) == 9
    assert all(count < 9 for count in held)
    assert {operator.report()["watermark"] for operator in harness._run.operators} == {13}
    assert [event for event in harness.log if isinstance(event, Watermark)] == [Watermark(13)]
