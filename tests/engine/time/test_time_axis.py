"""Local times, dates and whole numbers as moments: equal to Python's ``zoneinfo`` in each zone and hour."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from cojoin.engine.time.time_axis import ClockChange, TimeAxis
from cojoin.errors import ConfigurationError
from tests.seeds import SEED, SEED_TEXT

LOCAL = pa.timestamp("us")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ZONES = ["Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut", "Pacific/Apia", "UTC"]
"""With changes at midnight, of half an hour, and of a whole day."""


def column(values: list[Any], dtype: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, dtype)])


def local_times(draw: random.Random) -> list[datetime | None]:
    """Return times of all years, and those of each half hour of the nights in which clocks are changed."""
    first = datetime(1900, 1, 1)  # noqa: DTZ001 - without a zone is what is tested
    times: list[datetime | None] = [first + timedelta(microseconds=draw.randrange(136 * 31_557_600_000_000)), None]
    times += [first + timedelta(microseconds=draw.randrange(136 * 31_557_600_000_000)) for _ in range(500)]
    for year in draw.sample(range(1975, 2036), 6):
        for month in (2, 3, 4, 10, 11, 12):
            times += [datetime(year, month, day, 0, 30 * half) for day in range(1, 29) for half in (0, 1)]  # noqa: DTZ001
            times += [datetime(year, month, day, hour, 30) for day in range(20, 29) for hour in (1, 2, 3)]  # noqa: DTZ001
    return times


@pytest.mark.parametrize(("clock_change", "fold"), [("before", 0), ("after", 1)])
@pytest.mark.parametrize("zone", ZONES)
def test_a_local_time_is_the_moment_that_python_takes(zone: str, clock_change: ClockChange, fold: int) -> None:
    times, place = local_times(random.Random(f"{SEED} {zone}")), ZoneInfo(zone)
    found = TimeAxis(zone=zone, clock_change=clock_change).micros(column(times, LOCAL))
    for time, micros in zip(times, found.tolist(), strict=True):
        expected = 0 if time is None else (time.replace(tzinfo=place, fold=fold) - EPOCH) // timedelta(microseconds=1)
        assert micros == expected, (time, SEED_TEXT)


@pytest.mark.parametrize("zone", ZONES)
def test_the_hours_of_a_clock_change_are_those_of_two_offsets(zone: str) -> None:
    times, place = local_times(random.Random(f"{SEED} {zone}")), ZoneInfo(zone)
    expected = [
        time is not None and len({time.replace(tzinfo=place, fold=fold).utcoffset() for fold in (0, 1)}) == 2
        for time in times
    ]
    axis = TimeAxis(zone=zone, clock_change="reject")
    assert axis.changed(column(times, LOCAL)).tolist() == expected, SEED_TEXT
    assert axis.misfits(column(times, LOCAL)).tolist() == expected
    known = [time is not None and not is_changed for time, is_changed in zip(times, expected, strict=True)]
    assert axis.timestamps(column(times, LOCAL)).is_valid().to_pylist() == known
    assert not TimeAxis(zone=zone).misfits(column(times, LOCAL)).any()


def test_a_date_is_its_midnight() -> None:
    days = column([date(2026, 3, 29), None, date(1, 1, 1), date(9999, 12, 31)], pa.date32())
    found = TimeAxis(zone="Europe/Berlin").timestamps(days).cast(pa.int64()).to_pylist()
    assert found[0] == int(datetime(2026, 3, 28, 23, tzinfo=timezone.utc).timestamp()) * 1_000_000
    assert found[1] is None
    # In Beirut the hour after this midnight was left out.
    (night,) = TimeAxis(zone="Asia/Beirut").timestamps(column([date(2026, 3, 29)], pa.date32()))
    assert night.as_py() == datetime(2026, 3, 28, 22, tzinfo=timezone.utc)


def test_a_date_has_a_moment_if_its_microseconds_have_64_bits() -> None:
    last = ((1 << 63) - 1) // 86_400_000_000
    days = pa.chunked_array([pa.array([last - 1, 1 - last, last + 1, -last - 1, -(1 << 31), None], pa.int32())])
    found = TimeAxis(zone="Europe/Berlin")
    assert found.misfits(days.cast(pa.date32())).tolist() == [False, False, True, True, True, False]
    assert TimeAxis(zone="UTC").micros(days.cast(pa.date32())).tolist() == [
        (last - 1) * 86_400_000_000,
        (1 - last) * 86_400_000_000,
        *[0] * 4,
    ]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
def test_a_whole_number_is_a_moment_if_its_microseconds_have_64_bits(unit: Any, factor: int) -> None:
    axis, largest = TimeAxis(unit=unit), ((1 << 63) - 1) // factor
    numbers = [0, -1, largest, -largest, None, *([largest + 1, -largest - 1] if factor > 1 else [])]
    found = axis.timestamps(column(numbers, pa.int64())).cast(pa.int64()).to_pylist()
    assert found == [0, -factor, largest * factor, -largest * factor, None, *([None, None] if factor > 1 else [])]
    assert axis.misfits(column(numbers, pa.int64())).tolist() == [False] * 5 + [True] * (len(numbers) - 5)
    assert axis.largest == largest
    assert axis.micros(column([7], pa.int8())).tolist() == [7 * factor]


def test_times_at_the_ends_of_64_bits_have_no_moment_where_their_offset_would_wrap() -> None:
    ends = column([(1 << 63) - 1, -(1 << 63) + 1, 0], pa.int64()).cast(LOCAL)
    assert TimeAxis(zone="America/New_York").misfits(ends).tolist() == [True, False, False]
    assert TimeAxis(zone="Asia/Tokyo").misfits(ends).tolist() == [False, True, False]


@pytest.mark.parametrize("axis", [TimeAxis(zone="Europe/Berlin", clock_change="after"), TimeAxis(unit="ms"), None])
def test_what_is_described_is_read_again(axis: TimeAxis | None) -> None:
    assert TimeAxis.read({"name": "trades", **(axis.describe() if axis else {})}) == axis


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("Europe/Nowhere", None, "before"), "time_zone: expected a zone's name, such as 'Europe/Berlin'"),
        ((5, None, "before"), "time_zone: expected a zone's name, .* got 5"),
        (("", None, "before"), "time_zone: expected a zone's name, .* got ''"),
        ((None, "minute", "before"), "time_unit: expected 's', 'ms' or 'us', got 'minute'"),
        (("UTC", "s", "before"), "expected time_zone= for times without a zone and dates, or time_unit= .*, got both"),
        ((None, "s", "after"), "clock_change='after': only times with time_zone= have clock changes; leave it out"),
        ((None, None, "reject"), "clock_change='reject': only times with time_zone= have clock changes"),
        (("UTC", None, "later"), "clock_change: expected 'before', 'after' or 'reject', got 'later'"),
    ],
)
def test_an_axis_that_can_not_be_is_refused(given: tuple[Any, Any, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^input 'trades': {told}"):
        TimeAxis.of(*given, "input 'trades'")
