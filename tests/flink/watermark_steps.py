"""Runs a case of watermarks (wm, va) on the public classes, or through the harness where rows are part of it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.operator_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE, IdlenessTimer, WatermarkMerge
from cojoin.errors import ConfigurationError
from cojoin.testing import Harness, HarnessInput, Record, StatusChange, Watermark
from tests.flink.functions import Function, out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flink.cases import Case, Events

# What the sentences say, as (watermark or None, whether idle) after each step that makes one known.
MERGED: dict[str, list[tuple[int | None, bool]]] = {
    "wm-24": [(0, False)],
    "wm-27": [(None, False), (None, False), (2, False)],
    "wm-28": [(None, False), (2, False), (5, False)],
    "wm-30": [(5, True)],
    "wm-31": [(None, False), (2, False), (5, False), (5, False)],
    "wm-33": [(0, False)],
    "wm-34": [(2, False)],
    "wm-35": [(5, False), (5, False), (5, False)],
    "wm-36": [(None, False), (None, False), (156_775, False)],
    "wm-40": [(None, False), (2, False), (2, False), (5, True), (5, False)],
    "wm-41": [(5, True), (5, False)],
    "wm-42": [(None, False)],
}
IDLE: dict[str, list[bool]] = {
    "wm-19": [False, True],
    "wm-20": [False, True, True, True],
    "wm-23": [False, False, False, False, True],
}


def run(case: Case) -> Events:
    """Run a case's steps; give what came out, where its expectation is no sentence."""
    if case.kind == "va":
        return _valve(case)
    if case.has("probe"):
        return _idleness(case)
    if "Multiplexer" in case.source:
        return _merge(case)
    if case.has("construct"):
        return _construct(case)
    return _generator(case) if case.has("periodic_emit") else _through_rows(case)


def _valve(case: Case) -> Events:
    construct, *steps = case.steps
    count = int(construct["value"].split()[0])
    valve = WatermarkMerge(all_idle="max", returning="skip")
    for channel in range(count):
        valve.register(str(channel))
    events: Events = []
    watermark, status = valve.current(), valve.status()
    for step in steps:
        if step["op"] == "channel_watermark":
            valve.update(str(step["channel"]), step["ts"])
        else:
            valve.set_status(str(step["channel"]), step["value"].lower())
        emitted: Events = []
        if valve.current() > watermark:
            watermark = valve.current()
            emitted.append({"kind": "watermark", "value": None, "ts": watermark})
        if valve.status() != status:
            status = valve.status()
            emitted.append({"kind": "status", "value": status.upper(), "ts": None})
        assert emitted == step["emits"], step
        events += emitted
    return events


def _idleness(case: Case) -> Events:
    timeout = re.search(r"timeout (\d+)", case.description)
    assert timeout is not None
    timer, now, seen = IdlenessTimer(int(timeout[1])), 0, []
    for step in case.steps:
        now = step["ts"] or now
        if step["op"] == "event":
            timer.activity()
        elif step["op"] == "advance_clock_ms":
            now += step["value"]
        else:
            seen.append(timer.is_idle(now))
    assert seen == IDLE[case.id]
    return []


def _merge(case: Case) -> Events:
    """Deferred outputs are heard at the next tick, and when another one speaks at once: that is when somebody looks."""
    merge = WatermarkMerge(all_idle="max")
    deferred = {str(step["output"]) for step in case.steps if step["op"] == "deferred_watermark"}
    for step in case.steps:
        if "output" in step:
            merge.register(str(step["output"]))
    seen: list[tuple[int | None, bool]] = []
    for step in case.steps:
        op, name = step["op"], str(step.get("output"))
        if op in ("immediate_watermark", "deferred_watermark"):
            merge.update(name, step["ts"])
        elif op in ("mark_idle", "mark_active"):
            merge.set_status(name, op.removeprefix("mark_"))  # type: ignore[arg-type]
        elif op == "unregister":
            merge.remove(name)
        looks = op in ("immediate_watermark", "periodic_emit", "unregister") or name not in deferred
        if looks and op != "register":
            current = merge.current()
            seen.append((None if current == NONE else current, merge.status() == "idle"))
    assert seen == MERGED[case.id]
    return []


def _construct(case: Case) -> Events:
    for timeout in case.steps[0]["value"]:
        try:
            WatermarkStrategy().with_idleness(timedelta(milliseconds=timeout))
        except ConfigurationError:
            continue
        raise AssertionError(timeout)
    return []


def _generator(case: Case) -> Events:
    bounded = "BoundedOutOfOrderness" in case.source
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if bounded:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 ms")
    watermark, events = InputWatermark(strategy), []
    for step in case.steps:
        if step["op"] == "event":
            watermark.observe("p", step["ts"])
        else:
            events.append({"kind": "watermark", "value": None, "ts": watermark.current()})
    return events


class _Values(Function):
    def process(self, number: int, value: Any, ctx: Any) -> Iterator[tuple[str]]:
        yield out(value)


def _through_rows(case: Case) -> Events:
    """The timestamp of a row is its value, or the second part of it; a flag makes a watermark of it."""
    punctuated = "unctuated" in case.source
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if punctuated:
        strategy = WatermarkStrategy.for_punctuated("flag")
    elif "NegativeTimestamps" in case.source:
        strategy = WatermarkStrategy.no_watermarks()
    first = HarnessInput("k string, value string, flag boolean", key="k", watermark=strategy)
    with Harness(
        _Values(), "value string", input1=first, input2=HarnessInput("k string", key="k"), order="arrival"
    ) as harness:
        harness.set_finished(2)
        harness.take()
        for step in case.steps:
            _row_step(harness, step, punctuated=punctuated)
        return list(map(_told, harness.take()))


def _row_step(harness: Harness, step: dict[str, Any], *, punctuated: bool) -> None:
    value = step["value"]
    if step["op"] == "element":
        number = value[1] if punctuated else _number(value)
        row = {"k": "k", "value": str(out(value)[0]), "flag": value[0] if punctuated else None}
        harness.process_element1(row, number)
    elif step["op"] == "watermark":
        harness.process_watermark1(step["ts"])
    elif step["op"] == "status":
        harness.set_idle(1)
    else:
        harness.set_processing_time(step["ts"])


def _told(event: Any) -> dict[str, Any]:
    if isinstance(event, Watermark):
        return {"kind": "watermark", "value": None, "ts": event.timestamp}
    if isinstance(event, StatusChange):
        return {"kind": "status", "value": event.status.upper(), "ts": None}
    assert isinstance(event, Record)
    return {"kind": "record", "value": json.loads(event.value.value), "ts": event.timestamp}


def _number(value: Any) -> int:
    return {"-2**63": -(1 << 63), "2**63-1": (1 << 63) - 1}.get(value, value)
