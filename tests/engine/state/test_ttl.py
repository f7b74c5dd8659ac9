from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cojoin.engine.state.descriptors import stored_type
from cojoin.engine.state.ttl import Expiry, ServiceClock, StateTtlConfig, split_type, without_expired
from cojoin.engine.time.timers import Timers, TimerService
from cojoin.errors import ConfigurationError
from tests.engine.state.stores import HandClock

DAY = StateTtlConfig("1 day")
MAX = (1 << 63) - 1


def test_the_defaults_are_flinks() -> None:
    config = StateTtlConfig(timedelta(seconds=5))
    assert config.milliseconds == 5_000
    assert (config.update_type, config.state_visibility, config.time_domain) == (
        "on_create_and_write",
        "never_return_expired",
        "processing_time",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": "0 seconds"}, "ttl: must be longer than zero, got '0 seconds'"),
        ({"ttl": timedelta(days=-1)}, "ttl: expected a duration of zero or more"),
        ({"ttl": "5 parsecs"}, "ttl: unknown unit 'parsecs'"),
        ({"ttl": 5_000}, "ttl: expected a duration such as '5 seconds' or a timedelta, got 5000; write its unit"),
        ({"ttl": timedelta(microseconds=1)}, "ttl: expected whole milliseconds"),
        ({"update_type": "on_read_and_wirte"}, "got 'on_read_and_wirte'; did you mean 'on_read_and_write'"),
        ({"update_type": "disabled"}, "update_type: expected 'on_create_and_write' or 'on_read_and_write'"),
        ({"state_visibility": "never"}, "state_visibility: expected 'never_return_expired' or 'return_expired"),
        ({"time_domain": 5}, "time_domain: expected 'processing_time' or 'event_time', got 5"),
        (
            {"time_domain": "event_time", "state_visibility": "return_expired_if_not_cleaned_up"},
            "state_visibility: 'return_expired_if_not_cleaned_up' needs time_domain='processing_time'",
        ),
    ],
)
def test_what_can_not_be_right_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StateTtlConfig(**{"ttl": "1 day"} | options)
    assert said in str(caught.value)


def test_the_default_clock_is_the_timer_services() -> None:
    timers: Any = Timers(None, "F")  # type: ignore[arg-type]
    service = TimerService(timers, timers)
    service.watermark, service.processing_time = 5, 7
    clock = ServiceClock(service)
    assert (clock.now("event_time"), clock.access_time("event_time")) == (5, 5)
    assert (clock.now("processing_time"), clock.access_time("processing_time")) == (7, 7)


def test_a_cutoff_has_no_bounds() -> None:
    clock = HandClock()
    clock.time = -(1 << 63)
    assert Expiry(StateTtlConfig("1 ms"), clock).cutoff() == -(1 << 63) - 1


@pytest.mark.parametrize(
    "descriptor",
    [
        ValueStateDescriptor("x", "array<int>", ttl=DAY),
        ListStateDescriptor("x", "tier string, at timestamp", ttl=DAY),
        MapStateDescriptor("x", "string", "array<int>", ttl=DAY),
    ],
)
def test_a_stored_type_is_told_from_its_times(descriptor: Any) -> None:
    plain = type(descriptor)(*(getattr(descriptor, name) for name in descriptor.__match_args__))
    assert split_type(stored_type(descriptor)) == (stored_type(plain), "processing_time")
    assert split_type(stored_type(plain)) == (stored_type(plain), None)


def table(dtype: pa.DataType, *entries: Any) -> pa.Table:
    keys = [chr(ord("a") + position) for position in range(len(entries))]
    return pa.table({"key": keys, "@value": pa.array(list(entries), dtype)})


def pair(value: Any, accessed: int) -> dict[str, Any]:
    return {"@value": value, "@processing_time": accessed}


VALUES = table(stored_type(ValueStateDescriptor("x", "int", ttl=DAY)), pair(1, 5), pair(2, 6), pair(3, MAX))
LISTS = table(
    stored_type(ListStateDescriptor("x", "int", ttl=DAY)),
    [pair(1, 5), pair(2, 6)],
    [pair(3, 4)],
    [pair(None, 7), pair(5, 5), pair(6, 8)],
)
MAPS = table(
    stored_type(MapStateDescriptor("x", "string", "int", ttl=DAY)),
    [("x", pair(1, 5)), ("y", pair(2, 6))],
    [("x", pair(3, 4))],
    [("z", pair(4, 7)), ("a", pair(5, 5))],
)


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (VALUES, {"b": pair(2, 6), "c": pair(3, MAX)}),
        (LISTS, {"a": [pair(2, 6)], "c": [pair(None, 7), pair(6, 8)]}),
        (MAPS, {"a": [("y", pair(2, 6))], "c": [("z", pair(4, 7))]}),
    ],
    ids=["value", "list", "map"],
)
@pytest.mark.parametrize("cut", [0, 1, 2], ids=lambda cut: f"sliced at {cut}")
def test_what_has_expired_is_cut_out_of_values_lists_and_maps(stored: pa.Table, left: dict[str, Any], cut: int) -> None:
    """In pieces or in one, and however the pieces were cut out of larger ones."""
    whole = pa.concat_tables([stored.slice(0, cut), stored.slice(cut)])
    for part, kept in ((whole, left), (stored.slice(cut), {k: left[k] for k in "abc"[cut:] if k in left})):
        cleaned = without_expired(part, 5)
        assert dict(zip(*cleaned.to_pydict().values(), strict=True)) == kept
        assert cleaned.schema == stored.schema
        cleaned.validate(full=True)


@pytest.mark.parametrize("stored", [VALUES, LISTS, MAPS], ids=["value", "list", "map"])
def test_where_nothing_has_expired_nothing_is_copied(stored: pa.Table) -> None:
    for cutoff in (3, -(1 << 63), -(1 << 63) - 5):
        assert without_expired(stored, cutoff) is stored
    assert without_expired(stored.slice(0, 0), 5).num_rows == 0
    assert without_expired(stored, MAX).num_rows == 0
