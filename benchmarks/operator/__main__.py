"""What a join costs in its operator alone: ``python -m benchmarks.operator [--smoke] [--repetitions N]``.

No Spark takes part: rows go from Arrow to Arrow in this process. pandas joins the same rows (``merge_asof`` with its
sorting by time; ``merge`` and a filter for the interval join) in turns with the operator, and both results are compared
outside of what is timed. A ratio is that of both times of process CPU, each the least of its repetitions; the range
is that of the ratios of all repetitions.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.operator.cases import LOWER, UPPER, Case, Data, Shape
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin

if TYPE_CHECKING:
    from collections.abc import Callable

_DIRECTED = [AsofJoin(direction=direction) for direction in ("backward", "forward", "nearest")]
_JOINS = (*_DIRECTED, TemporalJoin(), IntervalJoin(LOWER, UPPER))
MOST = 1.5


def cases(scale: int) -> list[Case]:
    """Return the cases, with so many times fewer rows."""
    one, many = Shape(500_000 // scale, 20_000 // scale), Shape(1_000_000 // scale, 20_000 // scale, batches=20)
    large = [Shape(5_000_000 // scale, 100_000 // scale, shuffled=shuffled) for shuffled in (False, True)]
    return [
        *(Case(join, shape) for shape in (one, many) for join in _JOINS),
        *(Case(AsofJoin(), shape, MOST) for shape in large),
    ]


def timed(run: Callable[[Data], object], data: Data) -> float:
    """Return the CPU seconds of a join."""
    start = time.process_time()
    run(data)
    return time.process_time() - start


def measure(case: Case, repetitions: int) -> bool:
    """Print a case's ratio; return whether it is as small as is asked for."""
    data = Data(case.shape)
    case.check(case.run(data), case.run_pandas(data))
    mine, theirs = [], []
    for _ in range(repetitions):
        mine.append(timed(case.run, data))
        theirs.append(timed(case.run_pandas, data))
    ratio, ratios = min(mine) / min(theirs), [one / two for one, two in zip(mine, theirs, strict=True)]
    holds = case.at_most is None or ratio <= case.at_most
    asked = "" if case.at_most is None else f", at most {case.at_most}: {'holds' if holds else 'MISSED'}"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{case!s:45} {min(mine):7.3f} s, {ratio:5.2f} of pandas ({spread}){asked}", flush=True)
    return holds


def main() -> int:
    """Run all cases; return 1 if a ratio is larger than is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    held = [measure(case, options.repetitions) for case in cases(100 if options.smoke else 1)]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
