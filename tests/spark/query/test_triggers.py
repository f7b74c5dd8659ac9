"""Triggers are checked when they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import cojoin as cj
from tests.spark.refused import refused


def test_a_trigger_pauses_unless_it_is_told_to_drain() -> None:
    assert cj.Trigger.available_now() == cj.Trigger(None, drain=False)
    assert cj.Trigger.available_now(drain=True).drain


@pytest.mark.parametrize(
    ("interval", "milliseconds"), [("10 seconds", 10_000), (timedelta(minutes=1), 60_000), ("0 seconds", 0)]
)
def test_an_interval_is_a_duration(interval: Any, milliseconds: int) -> None:
    assert cj.Trigger.processing_time(interval).interval_ms == milliseconds


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        (5, "processing_time interval: expected a duration such as '5 seconds' or a timedelta, got 5; write its unit"),
        ("-5 seconds", "processing_time interval: expected a duration of zero or more, got '-5 seconds'"),
        ("5 secnds", "processing_time interval: unknown unit 'secnds' in '5 secnds'; did you mean 'seconds'"),
    ],
)
def test_an_interval_that_is_none_is_refused(interval: Any, message: str) -> None:
    with refused(message):
        cj.Trigger.processing_time(interval)


def test_draining_is_a_yes_or_a_no() -> None:
    with refused("drain: expected True or False, got 'yes'"):
        cj.Trigger.available_now(drain="yes")  # type: ignore[arg-type]


def test_a_history_is_followed_by_a_run_without_an_end() -> None:
    live = cj.Trigger.processing_time("10 seconds")
    trigger = cj.Trigger.available_now(then=live)
    assert (trigger.is_bounded, trigger.then) == (True, live)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"then": "10 seconds"}, "then: expected Trigger.processing_time('10 seconds') or another one without an end"),
        ({"then": cj.Trigger.available_now()}, "then: expected Trigger.processing_time('10 seconds')"),
        ({"then": cj.Trigger.processing_time(), "drain": True}, "then: drain=True finishes all inputs, so nothing can"),
    ],
)
def test_what_can_not_follow_a_history_is_refused(given: dict[str, Any], message: str) -> None:
    with refused(message):
        cj.Trigger.available_now(**given)


def test_nothing_follows_a_run_without_an_end() -> None:
    with refused("then: processing_time has no end, so nothing can follow"):
        cj.Trigger(1_000, then=cj.Trigger.processing_time())
