"""``python -m benchmarks.guards``: measures each way in a session as the tests have it, and sets the bounds."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.guards.bounds import record
from benchmarks.guards.joins import WAYS, JoinGuard
from benchmarks.guards.replay import ReplayGuard
from benchmarks.session import make_session
from tests.servers.broker import Broker

TRIES = 3


def main() -> None:
    """Measure, print and record."""
    with tempfile.TemporaryDirectory(prefix="cojoin-guards-") as name, Broker() as broker:
        folder = Path(name)
        spark = make_session("guards", folder, kafka=True)
        for each in ("joins", "replay"):
            (folder / each).mkdir()
        joins = JoinGuard(spark, folder / "joins")
        tries = {way: [*islice(joins.ratios(way), TRIES)] for way in WAYS}
        tries["replay"] = [*islice(ReplayGuard(spark, broker, folder / "replay").ratios(), TRIES)]
    for way, ratios in tries.items():
        print(f"{way}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    record({way: median(ratios) for way, ratios in tries.items()})


if __name__ == "__main__":
    main()
