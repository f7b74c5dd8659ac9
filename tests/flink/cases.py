"""The cases of ``flink_semantics.jsonl``, and what the sentences among their expectations say, as events."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN, MAX = -(1 << 63), (1 << 63) - 1

Events = list[dict[str, Any]]


def fired(domain: str, key: Any, namespace: str, ts: int) -> dict[str, Any]:
    return {"kind": "fired", "domain": domain, "value": [key, namespace], "ts": ts}


def record(value: Any, ts: int | None = None) -> dict[str, Any]:
    return {"kind": "record", "value": value, "ts": ts}


ERROR = {"kind": "error"}

FOUR_TIMERS = [("k1", "ciao"), ("k1", "hello"), ("k2", "ciao"), ("k2", "hello")]
SHIFTED = [fired("proc", "k1", "ciao", 10), fired("event", "k1", "hello", 10)]
SHIFTED += [fired("event", "k2", "ciao", 10), fired("proc", "k2", "hello", 10)]
PAIRS = [(left, right) for left in range(1, 5) for right in range(1, 5) if abs(left - right) <= 1]

SAID: dict[str, Events] = {
    "co-16": [
        *(record(["input 1", 0, None]), record(["input 1", 0, "a"])),
        *(record(["input 1", 1, None]), record(["input 1", 1, "c"])),
        *(record(["input 2", 0, None]), record(["input 2", 0, "a"])),
    ],
    # As its note says: with one partition each rule is seen once.
    "co-17": [record(value) for value in ("0a", "1b", "a2", "a4", "b1", "b3", "b5")],
    "co-34": [],
    "pr-09": [ERROR],
    "pr-18": [
        *(record([1, None, [], {}]), record([2, None, [], {}])),
        *(record([3, 1, [1], {"1": "hi"}]), record([4, 2, [2], {"2": "hello"}])),
        *(record([5, 3, [1, 3], {"1": "hi", "3": "hi"}]), record([6, 4, [2, 4], {"2": "hello", "4": "hello"}])),
    ],
    "ts-02": [fired("proc", "k", name, ts) for ts, name in ((10, "ciao"), (10, "hello"), (20, "ciao"), (20, "hello"))]
    + [fired("proc", "k", "ciao", 30)],
    "ts-03": [],
    "ts-11": [{"kind": "timer", "value": [*each], "ts": 10} for each in FOUR_TIMERS],
    "ts-12": [{"kind": "timer", "value": [*each], "ts": 10} for each in FOUR_TIMERS],
    "ts-14": SHIFTED,
    "ij-14": [record(list(pair), max(pair)) | {"left_ts": pair[0], "right_ts": pair[1]} for pair in PAIRS],
    "ij-15": [record(list(pair), max(pair)) for pair in PAIRS],
    "ij-17": [ERROR],
}
"""Expectations that the file says in a sentence, or in a note."""

ANY_ORDER = {"ts-02", "ts-14", "ij-14", "ij-15"}
"""Of those the ones whose order Flink leaves open."""


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        id: Its name.
        description: What it is about.
        source: The test of Flink's that it comes from.
        steps: What happens.
        expected: What comes out; None where the steps say all, as asserts.
        any_order: Whether the order is open.
        prefix: How many steps belong to the case that it goes on from; what they give out is not looked at.
    """

    id: str
    description: str
    source: str
    steps: tuple[dict[str, Any], ...]
    expected: Events | None
    any_order: bool
    prefix: int = 0

    def __repr__(self) -> str:
        return self.id

    @property
    def kind(self) -> str:
        return self.id[:2]

    def has(self, *ops: str) -> bool:
        return any(step["op"] in ops for step in self.steps)


def _in_numbers(value: Any) -> Any:
    """Turn the names of the smallest and the largest watermark into numbers."""
    names = {"MIN_WATERMARK(-2**63)": MIN, "MAX_WATERMARK(2**63-1)": MAX}
    if isinstance(value, dict):
        return {key: _in_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_numbers(item) for item in value]
    if isinstance(value, str):
        for name, number in names.items():
            if value == name:
                return number
            value = value.replace(name, str(number))
    return value


def read_cases(listed: Iterable[dict[str, Any]]) -> dict[str, Case]:
    """Read cases; one that goes on from another begins with that one's steps."""
    cases: dict[str, Case] = {}
    raw = {each["id"]: each for each in listed}
    for name, each in raw.items():
        steps, prefix = _with_predecessor(name, raw)
        said = each["expected"]
        expected = SAID.get(name, said if isinstance(said, list) else None)
        any_order = name in ANY_ORDER or each["order"] == "any"
        numbered = tuple(_in_numbers(step) for step in steps)
        cases[name] = Case(
            name, each["description"], each["source_test"], numbered, _in_numbers(expected), any_order, prefix
        )
    return cases


def _with_predecessor(name: str, raw: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    steps = raw[name]["steps"]
    if steps[0]["op"] != "continue_from":
        return steps, 0
    match = re.fullmatch(r"__([a-z]+)(\d+)( up to the last registration)?__", steps[0]["value"])
    assert match is not None
    before, _ = _with_predecessor(f"{match[1]}-{match[2]}", raw)
    if match[3]:
        last = max(place for place, step in enumerate(before) if step["op"] == "element")
        before = before[: last + 1]
    return [*before, *steps[1:]], len(before)


def _load() -> dict[str, Case]:
    with (Path(__file__).parent / "flink_semantics.jsonl").open(encoding="utf-8") as lines:
        return read_cases(map(json.loads, lines))


CASES = _load()
