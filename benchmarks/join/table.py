"""What the runs say together: medians and ranges over the rounds, as rows of text and as figures for the picture.

The ratio to the floor is the time for a trade over that of the floor with the same sink in the same round; where a
contender had fewer trades than the floor, the table says how many.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.join.contender import FILES_PER_BATCH
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.join.contender import Contender
    from benchmarks.join.process import Run

__all__ = ["Figures", "figures", "table"]

HEADER = (
    "contender",
    "sink",
    "trades",
    "seconds",
    "trades/s",
    "warm",
    "times the floor",
    "CPU s",
    "peak GB",
    "result",
)


@dataclass(frozen=True)
class Figures:
    """A contender's figures over all rounds.

    Attributes:
        contender: Who.
        trades: How many it joined in a run.
        seconds: Of each run.
        rate: Trades a second with the start of everything, the median.
        warm_rate: Trades a second in batches that carry data, without the first two; None where nobody told.
        ratios: To the floor of each round.
        cpu_seconds: The median.
        peak_bytes: The largest.
        problem: What is wrong, or why there is nothing.
    """

    contender: Contender
    trades: int = 0
    seconds: tuple[float, ...] = ()
    rate: float = 0.0
    warm_rate: float | None = None
    ratios: tuple[float, ...] = ()
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    problem: str | None = None


def figures(contenders: Sequence[Contender], runs: Sequence[Run], missing: dict[str, str]) -> list[Figures]:
    """Return everyone's, those that did not run among them."""
    floors = {(each.name, each.number): each.seconds / each.trades for each in runs if each.is_exact}
    return [_figures(each, runs, floors, missing.get(each.name)) for each in contenders]


def _figures(
    contender: Contender, runs: Sequence[Run], floors: dict[tuple[str, int], float], missing: str | None
) -> Figures:
    mine = [each for each in runs if each.name == contender.name]
    wrong = [each for each in mine if not each.is_exact]
    done = [each for each in mine if each.failure is None]
    problem = missing
    if wrong:
        problem = wrong[0].failure or ", ".join(f"{rows:,} {what}" for what, rows in wrong[0].faults.items())
    if not done:
        return Figures(contender, problem=problem or "not run")
    warm = [rate for each in done if (rate := _warm_rate(each)) is not None]
    ratios = [
        each.seconds / each.trades / floors[contender.floor, each.number]
        for each in done
        if (contender.floor, each.number) in floors
    ]
    return Figures(
        contender,
        done[0].trades,
        tuple(each.seconds for each in done),
        statistics.median(each.trades / each.seconds for each in done),
        statistics.median(warm) if warm else None,
        tuple(ratios),
        statistics.median(each.cpu_seconds for each in done),
        max(each.peak_bytes for each in done),
        problem,
    )


def _warm_rate(run: Run) -> float | None:
    """Trades a second in the last batches that carry data: the first two warm the JVM up, a drain's last has none."""
    count = -(-run.files // FILES_PER_BATCH)
    batches = run.batches[2:count]
    return run.trades / count / statistics.median(batches) if batches else None


def table(rows: Sequence[Figures]) -> str:
    """Spell them as text; what went wrong at length stands below."""
    cells = [HEADER, *(_cells(each) for each in rows)]
    problems = [f"{each.contender.name}: {each.problem}" for each in rows if each.problem]
    return "\n".join([text_table(cells), *(["", *problems] if problems else [])])


def _cells(each: Figures) -> tuple[str, ...]:
    verdict = "exact" if each.problem is None else each.problem.splitlines()[0][:40]
    if not each.seconds:
        return (each.contender.name, each.contender.sink, *["-"] * 7, verdict)
    return (
        each.contender.name,
        each.contender.sink,
        f"{each.trades:,}",
        spread(each.seconds, 1),
        f"{each.rate:,.0f}",
        f"{each.warm_rate:,.0f}" if each.warm_rate else "-",
        spread(each.ratios, 2),
        f"{each.cpu_seconds:,.1f}",
        f"{each.peak_bytes / 1e9:.2f}",
        verdict,
    )


def spread(values: Sequence[float], digits: int) -> str:
    """Spell a median and, of several, the range."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.{digits}f}"
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})" if len(values) > 1 else middle
