"""The picture: trades a second of each contender, beside how often the floor's time it takes, on logarithmic axes."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.join.table import Figures

__all__ = ["draw"]

COLOURS = {"cojoin": "#1b6ca8", "floor": "#9aa5b1", "other": "#e0a458", "limit": "#7a9e7e"}
LABELS = {
    "cojoin": "cojoin",
    "floor": "plain Spark, no join",
    "other": "other engines",
    "limit": "all rows in memory, no stream",
}


def draw(rows: Sequence[Figures], title: str, path: Path) -> None:
    """Draw those that have a result, the fastest on top; a wrong result is hatched."""
    import matplotlib as mpl  # noqa: PLC0415 - only who wants a picture needs it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    shown = sorted((each for each in rows if each.seconds), key=lambda each: each.rate)
    absent = [each.contender.name for each in rows if not each.seconds]
    figure, axes = plt.subplots(1, 2, figsize=(12, 1.8 + 0.36 * len(shown)), sharey=True, layout="constrained")
    names = [_label(each, max(every.trades for every in shown)) for each in shown]
    rates = [each.rate for each in shown]
    ratios = [statistics.median(each.ratios) if each.ratios else 1.0 for each in shown]
    texts = [_ratio(ratio) if each.ratios else "" for ratio, each in zip(ratios, shown, strict=True)]
    # Each bar starts at what it is compared with: at a round rate below all, and at the floor itself.
    _bars(axes[0], names, rates, 10 ** math.floor(math.log10(min(rates))), [f"{rate:,.0f}" for rate in rates])
    _bars(axes[1], names, ratios, 1.0, texts)
    for bars in (axes[0].containers[0], axes[1].containers[0]):
        for bar, each in zip(bars, shown, strict=True):
            bar.set_facecolor(COLOURS[_kind(each)])
            bar.set_hatch("//" if each.problem else "")
    axes[0].set_title("trades a second, the query's start included", loc="left", fontsize=10)
    axes[1].set_title("time for a trade, in times of the floor's with the same sink", loc="left", fontsize=10)
    axes[1].axvline(1, color="#52606d", linewidth=0.8)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(handles, LABELS.values(), loc="outside lower center", ncols=len(COLOURS), frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    if absent:
        axes[1].set_xlabel(f"not measured: {', '.join(absent)}", fontsize=8, loc="right")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axes: Any, names: list[str], values: list[float], start: float, texts: list[str]) -> None:
    axes.set_xscale("log")
    bars = axes.barh(names, [value - start for value in values], left=start, height=0.72, edgecolor="white")
    for bar, value, text in zip(bars, values, texts, strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        beside = {"xytext": (4 if value >= start else -4, 0), "textcoords": "offset points"}
        side = "left" if value >= start else "right"
        axes.annotate(text, (value, middle), ha=side, va="center", fontsize=8, **beside)
    axes.set_xlim(min(start, min(values) / 3 if min(values) < start else start), max(*values, start) * 5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1 else f"{value:,.0f}")
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=0.02)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _label(each: Figures, most: int) -> str:
    fewer = f" ({each.trades:,})" if each.trades < most else ""
    return f"{each.contender.name.removesuffix('-parquet')}{fewer} into {each.contender.sink.capitalize()}"


def _kind(each: Figures) -> str:
    if each.contender.answer is None:
        return "floor"
    module = each.contender.module.rsplit(".", 1)[-1]
    return {"cojoin_joins": "cojoin", "in_memory": "limit"}.get(module, "other")
