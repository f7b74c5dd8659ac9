"""``plot_lateness``: which share of the rows is late, over the bound of the watermark strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cojoin.engine.lateness import Lateness
from cojoin.errors import ConfigurationError
from cojoin.plots.time_axes import BLACK, GREY, LEFT, check_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = {
    1: "1 ms",
    100: "100 ms",
    1_000: "1 s",
    10_000: "10 s",
    60_000: "1 min",
    600_000: "10 min",
    3_600_000: "1 h",
    21_600_000: "6 h",
    86_400_000: "1 d",
    604_800_000: "7 d",
    2_592_000_000: "30 d",
    31_536_000_000: "1 y",
}
_SOON, _LONG = 100.0, 10_000
"""The axis's beginning if the largest lateness is a long one, and how long that is, in milliseconds."""

_SHARES = ((0.99, "99 %"), (0.999, "99.9 %"), (1.0, "all rows"))


def plot_lateness(lateness: Lateness, *, ax: Axes | None = None) -> Axes:
    """Draw which share of the rows is late with which bound.

    The line falls from the share of late rows without a bound, at the left edge, to the largest lateness, where it
    ends: with that bound no row is late. Dotted lines are the bounds with which 99 %, 99.9 % and all rows are not late.
    Both axes are logarithmic, since the last rows are few and come very late.

    Args:
        lateness: The result of ``cojoin.lateness``.
        ax: The axes to draw into; None makes a new figure.

    Returns:
        The axes.

    Raises:
        EnvironmentSetupError: matplotlib is not installed.
        ConfigurationError: ``lateness`` is something else.

    Example:
        ``cj.plots.plot_lateness(cj.lateness(orders, event_time="ordered_at", arrival="loaded_at"))``
    """
    check_axes(ax, "plot_lateness")
    if not isinstance(lateness, Lateness):
        msg = f"plot_lateness: expected what cojoin.lateness returns, got {type(lateness).__name__}"
        raise ConfigurationError(msg)
    axes = new_axes(9, 2.8) if ax is None else ax
    axes.set_xlabel("bound of the watermark strategy")
    axes.set_ylabel("share of rows that are late")
    axes.spines[["top", "right"]].set_visible(False)
    if not lateness.largest_ms:
        text = "no row is late with any bound" if lateness.counted else "no rows"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return axes
    _draw(axes, lateness)
    return axes


def _draw(axes: Axes, lateness: Lateness) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: PLC0415 - an extra

    spans = np.array(sorted(lateness.counts), dtype=np.float64)
    rows = np.array([lateness.counts[each] for each in sorted(lateness.counts)], dtype=np.float64)
    late = np.cumsum(rows[::-1])[::-1]
    # With a bound of one count's lateness the rows of the later ones are late; without one, all but those on time.
    behind = spans > 0
    without = late[behind][0]
    bounds = np.minimum(spans[behind], lateness.largest_ms)
    floor = 1 / lateness.counted
    shares = np.append(late[behind][1:] / lateness.counted, floor)
    # The first milliseconds of bounds of hours are of no interest.
    first = min(bounds[0], _SOON) if lateness.largest_ms > _LONG else 1.0
    steps = np.concatenate([[first], bounds])
    axes.step(steps, np.append(without / lateness.counted, shares), where="post", color=LEFT, linewidth=2.2)
    axes.plot(bounds[-1:], [floor], marker="v", color=LEFT, linestyle="none")
    axes.set_xscale("log")
    axes.set_yscale("log")
    left = max(first, _SOON) if lateness.largest_ms > _LONG else first
    axes.set_xlim(left, bounds[-1] * 2)
    axes.set_ylim(floor / 1.5, min(1.0, 3 * without / lateness.counted))
    shown = {tick: label for tick, label in _TICKS.items() if left <= tick <= bounds[-1] * 2}
    axes.set_xticks(list(shown), list(shown.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.10f}".rstrip("0").rstrip(".") + " %"))
    axes.yaxis.set_minor_locator(NullLocator())
    top = axes.get_ylim()[1]
    for number, (share, label) in enumerate(_SHARES):
        bound = max(lateness.bound_for(share).total_seconds() * 1_000, left)
        axes.axvline(bound, color=GREY, linestyle=":", linewidth=1)
        axes.annotate(
            label,
            (bound, top),
            (-3, -2 - 10 * number),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=BLACK,
        )
