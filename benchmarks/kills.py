"""The driver is killed by SIGKILL at many points, started again, and restored: nothing may be lost, nothing be double.

    python -m benchmarks.kills [--kills N] [--seed N] [--only PHASE] [--smoke]

Each kill has a driver of its own (``killed_driver.py``), which joins small files as of, with rejected rows among them,
and dies inside a batch, between two commits, in the middle of cleaning up, a savepoint, a restoration or a drain, or at
a moment that the clock chooses (``kill_points.py``). A session that lives starts the same command again and drains:
output and rejected rows must be the oracle's, each once, and every manifest's counts conserved. Then one of its
snapshots is restored into a new checkpoint with other key groups and partitions and drained: what was written up to the
snapshot and what the fork wrote must be the oracle's rows again. Without ``--kills`` every point has its turn, and five
random moments.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from benchmarks.kill_points import POINTS, RANDOM, Point
from benchmarks.killing import Killing
from benchmarks.session import make_session
from cojoin.report import text_table

RANDOM_MOMENTS = 5
HEADER = ("phase", "killed when", "batch", "what was there", "result")


def choose(kills: int | None, seed: int, only: str | None = None) -> list[Point]:
    """Choose points, as evenly over the phases as may be; all of them, and random moments, where no number is given."""
    every = [*POINTS, *[RANDOM] * RANDOM_MOMENTS]
    every = [point for point in every if only in (None, point.phase)]
    if kills is None:
        return every
    choice = random.Random(seed)
    by_phase: dict[str, list[Point]] = {}
    for point in choice.sample(every, len(every)):
        by_phase.setdefault(point.phase, []).append(point)
    turns = [(turn, point) for points in by_phase.values() for turn, point in enumerate(points)]
    chosen = [point for _, point in sorted(turns, key=lambda each: each[0])[:kills]]
    return sorted(chosen, key=every.index)


def main() -> None:
    """Kill, print what came of it, and end with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, help="how many points, spread over the phases; all if not given")
    parser.add_argument("--seed", type=int, help="chooses batches and moments; another one each time if not given")
    parser.add_argument("--only", choices=sorted({*(each.phase for each in POINTS), RANDOM.phase}), help="one phase")
    parser.add_argument("--smoke", action="store_true", help="three kills, to see that everything works")
    arguments = parser.parse_args()
    seed = random.randrange(10_000) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    points = choose(3 if arguments.smoke else arguments.kills, seed, arguments.only)
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="cojoin-kills-") as folder:
        spark = make_session("kills", Path(folder))
        for verdict in Killing(spark, Path(folder), seed).run(points):
            verdicts.append(verdict)
            print(*verdict.cells(), sep="  ", flush=True)
            for fault in verdict.faults:
                print(f"    {fault}", flush=True)
        spark.stop()
    print(f"\n{text_table([HEADER, *(verdict.cells() for verdict in verdicts)])}\n")
    wrong = sum(bool(verdict.faults) for verdict in verdicts)
    print(
        f"{len(verdicts)} kills, {wrong} with a result that differs" if wrong else f"{len(verdicts)} kills: all equal"
    )
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
