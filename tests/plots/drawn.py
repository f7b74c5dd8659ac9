"""What a picture shows, read from its artists: times as minutes after nine o'clock, heights as lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.dates import num2date

import cojoin as cj

if TYPE_CHECKING:
    from datetime import datetime

    from matplotlib.axes import Axes

KEYS = {"key": "customer", "event_time": "event_time"}


def at(minutes: float) -> datetime:
    """Return a time some minutes after nine o'clock."""
    return (pd.Timestamp("2026-01-15 09:00", tz="UTC") + pd.Timedelta(minutes=minutes)).to_pydatetime()


def minutes(number: float) -> float:
    """Return the minutes after nine o'clock of one of matplotlib's numbers."""
    return round((num2date(number) - at(0)).total_seconds() / 60, 3)


def pair(trades: list[tuple[str, float, Any]], customers: list[tuple[str, float, Any]]) -> cj.ConnectedInputs:
    """Connect rows of customer, minutes after nine o'clock, and a trade's number or a customer's tier."""
    left = pd.DataFrame([(c, at(m), n) for c, m, n in trades], columns=["customer", "event_time", "trade"])
    right = pd.DataFrame([(c, at(m), t) for c, m, t in customers], columns=["customer", "event_time", "tier"])
    left, right = (each.astype({"event_time": "datetime64[us, UTC]"}) for each in (left, right))
    return cj.connect(cj.Input(left, **KEYS, name="trades"), cj.Input(right, **KEYS, name="customers"))


def points(axes: Axes, marker: str) -> list[tuple[float, str]]:
    """Return the points of a marker, each as its time and the lane's name."""
    labels = [each.get_text() for each in axes.get_yticklabels()]
    lanes = dict(zip((round(height, 3) for height in axes.get_yticks()), labels, strict=True))
    found = [line for line in axes.lines if line.get_marker() == marker]
    places = [place for line in found for place in zip(*line.get_data(), strict=True)]
    return sorted((minutes(x), lanes.get(round(y, 3), "")) for x, y in places)


def bars(axes: Axes) -> list[tuple[float, float]]:
    """Return when each bar begins and ends."""
    return sorted((minutes(bar.get_x()), minutes(bar.get_x() + bar.get_width())) for bar in axes.patches)


def links(axes: Axes) -> list[tuple[float, float]]:
    """Return the times that each line connects, the left row's first."""
    ticks = [each for each in axes.collections if isinstance(each, LineCollection)]
    lines = [segment for each in ticks for segment in each.get_segments() if len(segment) == 2]
    return sorted((minutes(one[0]), minutes(two[0])) for one, two in lines if one[0] != two[0] or one[1] > two[1] + 0.6)


def legend(axes: Axes) -> list[str]:
    """Return what the legend says."""
    shown = axes.get_legend()
    return [] if shown is None else [each.get_text() for each in shown.get_texts()]


def texts(axes: Axes) -> list[str]:
    """Return the labels in the picture."""
    return [each.get_text() for each in axes.texts]
