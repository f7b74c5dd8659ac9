"""Points: which texts and values are taken, which times they are, and which are refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest

import cojoin as cj
from cojoin.kafka.ranges import ALL, LATEST, Point, nearest_point, parsed_points

START = 1_767_571_200_000  # 2026-01-05
UTC = timezone.utc


@pytest.mark.parametrize(
    ("moment", "milliseconds"),
    [
        ("2026-01-05", START),
        (" 2026-01-05T00:00Z", START),
        ("2026-01-05 00:00:00", START),
        ("2026-01-05T00:00:00.5z", START + 500),
        ("2026-01-05T00:00:00,000001", START + 1),
        ("2026-01-05T01:30:00+01:30", START),
        ("2026-01-04T19:00:00-0500", START),
        ("1969-12-31T23:59:59.9995Z", 0),
        ("1969-12-31", -86_400_000),
        (datetime(2026, 1, 5, tzinfo=UTC), START),
        (datetime(2026, 1, 5, 2, tzinfo=timezone(timedelta(hours=2))), START),
        (pd.Timestamp("2026-01-05", tz="UTC"), START),
    ],
)
def test_times(moment: Any, milliseconds: int) -> None:
    assert parsed_points(moment, "from_") == {ALL: Point("time", milliseconds)}


def test_points_by_topic_and_partition() -> None:
    points = parsed_points({"a": "2026-01-05", "b": {0: 7, 2: "latest"}}, "from_")
    assert points == {("a", None): Point("time", START), ("b", 0): Point("offset", 7), ("b", 2): Point("latest")}


def test_the_most_specific_point_counts() -> None:
    points = {ALL: Point("offset", 1), ("a", None): Point("offset", 2), ("a", 0): LATEST}
    assert nearest_point(points, ("a", 0)) == LATEST
    assert nearest_point(points, ("a", 1)) == Point("offset", 2)
    assert nearest_point(points, ("b", 0)) == Point("offset", 1)
    assert nearest_point({("a", 0): LATEST}, ("a", 1)) is None


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("earlyest", "expected 'earliest', .* got 'earlyest'; did you mean 'earliest'"),
        ("Latest", ".* got 'Latest'; did you mean 'latest'"),
        ("42", ".* or an offset as an int; got '42'$"),
        ("", ".* got ''"),
        ("2026-13-05", "expected a time of the calendar, got '2026-13-05'"),
        ("2026-01-05T25:00", "expected a time of the calendar"),
        ("20260105", ".* got '20260105'"),
        ("2026-01-05Z", ".* got '2026-01-05Z'"),
        (datetime(2026, 1, 5), "expected a datetime with a zone"),  # noqa: DTZ001 - that is the point
        (-2, "expected an offset of zero or more, got -2"),
        (True, ".* got True"),
        (1.5, ".* got 1.5"),
        (None, ".* got None"),
        ({1: 5}, "expected the names of topics as keys, got 1"),
        ({"a": {"0": 5}}, "topic a: expected the numbers of partitions as keys, got '0'"),
        ({"a": {True: 5}}, "topic a: expected the numbers of partitions as keys, got True"),
        ({"a": {0: {}}}, "topic a partition 0: expected .* got {}"),
        ({"a": {3: "soon"}}, "topic a partition 3: .* got 'soon'"),
    ],
)
def test_what_is_no_point_is_refused(bound: Any, text: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=f"^input 'trades': from_: {text}"):
        parsed_points(bound, "input 'trades': from_")
