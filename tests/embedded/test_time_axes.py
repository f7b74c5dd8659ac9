"""Joins of times without a zone, dates and whole numbers: the rows of a join by the moments that they mean."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.capture.capture import capture
from cojoin.engine.joins import AsofJoin
from cojoin.engine.time.time_axis import TimeAxis
from cojoin.testing import Harness, HarnessInput, check_determinism
from tests.seeds import SEED, SEED_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cojoin.api.connect import ConnectedInputs
    from cojoin.api.joined import Joined

BERLIN = "Europe/Berlin"
NIGHT = datetime(2026, 10, 24, 22)  # noqa: DTZ001 - without a zone is what is tested
"""Two hours before the day on which Berlin has the hour from two o'clock twice."""

AXES: dict[str, tuple[dict[str, Any], pa.DataType]] = {
    "local": ({"time_zone": BERLIN}, pa.timestamp("us")),
    "after": ({"time_zone": BERLIN, "clock_change": "after"}, pa.timestamp("us")),
    "dates": ({"time_zone": BERLIN}, pa.date32()),
    "seconds": ({"time_unit": "s"}, pa.int64()),
    "millis": ({"time_unit": "ms"}, pa.int64()),
    "short": ({"time_unit": "s"}, pa.int32()),
}
JOINS: dict[str, Callable[[ConnectedInputs], Joined]] = {
    "asof": lambda pair: pair.asof_join(suffixes=("", "_right")),
    "nearest": lambda pair: pair.asof_join(direction="nearest", tolerance="2 hours", suffixes=("", "_right")),
    "temporal": lambda pair: pair.temporal_join(retention="3 days", suffixes=("", "_right")),
    "interval": lambda pair: pair.interval_join("-2 hours", "1 hour", how="full", suffixes=("", "_right")),
}


def drawn_times(draw: random.Random, count: int, dtype: pa.DataType) -> pa.Array:
    times: list[Any] = [NIGHT + timedelta(minutes=7 * draw.randrange(100)) for _ in range(count)]
    if pa.types.is_date(dtype):
        times = [(time + timedelta(days=draw.randrange(9))).date() for time in times]
    if pa.types.is_integer(dtype):
        factor = 1_000 if dtype == pa.int64() else 1
        times = [int(time.replace(tzinfo=timezone.utc).timestamp()) * factor for time in times]
    return pa.array([None if draw.random() < 0.1 else time for time in times], dtype)


def connected(tables: tuple[pa.Table, pa.Table], *axes: dict[str, Any]) -> ConnectedInputs:
    bound = cj.WatermarkStrategy.for_bounded_out_of_orderness("20 hours")
    left, right = (
        cj.Input(table, "id", "time", name, watermark=bound, sequence="number", **axis)
        for table, name, axis in zip(tables, ("l", "r"), axes, strict=True)
    )
    return cj.connect(left, right)


def as_moments(table: pa.Table, axis: dict[str, Any]) -> pa.Table:
    meaning = TimeAxis(axis.get("time_zone"), axis.get("time_unit"), axis.get("clock_change", "before"))
    return table.set_column(1, "time", meaning.timestamps(table.column("time")))


def shown(joined: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(joined.column(name).to_pylist() for name in ("id", "number", "number_right")), strict=True))


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize(
    ("one", "two"), [("local", "after"), ("dates", "local"), ("millis", "dates"), ("after", "short")]
)
def test_the_rows_are_those_of_a_join_by_the_moments(name: str, one: str, two: str) -> None:
    draw = random.Random(f"{SEED} {name} {one} {two}")
    axes, tables = [], []
    for axis, dtype in (AXES[one], AXES[two]):
        numbers = pa.array(range(30), pa.int64())
        keys = pa.array([draw.randrange(3) for _ in range(30)], pa.int64())
        tables.append(pa.table({"id": keys, "time": drawn_times(draw, 30, dtype), "number": numbers}))
        axes.append(axis)
    joined = JOINS[name](connected((tables[0], tables[1]), *axes))
    timed = [as_moments(table, axis) for table, axis in zip(tables, axes, strict=True)]
    expected = JOINS[name](connected((timed[0], timed[1]), {}, {}))
    whole = joined.to_arrow()
    assert shown(whole) == shown(expected.to_arrow()), SEED_TEXT
    # The columns are those that came in.
    came = dict(zip(*(tables[0].column(column).to_pylist() for column in ("number", "time")), strict=True))
    assert whole.column("time").to_pylist() == [came.get(number) for number in whole.column("number").to_pylist()]
    assert whole.schema.field("time").type == AXES[one][1]
    cuts = [(10, 10)] * 3
    for step, other in zip(joined.steps(cuts), expected.steps(cuts), strict=True):
        assert step.watermark == other.watermark, SEED_TEXT
        assert step.state.num_rows == other.state.num_rows
        assert [table.num_rows for table in step.waiting] == [table.num_rows for table in other.waiting]
        assert [each.rejected for each in step.report.inputs] == [each.rejected for each in other.report.inputs]


def test_nothing_but_time_decides() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")  # It sends functions to processes.
    draw, (axis, dtype) = random.Random(SEED), AXES["local"]
    numbers, keys = pa.array(range(20), pa.int64()), pa.array([0, 1] * 10, pa.int64())
    tables = [pa.table({"id": keys, "time": drawn_times(draw, 20, dtype), "number": numbers}) for _ in range(2)]
    joined = JOINS["asof"](connected((tables[0], tables[1]), axis, axis))
    assert check_determinism(joined, seeds=10).seeds == 10


def trades(*times: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": [1] * len(times), "time": pd.to_datetime(list(times))})


def versions() -> pd.DataFrame:
    frame = pd.DataFrame({"id": [1, 1], "at": ["2026-10-24T23:00Z", "2026-10-25T01:00Z"], "tier": ["silver", "gold"]})
    return frame.assign(at=pd.to_datetime(frame["at"], utc=True))


@pytest.mark.parametrize(
    ("clock_change", "tiers"), [("before", ["silver", "silver", "gold"]), ("after", ["silver", "gold", "gold"])]
)
def test_an_option_decides_the_hour_that_comes_twice_and_it_is_counted(clock_change: Any, tiers: list[str]) -> None:
    """Two o'clock came at 00:00 and at 01:00 in UTC."""
    left = cj.Input(
        trades("2026-10-25 01:30", "2026-10-25 02:30", "2026-10-25 03:00"),
        "id",
        "time",
        "trades",
        time_zone=BERLIN,
        clock_change=clock_change,
    )
    result = cj.connect(left, cj.Input(versions(), "id", "at", "versions")).asof_join().run()
    assert result.output.to_pydict()["tier"] == tiers
    report = list(cj.connect(left, cj.Input(versions(), "id", "at", "versions")).asof_join().steps([(3, 2)]))[-1].report
    assert report.inputs[0].clock_changed == 1
    assert "took a moment by clock_change= for 1 row of 'trades'" in report.ending()


def test_a_row_without_a_moment_is_rejected_as_it_came() -> None:
    rows = trades("2026-03-29 02:30", "2026-03-29 03:30")
    left = cj.Input(rows, "id", "time", "trades", time_zone=BERLIN, clock_change="reject")
    result = cj.connect(left, cj.Input(versions(), "id", "at", "versions")).asof_join().run()
    (rejected,) = result.rejected.to_pylist()
    assert (rejected["reason"], rejected["event_time"]) == ("no_moment", None)
    assert '"time": "2026-03-29T02:30:00"' in rejected["row"]
    numbers = pa.table({"id": [1, 1], "s": [1 << 60, 7]})
    left = cj.Input(numbers, "id", "s", "numbers", time_unit="s")
    (rejected,) = cj.connect(left, cj.Input(versions(), "id", "at", "v")).asof_join().run().rejected.to_pylist()
    assert (rejected["reason"], rejected["row"]) == ("no_moment", '{"id": 1, "s": 1152921504606846976}')


def test_a_span_of_dates_is_valid_from_midnight_to_midnight() -> None:
    spans = pd.DataFrame({"id": [1, 1], "begins": [date(2026, 1, 1), date(2026, 3, 29)], "tier": ["old", "new"]})
    spans = spans.assign(ends=[date(2026, 3, 29), None])
    right = cj.Input(spans, "id", name="tiers", valid_from="begins", valid_to="ends", time_zone=BERLIN)
    times = pd.to_datetime(["2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z", "2025-12-31T22:59:59Z"])
    left = pd.DataFrame({"id": [1] * 3, "time": times})
    joined = cj.connect(cj.Input(left, "id", "time", "trades"), right).temporal_join()
    found = {row["time"]: row["tier"] for row in joined.to_arrow().to_pylist()}
    assert [found[time] for time in times] == ["old", "new", None]
    assert joined.to_arrow().schema.field("begins").type == pa.date32()
    steps = list(joined.steps([(3, 3)]))
    assert steps[-1].report.is_conserved
    wrong = replace(right, source=spans.assign(begins=date(2026, 1, 1)), event_time=...)
    with pytest.raises(cj.ConfigurationError, match="1 row is valid while another row of the same id is: 'begins'"):
        cj.connect(cj.Input(left, "id", "time", "trades"), wrong)


def test_begins_and_ends_within_a_clock_change_are_counted() -> None:
    begins = pd.to_datetime(["2026-03-29 02:30", "2026-07-01 00:00"])
    ends = pd.to_datetime(["2026-06-01 00:00", "2026-10-25 02:30"])
    spans = pd.DataFrame({"id": [1, 1], "begins": begins, "ends": ends, "tier": ["old", "new"]})
    right = cj.Input(spans, "id", name="tiers", valid_from="begins", valid_to="ends", time_zone=BERLIN)
    left = pd.DataFrame({"id": [1], "time": pd.to_datetime(["2026-08-01T00:00:00Z"])})
    result = cj.connect(cj.Input(left, "id", "time", "trades"), right).temporal_join().run()
    assert result.output["tier"].to_pylist() == ["new"]
    assert result.report.inputs[1].clock_changed == 2


def test_a_difference_is_explained_by_moments() -> None:
    pair, right = trades("2026-10-25 02:30"), cj.Input(versions(), "id", "at", "versions")
    one, two = (
        cj.connect(cj.Input(pair, "id", "time", "trades", time_zone=BERLIN, clock_change=change), right).asof_join()
        for change in ("before", "after")
    )
    text = str(cj.diff(one, two))
    assert "left input's clock_change: before in a, after in b" in text
    assert "a matches it with the row of 'versions' at 2026-10-24 23:00:00 UTC, 1 h 30 min" in text


def test_a_harness_takes_times_as_they_come() -> None:
    left = HarnessInput("id long, time timestamp_ntz", "id", "time", "trades", time_zone=BERLIN)
    right = HarnessInput("id long, at long, tier string", "id", "at", "versions", time_unit="s")
    harness = Harness.of(AsofJoin(), input1=left, input2=right)
    harness.process_element2((1, 1_792_882_800, "silver"))
    harness.process_element1((1, datetime(2026, 10, 25, 1, 30)))  # noqa: DTZ001 - without a zone is what is tested
    harness.process_watermark(1_792_890_000_000)
    assert [(row.time.hour, row.at, row.tier) for row in harness.output] == [(1, 1_792_882_800, "silver")]
    with pytest.raises(cj.SchemaError, match=r"whose time is one of its columns .*; leave it out"):
        harness.process_element2((1, 1_792_882_800, "silver"), 5)
    for wrong, told in (
        (
            HarnessInput("id long", "id", "time", time_zone=BERLIN),
            "input 'left' has no event time column 'time'; valid are 'id'",
        ),
        (
            HarnessInput("id long, time long", "id", "time", time_zone=BERLIN),
            "expected a time without a zone or a date",
        ),
        (HarnessInput("id long", "id", None, time_unit="s"), "expected none with event_time=None"),
    ):
        with pytest.raises(cj.ConfigurationError, match=told):
            Harness.of(AsofJoin(), input1=wrong, input2=right)


ZERO = pa.array([0], pa.timestamp("us"))
TABLES = pa.table({"id": [1], "at": ZERO.cast(pa.timestamp("us", "UTC")), "local": ZERO, "n": [1]})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"event_time": "local"},
            "expected a timestamp, got timestamp_ntz; write time_zone='UTC' or their own zone, or make",
        ),
        ({"event_time": "n"}, "expected a timestamp, got bigint; write time_unit='ms', or make it a timestamp: "),
        (
            {"event_time": "at", "time_zone": "UTC"},
            "expected a time without .* with time_zone=, got timestamp; leave",
        ),
        ({"event_time": "n", "time_zone": "UTC"}, "with time_zone=, got bigint; write time_unit='ms'$"),
        (
            {"event_time": "local", "time_unit": "s"},
            "a whole number with time_unit=, got timestamp_ntz; write time_zone=",
        ),
        (
            {"event_time": None, "time_unit": "s"},
            "time_zone, time_unit: expected none with event_time=None: its rows have",
        ),
        (
            {"valid_from": "local", "valid_to": "local", "time_zone": "UTC", "clock_change": "reject"},
            "clock_change: expected 'before' or 'after' with valid_from= and valid_to=, got 'reject'",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_argument(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.connect(cj.Input(TABLES, "id", name="trades", **settings), cj.Input(TABLES, "id", "at", "versions"))


def test_an_input_shows_its_axis() -> None:
    assert "event time local in Europe/Berlin" in str(cj.Input(TABLES, "id", "local", time_zone=BERLIN))


def test_tools_that_know_timestamps_alone_say_so(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "local": ZERO})
    pair = cj.connect(cj.Input(rows, "id", "local", "l", time_zone=BERLIN), cj.Input(TABLES, "id", "at", "r"))
    with pytest.raises(cj.ConfigurationError, match="capture: the event times of input 'l' are not timestamps"):
        capture(pair.asof_join(suffixes=("", "_r")), tmp_path / "test_joins.py")
    with pytest.raises(cj.SchemaError, match="expected a timestamp, got timestamp_ntz; it has no time zone; name"):
        cj.lateness(rows, event_time="local")
