"""``python -m tests.simulation --histories 100000 --seed 1``: runs histories, and prints the rate and what was met."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from typing import NamedTuple

from tests.seeds import SEED
from tests.simulation.faults import FAULTS, OPERATIONS, can_strike, why_not
from tests.simulation.plan import PAIRS, Plan
from tests.simulation.seams import simulated
from tests.simulation.shrinking import checked, shortened

__all__ = ["Result", "main", "run_seeds", "table"]

_AT_ONCE = 200
_MOST_SHOWN = 5
"""How many failures of each part are shown."""

_MANY = 100_000
"""From how many histories on each fault must have struck at each operation a hundred times."""

_TOTALS = ("hand-overs", "double commits")


class Result(NamedTuple):
    """What a number of histories has met.

    Attributes:
        histories: How many there were.
        operations: How many operations they had, in all and in the shortest.
        faults: How many faults struck, in all and in the history with the fewest.
        struck: How often each fault struck at each operation.
        handed_over: How many hand-overs there were with a holder that stood still and woke later, and how they ended.
        failed: The seeds of the histories that broke a law, each with the first sentence.
    """

    histories: int
    operations: tuple[int, int]
    faults: tuple[int, int]
    struck: Counter[tuple[str, str]]
    handed_over: Counter[str]
    failed: list[tuple[int, str]]


def run_seeds(seeds: range) -> Result:
    """Run the histories of some seeds."""
    struck: Counter[tuple[str, str]] = Counter()
    handed_over: Counter[str] = Counter()
    operations, faults, failed = [], [], []
    with simulated():
        for seed in seeds:
            history = checked(Plan.of(seed))
            struck.update(history.struck)
            handed_over.update(history.handed_over)
            operations.append(history.operations)
            faults.append(sum(history.struck.values()))
            if history.broken:
                failed.append((seed, history.broken[0]))
    return Result(
        len(seeds), (sum(operations), min(operations)), (sum(faults), min(faults)), struck, handed_over, failed
    )


def table(struck: Counter[tuple[str, str]]) -> str:
    """Return how often each fault struck at each operation, as a table."""
    lines = [" " * 17 + "".join(f"{fault:>14}" for fault in FAULTS)]
    for operation in OPERATIONS:
        cells = [
            f"{struck[operation, fault]:>14,}" if can_strike(operation, fault) else f"{'-':>14}" for fault in FAULTS
        ]
        lines.append(f"{operation:<17}{''.join(cells)}")
    reasons: dict[str, list[str]] = {}
    for operation in OPERATIONS:
        for fault in FAULTS:
            if not can_strike(operation, fault):
                reasons.setdefault(why_not(operation, fault), []).append(f"{fault} at {operation}")
    return "\n".join([*lines, *(f"- {', '.join(pairs)}: {why}" for why, pairs in reasons.items())])


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run what the arguments ask for; return 1 if a history broke a law, or a long run left a pair out."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000, help="how many histories to run")
    parser.add_argument("--seed", type=int, default=SEED, help="the first history's seed; the others follow it")
    parser.add_argument("--processes", type=int, default=1, help="how many processes run them")
    parser.add_argument("--show", action="store_true", help="print the history of --seed alone")
    asked = parser.parse_args()
    if asked.show:
        with simulated():
            _say(checked(Plan.of(asked.seed)))
        return 0
    # Cleaning that fails is logged, and here it often fails.
    logging.getLogger("cojoin").setLevel(logging.CRITICAL)
    seeds = range(asked.seed, asked.seed + asked.histories)
    parts = [seeds[at : at + _AT_ONCE] for at in range(0, len(seeds), _AT_ONCE)]
    started = time.monotonic()
    results = []
    with multiprocessing.Pool(asked.processes, maxtasksperchild=20) as pool:
        for result in pool.imap_unordered(run_seeds, parts):
            results.append(result)
            for seed, law in result.failed[:_MOST_SHOWN]:
                _say(f"seed {seed}: {law}")
    seconds = time.monotonic() - started
    struck: Counter[tuple[str, str]] = Counter()
    handed_over: Counter[str] = Counter()
    for result in results:
        struck.update(result.struck)
        handed_over.update(result.handed_over)
    failed = sorted(each for result in results for each in result.failed)
    _say(table(struck))
    _say(
        f"{asked.histories:,} histories from seed {asked.seed} in {seconds:,.0f} s: {asked.histories / seconds:.1f} a "
        f"second; {sum(each.operations[0] for each in results):,} operations, at least "
        f"{min(each.operations[1] for each in results)} in each; {sum(each.faults[0] for each in results):,} faults, "
        f"at least {min(each.faults[1] for each in results)} in each"
    )
    rarest = min(PAIRS, key=lambda pair: struck[pair])
    _say(f"the rarest of {len(PAIRS)} pairs: {rarest[1]} at {rarest[0]}, {struck[rarest]} times")
    how = ", ".join(f"{each} {count:,}" for each, count in sorted(handed_over.items()) if each not in _TOTALS)
    _say(
        f"{handed_over['hand-overs']:,} hand-overs from a holder that stood still and woke later ({how}); "
        f"{handed_over['double commits']:,} double commits"
    )
    _say(f"{len(failed)} histories broke a law")
    for seed, _ in failed[:3]:
        with simulated():
            _say(shortened(checked(Plan.of(seed))))
    is_sparse = asked.histories >= _MANY and struck[rarest] < 100
    return int(bool(failed or handed_over["double commits"] or is_sparse))


if __name__ == "__main__":
    sys.exit(main())
