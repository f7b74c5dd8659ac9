"""What ``growth`` measured as curves, each with the law that it follows, as text and as a picture.

A law is linear: a fixed cost and a slope. Both are chosen by least squares of the relative deviations, for a batch's
time varies by so many per cent, be it short or long, and the small points shall count as much as the large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.growth.shapes import MILLION, OWN_COLUMNS
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.growth.shapes import Shape

__all__ = ["CORES", "Curve", "Formula", "Law", "Point", "draw", "fit", "spell", "table"]

CORES = 2
HEADER = ("dimension", "value", "seconds", "range", "execute", "calls *", "output", "between", "state MB", "law", "off")
PARTS = {"execute": "#9cc3e0", "output": "#f0cf9c", "between": "#d5dbe1"}
PART_LABELS = {
    "execute": "execute: read, shuffle, calls, write files",
    "output": "output: the output's commit",
    "between": "between: planning, Spark's own logs",
}
TERMS = {
    "fixed": "",
    "trades": " · million trades",
    "hottest": " · million trades · the hottest key's share",
    "columns": " · million trades · columns beyond five",
    "key_groups": " · key groups",
    "keys": " · million keys",
}
MEASURED, FITTED = "#12466f", "#c2410c"


@dataclass(frozen=True)
class Point:
    """A measured point: the medians over its warm batches, in seconds.

    Attributes:
        value: Where it is on its dimension.
        seconds: A batch, from the end of the one before to its own.
        least: The shortest batch.
        most: The longest.
        execute: Of it, the one action that runs the calls.
        calls: The key groups' calls, added up; they run on all cores within ``execute``.
        output: Making the output visible.
        state_megabytes: The state after the last batch with rows.
    """

    value: float
    seconds: float
    least: float = 0.0
    most: float = 0.0
    execute: float = 0.0
    calls: float = 0.0
    output: float = 0.0
    state_megabytes: float = 0.0

    @property
    def between(self) -> float:
        """What is left: planning, Spark's logs, the manifest."""
        return max(0.0, self.seconds - self.execute - self.output)


@dataclass(frozen=True)
class Law:
    """``seconds = fixed + slope * value * scale``.

    Attributes:
        fixed: Seconds, whatever the value is.
        slope: Seconds more for each unit.
        scale: How many units a value is.
        unit: What the unit is called.
    """

    fixed: float
    slope: float
    scale: float
    unit: str

    @classmethod
    def of(cls, points: Sequence[Point], scale: float, unit: str) -> Law:
        """Fit it."""
        fixed, slope = fit([[1.0, each.value * scale] for each in points], [each.seconds for each in points])
        return cls(fixed, slope, scale, unit)

    def at(self, value: float) -> float:
        """Return the seconds that it foretells."""
        return self.fixed + self.slope * value * self.scale

    def __str__(self) -> str:
        return f"{spell(self.fixed)} {'-' if self.slope < 0 else '+'} {spell(abs(self.slope))} · {self.unit}"


@dataclass(frozen=True)
class Curve:
    """One dimension.

    Attributes:
        name: What it is called on the command line.
        axis: What its values are.
        points: What was measured, by value.
        law: What it follows; None of fewer than two points.
    """

    name: str
    axis: str
    points: tuple[Point, ...]
    law: Law | None

    @classmethod
    def of(cls, name: str, axis: str, points: Sequence[Point], scale: float, unit: str) -> Curve:
        """Fit the law to the points."""
        ordered = tuple(sorted(points, key=lambda each: each.value))
        return cls(name, axis, ordered, Law.of(ordered, scale, unit) if len(ordered) > 1 else None)


@dataclass(frozen=True)
class Formula:
    """One formula for all dimensions: the factors of ``TERMS``, and how far the measured points are off.

    Attributes:
        factors: Seconds for each term's unit, by its name.
        middle: The median of the relative deviations.
        largest: The largest of them.
    """

    factors: Mapping[str, float]
    middle: float
    largest: float

    @classmethod
    def of(cls, seconds: Mapping[Shape, float]) -> Formula:
        """Fit it to the time of a batch of each shape."""
        terms, measured = [_terms(shape) for shape in seconds], np.asarray(list(seconds.values()))
        factors = fit(terms, measured)
        off = np.abs(np.asarray(terms) @ factors / measured - 1)
        return cls(dict(zip(TERMS, factors, strict=True)), float(np.median(off)), float(off.max()))

    def __str__(self) -> str:
        words = [
            f"{'-' if factor < 0 else '+'} {spell(abs(factor))}{TERMS[name]}" for name, factor in self.factors.items()
        ]
        told = f"\nit is off by {self.middle:.0%} in the middle, by {self.largest:.0%} at most"
        return "\n    ".join(["together: seconds =", words[0].replace("+", " ", 1), *words[1:]]) + told


def _terms(shape: Shape) -> list[float]:
    trades, beyond = shape.trades * MILLION, shape.columns - OWN_COLUMNS
    return [1.0, trades, trades * shape.hottest, trades * beyond, shape.key_groups, shape.keys * MILLION]


def fit(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return the factors of the terms that make the relative deviations from the seconds least."""
    measured = np.asarray(seconds)
    factors, *_ = np.linalg.lstsq(np.asarray(terms) / measured[:, None], np.ones(len(measured)), rcond=None)
    return [float(each) for each in factors]


def spell(seconds: float) -> str:
    """Spell seconds, small ones in milliseconds."""
    if abs(seconds) >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if abs(seconds) >= 0.001 else f"{1000 * seconds:.2f} ms"


def table(curves: Sequence[Curve]) -> str:
    """Spell all points, and below each curve's law."""
    rows = [HEADER, *(_cells(curve, point) for curve in curves for point in curve.points)]
    laws = [(curve.name, f"seconds = {curve.law}") for curve in curves if curve.law is not None]
    note = f"* of the time of {CORES} cores; the other shares are of the batch's time\n"
    return "\n".join([text_table(rows), note, *(f"{name:12} {law}" for name, law in laws)])


def _cells(curve: Curve, point: Point) -> tuple[str, ...]:
    shares = (point.execute, point.calls / CORES, point.output, point.between)
    expected = None if curve.law is None else curve.law.at(point.value)
    return (
        curve.name,
        f"{point.value:,g}" if point.value < 1 else f"{point.value:,.0f}",
        f"{point.seconds:.2f}",
        f"{point.least:.2f} to {point.most:.2f}" if point.most else "-",
        *(f"{share / point.seconds:.0%}" if point.execute else "-" for share in shares),
        f"{point.state_megabytes:,.1f}",
        "-" if expected is None else f"{expected:.2f}",
        "-" if expected is None else f"{expected / point.seconds - 1:+.0%}",
    )


def draw(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Draw a panel a dimension: what was measured over the parts that it consists of, and the law."""
    import matplotlib as mpl  # noqa: PLC0415 - only who wants a picture needs it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    columns = min(4 if len(curves) > 6 else 3, len(curves))
    rows = -(-len(curves) // columns)
    figure, grid = plt.subplots(rows, columns, layout="constrained", squeeze=False)
    figure.set_size_inches(4.3 * columns, 1.1 + 3.1 * rows)
    for axes, curve in zip(grid.flat, curves, strict=False):
        _panel(axes, curve)
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in PARTS.values()]
    handles += [
        plt.Line2D([], [], color=MEASURED, marker="o", markersize=5, linestyle=""),
        plt.Line2D([], [], color=FITTED, linewidth=1.6),
    ]
    labels = [*PART_LABELS.values(), "measured: median, shortest and longest", "the law"]
    figure.legend(handles, labels, loc="outside lower left", ncols=min(3, columns), frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: Any, curve: Curve) -> None:
    from matplotlib.ticker import EngFormatter, PercentFormatter  # noqa: PLC0415

    values = [each.value for each in curve.points]
    if any(each.execute for each in curve.points):
        parts = [[getattr(each, part) for each in curve.points] for part in PARTS]
        axes.stackplot(values, parts, colors=PARTS.values(), linewidth=0)
    if curve.law is not None:
        ends = np.linspace(min(values), max(values), 200)
        axes.plot(ends, [curve.law.at(each) for each in ends], color=FITTED, linewidth=1.6)
    spread = [
        [each.seconds - (each.least or each.seconds) for each in curve.points],
        [(each.most or each.seconds) - each.seconds for each in curve.points],
    ]
    seconds, look = [each.seconds for each in curve.points], {"markersize": 5, "elinewidth": 1, "clip_on": False}
    axes.errorbar(values, seconds, spread, fmt="o", color=MEASURED, zorder=4, **look)
    axes.set_title(curve.name, loc="left", fontsize=10)
    axes.set_title(str(curve.law or ""), loc="right", fontsize=8.5, color=FITTED)
    axes.set_xlabel(curve.axis, fontsize=9)
    axes.set_ylabel("seconds a batch", fontsize=8)
    axes.set(axisbelow=True, ylim=(0, 1.12 * max(max(each.most, each.seconds) for each in curve.points)))
    axes.xaxis.set_major_formatter(PercentFormatter(1) if max(values) < 1 else EngFormatter(sep=""))
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
