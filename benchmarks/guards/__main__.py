"""``python -m benchmarks.guards``: measures each way beside its floor, and says which takes longer than its bound.

With ``--set`` it sets the bounds instead.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.guards.bounds import excess, record
from benchmarks.guards.joins import WAYS, JoinGuard
from benchmarks.guards.processes import PROCESSES
from benchmarks.guards.replay import ReplayGuard
from benchmarks.session import make_session
from tests.servers.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TRIES = 3


def main() -> int:
    """Measure; return how many ways are over their bounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guards", description=str(__doc__).splitlines()[0])
    parser.add_argument("--set", action="store_true", help="set the bounds by what is measured")
    sets = parser.parse_args().set
    measured, over = {}, []

    def take(tries: Mapping[str, Iterator[float]]) -> None:
        for way, ratios in tries.items():
            if sets:
                measured[way] = median(islice(ratios, _TRIES))
            elif said := excess(way, ratios):
                over.append(said)

    # First, so that no session of this process shares the cores and the memory.
    take(PROCESSES)
    with tempfile.TemporaryDirectory(prefix="cojoin-guards-") as name, Broker() as broker:
        folder = Path(name)
        spark = make_session("guards", folder, kafka=True)
        for each in ("joins", "replay"):
            (folder / each).mkdir()
        joins, replay = JoinGuard(spark, folder / "joins"), ReplayGuard(spark, broker, folder / "replay")
        take({**{way: joins.ratios(way) for way in WAYS}, "replay": replay.ratios()})
    if sets:
        record(measured)
    print("\n".join(over) if over else "no way is over its bound")
    return len(over)


if __name__ == "__main__":
    sys.exit(main())
