"""The rounds: contenders take turns, so that what else the machine does meets all of them.

Data is made once for each size. A contender that is too slow for all trades gets its own, smaller size; rates compare.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.join.generate import Size, generate
from benchmarks.join.process import ROOT, Run, run_contender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.join.contender import Contender

__all__ = ["run_rounds", "sizes_of"]


def sizes_of(contenders: Sequence[Contender], trades: int, keys: int, *, whole: bool) -> dict[str, Size]:
    """Return each contender's size.

    Args:
        contenders: Who runs.
        trades: How many trades there are in all.
        keys: How many customers there are, at any size.
        whole: Whether slow ones get all, too.
    """
    own = {each.name: None if whole else each.trades_at_most for each in contenders}
    return {name: Size.of(min(trades, most or trades), keys) for name, most in own.items()}


def run_rounds(contenders: Sequence[Contender], sizes: dict[str, Size], rounds: int, folder: Path) -> list[Run]:
    """Make the data, then run everyone in turn, as often as asked."""
    places = {size: folder / f"data-{size.trades}" for size in sizes.values()}
    for size, place in places.items():
        _say(f"making {size.trades:,} trades and the oracle's answers")
        generate(size, place)
        for answer in {each.answer for each in contenders if sizes[each.name] == size} - {None}:
            _prepare(place, answer)
    runs = []
    for number in range(rounds):
        for contender in contenders:
            size = sizes[contender.name]
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{contender.name}-") as work:
                run = run_contender(contender, size, places[size], Path(work), number)
            _say(_line(run))
            runs.append(run)
    return runs


def _prepare(data: Path, answer: str) -> None:
    """Have an answer computed by another process, whose memory is free again afterwards."""
    program = (
        "import sys; from pathlib import Path; from benchmarks.join.oracle import prepare; "
        "prepare(Path(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", program, str(data), answer], cwd=ROOT, check=True)


def _line(run: Run) -> str:
    if run.failure:
        return f"round {run.number + 1}: {run.name}: {run.failure}"
    faults = ", ".join(f"{rows:,} {what}" for what, rows in run.faults.items())
    rate = run.trades / run.seconds
    used = f"{run.cpu_seconds:.1f} CPU s, {run.peak_bytes / 1e9:.2f} GB"
    return f"round {run.number + 1}: {run.name}: {run.seconds:.1f} s, {rate:,.0f} trades/s, {used}, {faults or 'exact'}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
