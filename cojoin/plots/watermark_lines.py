"""``plot_watermarks`` draws the watermarks of both inputs and of the operator by batch, and the input that holds back.

The batches come from a query's progress table, in any form, or from reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from cojoin.checkpoints.progress_rows import RecordedBatch
from cojoin.embedded.libraries import is_pandas
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.arguments import check_word
from cojoin.errors import ConfigurationError
from cojoin.plots.time_axes import BLACK, GREY, LEFT, RIGHT, as_numbers, check_axes, format_times, new_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray


Over: TypeAlias = Literal["processing_time", "batches"]
"""The horizontal axis: the batches' processing times, or their numbers."""

_COLOURS = (LEFT, RIGHT)
_FEW_BATCHES = 12
_STRIP, _WAITING = 0.035, 0.25
"""The heights of the strip at the bottom, and of the largest number of waiting rows, as parts of the axes."""


def plot_watermarks(progress: Any, *, ax: Axes | None = None, over: Over | None = None) -> Axes:
    """Draw the watermarks of both inputs and of the operator, from batch to batch.

    A line is an input's watermark, a dotted one its largest event time, and the dashed black one the operator's
    watermark, which follows the input that holds it back: the strip at the bottom has that input's colour. Areas are
    the rows that wait, on the axis at the right. A triangle is where an input has finished. Where a watermark is
    missing, before the first one and at the end of time, its line has a gap.

    Args:
        progress: The result of ``cojoin.read_progress(spark, checkpoint)``: a DataFrame of Spark's, or its pandas or
            Arrow form. Or a list of ``BatchReport``s, such as of ``query.progress``, or of the steps of
            ``Joined.steps``.
        ax: The axes to draw into; None makes a new figure.
        over: The horizontal axis: ``"processing_time"`` or ``"batches"``. None takes processing time if all
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
    positions = _places(axes, points, over)
    for number, colour in enumerate(_COLOURS):
        _draw_input(axes, positions, points, number, colour)
    _step(axes, positions, (each.watermark for each in points), BLACK, "the operator", linestyle="--", linewidth=1.8)
    format_times(axes, "y", "event time")
    axes.set_xlim(np.nanmin(positions) - 0.02 * (np.nanmax(positions) - np.nanmin(positions)), np.nanmax(positions))
    axes.margins(y=0.08)
    _make_room(axes)
    _draw_holding(axes, positions, points)
    _draw_waiting(axes, positions, points)
    _draw_legend(axes, points)
    axes.spines[["top", "right"]].set_visible(False)
    # The day stands next to the axis: above it is the title.
    axes.yaxis.get_offset_text().set_horizontalalignment("right")
    axes.yaxis.OFFSETTEXTPAD = 9
    return axes


def _places(axes: Axes, points: Sequence[RecordedBatch], over: Over | None) -> NDArray[np.float64]:
    """Set the horizontal axis, and return each batch's position on it and the end of the last one."""
    clocks = [each.processing_time for each in points]
    if over is None:
        known = [each for each in clocks if each]
        over = "processing_time" if len(known) == len(clocks) and len(set(known)) > 1 else "batches"
    if over == "processing_time":
        format_times(axes, "x", "processing time")
        positions = as_numbers(1_000 * each if each else None for each in clocks)
    else:
        from matplotlib.ticker import FixedLocator, MaxNLocator  # noqa: PLC0415 - an extra

        numbers = [each.batch_id for each in points]
        few = len(numbers) <= _FEW_BATCHES
        axes.xaxis.set_major_locator(FixedLocator(numbers) if few else MaxNLocator(integer=True, nbins=_FEW_BATCHES))
        axes.set_xlabel("batch")
        positions = np.array(numbers, dtype=np.float64)
    steps = np.diff(positions[~np.isnan(positions)])
    # The state after the last batch lasts; half a batch shows that, and no tick falls on a batch that does not exist.
    return np.append(positions, positions[-1] + (float(np.median(steps)) if len(steps) else 1.0) / 2)


def _draw_input(
    axes: Axes, positions: NDArray[np.float64], points: Sequence[RecordedBatch], number: int, colour: str
) -> None:
    inputs = [each.inputs[number] for each in points]
    name = inputs[-1].name
    _step(axes, positions, (each.max_timestamp for each in inputs), colour, f"_{name}, newest", linestyle=":")
    _step(axes, positions, (each.watermark for each in inputs), colour, name, linewidth=2.2)
    ended = next((index for index, each in enumerate(inputs) if each.status == "finished"), None)
    if ended is not None:
        last = [each.max_timestamp if each.watermark == END_OF_TIME else each.watermark for each in inputs]
        heights = as_numbers([1_000 * max(last[: ended + 1])])
        axes.plot(positions[[ended]], heights, marker=">", linestyle="none", color=colour, label=f"_{name}, finished")


def _step(
    axes: Axes, positions: NDArray[np.float64], millis: Iterable[int], colour: str, label: str, **style: Any
) -> None:
    heights = as_numbers(1_000 * each for each in millis)
    axes.step(positions, np.append(heights, heights[-1]), where="post", color=colour, label=label, **style)


def _make_room(axes: Axes) -> None:
    """Leave the lowest part of the axes to the waiting rows and the strip, and the highest to the legend."""
    low, high = axes.get_ylim()
    span = high - low
    axes.set_ylim(low - span * 0.42, high + span * 0.22)


def _draw_holding(axes: Axes, positions: NDArray[np.float64], points: Sequence[RecordedBatch]) -> None:
    colours = {each.name: colour for each, colour in zip(points[-1].inputs, _COLOURS, strict=True)}
    held = [colours.get(point.holding_input or "") for point in points]
    for colour, group in groupby(range(len(points)), key=lambda number: held[number]):
        if colour is not None:
            batches = list(group)
            axes.axvspan(
                positions[batches[0]], positions[batches[-1] + 1], 0, _STRIP, color=colour, linewidth=0, gid="holding"
            )


def _draw_waiting(axes: Axes, positions: NDArray[np.float64], points: Sequence[RecordedBatch]) -> None:
    counts = axes.twinx()
    largest = max(1, *(sum(each.buffered for each in point.inputs) for point in points))
    bottom = np.zeros(len(positions))
    for number, colour in enumerate(_COLOURS):
        waiting = [float(point.inputs[number].buffered) for point in points]
        top = bottom + np.array([*waiting, waiting[-1]])
        counts.fill_between(positions, bottom, top, step="post", color=colour, alpha=0.18, linewidth=0)
        bottom = top
    # The areas begin above the strip, and the largest one ends below the lines.
    scale = largest / _WAITING
    counts.set_ylim(-scale * (_STRIP + 0.01), scale * (1 - _STRIP - 0.01))
    counts.set_yticks([0, largest], ["0", f"{largest:,}"], fontsize=8)
    counts.set_ylabel("rows that wait", fontsize=8, loc="bottom")
    counts.spines[["top", "right", "left"]].set_visible(False)


def _draw_legend(axes: Axes, points: Sequence[RecordedBatch]) -> None:
    """Name the inputs by their colours, and each kind of line or area once."""
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


_COLUMNS = ("batch_id", "processing_time", "watermark", "holding_input", "inputs")


def read_points(progress: Any) -> list[RecordedBatch]:
    """Return the batches, by number, of a result of ``read_progress`` in any form, or of reports or steps."""
    if isinstance(progress, BatchReport) or isinstance(getattr(progress, "report", None), BatchReport):
        points = [_of_report(progress)]
    elif isinstance(progress, pa.Table) or is_pandas(progress) or hasattr(progress, "toArrow"):
        points = [RecordedBatch.of_row(row) for row in _rows(progress)]
    elif isinstance(progress, Iterable) and not isinstance(progress, (str, bytes, Mapping)):
        points = [_of_report(each) for each in progress]
    else:
        raise ConfigurationError(_unknown(progress))
    if not points:
        msg = "plot_watermarks: the progress has no batch yet; wait for the first one"
        raise ConfigurationError(msg)
    return sorted(points, key=lambda point: point.batch_id)


def _rows(progress: Any) -> list[Mapping[str, Any]]:
    if hasattr(progress, "toArrow"):
        names = progress.columns
        _check_columns(names)
        progress = progress.select(*_COLUMNS).toArrow()
    if isinstance(progress, pa.Table):
        _check_columns(progress.column_names)
        return progress.select(list(_COLUMNS)).to_pylist()  # type: ignore[no-any-return]
    _check_columns(list(progress.columns))
    return [dict(zip(_COLUMNS, row, strict=True)) for row in progress[list(_COLUMNS)].itertuples(index=False)]


def _check_columns(names: Iterable[str]) -> None:
    missing = [name for name in _COLUMNS if name not in set(names)]
    if missing:
        msg = (
            f"plot_watermarks: expected the columns of cojoin.read_progress, {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; give its result as it is, before a select"
        )
        raise ConfigurationError(msg)


def _of_report(source: Any) -> RecordedBatch:
    report = source if isinstance(source, BatchReport) else getattr(source, "report", None)
    if not isinstance(report, BatchReport):
        raise ConfigurationError(_unknown(source))
    return RecordedBatch.of_report(report)


def _unknown(value: Any) -> str:
    return (
        f"plot_watermarks: expected the result of cojoin.read_progress(spark, checkpoint), or a list of reports or "
        f"steps, got {type(value).__name__}"
    )
