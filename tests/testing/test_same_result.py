"""However a test delivers rows that are not late, a harness gives what a static run of them gives."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.state import ListStateDescriptor
from cojoin.engine.values.types import as_schema
from cojoin.testing import AsofJoin, Element, Harness, HarnessInput, IntervalJoin, Record, TemporalJoin

LEFT = HarnessInput("k string, l long", key="k", name="left")
RIGHT = HarnessInput("k string, r long, gone boolean", key="k", name="right")


class Remembers(KeyedCoProcessFunction):
    """Tells all that it has seen of the right, at every left row and at timers of both."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", "long"))

    def tell(self, what: str, ctx: Any) -> Any:
        return [(ctx.get_current_key(), what, ctx.timestamp(), str(self.seen.get()))]

    def process_element1(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.l)
        return self.tell("row", ctx)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.seen.add(value.r)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.tell("timer", ctx)


OPERATIONS: dict[str, Any] = {
    "function": KeyedCoProcess(Remembers(), as_schema("k string, what string, at long, seen string", "output")),
    "asof": AsofJoin(tolerance="9 ms"),
    "forward": AsofJoin("inner", direction="forward"),
    "nearest": AsofJoin(direction="nearest", tolerance="6 ms"),
    "interval": IntervalJoin("-4 ms", "6 ms", "full", upper_inclusive=False),
    "temporal": TemporalJoin(deletes="gone", retention="12 ms"),
}

KEYS, TIMES = st.sampled_from("aab"), st.integers(-5, 30)
ROWS = st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, 4), st.booleans(), TIMES), max_size=14)


def elements(rows: list[Any]) -> tuple[list[Element], list[Element]]:
    left = [Element((key, number), time) for is_right, key, number, _, time in rows if not is_right]
    right = [Element((key, number, gone), time) for is_right, key, number, gone, time in rows if is_right]
    return left, right


def by_key(harness: Harness) -> dict[Any, list[str]]:
    """Return each key's records, in order."""
    found: dict[Any, list[str]] = defaultdict(list)
    for event in harness.log:
        if isinstance(event, Record):
            found[event.value.k].append(repr(event))
    return found


@pytest.mark.push
@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
def test_any_delivery_gives_the_result_of_a_static_run(name: str, data: st.DataObject) -> None:
    rows = data.draw(ROWS)
    static = Harness.of(OPERATIONS[name], input1=LEFT, input2=RIGHT)
    static.run_static(*elements(rows))

    def make() -> Harness:
        groups, fresh = data.draw(st.integers(1, 3)), data.draw(st.booleans())
        return Harness.of(OPERATIONS[name], input1=LEFT, input2=RIGHT, key_groups=groups, fresh_calls=fresh)

    harness, waiting = make(), data.draw(st.permutations(rows))
    log = []
    while waiting:
        count = data.draw(st.integers(1, len(waiting)))
        harness.process_batch(*elements(waiting[:count]))
        waiting = waiting[count:]
        for number in (1, 2):
            times = [time for is_right, *_, time in waiting if is_right == (number == 2)]
            if data.draw(st.booleans()):
                mark = min(times, default=40) - 1
                getattr(harness, f"process_watermark{number}")(mark)
        if data.draw(st.booleans()):
            log += harness.take()
            moved = make()
            moved.restore(harness.snapshot())
            harness = moved
    harness.end_input()
    harness.log[:0] = log
    assert harness.rejected == []
    assert by_key(harness) == by_key(static)
    harness.close()
