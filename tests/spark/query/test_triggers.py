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
