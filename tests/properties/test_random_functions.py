"""Functions that Hypothesis writes: whatever they keep and set, event-time order gives one result.

A program is a list of instructions for each callback, over all kinds of state, with and without time-to-live in event
time, event-time timers ahead, in the past and deleted, and a side output. How the rows arrive, how the batches are cut,
how many key groups there are and where each is restored from its snapshot must change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cojoin.engine.state.descriptors import AggregateFunction
from cojoin.engine.state.ttl import StateTtlConfig
from tests.oracles import by_key
from tests.programs import OUTPUT, told
from tests.streams import Streams, deliveries, run, streams

if TYPE_CHECKING:
    from collections.abc import Iterator

BESIDE = OutputTag("beside", OUTPUT)
TTL = StateTtlConfig("6 ms", time_domain="event_time")
RENEWED = StateTtlConfig("4 ms", time_domain="event_time", update_type="on_read_and_write")


class Spread(AggregateFunction):
    """The least and the most, and how far they are apart."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        return [min([*accumulator, value]), max([*accumulator, value])]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] - accumulator[0]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return [min(acc_a[0], acc_b[0]), max(acc_a[1], acc_b[1])]


@dataclass
class Program(KeyedCoProcessFunction):
    """Runs instructions: a name and a number each."""

    first: list[tuple[str, int]]
    second: list[tuple[str, int]]
    timer: list[tuple[str, int]]

    def open(self, ctx: Any) -> None:
        self.fired = ctx.get_state(ValueStateDescriptor("fired", "long"))
        self.value = ctx.get_state(ValueStateDescriptor("value", "number long, text string"))
        self.brief = ctx.get_state(ValueStateDescriptor("brief", "long", ttl=TTL))
        self.elements = ctx.get_list_state(ListStateDescriptor("elements", "long"))
        self.recent = ctx.get_list_state(ListStateDescriptor("recent", "long", ttl=TTL))
        self.counts = ctx.get_map_state(MapStateDescriptor("counts", "int", "long", ttl=RENEWED))
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", lambda one, two: one + two, "long"))
        self.spread = ctx.get_aggregating_state(AggregatingStateDescriptor("spread", Spread(), "array<long>", ttl=TTL))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._run(self.first, ctx, "first")

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._run(self.second, ctx, "second")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        # Timers that set timers must end some day.
        fired = (self.fired.value() or 0) + 1
        self.fired.update(fired)
        yield from self._run(self.timer if fired < 20 else [("tell", 0)], ctx, "timer")

    def _run(self, instructions: list[tuple[str, int]], ctx: Any, callback: str) -> Iterator[Any]:
        now, timers = ctx.timestamp(), ctx.timer_service()
        for name, number in instructions:
            if name == "tell":
                yield told(ctx, callback, *self._seen())
            elif name == "beside":
                own = timers.current_watermark1(), timers.current_watermark2()
                yield BESIDE, told(ctx, callback, number, self.brief.value(), *own)
            elif name == "set":
                timers.register_event_time_timer(now + number)
            elif name == "delete":
                timers.delete_event_time_timer(now + number)
            elif name == "keep":
                self._keep(number)
            else:
                self._forget(number)

    def _keep(self, number: int) -> None:
        self.value.update({"number": number, "text": None if number % 2 else str(number)})
        self.brief.update(number)
        self.elements.add(number)
        self.recent.add(number)
        self.counts[number % 3] = (self.counts.get(number % 3) or 0) + 1
        self.sum.add(number)
        self.spread.add(number)

    def _forget(self, number: int) -> None:
        states = (self.value, self.brief, self.elements, self.recent, self.counts, self.sum, self.spread)
        states[number % len(states)].clear()

    def _seen(self) -> tuple[Any, ...]:
        value = self.value.value()
        return (
            value and tuple(value),
            self.brief.value(),
            self.elements.get(),
            self.recent.get(),
            sorted(self.counts.items()),
            self.sum.get(),
            self.spread.get(),
        )


INSTRUCTIONS = st.lists(
    st.tuples(
        st.sampled_from(["tell", "beside", "set", "set", "delete", "keep", "keep", "forget"]), st.integers(-3, 9)
    ),
    max_size=5,
)
PROGRAMS = st.builds(Program, INSTRUCTIONS, INSTRUCTIONS, INSTRUCTIONS)


@given(st.data(), streams(), PROGRAMS)
def test_however_the_rows_arrive_a_random_function_gives_the_same(
    data: st.DataObject, streams: Streams, program: Program
) -> None:
    process = KeyedCoProcess(program, OUTPUT, side_outputs=(BESIDE,))
    one, two = (run(process.create_operator, streams, data.draw(deliveries(streams))) for _ in range(2))
    assert by_key(one.rows()) == by_key(two.rows())
    assert by_key(one.rows("beside")) == by_key(two.rows("beside"))
    assert one.total("timers_not_fired") == two.total("timers_not_fired")
    assert one.total("timers") == two.total("timers") == 0
