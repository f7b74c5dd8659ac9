"""Every case of Flink's semantics, as described, or among the deviations that are known and meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cojoin.errors import ConfigurationError
from tests.flink import join_steps, process_steps, ttl_steps, watermark_steps
from tests.flink.cases import CASES
from tests.flink.own_cases import OWN_CASES

if TYPE_CHECKING:
    from tests.flink.cases import Case, Events

DEVIATIONS: dict[str, str] = {
    "co-34": "a drain fires every timer set before it, also those of processing time (DESIGN.md, the law of the end)",
    "ij-17": "a row without event time is rejected with a reason, and does not end the query",
    "ij-22": "SQL's join drops a row at once that no row to come can match; ours when the watermark has passed it",
    "ij-24": "SQL's join emits pairs at once and pads when it cleans up; ours has all in event-time order, same rows",
    "ij-25": "as ij-24; and ours pads at the exact end of the interval, not at the next cleanup",
    "ij-26": "as ij-25",
    "ij-27": "there is no interval join by processing time: its result can't be deterministic",
    "ij-28": "as ij-27",
    "tj-11": "left rows come out by event time, not by arrival: arrival is nobody's promise in Spark",
    "tj-12": "a vectorised join keeps no timers: the watermark itself says what is due",
    "tj-15": "LATERAL SNAPSHOT joins all rows of a multi-set; here a key has one version in force",
    "tj-19": "as tj-15, and no row is applied before the watermark of both inputs has passed it",
    "wm-08": "nobody upstream makes watermarks: one that is given to an input counts beside its strategy's",
    "wm-09": "as wm-08, for statuses",
    "wm-16": "timestamps are Spark's, of microseconds in 64 bits: the extremes of milliseconds do not fit",
}
"""Cases that cojoin decides otherwise, and why. Each is run all the same: one that holds must leave the list."""

DIFFERS = (AssertionError, ConfigurationError)
"""How a deviation shows; any other error is a fault of the test."""

PROCESSING_TIME_JOINS = ("tj-06", "tj-08", "tj-09")


def run(case: Case) -> Events:
    if case.kind in ("co", "pr", "ts") or case.id in PROCESSING_TIME_JOINS:
        return process_steps.run(case)
    return {"ij": join_steps, "tj": join_steps, "wm": watermark_steps, "va": watermark_steps, "tt": ttl_steps}[
        case.kind
    ].run(case)


def comparable(actual: Events, expected: Events) -> Events:
    """Return what came out as far as the expectation speaks of it.

    Records, side outputs and statuses always count. Watermarks do where the expectation has any, or nothing at all;
    of an event those of its attributes that are expected. Records of SQL's joins have no timestamp there.
    """
    if expected and all(event["kind"] != "watermark" for event in expected):
        actual = [event for event in actual if event["kind"] != "watermark"]
    names = {name for event in expected for name in event}
    if expected and all(event.get("ts") is None for event in expected if event["kind"] == "record"):
        actual = [event | {"ts": None} if event.get("sql") else event for event in actual]
    return [{name: value for name, value in event.items() if name in names} if expected else event for event in actual]


def in_order(events: Events, *, any_order: bool) -> list[Any]:
    """Return events in a form that compares; in any order only between markers."""
    if not any_order:
        return events
    pieces: list[list[str]] = [[]]
    for event in events:
        if event["kind"] == "marker":
            pieces.append([])
        else:
            pieces[-1].append(repr(sorted(event.items())))
    return [sorted(piece) for piece in pieces]


def check(case: Case) -> None:
    """Run a case and compare.

    Raises:
        AssertionError: Something else came out, or an assert among the steps fails.
    """
    actual = run(case)
    if case.expected is not None:
        found = comparable(actual, case.expected)
        assert in_order(found, any_order=case.any_order) == in_order(case.expected, any_order=case.any_order)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.id not in DEVIATIONS], ids=repr)
def test_a_case_holds(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_deviation_deviates(name: str) -> None:
    with pytest.raises(DIFFERS):
        check(CASES[name])


@pytest.mark.parametrize("case", OWN_CASES.values(), ids=repr)
def test_a_case_of_our_own_holds(case: Case) -> None:
    check(case)


def test_the_deviations_are_cases_and_few() -> None:
    assert set(DEVIATIONS) <= set(CASES)
    assert len(CASES) == 134
    assert len(CASES) - len(DEVIATIONS) >= 110
