"""Runs a case of time-to-live (tt) through the harness, for every kind of state that it is said of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.testing import Harness, HarnessInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flink.cases import Case, Events

KINDS = ("value", "list", "map", "map entry", "reducing", "aggregating")


class _Joined(AggregateFunction):
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: str, accumulator: str) -> str:
        return accumulator + value

    def get_result(self, accumulator: str) -> str:
        return accumulator


class Keeps(KeyedCoProcessFunction):
    """``update`` replaces what a state has, ``get`` tells it, whatever the kind of state."""

    def __init__(self, kind: str, ttl: StateTtlConfig) -> None:
        self.kind, self.ttl = kind, ttl

    def open(self, ctx: Any) -> None:
        if self.kind == "value":
            self.state = ctx.get_state(ValueStateDescriptor("it", "string", ttl=self.ttl))
        elif self.kind == "list":
            self.state = ctx.get_list_state(ListStateDescriptor("it", "string", ttl=self.ttl))
        elif self.kind in ("map", "map entry"):
            self.state = ctx.get_map_state(MapStateDescriptor("it", "string", "string", ttl=self.ttl))
        elif self.kind == "reducing":
            self.state = ctx.get_reducing_state(
                ReducingStateDescriptor("it", lambda a, b: a + b, "string", ttl=self.ttl)
            )
        else:
            self.state = ctx.get_aggregating_state(AggregatingStateDescriptor("it", _Joined(), "string", ttl=self.ttl))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.op == "get":
            yield (self.read(),)
        else:
            self.write(value.value)

    def read(self) -> str | None:
        if self.kind == "value":
            return self.state.value()
        if self.kind == "map":
            return next((value for _, value in self.state.items()), None)
        if self.kind == "map entry":
            return self.state.get("entry")
        found = self.state.get()
        return (found[0] if found else None) if self.kind == "list" else found

    def write(self, value: str | None) -> None:
        if self.kind == "value":
            self.state.update(value)
        elif self.kind == "list":
            self.state.update([value])
        elif self.kind == "map":
            self.state.put_all({"entry": value})
        elif self.kind == "map entry":
            self.state.put("entry", value)
        else:
            self.state.clear()
            self.state.add(value)


def run(case: Case) -> Events:
    """Run a case's steps, for every kind of state."""
    for kind in KINDS[:1] if "ValueState" in case.description else KINDS:
        _run(case, kind)
    return []


def _run(case: Case, kind: str) -> None:
    text = case.description
    relaxed = "ReturnExpiredIfNotCleanedUp" in text or case.id == "tt-02"
    ttl = StateTtlConfig(
        "100 milliseconds",
        update_type="on_read_and_write" if "OnReadAndWrite" in text else "on_create_and_write",
        state_visibility="return_expired_if_not_cleaned_up" if relaxed else "never_return_expired",
    )
    row = HarnessInput("k string, op string, value string", key="k", event_time=None)
    harness = Harness(
        # As in Flink's tests one operator is at work from one restore to the next.
        *(Keeps(kind, ttl), "value string"),
        input1=row,
        input2=row,
        order="arrival",
        fresh_calls=False,
    )
    snapshot = b""
    for step in case.steps:
        op, key = step["op"], step.get("key") or "k"
        if op == "clock":
            harness.set_processing_time(step["ts"])
        elif op == "update":
            harness.process_element1((key, "update", step["value"]))
        elif op == "get":
            harness.process_element1((key, "get", None))
            expected = None if step["expect"] == "empty" else step["expect"]
            assert harness.output[-1].value == expected, (kind, step)
        elif op == "update_many":
            harness.process_batch([(str(number), "update", "v") for number in range(20)])
        elif op == "touch_many":
            harness.process_batch([(str(number), "get", None) for number in range(20)])
            assert harness.state_entries() == {"it": 0}
        elif op in ("snapshot_restore", "snapshot", "restore"):
            snapshot = snapshot if op == "restore" else harness.snapshot()
            if op != "snapshot":
                harness.restore(snapshot)
        elif op == "assert":
            assert "cleared" in step["expect"]
            assert harness.state_entries() == {"it": 0}, kind
        else:
            raise NotImplementedError(op)
    harness.close()
