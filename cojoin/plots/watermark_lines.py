"""``plot_watermarks``: how far both inputs and the operator are in event time, batch by batch, and who holds back."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from cojoin.engine.values.arguments import check_word
from cojoin.plots.time_axes import BLACK, GREY, LEFT, RIGHT, as_numbers, check_axes, format_times, new_axes
from cojoin.plots.watermark_points import read_points

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from cojoin.plots.watermark_points import Point

__all__ = ["Over", "plot_watermarks"]

Over: TypeAlias = Literal["processing_time", "batches"]
"""What the horizontal axis is: the batches' processing times, or their numbers."""

_COLOURS = (LEFT, RIGHT)
_FEW_BATCHES = 12
_STRIP, _WAITING = 0.035, 0.25
"""The heights of the strip of who holds, and of the largest number of waiting rows, as parts of the axes."""


def plot_watermarks(progress: Any, *, ax: Axes | None = None, over: Over | None = None) -> Axes:
    """Draw the watermarks of both inputs and of the operator, from batch to batch.

    A line is an input's watermark, a dotted one its largest event time, and the dashed black one the operator's
    watermark, which follows the input that holds it back: the strip at the bottom has that input's colour. Areas are
    the rows that wait, on the axis at the right. A triangle is where an input has finished. Where a watermark is
    missing, before the first one and at the end of time, its line has a gap.

    Args:
        progress: What ``cojoin.read_progress(spark, checkpoint)`` returns: a DataFrame of Spark's, or its pandas or
            Arrow form. Or a list of ``BatchReport``s, such as of ``query.progress``, or of the steps of
            ``Joined.steps``.
        ax: The axes to draw into; None makes a new figure.
        over: What the horizontal axis is: ``"processing_time"`` or ``"batches"``. None takes processing time if all
            batches have one and they differ.

    Returns:
        The axes of the watermarks. Those of the waiting rows share their horizontal axis.

    Raises:
        EnvironmentSetupError: matplotlib is not installed.
        ConfigurationError: ``progress`` is something else or has no batch, or ``over`` is invalid.

    Example:
        ``cj.plots.plot_watermarks(cj.read_progress(spark, "/lake/_cojoin/enriched"))``
    """
    check_axes(ax, "plot_watermarks")
    if over is not None:
        check_word("over", over, get_args(Over))
    points = read_points(progress)
    axes = new_axes(9, 3.4) if ax is None else ax
    places = _places(axes, points, over)
    for number, colour in enumerate(_COLOURS):
        _draw_input(axes, places, points, number, colour)
    _step(axes, places, (each.watermark for each in points), BLACK, "the operator", linestyle="--", linewidth=1.8)
    format_times(axes, "y", "event time")
    axes.set_xlim(np.nanmin(places) - 0.02 * (np.nanmax(places) - np.nanmin(places)), np.nanmax(places))
    axes.margins(y=0.08)
    _make_room(axes)
    _draw_holding(axes, places, points)
    _draw_waiting(axes, places, points)
    _draw_legend(axes, points)
    axes.spines[["top", "right"]].set_visible(False)
    # The day stands beside the axis: above it is a title's place.
    axes.yaxis.get_offset_text().set_horizontalalignment("right")
    axes.yaxis.OFFSETTEXTPAD = 9
    return axes


def _places(axes: Axes, points: Sequence[Point], over: Over | None) -> NDArray[np.float64]:
    """Return where each batch is on the horizontal axis, which is made the axis of it, and where the last one ends."""
    clocks = [each.processing_time for each in points]
    if over is None:
        known = [each for each in clocks if each is not None]
        over = "processing_time" if len(known) == len(clocks) and len(set(known)) > 1 else "batches"
    if over == "processing_time":
        format_times(axes, "x", "processing time")
        places = as_numbers(None if each is None else 1_000 * each for each in clocks)
    else:
        from matplotlib.ticker import FixedLocator, MaxNLocator  # noqa: PLC0415 - an extra

        numbers = [each.batch_id for each in points]
        few = len(numbers) <= _FEW_BATCHES
        axes.xaxis.set_major_locator(FixedLocator(numbers) if few else MaxNLocator(integer=True, nbins=_FEW_BATCHES))
        axes.set_xlabel("batch")
        places = np.array(numbers, dtype=np.float64)
    steps = np.diff(places[~np.isnan(places)])
    # The state after the last batch lasts on; half a batch shows that, and no tick falls on a batch that isn't there.
    return np.append(places, places[-1] + (float(np.median(steps)) if len(steps) else 1.0) / 2)


def _draw_input(axes: Axes, places: NDArray[np.float64], points: Sequence[Point], number: int, colour: str) -> None:
    inputs = [each.inputs[number] for each in points]
    name = inputs[-1].name
    _step(axes, places, (each.max_timestamp for each in inputs), colour, f"_{name}, newest", linestyle=":")
    _step(axes, places, (each.watermark for each in inputs), colour, name, linewidth=2.2)
    ended = next((place for place, each in enumerate(inputs) if each.status == "finished"), None)
    if ended is not None:
        last = [each.watermark if each.watermark is not None else each.max_timestamp for each in inputs]
        height = max((each for each in last[: ended + 1] if each is not None), default=None)
        heights = as_numbers([None if height is None else 1_000 * height])
        axes.plot(places[[ended]], heights, marker=">", linestyle="none", color=colour, label=f"_{name}, finished")


def _step(
    axes: Axes, places: NDArray[np.float64], millis: Iterable[int | None], colour: str, label: str, **style: Any
) -> None:
    heights = as_numbers(None if each is None else 1_000 * each for each in millis)
    axes.step(places, np.append(heights, heights[-1]), where="post", color=colour, label=label, **style)


def _make_room(axes: Axes) -> None:
    """Leave the lowest part of the axes to the waiting rows and to who holds, and the highest to the legend."""
    low, high = axes.get_ylim()
    span = high - low
    axes.set_ylim(low - span * 0.42, high + span * 0.22)


def _draw_holding(axes: Axes, places: NDArray[np.float64], points: Sequence[Point]) -> None:
    colours = {each.name: colour for each, colour in zip(points[-1].inputs, _COLOURS, strict=True)}
    held = [colours.get(point.holding_input or "") for point in points]
    for colour, group in groupby(range(len(points)), key=lambda place: held[place]):
        if colour is not None:
            batches = list(group)
            axes.axvspan(
                places[batches[0]], places[batches[-1] + 1], 0, _STRIP, color=colour, linewidth=0, gid="holding"
            )


def _draw_waiting(axes: Axes, places: NDArray[np.float64], points: Sequence[Point]) -> None:

    beside = axes.twinx()
    largest = max(1, *(sum(each.waiting for each in point.inputs) for point in points))
    bottom = np.zeros(len(places))
    for number, colour in enumerate(_COLOURS):
        waiting = [float(point.inputs[number].waiting) for point in points]
        top = bottom + np.array([*waiting, waiting[-1]])
        beside.fill_between(places, bottom, top, step="post", color=colour, alpha=0.18, linewidth=0)
        bottom = top
    # The areas begin above the strip, and the largest one ends below the lines.
    scale = largest / _WAITING
    beside.set_ylim(-scale * (_STRIP + 0.01), scale * (1 - _STRIP - 0.01))
    beside.set_yticks([0, largest], ["0", f"{largest:,}"], fontsize=8)
    beside.set_ylabel("rows that wait", fontsize=8, loc="bottom")
    beside.spines[["top", "right", "left"]].set_visible(False)


def _draw_legend(axes: Axes, points: Sequence[Point]) -> None:
    """Name the inputs by their colours, and what is drawn in each colour once."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = list(axes.get_legend_handles_labels()[0])
    handles.append(Line2D([], [], color=GREY, linestyle=":", label="newest row"))
    handles.append(Patch(color=GREY, alpha=0.25, label="rows that wait"))
    if any(point.holding_input for point in points):
        handles.append(Patch(color=GREY, label="strip: who holds back"))
    if any(each.status == "finished" for each in points[-1].inputs):
        handles.append(Line2D([], [], color=GREY, linestyle="none", marker=">", label="finished"))
    legend = axes.legend(handles=handles, loc="upper left", ncols=4, fontsize=8, frameon=False, borderaxespad=0)
    legend.set_in_layout(False)
