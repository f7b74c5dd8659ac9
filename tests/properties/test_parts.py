"""Whatever the key groups a state is moved to half way, and however its query has grown by then, nothing else changes.

A harness takes random batches; after some of them it is replaced by another, of another number of key groups, that goes
on from its snapshot: with the same operation, or with one whose inputs and states are wider. In both cases the output
is that of a harness which was so from the start and never moved, and the counters are the same after every batch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from cojoin.engine.values.types import as_schema
from cojoin.testing import Element, Harness, HarnessInput, Record

NARROW = HarnessInput("k string, l int", key="k"), HarnessInput("id string, r int, gone boolean", key="id")
# New columns come first, one named as the interval join's flag. The others keep their order, which settles ties.
WIDE = (
    HarnessInput("matched boolean, k string, l long", key="k"),
    HarnessInput("more struct<x:int>, id string, r double, gone boolean", key="id"),
)
TTL = StateTtlConfig("9 ms", time_domain="event_time")
OUTPUT = as_schema("k string, what string, at long, seen string", "output")


class Remembers(KeyedCoProcessFunction):
    """Tells all that it keeps, in states of three kinds, at every left row and at timers of both."""

    VISIT, MARK, COUNT = "at long, l int", "int", "int"

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", self.VISIT))
        self.recent = ctx.get_list_state(ListStateDescriptor("recent", self.MARK, ttl=TTL))
        self.counts = ctx.get_map_state(MapStateDescriptor("counts", "int", self.COUNT))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        told = self.tell("row", ctx)
        self.last.update(self.visit(value, ctx.timestamp()))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.l)
        return told

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.recent.add(value.r)
        self.counts[int(value.r)] = (self.counts.get(int(value.r)) or 0) + 1
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.tell("timer", ctx)

    def visit(self, value: Any, at: int) -> Any:
        return {"at": at, "l": value.l}

    def tell(self, what: str, ctx: Any) -> Any:
        last = self.last.value()
        named = {} if last is None else {name: value for name, value in sorted(last.as_dict().items()) if value}
        # A double is written as the whole number that it was.
        seen = (named, list(map(int, self.recent.get())), sorted(self.counts.items()))
        return [(ctx.get_current_key(), what, ctx.timestamp(), str(seen))]


class RemembersMore(Remembers):
    """Keeps wider numbers, and of a visit whether its row had the new column."""

    VISIT, MARK, COUNT = "matched boolean, l long, at long", "double", "long"

    def visit(self, value: Any, at: int) -> Any:
        return {"matched": value.matched, "l": value.l, "at": at}


JOINS: dict[str, Any] = {
    "asof": AsofJoin(tolerance="9 ms"),
    "nearest": AsofJoin(direction="nearest", tolerance="6 ms"),
    "interval": IntervalJoin("-4 ms", "6 ms", "full", upper_inclusive=False),
    "temporal": TemporalJoin(deletes="gone", retention="12 ms"),
}
OPERATIONS = {**JOINS, "function": KeyedCoProcess(Remembers(), OUTPUT)}
WIDER = {**JOINS, "function": KeyedCoProcess(RemembersMore(), OUTPUT)}

ROW = st.tuples(st.booleans(), st.sampled_from("aabcd"), st.integers(0, 4), st.booleans(), st.integers(-5, 30))
# How many key groups there are, the rows of a batch, and how far each input's watermark moves after it.
BATCHES = st.lists(
    st.tuples(st.integers(1, 4), st.lists(ROW, max_size=5), st.integers(0, 9), st.integers(0, 9)), max_size=5
)


def make(name: str, key_groups: int, *, wide: bool, **options: Any) -> Harness:
    left, right = WIDE if wide else NARROW
    operation = (WIDER if wide else OPERATIONS)[name]
    return Harness.of(operation, input1=left, input2=right, key_groups=key_groups, **options)


def send(harness: Harness, batch: Any, marks: list[int], *, wide: bool, news: bool) -> None:
    """Send a batch's rows; wide ones have something in the new columns only where there is news."""
    left, right = [], []
    for is_right, key, number, flag, time in batch[1]:
        if is_right:
            row = {"id": key, "r": number, "gone": flag} | ({"more": (number,) if news else None} if wide else {})
            right.append(Element(row, time))
        else:
            row = {"k": key, "l": number} | ({"matched": flag if news else None} if wide else {})
            left.append(Element(row, time))
    harness.process_batch(left, right)
    harness.process_watermark1(marks[0])
    harness.process_watermark2(marks[1])


def records(harnesses: list[Harness], names: list[str]) -> dict[str, list[str]]:
    """Return each key's records in order, those of narrow harnesses with nulls in the columns that they lack."""
    found: dict[str, list[str]] = defaultdict(list)
    for harness in harnesses:
        for event in harness.log:
            if isinstance(event, Record):
                row = {name: event.value.as_dict().get(name) for name in names}
                # 1 of an int and 1.0 of a double are one value.
                shown = {
                    name: float(value) if name == "r" and value is not None else value for name, value in row.items()
                }
                found[event.value.k].append(f"{shown} at {event.timestamp}")
    return found


def counters(harness: Harness) -> Any:
    report = harness.report()
    return report.inputs, report.rows_out, harness.timers()


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=20)
@given(batches=BATCHES, grows_at=st.none() | st.integers(0, 4), last=ROW)
def test_a_state_that_is_moved_and_grows_goes_on_as_if_it_had_always_been_so(
    name: str, batches: list[Any], grows_at: int | None, last: Any
) -> None:
    grows = grows_at is not None
    whole = make(name, 1, wide=grows, fresh_calls=False)  # never restored from anything
    moved = [make(name, 2, wide=False)]
    marks, wide = [-9, -9], False
    for number, batch in enumerate([*batches, (3, [last], 9, 9)]):
        is_last = number == len(batches)
        wide = wide or (grows and (is_last or number == grows_at))
        again = make(name, batch[0], wide=wide)
        again.restore(moved[-1].snapshot())
        assert counters(again) == counters(moved[-1])
        moved.append(again)
        marks = [mark + step for mark, step in zip(marks, batch[2:], strict=True)]
        send(whole, batch, marks, wide=grows, news=wide)
        send(again, batch, marks, wide=wide, news=wide)
        assert counters(again) == counters(whole)
    for harness in (whole, again):
        harness.end_input()
    assert counters(again) == counters(whole)
    names = whole._schema.names
    assert records(moved, names) == records([whole], names)
