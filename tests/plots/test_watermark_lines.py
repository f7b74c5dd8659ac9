"""What the picture of watermarks shows, from every form of progress, read from its artists."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.dates import num2date

import cojoin as cj
from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.progress_rows import progress_rows
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.plots import plot_watermarks
from tests.plots.drawn import legend
from tests.spark.query.runs import HOUR, NOON, report

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes

    from cojoin.engine.batch_report import BatchReport


def reports() -> list[BatchReport]:
    """Four batches: no watermark of the customers, the customers hold, the trades hold, the end."""
    marks = [(NOON, NONE), (NOON + HOUR, NOON), (NOON + HOUR, NOON + 2 * HOUR), (END_OF_TIME, END_OF_TIME)]
    made = []
    for number, (left, right) in enumerate(marks):
        statuses = ("finished", "finished") if left == END_OF_TIME else ("active", "active")
        each = report(1, 1, left, right, buffered=20, newest=NOON + (number + 1) * HOUR, statuses=statuses)
        made.append(replace(each, batch_id=number, processing_time=NOON + number * 60_000))
    return made


def table() -> pa.Table:
    """The same as the progress table has it."""
    return progress_rows(Manifest("q", each, (), {}, {}) for each in reports())


def heights(axes: Axes, label: str) -> list[float | None]:
    """Return a line's times in hours after noon, None for a gap."""
    (line,) = [each for each in axes.lines if each.get_label() == label]
    return [None if np.isnan(y) else (num2date(y).timestamp() * 1_000 - NOON) / HOUR for y in line.get_ydata()]


def held(axes: Axes) -> list[tuple[float, float, str]]:
    from matplotlib.colors import to_hex

    strips = [each for each in axes.patches if each.get_gid() == "holding"]
    return [(each.get_x(), each.get_x() + each.get_width(), to_hex(each.get_facecolor())) for each in strips]


@pytest.mark.parametrize(
    "form", [reports, table, lambda: table().to_pandas(), lambda: iter(reports()), lambda: reports()[::-1]]
)
def test_every_form_of_progress_gives_the_same_picture(form: Any) -> None:
    axes = plot_watermarks(form(), over="batches")
    # The last batch lasts on, so the last state is there twice; ends of time and missing watermarks are gaps.
    assert heights(axes, "trades") == [0, 1, 1, None, None]
    assert heights(axes, "customers") == [None, 0, 2, None, None]
    assert heights(axes, "the operator") == [None, 0, 1, None, None]
    assert heights(axes, "_trades, newest") == [1, 2, 3, 4, 4]
    low, high = (num2date(each).timestamp() * 1_000 for each in axes.get_ylim())
    assert NOON - 4 * HOUR < low < NOON < NOON + 4 * HOUR < high < NOON + 7 * HOUR


def test_who_holds_back_has_its_colour_in_the_strip() -> None:
    axes = plot_watermarks(reports(), over="batches")
    trades, customers = (
        next(each.get_color() for each in axes.lines if each.get_label() == name) for name in ("trades", "customers")
    )
    assert held(axes) == [(0, 2, customers), (2, 3, trades)]
    assert legend(axes)[:3] == ["trades", "customers", "the operator"]


def test_waiting_rows_are_areas_on_an_axis_of_their_own() -> None:
    axes = plot_watermarks(reports())
    (beside,) = [each for each in axes.figure.axes if each is not axes]
    assert [each.get_text() for each in beside.get_yticklabels()] == ["0", "22"]
    assert len(beside.collections) == 2


def test_an_input_that_finished_is_marked_where_it_ended() -> None:
    axes = plot_watermarks(reports(), over="batches")
    (line,) = [each for each in axes.lines if each.get_label() == "_customers, finished"]
    assert line.get_xdata().tolist() == [3]
    assert num2date(line.get_ydata()[0]).timestamp() * 1_000 == NOON + 4 * HOUR


def test_processing_time_is_the_axis_where_it_is_known() -> None:
    axes = plot_watermarks(reports())
    assert axes.get_xlabel() == "processing time (UTC)"
    (line,) = [each for each in axes.lines if each.get_label() == "trades"]
    assert num2date(line.get_xdata()[1]).timestamp() * 1_000 == NOON + 60_000
    unknown = [replace(each, processing_time=0) for each in reports()]
    assert plot_watermarks(unknown).get_xlabel() == "batch"


@pytest.mark.parametrize("count", [1, 2])
def test_few_batches_and_no_watermark_at_all_make_a_picture(count: int) -> None:
    some = [replace(each, watermark=NONE) for each in reports()[:count]]
    axes = plot_watermarks(some[0] if count == 1 else some)
    axes.figure.canvas.draw()
    assert [int(each) for each in axes.get_xticks()] == list(range(count)) or count == 2
    nothing = [replace(report(0, 0, NONE, NONE), batch_id=0)]
    plot_watermarks(nothing).figure.canvas.draw()


def test_steps_are_progress(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.plots.drawn import pair

    joined = pair([("ann", m, m) for m in range(9)], [("ann", m, "gold") for m in range(9)]).asof_join()
    axes = plot_watermarks(joined.steps(3))
    assert heights(axes, "trades")[:3] == heights(axes, "customers")[:3]
    assert capsys.readouterr().out == ""


def test_it_draws_into_the_axes_that_it_gets() -> None:
    from matplotlib import pyplot as plt

    _, (upper, lower) = plt.subplots(2)
    assert plot_watermarks(reports(), ax=lower) is lower
    assert not upper.lines


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ([], "no batch yet"),
        ("/lake/checkpoint", "expected the result of cojoin.read_progress"),
        ([1], "expected the result of cojoin.read_progress.*got int"),
        (None, "got NoneType"),
        (pd.DataFrame({"batch_id": [1], "watermark": [None]}), "holding_input, inputs are missing"),
    ],
)
def test_what_is_no_progress_is_refused(progress: Any, message: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=message):
        plot_watermarks(progress)


def test_a_wrong_axis_is_refused() -> None:
    with pytest.raises(cj.ConfigurationError, match="over"):
        plot_watermarks(reports(), over="time")  # type: ignore[arg-type]
