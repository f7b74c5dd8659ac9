"""The parts that all pictures share: matplotlib where it is installed, axes of times in UTC, colours, and labels."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import numpy as np

from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LEFT, RIGHT, RED, BLACK, GREY = "#3b7dd8", "#c8553d", "#b3261e", "#222222", "#8a8a8a"
"""The left input, the right input, rows without a match, the operator, and lines that connect."""

FILLS = ("#8fb8de", "#e6b566", "#9ccb9a", "#d7a6c8", "#c3bd8b", "#a9b4c2", "#e39c8c", "#8ccfc9")
"""The colours of versions; equal versions have equal colours."""

_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that matplotlib's dates can hold: the years 1 to 9999."""

_POINT_SIZE, _CHARACTER = 8, 0.56
"""The size of labels in points, and the width of a character in sizes."""


def check_axes(ax: Any, function: str) -> None:
    """Check that matplotlib is installed, and that ``ax`` is None or an ``Axes``; the function is for the message."""
    check_packages(function, "plots", "matplotlib")
    from matplotlib.axes import Axes  # noqa: PLC0415 - an extra

    if ax is not None and not isinstance(ax, Axes):
        msg = f"{function}: ax: expected matplotlib's Axes, got {type(ax).__name__}; of several give one, as axes[0]"
        raise ConfigurationError(msg)


def new_axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure, of a width and a height in inches."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    _, axes = plt.subplots(figsize=(width, height), layout="constrained")
    return axes


def settle(axes: Axes) -> None:
    """Set the axes of a new figure to the size that its layout leaves them."""
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.draw_without_rendering()


def as_numbers(micros: Iterable[int | None]) -> NDArray[np.float64]:
    """Return times in epoch microseconds as matplotlib's numbers; a time beyond its dates, as the end of time, is NaN.

    >>> as_numbers([0, None, 1_000 * (2**63 - 1)]).tolist()
    [0.0, nan, nan]
    """
    from matplotlib import dates  # noqa: PLC0415 - an extra

    times = [
        np.datetime64("NaT", "us") if time is None or not _FIRST <= time <= _LAST else np.datetime64(time, "us")
        for time in micros
    ]
    untyped: Any = dates
    return np.asarray(untyped.date2num(np.array(times, dtype="datetime64[us]")), dtype=np.float64)


def format_times(axes: Axes, which: Literal["x", "y"], label: str) -> None:
    """Make one axis an axis of times in UTC that are short and readable at every scale."""
    from matplotlib import dates  # noqa: PLC0415 - an extra

    untyped: Any = dates

    axis = axes.xaxis if which == "x" else axes.yaxis
    locator = untyped.AutoDateLocator(tz=timezone.utc, minticks=3, maxticks=9 if which == "x" else 7)
    axis.set_major_locator(locator)
    axis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=timezone.utc))
    axis.set_label_text(f"{label} (UTC)")
    if which == "y":
        # Its usual place is the title's.
        axis.get_offset_text().set_horizontalalignment("right")


def moment(value: Any, argument: str, zone: str | None = None) -> int | None:
    """Return a datetime in epoch microseconds, one without a zone as a time in ``zone``; None stays None."""
    if value is None:
        return None
    if zone is not None and isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=ZoneInfo(zone))
    if not isinstance(value, datetime) or value.tzinfo is None:
        example = "datetime(2026, 1, 31, tzinfo=timezone.utc)"
        msg = f"{argument}: expected a datetime with a time zone, such as {example}, got {value!r}"
        raise ConfigurationError(msg)
    since = value - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def label_points(
    axes: Axes, labels: Sequence[tuple[int, str]], height: float, window: tuple[int, int], *, points: float = 7
) -> None:
    """Write labels above the points of a height that have room; each has its time in epoch microseconds.

    The window is the first and the last time that the axes show. Labels are some points above, or below if less than
    zero.
    """
    width, taken = pixels(axes), -np.inf
    for micros, label in sorted(labels):
        text = shorten(label)
        half = text_pixels(axes, text) / 2
        position = (micros - window[0]) / (window[1] - window[0]) * width
        if not text or position - half < max(taken, -half) or position > width:
            continue
        taken = position + half + 4
        axes.annotate(
            text,
            (as_numbers([micros])[0], height),
            (0, points),
            textcoords="offset points",
            ha="center",
            va="bottom" if points > 0 else "top",
            fontsize=_POINT_SIZE,
            color=BLACK,
            annotation_clip=True,
        )


def pixels(axes: Axes) -> float:
    """Return the width of axes, in pixels."""
    return float(axes.get_window_extent().width)


def text_pixels(axes: Axes, text: str) -> float:
    """Return the approximate width of a label, in pixels."""
    figure = axes.get_figure(root=True)
    dots = 100.0 if figure is None else float(figure.dpi)
    return len(text) * _POINT_SIZE * _CHARACTER * dots / 72


def shorten(text: str, limit: int = 24) -> str:
    """Return a text that is no longer than a limit, with dots where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
