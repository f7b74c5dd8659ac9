"""Runs a case of a function (co, pr, ts and the temporal joins by processing time) through the harness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.errors import FunctionError
from cojoin.testing import Element, Harness, HarnessInput, Record, SideRecord, StatusChange, Watermark
from tests.flink.functions import INT_OUT, LONG_OUT, SIDE, function_of

if TYPE_CHECKING:
    from tests.flink.cases import Case, Events

# Channels of an input wake as in Flink's valve; no one is idle by time.
CHANNELS = WatermarkStrategy.no_watermarks().with_idleness("365 days", returning="skip")


def run(case: Case) -> Events:
    """Run a case's steps, its asserts included; give what came out."""
    return (_InBatchMode(case) if case.has("next_key") else _Streaming(case)).run()


class _Steps:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.has_namespaces = case.kind == "ts"
        self.number = 0
        self.events: Events = []
        merges = any("merge" in str(step["value"]) for step in case.steps)
        self.harness = self.make(2 if merges else 1)

    def make(self, key_groups: int) -> Harness:
        key = "string" if any(isinstance(step.get("key"), str) for step in self.case.steps) else "long"
        columns = f"key {key}, value string, kind string, number long"
        inputs = [
            HarnessInput(
                columns + (", namespace string" if self.has_namespaces else ""),
                key=("key", "namespace") if self.has_namespaces else "key",
                event_time="at" if self.has_time(number) else None,
                sequence="number",
                watermark=CHANNELS if self.case.has("channel_watermark") else WatermarkStrategy.no_watermarks(),
            )
            for number in (1, 2)
        ]
        return Harness(
            function_of(self.case.id),
            "value string",
            input1=inputs[0],
            input2=inputs[1],
            order="arrival",
            side_outputs=[SIDE, INT_OUT, LONG_OUT],
            processing_time_timers=True,
            when_all_idle="max",
            regressing_watermarks="ignore",
            key_groups=key_groups,
        )

    def has_time(self, number: int) -> bool:
        names = {f"element{number}", "element" if number == 1 else ""}
        return any(step["op"] in names and step["ts"] is not None for step in self.case.steps)

    def element(self, step: dict[str, Any]) -> tuple[int, Element]:
        """Turn a step into a row of an input."""
        number = 2 if step["op"] == "element2" else 1
        value, key, self.number = step["value"], step.get("key"), self.number + 1
        if self.case.id == "co-17":
            key = value[0] if number == 2 else value % 2  # a rule is broadcast: its key is the rows' own
        if self.case.id == "co-18" and number == 2:
            key = value[0]
        row = {"key": 0 if key is None else key, "value": json.dumps(value), "kind": step.get("row_kind")}
        return number, Element(row | {"number": self.number}, step["ts"])

    def command(self, step: dict[str, Any]) -> Element:
        """Turn what is done with the timer service into a row."""
        self.number += 1
        row = {"key": step["key"], "namespace": step["value"], "kind": None, "number": self.number}
        return Element(row | {"value": json.dumps([step["op"], step["ts"]])})

    def question(self, what: str, key: Any) -> Element:
        self.number += 1
        row = {"key": key, "namespace": "", "kind": None, "number": self.number}
        return Element(row | {"value": json.dumps(["tell", what])})

    def collect(self) -> None:
        """Turn what came out since the last time into the file's events."""
        for event in self.harness.take():
            if isinstance(event, Watermark):
                self.events.append({"kind": "watermark", "value": None, "ts": event.timestamp})
            elif isinstance(event, StatusChange):
                if event.status != "finished":  # the file has none
                    self.events.append({"kind": "status", "value": event.status.upper(), "ts": None})
            elif isinstance(event, (Record, SideRecord)):
                value = json.loads(event.value.value)
                if isinstance(event, SideRecord):
                    self.events.append({"kind": "side", "tag": event.tag, "value": value, "ts": event.timestamp})
                elif isinstance(value, dict) and self.has_namespaces:
                    self.events.append({"kind": "told" if "told" in value else "fired", **value})
                else:
                    self.events.append({"kind": "record", "value": value, "ts": event.timestamp})

    def check(self, what: str, expected: Any) -> None:
        """Check an assert on timers or on the output."""
        timers = self.harness.timers()
        if what in ("num_event_timers", "num_proc_timers", "count"):
            domain = "processing_time" if what == "num_proc_timers" else "event_time"
            mine = [timer for timer in timers if timer.time_domain == domain]
            wanted = expected if isinstance(expected, dict) else {"all": expected}
            found = {name: sum(name in ("all", timer.key[1]) for timer in mine) for name in wanted}
            assert found == wanted
        elif what == "wakeups":
            wakeup = self.harness.processing_time_wakeup()
            assert ([] if wakeup is None else [wakeup]) == expected
        elif what == "fired":
            assert sum(event["kind"] == "fired" for event in self.events) == expected
        elif what == "output":
            assert (self.events, expected) == ([], "empty")
        else:
            raise NotImplementedError(what)


class _Streaming(_Steps):
    def run(self) -> Events:
        if self.case.has("channel_watermark"):
            for number in (1, 2):
                for channel in "01":
                    self.harness.set_active(number, partition=channel)  # type: ignore[arg-type]
        for place, step in enumerate(self.case.steps):
            if place == self.case.prefix:
                self.events.clear()
            try:
                self.step(step)
            except FunctionError:
                self.events.append({"kind": "error"})
            self.collect()
        self.harness.close()
        return self.events

    def step(self, step: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - one an op
        harness, op, value, ts = self.harness, step["op"], step["value"], step["ts"]
        if op in ("element", "element1", "element2"):
            number, element = self.element(step)
            harness.process_batch(*([[element], []] if number == 1 else [[], [element]]))
        elif op.startswith(("register_", "delete_")):
            harness.process_batch([self.command(step)])
        elif op in ("watermark", "watermark1", "watermark2"):
            getattr(harness, f"process_{op}")(ts)
        elif op == "processing_time":
            harness.set_processing_time(ts)
        elif op == "snapshot_restore":
            groups = 2 if "split" in str(value) else 1 if "merge" in str(value) else None
            data = harness.snapshot()
            if groups is not None:
                self.collect()
                self.harness = self.make(groups)
            self.harness.restore(data)
        elif op in ("status1", "status2"):
            getattr(harness, f"set_{value.lower()}")(int(op[-1]))
        elif op == "channel_watermark":
            getattr(harness, f"process_watermark{step['input']}")(ts, partition=str(step["channel"]))
        elif op == "channel_status":
            getattr(harness, f"set_{value.lower()}")(step["input"], partition=str(step["channel"]))
        elif op == "end_of_input":
            harness.end_input()
        elif op == "for_each_timer":
            domain = "event_time" if value == "event" else "processing_time"
            self.events += [
                {"kind": "timer", "value": list(timer.key), "ts": timer.timestamp}
                for timer in harness.timers()
                if timer.time_domain == domain
            ]
        elif op == "assert" and value.startswith("current_"):
            harness.process_batch([self.question(value, 0)])
            self.collect()
            assert self.events.pop() == {"kind": "told", "told": step["expect"]}
        elif op == "assert":
            self.check(value, step["expect"])
        else:
            raise NotImplementedError(op)


class _InBatchMode(_Steps):
    """A static run: watermarks mean nothing, keys end by themselves, and asserts are asked or looked at afterwards."""

    def run(self) -> Events:
        elements: list[Element] = []
        key = next(step["key"] for step in self.case.steps if step.get("key") is not None)
        answers, later = [], []
        for step in self.case.steps:
            if step["op"] == "assert" and step["value"].startswith("current_"):
                elements.append(self.question(step["value"], key))
                answers.append(step["expect"])
            elif step["op"] == "assert":
                later.append(step)
            elif step["op"] == "next_key":
                key = step["value"]
            elif step["op"] != "watermark":
                elements.append(self.command(step))
        self.harness.run_static(elements)
        self.collect()
        assert [event["told"] for event in self.events if event["kind"] == "told"] == answers
        for step in later:
            self.check(step["value"], step["expect"])
        return [event for event in self.events if event["kind"] != "told"]
