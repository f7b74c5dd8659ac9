"""Known times: effective times, their description, and declarations that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.time.known_time import KnownTime
from cojoin.engine.time.time_axis import TimeAxis
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.testing import AsofJoin, Harness, HarnessInput, TemporalJoin

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("at", TIME), ("loaded", TIME), ("day", pa.date32()), ("number", pa.int64())])
ROWS = SCHEMA.empty_table()


def test_the_effective_time_is_the_later_one() -> None:
    rows = pa.table({"loaded": pa.array([5, 20, None], pa.int64()).cast(TIME)})
    event = np.array([10, 10, 10])
    assert KnownTime("loaded").effective(rows, event).tolist() == [10, 20, 10]
    assert KnownTime(delay_us=7).effective(rows, event).tolist() == [17] * 3
    assert KnownTime(delay_us=7).effective(rows, np.array([(1 << 63) - 3])).tolist() == [(1 << 63) - 1]


@pytest.mark.parametrize(
    ("known", "described", "arguments", "spelled"),
    [
        (KnownTime("loaded"), {"known_at": "loaded"}, {"known_at": "loaded"}, "at loaded"),
        (KnownTime("day", axis=TimeAxis("Asia/Tokyo")), {"known_at": "day"}, {"known_at": "day"}, "at day"),
        (KnownTime(delay_us=60_000_000), {"delay_us": 60_000_000}, {"delay": timedelta(minutes=1)}, "after 1 minute"),
        (KnownTime(delay_us=3), {"delay_us": 3}, {"delay": timedelta(microseconds=3)}, "after 3 microseconds"),
    ],
)
def test_a_description_is_read_as_it_was(
    known: KnownTime, described: dict[str, Any], arguments: dict[str, Any], spelled: str
) -> None:
    assert (known.describe(), known.arguments(), known.spelled()) == (described, arguments, spelled)
    assert KnownTime.read({**described, "time_zone": "Asia/Tokyo"}, SCHEMA, TimeAxis("Asia/Tokyo")) == known
    assert KnownTime.read({}, SCHEMA, None) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"known_at": "loaded", "delay": "1 hour"}, "expected known_at=, a column"),
        ({"known_at": "missing"}, "input 'right' has no known_at= column 'missing'"),
        ({"known_at": "loadd"}, "did you mean 'loaded'?"),
        ({"known_at": "number"}, "known_at= column 'number': expected a timestamp, got bigint; write time_unit='ms'"),
        ({"known_at": "day"}, "known_at= column 'day': expected a timestamp, got date; write time_zone='UTC'"),
        ({"known_at": 7}, "known_at: expected the name of a timestamp column, got 7"),
        ({"delay": "-1 hour"}, "delay: expected a duration of zero or more, got '-1 hour'"),
        ({"delay": timedelta.max}, "delay: expected at most 100 years"),
        (
            {"known_at": "loaded", "snapshot_known": "at_snapshot"},
            "snapshot_known: expected rows that are changes of a",
        ),
        ({"snapshot_known": "at_snapshot"}, "snapshot_known: expected known_at= with it"),
        (
            {"known_at": "day", "event_time": "number", "time_unit": "ms"},
            "'day': expected a timestamp, or a whole number with time_unit=, got date; a date has no time",
        ),
        ({"delay": 15}, "delay: expected a duration such as '5 seconds' or a timedelta, got 15; write its unit"),
        ({"known_at": "loaded", "snapshot_known": "now"}, "snapshot_known: expected 'at_event_time' or 'at_snapshot'"),
        (
            {"event_time": ..., "valid_from": "at", "valid_to": "loaded", "known_at": "loaded"},
            "this join has no deletes; use temporal_join, with 'right' as the right input",
        ),
        ({"known_at": "loaded", "event_time": None}, "known_at: expected none with event_time=None"),
        ({"loaded_at": "loaded"}, "it has no argument 'loaded_at'; write known_at="),
        (
            {"event_time": ..., "valid_from": "at", "valid_to": "loaded", "delay": "1 hour"},
            "delay: expected none with valid_from= and valid_to=; name a column as known_at=",
        ),
    ],
)
def test_a_wrong_declaration_names_the_right_one(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises((ConfigurationError, SchemaError)) as refused:
        cj.connect(cj.Input(ROWS, "id", "at"), cj.Input(ROWS, "id", **{"event_time": "at", **arguments})).asof_join()
    assert expected in str(refused.value)


def test_only_a_join_that_looks_backward_takes_known_times_on_its_right() -> None:
    names = ["id", "at", "loaded", "day", "number"]
    plain = cj.Input(ROWS.rename_columns(["id", *(f"left_{name}" for name in names[1:])]), "id", "left_at")
    known = cj.Input(ROWS, "id", "at", known_at="loaded")
    pair = cj.connect(plain, known)

    class Function(cj.KeyedCoProcessFunction):
        pass

    for call, expected in (
        (lambda: cj.connect(known, plain).asof_join(), "known_at: a left input takes none, and input 'left' has it"),
        (lambda: pair.asof_join(direction="forward"), "known_at: direction='forward' takes none"),
        (lambda: pair.asof_join(direction="nearest"), "known_at: direction='nearest' takes none"),
        (lambda: pair.interval_join("-1 s", "1 s"), "known_at: interval_join takes none, and input 'right' has it"),
        (lambda: pair.process(Function(), "n bigint"), "known_at: process takes none"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert expected in str(refused.value)
        assert "it is for the right input of temporal_join, and of asof_join with" in str(refused.value)


def test_the_harness_takes_known_times() -> None:
    right = HarnessInput("id bigint, loaded timestamp, price bigint, gone boolean", "id", known_at="loaded")
    left = HarnessInput("id bigint, n bigint", "id")
    with Harness.of(TemporalJoin(deletes="gone"), input1=left, input2=right) as harness:
        moment = lambda ms: pd.Timestamp(ms, unit="ms", tz="UTC")  # noqa: E731
        harness.process_element2((7, moment(20_000), 12, False), 10_000)
        harness.process_element2((7, moment(11_000), 10, False), 9_000)
        harness.process_element2((7, None, 99, False), 9_500)
        for number, at in enumerate((10_500, 15_000, 25_000)):
            harness.process_element1((7, number), at)
        harness.process_watermark(30_000)
        assert [(row.n, row.price) for row in harness.output] == [(0, None), (1, 10), (2, 12)]
        assert [each.reason for each in harness.rejected] == ["null_known_at"]
    with pytest.raises(ConfigurationError, match=r"expected known_at=, .*, or delay=, .*, got both"):
        Harness.of(AsofJoin(), input1=left, input2=HarnessInput("id bigint", "id", known_at="id", delay="1 s"))


def test_frames_join_by_known_times_in_one_line() -> None:
    day = lambda *hours: pd.to_datetime([f"2026-01-15 {hour}" for hour in hours])  # noqa: E731
    orders = pd.DataFrame({"sku": 1, "at": day("10:05", "10:20", "11:10")}, index=["a", "b", "c"])
    prices = pd.DataFrame(
        {
            "sku": 1,
            "valid_at": day("09:00", "10:00", "10:00"),
            "loaded_at": [*day("09:02", "10:07"), None],
            "price": [10.0, 12.5, 99.0],
        }
    )
    with pytest.warns(cj.MissingRowsWarning, match="1 of 3 rows of the right can't match: 1 without a known time"):
        joined = cj.asof_join(orders, prices, on=("at", "valid_at"), by="sku", known_at="loaded_at")
    assert joined["price"].to_dict() == {"a": 10.0, "b": 12.5, "c": 12.5}
    joined = cj.temporal_join(orders, prices.iloc[:2], on=("at", "valid_at"), by="sku", delay="15 minutes")
    assert joined["price"].tolist() == [10.0, 12.5, 12.5]


def test_a_zone_is_not_guessed_between_event_times_and_known_times() -> None:
    orders = pd.DataFrame({"k": [1], "t": pd.to_datetime(["2026-01-15 10:05"])})
    known = pd.to_datetime(["2026-01-15 10:30+01:00"])
    prices = pd.DataFrame({"k": [1], "t": pd.to_datetime(["2026-01-15 10:00"]), "kn": known, "p": [1]})
    columns: dict[str, Any] = {"on": "t", "by": "k", "known_at": "kn"}
    with pytest.raises(
        ConfigurationError, match=r"column 'kn' of the right has a zone, and the times of both .*time_zo"
    ):
        cj.asof_join(orders, prices, **columns)
    assert cj.asof_join(orders, prices, **columns, time_zone="Europe/Berlin")["p"].isna().all()
    zoned = [frame.assign(t=frame.t.dt.tz_localize("Europe/Berlin")) for frame in (orders, prices)]
    local = zoned[1].assign(kn=pd.to_datetime(["2026-01-15 10:04"]))
    joined = cj.asof_join(zoned[0], local, **columns, time_zone="Europe/Berlin")
    assert joined["p"].tolist() == [1]
    right = cj.Input(local, "k", "t", name="prices", known_at="kn", time_zone="Europe/Berlin")
    pair = cj.connect(cj.Input(zoned[0], "k", "t", name="orders"), right)
    assert pair.asof_join().to_arrow()["p"].to_pylist() == [1]
    number = local.assign(kn=[1_768_467_840_000])
    assert cj.asof_join(zoned[0], number, **columns, time_unit="ms")["p"].tolist() == [1]


def test_numbers_and_local_times_may_be_known_times() -> None:
    rows = pa.table({"id": [1], "at": [10], "loaded": [20], "price": [5]})
    left = pa.table({"id": [1, 1], "t": [15, 25]})
    pair = cj.connect(
        cj.Input(left, "id", "t", time_unit="s"), cj.Input(rows, "id", "at", known_at="loaded", time_unit="s")
    )
    assert pair.asof_join().to_arrow()["price"].to_pylist() == [None, 5]
