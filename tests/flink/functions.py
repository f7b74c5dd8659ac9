"""The functions that the cases say in words. A row is ``key``, ``value`` (JSON), ``kind`` and ``number``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
from cojoin.engine.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.engine.time.timers import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE, INT_OUT, LONG_OUT = (OutputTag(name, "value string") for name in ("side", "int-out", "long-out"))

Given = tuple[str]


def out(value: Any) -> Given:
    return (json.dumps(value),)


def read(row: Any) -> Any:
    return json.loads(row.value)


def set_timer(ctx: Any, domain: str, timestamp: int) -> None:
    service = ctx.timer_service()
    register = service.register_event_time_timer if domain == "event" else service.register_processing_time_timer
    register(timestamp)


def delete_timer(ctx: Any, domain: str, timestamp: int) -> None:
    service = ctx.timer_service()
    delete = service.delete_event_time_timer if domain == "event" else service.delete_processing_time_timer
    delete(timestamp)


class Function(KeyedCoProcessFunction):
    """Calls ``process(number, value, ctx)`` for the rows of both inputs."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        return self.process(1, read(value), ctx)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return self.process(2, read(value), ctx)

    def process(self, number: int, value: Any, ctx: Any) -> Any:
        raise NotImplementedError


class PassThrough(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out(str(value))


class WithKey(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out(f"{value},{ctx.get_current_key()}")


class SetsTimers(Function):
    """co-02, co-07, co-08: timers at 5 (first input) and 6 (second)."""

    def __init__(self, domain: str, *, tells_key: bool = False) -> None:
        self.domain, self.tells_key = domain, tells_key

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out(f"INPUT{number}:{value}")
        set_timer(ctx, self.domain, 4 + number)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        assert ctx.time_domain() is (TimeDomain.EVENT_TIME if self.domain == "event" else TimeDomain.PROCESSING_TIME)
        assert ctx.timestamp() == timestamp
        yield out(f"{ctx.get_current_key()}:1777" if self.tells_key else "1777")


class WithState(Function):
    """co-09, co-10, pr-06: a state and a timer 5 ms after the current time, both given up by a key's second row."""

    def __init__(self, domain: str, *, numbered: bool = True) -> None:
        self.domain, self.numbered = domain, numbered

    def open(self, ctx: Any) -> None:
        self.state = ctx.get_state(ValueStateDescriptor("state", "string"))

    def now(self, ctx: Any) -> int:
        service = ctx.timer_service()
        return service.current_watermark() if self.domain == "event" else service.current_processing_time()

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        if self.state.value() is None:
            yield out(f"INPUT{number if self.numbered else ''}:{value}")
            self.state.update(str(value))
            set_timer(ctx, self.domain, self.now(ctx) + 5)
        else:
            self.state.clear()
            delete_timer(ctx, self.domain, self.now(ctx) + 4)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        yield out(f"STATE:{self.state.value()}")


class DeletesTimers(Function):
    """co-11, pr-08: each domain keeps one of two timers."""

    def __init__(self, *, both: bool) -> None:
        self.both = both

    def process(self, number: int, value: Any, ctx: Any) -> None:
        if self.both or number == 1:
            set_timer(ctx, "proc", 3)
            set_timer(ctx, "event", 6)
        if self.both or number == 2:
            set_timer(ctx, "event", 4)
            set_timer(ctx, "proc", 5)
        if self.both or number == 1:
            delete_timer(ctx, "proc", 3)
        if self.both or number == 2:
            delete_timer(ctx, "event", 4)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        yield out(f"{'EVENT' if ctx.time_domain() is TimeDomain.EVENT_TIME else 'PROC'}:1777")


class SideOutputs(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Any]:
        yield out(value[number - 1])
        yield SIDE, out(value[2 - number])


class SharedMap(Function):
    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "string", "boolean"))

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        if number == 1:
            # Downstream filters out the "4" (its note).
            yield from [out(str(value[0] + 1))] * 2 if value[0] < 3 else []
        elif value[0] not in self.seen:
            self.seen[value[0]] = True
            yield out(value[0])


class TwoStates(Function):
    def open(self, ctx: Any) -> None:
        self.before = [ctx.get_state(ValueStateDescriptor(f"pre_{number}", "string")) for number in (1, 2)]

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        state = self.before[number - 1]
        yield out([f"input {number}", value[1], state.value()])
        state.update(value[0])


class WaitsForRule(Function):
    def open(self, ctx: Any) -> None:
        self.rule = ctx.get_state(ValueStateDescriptor("rule", "string"))
        self.waiting = ctx.get_list_state(ListStateDescriptor("waiting", "long"))

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        if number == 2:
            self.rule.update(value[1])
            yield out(f"{value[0]}{value[1]}")
            yield from [out(f"{value[1]}{each}") for each in self.waiting.get()]
            self.waiting.clear()
        elif self.rule.value() is None:
            self.waiting.add(value)
        else:
            yield out(f"{self.rule.value()}{value}")


class TimerOfFirst(Function):
    def process(self, number: int, value: Any, ctx: Any) -> None:
        if number == 1:
            set_timer(ctx, "event", ctx.timestamp() + 10_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        yield out(f"timer key {ctx.get_current_key()}")


class TellsWatermark(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out(f"{value} WM:{ctx.timer_service().current_watermark()}")


class TimerInAMinute(Function):
    def process(self, number: int, value: Any, ctx: Any) -> None:
        set_timer(ctx, "proc", ctx.timer_service().current_processing_time() + 60_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        yield out("fired")


class ChecksKey(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        assert ctx.get_current_key() == value[0]
        yield out(value[1])


class TellsTime(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        timestamp = "null" if ctx.timestamp() is None else ctx.timestamp()
        yield out(f"{value}TIME:{ctx.timer_service().current_processing_time()} TS:{timestamp}")


class ProcessingTimer(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out(value)
        set_timer(ctx, "proc", ctx.timer_service().current_processing_time() + 5)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        yield out(1777)


class NullTag(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Any]:
        yield None, out(value)


class SeveralTags(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Any]:
        yield out(f"IN:{value}")
        yield INT_OUT, out(value)
        yield LONG_OUT, out(value)


class SideOutputInTimers(Function):
    """A timer of both domains, each of which tells the side output, too."""

    def process(self, number: int, value: Any, ctx: Any) -> None:
        set_timer(ctx, "event", 10)
        set_timer(ctx, "proc", 20)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield SIDE, out(f"before {timestamp}")
        yield out(timestamp)
        yield SIDE, out(f"after {timestamp}")


class ObeysRows(Function):
    """pr-13 to pr-17: a row's text sets the state and timers."""

    def open(self, ctx: Any) -> None:
        self.state = ctx.get_state(ValueStateDescriptor("state", "string"))

    def process(self, number: int, value: Any, ctx: Any) -> None:
        for order in value[1].split(", "):
            what, _, argument = order.replace(" ", ":").partition(":")
            if what.upper() in ("SET_STATE", "STATE"):
                self.state.update(argument)
            else:
                domain = {"SET_PROC_TIME_TIMER": "proc", "SET_EVENT_TIME_TIMER": "event"}.get(what, what)
                set_timer(ctx, domain, int(argument))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        domain = "EVENT" if ctx.time_domain() is TimeDomain.EVENT_TIME else "PROC"
        yield out(f"ON_{domain}_TIME:{self.state.value()}")


class ThreeStates(Function):
    def open(self, ctx: Any) -> None:
        ttl = StateTtlConfig(
            "1 second", update_type="on_read_and_write", state_visibility="return_expired_if_not_cleaned_up"
        )
        self.value = ctx.get_state(ValueStateDescriptor("value", "long"))
        self.list = ctx.get_list_state(ListStateDescriptor("list", "long"))
        self.map = ctx.get_map_state(MapStateDescriptor("map", "long", "string", ttl=ttl))

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        yield out([value[0], self.value.value(), self.list.get(), dict(self.map.items())])
        self.value.update(value[0])
        self.list.add(value[0])
        self.map.put(value[0], value[1])


class Sums(Function):
    def open(self, ctx: Any) -> None:
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", lambda total, value: total + value, "long"))

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        self.sum.add(value[0])
        yield out([self.sum.get(), value[1]])


class ProcessingTimeJoin(Function):
    """tj-06 to tj-09: each left row with its key's version as it is now; versions expire 15 ms after their last use."""

    def __init__(self, how: str) -> None:
        self.how = how

    def open(self, ctx: Any) -> None:
        ttl = StateTtlConfig("15 milliseconds", update_type="on_read_and_write")
        self.version = ctx.get_state(ValueStateDescriptor("version", "string", ttl=ttl))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Given]:
        version = self.version.value()
        if version is not None:
            yield out([*read(value), *json.loads(version)])
        elif self.how == "left":
            yield out([*read(value), None, None])

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.version.update(None if value.kind in ("-U", "-D") else value.value)


class Commands(Function):
    """The timer service: a row says what to do with it; every timer that fires is told."""

    def __init__(self, case: str) -> None:
        self.case = case

    def process(self, number: int, value: Any, ctx: Any) -> Iterator[Given]:
        what, argument = value
        service = ctx.timer_service()
        if what == "tell":
            told = {
                "current_watermark": service.current_watermark,
                "current_processing_time": service.current_processing_time,
            }
            yield out({"told": told[argument]()})
            return
        action, domain = what.split("_")
        (set_timer if action == "register" else delete_timer)(ctx, domain, argument)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Given]:
        domain = "event" if ctx.time_domain() is TimeDomain.EVENT_TIME else "proc"
        watermark = ctx.timer_service().current_watermark()
        yield out(
            {"domain": domain, "value": list(ctx.get_current_key()), "ts": timestamp, "current_watermark": watermark}
        )
        if self.case == "ts-04":
            set_timer(ctx, "proc", timestamp + 10)
        if self.case == "ts-own-same-sweep" and timestamp == 10:
            set_timer(ctx, "event", 20)
            set_timer(ctx, "event", 5)
            set_timer(ctx, "event", 40)
        if self.case == "ts-20":
            set_timer(ctx, "proc", timestamp + 20)
        if self.case == "ts-24" and timestamp == 10:
            delete_timer(ctx, "event", 20)


FUNCTIONS: dict[str, KeyedCoProcessFunction] = {
    "co-01": WithKey(),
    "co-02": SetsTimers("event", tells_key=True),
    "co-07": SetsTimers("event"),
    "co-08": SetsTimers("proc"),
    "co-09": WithState("event"),
    "co-10": WithState("proc"),
    "co-11": DeletesTimers(both=False),
    "co-14": SideOutputs(),
    "co-15": SharedMap(),
    "co-16": TwoStates(),
    "co-17": WaitsForRule(),
    "co-18": TimerOfFirst(),
    "co-32": TellsWatermark(),
    "co-34": TimerInAMinute(),
    "pr-01": ChecksKey(),
    "pr-03": TellsTime(),
    "pr-05": ProcessingTimer(),
    "pr-06": WithState("event", numbered=False),
    "pr-08": DeletesTimers(both=True),
    "pr-09": NullTag(),
    "pr-10": SeveralTags(),
    "pr-13": ObeysRows(),
    "pr-14": ObeysRows(),
    "pr-15": ObeysRows(),
    "pr-17": ObeysRows(),
    "pr-18": ThreeStates(),
    "pr-19": Sums(),
    "co-own-side": SideOutputInTimers(),
    "tj-06": ProcessingTimeJoin("inner"),
    "tj-08": ProcessingTimeJoin("left"),
    "tj-09": ProcessingTimeJoin("inner"),
}


def function_of(case: str) -> KeyedCoProcessFunction:
    """Return a case's function; where the file says none, rows pass through."""
    return Commands(case) if case.startswith("ts") else FUNCTIONS.get(case, PassThrough())
