"""What guards the as-of join's speed: its time over that of plain Spark that reads, shuffles and writes the same rows.

Both run in one session, in turns, after a run each that warms it up; a second try is made only where the first is over
the bound, since a disturbance can only make one worse. Seconds are never compared, only what was measured beside each
other. The bound is in ``guard.json`` with what was measured when it was set.
``python -m benchmarks.join.guard`` sets it.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.join.contender import Job
from benchmarks.join.contenders import cojoin_joins, plain
from benchmarks.join.generate import Size, generate
from benchmarks.join.oracle import find_faults
from benchmarks.join.result import count_rows, result_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

__all__ = ["Bound", "measured_ratios"]

RECORD = Path(__file__).with_suffix(".json")
SIZE = Size(200_000, 40_000, 2_000, 4)
ROOM = 1.4


@dataclass(frozen=True)
class Bound:
    """What the ratio was, and what it may be.

    Attributes:
        measured: The ratio when the bound was set.
        at_most: The bound.
    """

    measured: float
    at_most: float

    @classmethod
    def recorded(cls) -> Bound:
        """Read it."""
        return cls(**json.loads(RECORD.read_text())["asof to plain"])


def measured_ratios(spark: SparkSession, folder: Path, tries: int = 2) -> Iterator[float]:
    """Yield a ratio for each try that is asked for; every result is compared with the oracle."""
    data = folder / "data"
    generate(SIZE, data)
    runs: dict[str, Callable[[SparkSession, Job], None]] = {"plain": plain.run, "asof": cojoin_joins.run}
    for number in range(tries + 1):
        seconds = {}
        for name, run in runs.items():
            job = Job(name, "delta", data, folder / f"{name}-{number}")
            job.work.mkdir()
            started = time.perf_counter()
            run(spark, job)
            seconds[name] = time.perf_counter() - started
            files = result_files(job.out, job.sink)
            if name == "plain":
                assert count_rows(files) == SIZE.trades + SIZE.versions
            else:
                assert not (faults := find_faults(data, files)), faults
        print({name: round(each, 2) for name, each in seconds.items()}, flush=True)
        if number:  # the first warms up
            yield seconds["asof"] / seconds["plain"]


def main() -> None:
    """Measure, and record a bound with room for noise."""
    from benchmarks.session import make_session  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="cojoin-guard-") as folder:
        ratios = [*measured_ratios(make_session("guard", Path(folder)), Path(folder))]
    best = min(ratios)
    print(f"asof to plain: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    RECORD.write_text(
        json.dumps({"asof to plain": {"measured": round(best, 2), "at_most": round(ROOM * best, 2)}}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
