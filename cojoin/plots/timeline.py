"""``plot_timeline``: what happened to the rows of one or a few keys, over event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.joins import IntervalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import describe_operation
from cojoin.errors import ConfigurationError
from cojoin.plots.time_axes import check_axes, format_times, moment, new_axes, settle, shorten
from cojoin.plots.timeline_lanes import Lanes
from cojoin.plots.timeline_rows import key_rows, key_text, read_keys, rows_by_key

if TYPE_CHECKING:
    from datetime import datetime

    from matplotlib.axes import Axes

    from cojoin.api.joined import Joined
    from cojoin.engine.plan import Plan

__all__ = ["plot_timeline"]


def plot_timeline(
    joined: Joined,
    keys: Any,
    *,
    ax: Axes | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Axes:
    """Draw the rows of one or a few keys over event time, and what matched what.

    For as-of and temporal joins bars are the right rows, each over the times at which it matches left rows: from its
    event time to the next one, to a tombstone, or as far as the tolerance or the retention reaches. Dots are left rows,
    each with a line to the right row that it matched; a cross is a left row without a match. For interval joins both
    sides are dots, with lines between all pairs, and each left row's interval is shaded. For functions there is a lane
    for each input, for the outputs at their event times, and for event-time timers.

    The join runs on the rows of these keys alone, in this process. Labels that have no room are left out.

    Args:
        joined: A join or a function over inputs in memory.
        keys: The key, or a list of up to 20 keys; of several key columns a tuple each.
        ax: The axes to draw into; None makes a new figure.
        start: The first event time to show, with a time zone; None is the first row's.
        end: The last event time to show, with a time zone; None is the last row's.

    Returns:
        The axes.

    Raises:
        EnvironmentSetupError: matplotlib is not installed.
        ConfigurationError: The inputs are Spark's or have no event time, a key has no rows, or ``end`` is not after
            ``start``.
        FunctionError: The function raised an error.

    Example:
        ``cj.plots.plot_timeline(pair.asof_join(), keys=[7, 8])``
    """
    check_axes(ax, "plot_timeline")
    execution = joined._embedded("plot_timeline()")  # noqa: SLF001 - one package
    plan = joined.plan
    for spec in plan.inputs:
        if spec.event_time is None:
            msg = f"plot_timeline: input {spec.name!r} has no event time, so its rows have no place; name event_time="
            raise ConfigurationError(msg)
    limits = moment(start, "start"), moment(end, "end")
    if None not in limits and limits[0] >= limits[1]:  # type: ignore[operator]
        msg = f"plot_timeline: expected an end after the start, got start={start!r}, end={end!r}"
        raise ConfigurationError(msg)
    wanted = read_keys(keys, plan.left)
    sides = rows_by_key(execution.rows, plan.inputs, wanted)
    lanes = Lanes(plan, several=len(wanted) > 1)
    for key, rows in zip(wanted, sides, strict=True):
        if isinstance(plan.operation, KeyedCoProcess):
            lanes.add_function(key, rows)
        elif isinstance(plan.operation, IntervalJoin):
            lanes.add_pairs(key_rows(plan, execution, key, rows))
        else:
            lanes.add_versions(key_rows(plan, execution, key, rows))
    axes = new_axes(9, 1.2 + 0.42 * lanes.height) if ax is None else ax
    format_times(axes, "x", "event time")
    axes.set_title(_title(plan, wanted), loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    lanes.draw(axes, limits, lambda: settle(axes) if ax is None else None)
    return axes


def _title(plan: Plan, keys: list[tuple[Any, ...]]) -> str:
    left, right = plan.inputs
    key = f", key {shorten(key_text(keys[0]))}" if len(keys) == 1 else ""
    return f"{describe_operation(plan.operation)} of {left.name!r} with {right.name!r}{key}"
