"""What the picture of a key shows, read from its artists."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.plots import plot_timeline
from tests.plots.drawn import at, bars, legend, links, minutes, pair, points, texts

TRADES = [("ann", -5, 1), ("ann", 10, 2), ("ann", 30, 3), ("bob", 20, 4)]
CUSTOMERS = [("ann", 0, "bronze"), ("ann", 30, "silver"), ("bob", 25, "gold")]


class Waits(cj.KeyedCoProcessFunction):
    """Emits a trade 5 minutes after it came, unless a customer's record comes before."""

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 300_000)
        self.last.update(ctx.timestamp() + 300_000)

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "long"))

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        if self.last.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.last.value())
        yield (customer.tier,)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield ("alone",)


def test_versions_are_bars_and_matches_are_lines() -> None:
    axes = plot_timeline(pair(TRADES, CUSTOMERS).asof_join(), "ann", until=at(40))
    assert points(axes, "o") == [(10, "trades"), (30, "trades")]
    assert points(axes, "X") == [(-5, "trades")]
    assert links(axes) == [(10, 0), (30, 30)]
    # The last version is in force to the end of the picture.
    assert bars(axes) == [(0, 30), (30, 40)]
    assert {"bronze", "silver", "1", "2", "3"} == set(texts(axes))
    assert legend(axes)[:2] == ["trades, matched", "trades, no match"]
    assert axes.get_title(loc="left") == "asof_join() of 'trades' with 'customers', key ann"
    assert axes.get_xlabel() == "event time (UTC)"


def test_several_keys_have_lanes_of_their_own() -> None:
    axes = plot_timeline(pair(TRADES, CUSTOMERS).asof_join(), ["ann", "bob"])
    assert [each.get_text() for each in axes.get_yticklabels()] == [
        "trades of ann",
        "customers of ann",
        "trades of bob",
        "customers of bob",
    ]
    assert points(axes, "X") == [(-5, "trades of ann"), (20, "trades of bob")]
    heights = axes.get_yticks()
    assert sorted(heights, reverse=True) == list(heights)


def test_an_inner_join_s_trades_without_a_match_are_drawn_too() -> None:
    axes = plot_timeline(pair(TRADES, CUSTOMERS).asof_join("inner", tolerance="5 minutes"), "ann")
    assert points(axes, "X") == [(-5, "trades"), (10, "trades")]
    assert bars(axes)[0] == (0, 5)


def test_an_interval_join_has_lines_to_all_partners_and_intervals() -> None:
    axes = plot_timeline(pair(TRADES, CUSTOMERS).interval_join("-10 minutes", "20 minutes", how="full"), "ann")
    assert "intervals of trades" in [each.get_text() for each in axes.get_legend().get_texts()]
    assert links(axes) == [(-5, 0), (10, 0), (10, 30), (30, 30)]
    assert points(axes, "s") == [(0, "customers"), (30, "customers")]
    (cones,) = [each for each in axes.collections if type(each).__name__ == "PolyCollection"]
    corners = [sorted(minutes(x) for x, _ in path.vertices[:3]) for path in cones.get_paths()]
    assert corners == [[-15, -5, 15], [0, 10, 30], [20, 30, 50]]


def test_a_function_s_outputs_and_timers_are_at_their_times() -> None:
    both = pair([("ann", 0, 1), ("ann", 10, 2)], [("ann", 12, "gold")])
    axes = plot_timeline(both.process(Waits(), "tier string"), "ann")
    assert [each.get_text() for each in axes.get_yticklabels()] == ["trades", "customers", "output", "timers"]
    assert points(axes, "D") == [(5, "output"), (12, "output")]
    assert [time for time, _ in points(axes, "^")] == [5]
    assert [time for time, _ in points(axes, "x")] == [15]
    assert {"alone", "gold"} <= set(texts(axes))
    assert {"timer, fired", "timer, deleted"} <= set(legend(axes))


def test_a_function_that_sets_timers_for_ever_is_followed_for_a_while() -> None:
    class Ticks(Waits):
        def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
            ctx.timer_service().register_event_time_timer(timestamp + 60_000)
            yield ("tick",)

    axes = plot_timeline(
        pair([("ann", 0, 1)], [("ann", 0, "gold")]).process(Ticks(), "tier string"), "ann", until=at(30)
    )
    assert [time for time, _ in points(axes, "^")] == list(range(5, 31))


def test_it_draws_into_the_axes_that_it_gets_and_shows_the_window_that_is_asked_for() -> None:
    from matplotlib import pyplot as plt

    _, (upper, lower) = plt.subplots(2)
    joined = pair(TRADES, CUSTOMERS).asof_join()
    assert plot_timeline(joined, "ann", ax=lower, since=at(5), until=at(20)) is lower
    assert not upper.lines
    assert [minutes(each) for each in lower.get_xlim()] == [5, 20]
    assert points(lower, "o") == [(10, "trades")]
    # The version began before the window: the line goes to its edge.
    assert links(lower) == [(10, 5)]
    assert bars(lower) == [(5, 20)]
    assert lower.get_title(loc="left").endswith("; a part: 4 of 5 rows are before or after it")


def test_a_window_may_be_local_times_where_the_rows_have_some() -> None:
    hours = pa.array([datetime(2026, 7, 1, hour) for hour in (9, 10, 12)], pa.timestamp("us"))  # noqa: DTZ001
    rows = pa.table({"customer": ["ann"] * 3, "event_time": hours, "n": [1, 2, 3]})
    inputs = [
        cj.Input(rows, key="customer", event_time="event_time", time_zone="Europe/Berlin", name=name)
        for name in ("trades", "customers")
    ]
    joined = cj.connect(*inputs).asof_join(suffixes=("", "_right"))
    local = {"since": datetime(2026, 7, 1, 9, 30), "until": datetime(2026, 7, 1, 11)}  # noqa: DTZ001
    zoned = {name: time.replace(tzinfo=ZoneInfo("Europe/Berlin")) for name, time in local.items()}
    windows = [plot_timeline(joined, "ann", **window).get_xlim() for window in (local, zoned)]
    assert windows[0] == windows[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": "cat"}, "no row of the key cat; they have ann, bob"),
        ({"keys": 7}, "keys: expected a value of 'customer', which is string, got 7"),
        ({"keys": [("ann", 1)]}, "expected a value of 'customer', which is string"),
        ({"keys": []}, "expected 1 to 20 keys"),
        ({"keys": [None]}, "expected a value of 'customer', or a list of some, got None"),
        ({"keys": "ann", "since": at(5), "until": at(5)}, "expected until after since"),
        ({"keys": "ann", "since": datetime(2026, 1, 15)}, "since: expected a datetime with a time zone"),  # noqa: DTZ001
        ({"keys": "ann", "ax": [1, 2]}, "expected matplotlib's Axes, got list; of several give one"),
    ],
)
def test_what_can_t_be_drawn_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=message.replace("(", r"\(")):
        plot_timeline(pair(TRADES, CUSTOMERS).asof_join(), **arguments)


def test_inputs_without_event_time_are_refused() -> None:
    from dataclasses import replace

    trades, customers = (cj.Input(each, key="customer", event_time=None, name=name) for each, name in frames())
    joined = cj.connect(trades, replace(customers, event_time="event_time")).process(
        Waits(), "tier string", order="arrival"
    )
    with pytest.raises(cj.ConfigurationError, match="input 'trades' has no event time"):
        plot_timeline(joined, "ann")


def frames() -> Any:
    rows = pair(TRADES, CUSTOMERS).asof_join()._embedded("").rows
    return zip(rows, ("trades", "customers"), strict=True)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cojoin.installed_packages.find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    with pytest.raises(cj.EnvironmentSetupError, match=r'pip install "cojoin\[plots\]"'):
        plot_timeline(pair(TRADES, CUSTOMERS).asof_join(), "ann")
