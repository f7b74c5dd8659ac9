"""``plot_timeline`` draws the rows of one or a few keys over event time, and their matches.

Each lane has the rows of one kind of one key, at one height; keys follow each other from top to bottom. Lanes are
gathered first and drawn then, since the room of a label depends on the times of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.joins import IntervalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import describe_operation
from cojoin.errors import ConfigurationError
from cojoin.plots.time_axes import (
    BLACK,
    FILLS,
    GREY,
    LEFT,
    RED,
    RIGHT,
    as_numbers,
    check_axes,
    format_times,
    label_points,
    moment,
    new_axes,
    pixels,
    settle,
    shorten,
    text_pixels,
)
from cojoin.plots.timeline_rows import (
    TimedRow,
    Version,
    key_rows,
    key_text,
    labels_of,
    read_keys,
    rows_by_key,
    run_function,
    sorted_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from matplotlib.axes import Axes

    from cojoin.api.joined import Joined
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.plots.timeline_rows import KeyRows, SeenTimer


def plot_timeline(
    joined: Joined, keys: Any, *, ax: Axes | None = None, since: datetime | None = None, until: datetime | None = None
) -> Axes:
    """Draw the rows of one or a few keys over event time, and their matches.

    For as-of and temporal joins bars are the right rows, each over the times at which it matches left rows: from its
    event time to the next one, to a tombstone, or as far as the tolerance or the retention reaches. Dots are left rows,
    each with a line to the right row that it matched; a cross is a left row without a match. For interval joins both
    sides are dots, with lines between all pairs, and each left row's interval is shaded. For functions there is a lane
    for each input, for the outputs at their event times, and for event-time timers. Where versions have known times,
    their bars begin when they were known, and a lane below has them at their event times.

    The join runs on the rows of these keys alone, in this process. Labels that have no room are left out.

    Args:
        joined: A join or a function over inputs in memory.
        keys: The key, or a list of up to 20 keys; of several key columns a tuple each.
        ax: The axes to draw into; None makes a new figure.
        since: The first event time to show; None is the first row's. It has a time zone, unless the left's event times
            are local times (``time_zone=``): then it may be one, too.
        until: The last event time to show, as ``since``; None is the last row's. Where rows are left out, the title has
            their number.

    Returns:
        The axes.

    Raises:
        EnvironmentSetupError: matplotlib is not installed.
        ConfigurationError: The inputs are Spark's or have no event time, a key has no rows, or ``until`` is not after
            ``since``.
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
    zone = None if plan.left.time_axis is None else plan.left.time_axis.zone
    limits = moment(since, "since", zone), moment(until, "until", zone)
    if None not in limits and limits[0] >= limits[1]:  # type: ignore[operator]
        msg = f"plot_timeline: expected until after since, got since={since!r}, until={until!r}"
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
    axes.set_title(_title(plan, wanted) + lanes.left_out(limits), loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    lanes.draw(axes, limits, lambda: settle(axes) if ax is None else None)
    return axes


def _title(plan: Plan, keys: list[tuple[Any, ...]]) -> str:
    left, right = plan.inputs
    key = f", key {shorten(key_text(keys[0]))}" if len(keys) == 1 else ""
    return f"{describe_operation(plan.operation)} of {left.name!r} with {right.name!r}{key}"


_BAR, _GAP, _ROOM, _COLUMNS, _SHORTEST = 0.5, 0.45, 0.5, 4, 5
_GREEN, _PURPLE = "#4f9163", "#8e6bbf"


class _Style(NamedTuple):
    """The markers of points, and their label in the legend."""

    marker: str
    colour: str
    label: str
    is_filled: bool = True


@dataclass
class _Lane:
    name: str
    height: float
    bars: list[Version] = field(default_factory=list)
    points: list[tuple[TimedRow, _Style]] = field(default_factory=list)
    timers: Sequence[SeenTimer] = ()
    labels_at: float = 7
    """The distance of the labels above the points, in points; below if less than zero, and none if zero."""


class Lanes:
    """Gathers the lanes of all keys, then draws them; with several keys each lane names its key."""

    def __init__(self, plan: Plan, *, several: bool) -> None:
        self._plan, self._several = plan, several
        self._lanes: list[_Lane] = []
        self._links: list[tuple[tuple[int, float], tuple[int, float]]] = []
        self._known: list[tuple[tuple[int, float], tuple[int, float]]] = []
        self._cones: list[tuple[int, float, int, int, float]] = []
        self.height = 0.0
        left, right = (spec.name for spec in plan.inputs)
        self._matched = _Style("o", LEFT, f"{left}, matched")
        self._unmatched = _Style("X", RED, f"{left}, no match")
        self._left, self._right = _Style("o", LEFT, left), _Style("s", RIGHT, right)
        self._tombstone = _Style("x", BLACK, f"{right}, deletes the key")
        self._begins = _Style("|", BLACK, "")
        self._valid = _Style("s", RIGHT, f"{right}, at its event time")

    def add_versions(self, rows: KeyRows) -> None:
        """Add a key of an as-of or a temporal join: its left rows, and below them its versions as bars."""
        left, right = self._two_lanes(rows.key)
        left.points = [(row, self._matched if row.micros in rows.matches else self._unmatched) for row in rows.left]
        right.labels_at = 0
        versions = [row for row in rows.right if isinstance(row, Version)]
        for version in versions:
            point = TimedRow(version.effective, version.label)
            right.points.append((point, self._tombstone if version.is_tombstone else self._begins))
            right.bars += [version] if version.begins < version.ends else []
        edge = right.height + _BAR / 2
        self._link(rows, left.height, edge)
        if self._plan.right.known is not None:
            self.height -= _GAP
            valid = self._lane(f"{self._plan.right.name}, event time", rows.key)
            valid.points, valid.labels_at = [(version, self._valid) for version in versions], -8
            below = right.height - _BAR / 2
            self._known += [((each.effective, below), (each.micros, valid.height)) for each in versions]
            self.height += _GAP

    def add_pairs(self, rows: KeyRows) -> None:
        """Add a key of an interval join: the rows of both sides, and the interval of each left row."""
        left, right = self._two_lanes(rows.key)
        left.points = [(row, self._matched if row.micros in rows.matches else self._unmatched) for row in rows.left]
        right.points, right.labels_at = [(row, self._right) for row in rows.right], -8
        self._link(rows, left.height, right.height)
        lower, upper = self._plan.operation.bounds  # type: ignore[attr-defined]
        self._cones += [
            (row.micros, left.height, row.micros + lower, row.micros + upper, right.height) for row in rows.left
        ]

    def add_function(self, key: tuple[Any, ...], rows: Sides) -> None:
        """Add a key of a function: both inputs, each output, and the timers."""
        text, run = key_text(key), run_function(self._plan, rows)
        for spec, table, style in zip(self._plan.inputs, rows, (self._left, self._right), strict=True):
            lane = self._lane(spec.name, text)
            lane.points = [(row, style) for row in sorted_rows(table, spec, labels_of(table, spec))]
        for name, emitted in run.outputs.items():
            style = _Style("D", _GREEN, "output") if name == "output" else _Style("d", _PURPLE, "side output")
            self._lane(name, text).points = [(row, style) for row in emitted]
        if run.timers:
            self._lane("timers", text).timers = run.timers
        self.height += _GAP

    def draw(self, axes: Axes, limits: tuple[int | None, int | None], settle: Callable[[], object]) -> None:
        """Draw all lanes between two times in epoch microseconds; None is the first or last row's.

        ``settle`` is called once the axes have their limits, ticks and legend, and gives them their final size.
        """
        window = self._window(limits)
        self._leave_out(window)
        axes.set_xlim(*as_numbers(window))
        handles = self._handles()
        axes.set_ylim(_GAP + 0.3 - self.height, 0.6 + _ROOM * -(-len(handles) // _COLUMNS))
        axes.set_yticks([lane.height for lane in self._lanes], [lane.name for lane in self._lanes])
        legend = axes.legend(
            handles=handles, loc="upper left", ncols=_COLUMNS, fontsize=8, frameon=False, borderaxespad=0
        )
        legend.set_in_layout(False)
        settle()
        self._draw_links(axes)
        for lane in self._lanes:
            self._draw_bars(axes, lane, window)
            self._draw_timers(axes, lane)
            self._draw_points(axes, lane, window)

    def left_out(self, limits: tuple[int | None, int | None]) -> str:
        """Return the end of a title: how many rows are before or after two times; empty if none is."""
        first, last = limits
        times = [row.micros for lane in self._lanes for row, _ in lane.points]
        count = sum((first is not None and each < first) or (last is not None and each > last) for each in times)
        return f"; a part: {count:,} of {len(times):,} rows are before or after it" if count else ""

    def _two_lanes(self, key: str) -> tuple[_Lane, _Lane]:
        left, right = (self._lane(spec.name, key) for spec in self._plan.inputs)
        self.height += _GAP
        return left, right

    def _lane(self, name: str, key: str) -> _Lane:
        shown = f"{name} of {shorten(key, 16)}" if self._several else name
        lane = _Lane(shown, -self.height)
        self._lanes.append(lane)
        self.height += 1
        return lane

    def _link(self, rows: KeyRows, above: float, below: float) -> None:
        pairs = [(row.micros, partner) for row in rows.left for partner in rows.matches.get(row.micros, ())]
        self._links += [((of_left, above), (of_right, below)) for of_left, of_right in pairs]

    def _window(self, limits: tuple[int | None, int | None]) -> tuple[int, int]:
        times = [row.micros for lane in self._lanes for row, _ in lane.points]
        times += [each.timestamp for lane in self._lanes for each in lane.timers if each.outcome != "waiting"]
        first, last = limits
        if first is not None:
            times = [each for each in times if each >= first] or [first]
        if last is not None:
            times = [each for each in times if each <= last] or [last]
        low, high = min(times), max(times)
        room = max((high - low) // 16, 1_000 if high > low else 1_000_000)
        return low - room if first is None else first, high + room if last is None else last

    def _leave_out(self, window: tuple[int, int]) -> None:
        """Leave out all that is outside the window; a line to a version from before it ends at its edge."""
        low, high = window
        for lane in self._lanes:
            lane.points = [(row, style) for row, style in lane.points if low <= row.micros <= high]
            lane.timers = [each for each in lane.timers if low <= each.timestamp <= high]
        self._known = [pair for pair in self._known if all(low <= time <= high for time, _ in pair)]
        has_bars = any(lane.bars for lane in self._lanes)
        self._links = [
            (one, (min(max(two[0], low), high) if has_bars else two[0], two[1]))
            for one, two in self._links
            if low <= one[0] <= high
        ]

    def _draw_links(self, axes: Axes) -> None:
        from matplotlib.collections import LineCollection, PolyCollection  # noqa: PLC0415 - an extra

        cones = [
            list(zip(as_numbers([time, first, last]), [above, below, below], strict=True))
            for time, above, first, last, below in self._cones
        ]
        if cones:
            axes.add_collection(PolyCollection(cones, facecolor=LEFT, alpha=0.12, linewidth=0, zorder=0.5))
        for links, style in ((self._links, "-"), (self._known, ":")):
            lines = [list(zip(as_numbers([one[0], two[0]]), [one[1], two[1]], strict=True)) for one, two in links]
            if lines:
                axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.9, linestyles=style, zorder=1.5))

    def _draw_bars(self, axes: Axes, lane: _Lane, window: tuple[int, int]) -> None:
        colours = self._fills()
        room = pixels(axes) / (window[1] - window[0])
        for bar in lane.bars:
            begins, ends = max(bar.begins, window[0]), min(bar.ends, window[1])
            if begins >= ends:
                continue
            low, high = as_numbers([begins, ends])
            axes.barh(lane.height, high - low, _BAR, low, color=colours[bar.label], alpha=0.75, zorder=1)
            width = (ends - begins) * room - 8
            text = shorten(bar.label)
            while text and text_pixels(axes, text) > width:
                text = shorten(bar.label, len(text) - 1) if len(text) > _SHORTEST else ""
            axes.annotate(text, (low, lane.height), (5, 0), textcoords="offset points", va="center", fontsize=8)

    def _fills(self) -> dict[str, str]:
        labels = dict.fromkeys(bar.label for lane in self._lanes for bar in lane.bars)
        return {label: FILLS[number % len(FILLS)] for number, label in enumerate(labels)}

    def _draw_points(self, axes: Axes, lane: _Lane, window: tuple[int, int]) -> None:
        for style in dict.fromkeys(style for _, style in lane.points):
            times = as_numbers(row.micros for row, each in lane.points if each == style)
            heights = [lane.height] * len(times)
            if style.marker == "|":
                axes.vlines(times, lane.height - _BAR / 2, lane.height + _BAR / 2, colors=BLACK, linewidth=1.2)
            else:
                axes.plot(times, heights, **_marker(style))
        if lane.labels_at:
            label_points(
                axes,
                _together((row.micros, row.label) for row, _ in lane.points),
                lane.height,
                window,
                points=lane.labels_at,
            )

    def _draw_timers(self, axes: Axes, lane: _Lane) -> None:
        for number, timer in enumerate(lane.timers):
            height = lane.height + 0.16 * (number % 3 - 1)
            if timer.set_at is not None:
                begins, ends = as_numbers([timer.set_at, timer.timestamp])
                axes.hlines(height, begins, ends, colors=GREY, linewidth=1.2, linestyles="-", zorder=1)
            axes.plot(as_numbers([timer.timestamp]), [height], **_marker(_timer_style(timer)))

    def _handles(self) -> list[Any]:
        from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra
        from matplotlib.patches import Patch  # noqa: PLC0415

        seen = dict.fromkeys(style for lane in self._lanes for _, style in lane.points if style.label)
        styles = {each: None for each in (self._matched, self._unmatched) if each in seen} | seen
        styles |= dict.fromkeys(_timer_style(timer) for lane in self._lanes for timer in lane.timers)
        handles: list[Any] = [Line2D([], [], **_marker(style), label=style.label) for style in styles]
        left, right = (spec.name for spec in self._plan.inputs)
        if any(lane.bars for lane in self._lanes):
            handles.append(Patch(color=FILLS[0], alpha=0.75, label=f"{right}, while they match"))
        if self._links:
            handles.append(Line2D([], [], color=GREY, linewidth=0.9, label="what matched"))
        if self._known:
            handles.append(Line2D([], [], color=GREY, linewidth=0.9, linestyle=":", label="when it was known"))
        if self._cones:
            handles.append(Patch(color=LEFT, alpha=0.12, label=f"intervals of {left}"))
        return handles


def _marker(style: _Style) -> dict[str, Any]:
    colours = {"markerfacecolor": style.colour if style.is_filled else "white", "markeredgecolor": style.colour}
    if style.is_filled and style.marker not in "x|":
        colours["markeredgecolor"] = "white"
    size = 8 if style.marker in "XDd^" else 7
    return {"marker": style.marker, "linestyle": "none", "markersize": size, "zorder": 3, **colours}


def _timer_style(timer: SeenTimer) -> _Style:
    if timer.outcome == "deleted":
        return _Style("x", BLACK, "timer, deleted")
    return _Style("^", BLACK, f"timer, {timer.outcome}", is_filled=timer.outcome == "fired")


def _together(points: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return labelled points with those of one time as one, since their labels would cover each other."""
    by_time: dict[int, list[str]] = {}
    for micros, label in points:
        by_time.setdefault(micros, []).append(label)
    return [(micros, "; ".join(dict.fromkeys(labels))) for micros, labels in by_time.items()]
