"""Words, flags and durations are read as they are meant; others are refused with the valid ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.arguments import check_flag, check_word, microseconds, milliseconds
from cojoin.errors import ConfigurationError
from tests.spark.refused import refused


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (("left", "inner"), "inne", "how: expected 'left' or 'inner', got 'inne'; did you mean 'inner'?"),
        (("a", "b", "c"), None, "how: expected 'a', 'b' or 'c', got None"),
    ],
)
def test_a_word_is_one_of_those_that_there_are(words: tuple[str, ...], given: Any, told: str) -> None:
    for word in words:
        check_word("how", word, words)
    with refused(told):
        check_word("how", given, words)


@pytest.mark.parametrize("given", [1, 0, None, "true"])
def test_a_flag_is_true_or_false(given: Any) -> None:
    check_flag("drain", True)
    with refused(f"drain: expected True or False, got {given!r}"):
        check_flag("drain", given)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("5 seconds", 5_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("interval 2 Hours", 7_200_000_000),
        ("0.5 seconds", 500_000),
        ("10ms", 10_000),
        ("3 us", 3),
        ("3 µs", 3),
        ("1 day -1 hour", 82_800_000_000),
        ("1 week", 604_800_000_000),
        ("0 seconds", 0),
        (timedelta(milliseconds=1, microseconds=1), 1_001),
        (np.timedelta64(5, "s"), 5_000_000),
        (np.timedelta64(2, "W"), 1_209_600_000_000),
        (np.timedelta64(3_000, "ns"), 3),
        (np.timedelta64(7, "us"), 7),
        (np.array([3], "timedelta64[2h]")[0], 21_600_000_000),
        (np.timedelta64(1 << 62, "D"), (1 << 62) * 86_400_000_000),
        (pd.Timedelta("1 day"), 86_400_000_000),
    ],
)
def test_a_duration_is_whole_microseconds(duration: str, expected: int) -> None:
    assert microseconds(duration, "tolerance") == expected


@pytest.mark.parametrize(
    ("duration", "said"),
    [
        (5, "tolerance: expected a duration such as '5 seconds' or a timedelta, got 5; write its unit"),
        ("5", "tolerance: expected a duration such as '5 seconds' or '1 minute 30 seconds', got '5'"),
        ("", "tolerance: expected a duration"),
        ("5 secs", "tolerance: unknown unit 'secs' in '5 secs'; did you mean 'seconds'"),
        ("5 seconds ago", "got '5 seconds ago'"),
        ("1 month", "unknown unit 'month'"),
        ("-1 second", "tolerance: expected a duration of zero or more, got '-1 second'"),
        (timedelta(seconds=-1), "expected a duration of zero or more"),
        (None, "got None"),
        (np.int64(5), "write its unit"),
        (np.timedelta64(5), "got np.timedelta64(5), which has no unit"),
        (np.timedelta64(1, "M"), "which has no fixed length"),
        (np.timedelta64("NaT"), "which is none"),
        (np.timedelta64(-1, "s"), "expected a duration of zero or more"),
        (
            np.timedelta64(1, "ns"),
            "tolerance: expected whole microseconds, the unit of event times, got np.timedelta64(1",
        ),
        (np.timedelta64(1, "ps"), "expected whole microseconds"),
        (pd.Timedelta(1_001, "ns"), "tolerance: expected whole microseconds, the unit of event times, got Timedelta("),
    ],
)
def test_what_is_no_duration_is_refused_by_name(duration: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        microseconds(duration, "tolerance")  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_milliseconds_are_never_rounded() -> None:
    assert milliseconds("5 seconds", "bound") == 5_000
    with pytest.raises(ConfigurationError, match="bound: expected whole milliseconds"):
        milliseconds("5 us", "bound")


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_a_text_and_a_timedelta_mean_the_same(seconds: int, millis: int) -> None:
    assert milliseconds(f"{seconds} seconds {millis} ms", "x") == milliseconds(
        timedelta(0, seconds, millis * 1000), "x"
    )
