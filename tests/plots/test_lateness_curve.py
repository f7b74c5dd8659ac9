"""The curve of lateness: its heights are the shares of late rows."""

from __future__ import annotations

import pytest

import cojoin as cj
from cojoin.engine.lateness import Lateness


def test_the_line_falls_at_each_lateness_by_its_rows() -> None:
    found = Lateness("in the order given", 1_000, {0: 900, 500: 90, 70_000: 9, 3_600_000: 1}, 3_599_999)
    axes = cj.plots.plot_lateness(found)
    bounds, shares = axes.lines[0].get_data()
    assert bounds.tolist() == [100, 500, 70_000, 3_599_999]
    assert shares.tolist() == pytest.approx([found.share_late(each) for each in ("0 s", "500 ms", "70 s")] + [0.001])
    # With the largest one no row is late, which a logarithmic axis can't show: a triangle says so.
    assert axes.lines[1].get_marker() == "v"
    assert [line.get_xdata()[0] for line in axes.lines[2:]] == [500, 70_000, 3_599_999]
    assert [each.get_text() for each in axes.texts] == ["99 %", "99.9 %", "all rows"]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["100 ms", "1 s", "10 s", "1 min", "10 min", "1 h"]
    axes.figure.draw_without_rendering()


@pytest.mark.parametrize(("counts", "text"), [({0: 3}, "no row is late with any bound"), ({}, "no rows")])
def test_rows_in_order_have_no_line(counts: dict[int, int], text: str) -> None:
    axes = cj.plots.plot_lateness(Lateness("in the order given", 3, counts, 0))
    assert ([each.get_text() for each in axes.texts], list(axes.lines)) == ([text], [])


def test_it_takes_axes_and_refuses_other_values() -> None:
    from matplotlib import pyplot as plt

    _, axes = plt.subplots()
    assert cj.plots.plot_lateness(Lateness("", 2, {0: 1, 5: 1}, 5), ax=axes) is axes
    with pytest.raises(cj.ConfigurationError, match=r"expected what cojoin\.lateness returns, got dict"):
        cj.plots.plot_lateness({})  # type: ignore[arg-type]
