"""What may befall a driver, its checkpoint or its settings, at many points: nothing may be lost, nothing be double.

    python -m benchmarks.kills [--kills N] [--suspended N] [--put-back N] [--changed N] [--seed N] [--only PHASE]
                               [--s3] [--smoke]
    python -m benchmarks.kills --sink kafka [--kills N] [--seed N]

*Kills*: each has a driver of its own (``killed_driver.py``), which joins small files as of, with rejected rows among
them, and dies by SIGKILL, or its JVM alone, or its Python alone: at its start, between two commits, inside a snapshot,
after a batch that counts, while cleaning up, in a savepoint, a restoration or a drain, or at a moment that the clock
chooses (``kill_points.py``). The same command starts again and drains; one of its snapshots is restored into a new
checkpoint with other key groups and partitions and drained as well (``killing.py``).

*Suspended* drivers stand still while another takes over, and are woken (``suspending.py``). *Put back* is a checkpoint
from an older copy (``putting_back.py``). *Changed* are the settings between a failed batch and its second run
(``changing.py``).

Rows must be the oracle's, each once, and every manifest's counts conserved; or the start or the batch is refused in
words that help. By default: 40 kills, 10 suspended drivers, 10 copies, 10 changes. Ends with 1 if anything differs.
With ``--s3``, the checkpoints and tables, and the copies that are put back, are on a server of S3's protocol, which is
a process of its own; those of changed settings are on the local disk.
With ``--sink kafka``, the joined rows go to a topic of a real broker, and only the kills are done, of the worker that
writes a batch, too (``topic_points.py``): a consumer of committed records, which runs all the while, must see the
oracle's rows, each once, and each key's in order (``topic_killing.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.kills.changing import change_settings, choose_changes
from benchmarks.kills.kill_points import POINTS, RANDOM, SQL_POINTS
from benchmarks.kills.killing import Killing
from benchmarks.kills.places import Place
from benchmarks.kills.putting_back import OUTPUTS, choose_copies, put_back
from benchmarks.kills.suspending import Suspending
from benchmarks.kills.topic_killing import TopicKilling
from benchmarks.kills.verdicts import HEADER
from benchmarks.session import make_session
from cojoin.engine.display import text_table
from tests.seeds import SEED
from tests.servers.broker import Broker
from tests.servers.postgres import postgres_server
from tests.servers.s3 import s3_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.kills.points import Point
    from benchmarks.kills.stories import Output
    from benchmarks.kills.verdicts import Verdict

__all__ = ["choose", "run"]

RANDOM_MOMENTS = 5
COUNTS = {"kills": 40, "suspended": 10, "put_back": 10, "changed": 10}


def choose(kills: int, seed: int, only: str | None = None, more: Sequence[Point] = ()) -> list[Point]:
    """Choose points, as evenly over the phases as may be.

    Args:
        kills: How many; where there are more than points, some come again.
        seed: Chooses.
        only: One phase alone.
        more: Points of a kind of sink.
    """
    every = [point for point in (*POINTS, *more, *[RANDOM] * RANDOM_MOMENTS) if only in (None, point.phase)]
    choice = random.Random(seed)
    chosen: list[Point] = []
    while len(chosen) < kills:
        by_phase: dict[str, list[Point]] = {}
        for point in choice.sample(every, len(every)):
            by_phase.setdefault(point.phase, []).append(point)
        turns = [(turn, point) for points in by_phase.values() for turn, point in enumerate(points)]
        chosen += [point for _, point in sorted(turns, key=lambda each: each[0])]
    return sorted(chosen[:kills], key=every.index)


def run(
    spark: SparkSession, folder: Path, seed: int, counts: dict[str, int], only: str | None, place: Place
) -> Iterator[Verdict]:
    """Do all of it, one after the other."""
    suspending = Suspending(spark, folder / "suspended", seed, place)
    yield from suspending.run(suspending.choose(counts["suspended"]))
    own: dict[str, tuple[Output, ...]] = {"upsert": ("upserted",), "merge": ("merged",), "sql": ("sql",)}
    for number, copy in enumerate(choose_copies(counts["put_back"], seed, own.get(place.sink, OUTPUTS))):
        yield put_back(spark, folder / f"copy-{number}", seed + number, copy, place)
    for number, change in enumerate(choose_changes(counts["changed"], seed)):
        yield change_settings(spark, folder / f"change-{number}", seed + number, *change)
    more = SQL_POINTS if place.sink == "sql" else ()
    # The table of another query would have rows that were not upserted.
    takes_over = place.sink == "append"
    chosen = [each for each in choose(counts["kills"], seed, only, more) if takes_over or each.job != "same table"]
    yield from Killing(spark, folder / "killed", seed, place).run(chosen)


def main() -> None:
    """Do it, print what came of it, and end with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=count, help=f"how many; {count}")
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        help="chooses points, batches, moments and rows; COJOIN_SEED, or another one each time, if not given",
    )
    parser.add_argument(
        "--only", choices=sorted({*(each.phase for each in POINTS), RANDOM.phase}), help="kills: a phase"
    )
    parser.add_argument("--s3", action="store_true", help="checkpoints and tables on a server of S3's protocol")
    sinks = ("append", "upsert", "merge", "sql", "kafka")
    parser.add_argument("--sink", choices=sinks, default="append", help="how the joined rows are written, or kafka")
    parser.add_argument("--smoke", action="store_true", help="a few of each, to see that everything works")
    arguments = parser.parse_args()
    seed = arguments.seed
    print(f"seed {seed}", flush=True)
    counts = {name: min(getattr(arguments, name), 3 if arguments.smoke else 10_000) for name in COUNTS}
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="cojoin-kills-") as folder, contextlib.ExitStack() as servers:
        endpoint = servers.enter_context(s3_process(Path(folder))) if arguments.s3 else None
        url = servers.enter_context(postgres_server(Path(folder) / "postgres")).url if arguments.sink == "sql" else ""
        place = Place(endpoint, sink="append" if arguments.sink == "kafka" else arguments.sink, url=url)
        spark = make_session("kills", Path(folder), s3=place.endpoint)
        if arguments.sink == "kafka":
            killing = TopicKilling(spark, Path(folder), seed, servers.enter_context(Broker()))
            found = killing.run(counts["kills"])
        else:
            found = run(spark, Path(folder), seed, counts, arguments.only, place)
        for verdict in found:
            verdicts.append(verdict)
            print(verdict.told(), flush=True)
        spark.stop()
    print(f"\n{text_table([HEADER, *(verdict.cells() for verdict in verdicts)])}\n")
    wrong = sum(bool(verdict.faults) for verdict in verdicts)
    refused = sum(verdict.result == "refused" for verdict in verdicts)
    tally = f"{len(verdicts)} cases, seed {seed}: {len(verdicts) - wrong - refused} equal, {refused} refused"
    print(f"{tally}, {wrong} with a result that differs" if wrong else f"{tally}, none differs")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
