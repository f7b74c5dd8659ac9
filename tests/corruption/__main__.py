"""``python -m tests.corruption --count 10000 --seed 1``: damages files, and prints what came of it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.corruption.campaign import run_campaign, table
from tests.seeds import SEED


def main() -> int:
    """Run what the arguments ask for, and return how many cases must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.corruption", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="how many corruptions")
    parser.add_argument("--seed", type=int, default=SEED, help="what is drawn")
    asked = parser.parse_args()
    started = time.monotonic()
    # Nothing loses power here, and most of the time would go there.
    os.fsync = lambda descriptor: None
    with tempfile.TemporaryDirectory() as folder:
        result = run_campaign(Path(folder), asked.count, asked.seed)
    lines = [table(result), *(f"{each.outcome}: {each}" for each in result.faults[:20])]
    lines.append(
        f"{asked.count:,} corruptions from seed {asked.seed} in {time.monotonic() - started:.0f} s: "
        f"{len(result.faults)} that must not be, {result.executed} payloads executed"
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return min(1, len(result.faults) + result.executed)


if __name__ == "__main__":
    sys.exit(main())
