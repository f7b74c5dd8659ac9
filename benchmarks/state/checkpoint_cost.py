"""What checkpoints cost: what is written of a large state, how long it takes, and what a silent query leaves behind.

    python -m benchmarks.state.checkpoint_cost [--state-mb 200] [--trades 2000000] [--rounds 2] [--smoke]

- *written*: an as-of join has wide versions of many customers in force, in 64 key groups; then batches come whose rows
  touch 3 of them, and each takes a snapshot. Compared are the contents written with the contents there are, and the
  bytes of the state table's new files with those of the first whole snapshot.
- *a minute*: the same trades are joined in turns without snapshots and with one every second batch. What a snapshot
  takes, by the manifests and by the whole runs' seconds, is set against the minute that is between two of them.
- *a manifest*: in these runs the seconds of ``Manifests.write`` and of ``Lease.check`` are taken, together for a batch.
- *silence*: a query whose inputs are silent and went idle runs on; nothing in its checkpoint may change but Spark's own
  log and the lease's beat. It takes snapshots by the clock, as often as can be.

Every output is compared with pandas in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import cojoin as cj
from benchmarks.findings import Findings, open_input
from benchmarks.join.generate import CUSTOMERS_DDL, DISORDER_SECONDS, TRADES_DDL, Size, generate
from benchmarks.join.oracle import check
from benchmarks.session import make_session
from benchmarks.state.large_state import measure_what_is_written
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.display import text_table
from cojoin.session.sessions import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

MINUTE_SECONDS = 60
EVERY_BATCHES = 2
SILENT_SECONDS = 8.0
PATIENCE_SECONDS = 900
DRAIN, PAUSE = cj.Trigger.available_now(drain=True), cj.Trigger.available_now()


def measure_a_minute(spark: SparkSession, folder: Path, size: Size, rounds: int, findings: Findings) -> None:
    """Run the same job without and with snapshots, in turns."""
    data = folder / "data"
    data.mkdir(parents=True)
    generate(size, data)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    snapshots: list[float] = []
    costs: list[float] = []
    count = 0
    # The first run warms the JVM up, and is not counted.
    for number in range(2 * rounds + 1):
        takes = number % 2 == 0
        work = folder / f"run-{number}"
        with _timed() as batches:
            taken, durations = _join(spark, data, work, EVERY_BATCHES if takes else None)
        check(data, spark.read.format("delta").load(str(work / "out")).select("trade_id", "tier", "credit").toPandas())
        print(f"{'with' if takes else 'without'} snapshots: {taken:.1f} s", flush=True)
        if number:
            seconds[takes].append(taken)
            costs += batches
            found = [each["snapshot"] / 1000 for each in durations if "snapshot" in each]
            snapshots += found
            count = max(count, len(found))
    without, with_them = (statistics.median(seconds[takes]) for takes in (False, True))
    snapshot, largest = statistics.median(snapshots), max(snapshots)
    asked = "a snapshot each minute takes < 5 % of it"
    by_manifests = f"{snapshot:.2f} s (at most {largest:.2f} s), {snapshot / MINUTE_SECONDS:.1%}"
    findings.add(f"{asked}, by the manifests", by_manifests, holds=snapshot / MINUTE_SECONDS < 0.05)
    more = (with_them - without) / count
    by_runs = (
        f"{without:.1f} s without, {with_them:.1f} s with {count} snapshots ({with_them / without:.2f} times): "
        f"{more:.2f} s each, {more / MINUTE_SECONDS:.1%}"
    )
    findings.add(f"{asked}, by whole runs", by_runs, holds=more / MINUTE_SECONDS < 0.05)
    middle, most = statistics.median(costs), max(costs)
    told = f"{1000 * middle:.0f} ms in the middle, {1000 * most:.0f} ms at most, of {len(costs)}"
    findings.add("a batch's manifest takes < 50 ms", told, holds=middle < 0.05)
    findings.add("their outputs equal the oracle's", f"{2 * rounds + 1} runs of {size.trades:,} trades", holds=True)


def _join(spark: SparkSession, data: Path, work: Path, interval: int | None) -> tuple[float, list[dict[str, float]]]:
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    sides = (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    pair = cj.connect(*(open_input(data, name, ddl, 1, watermark) for name, ddl in sides), key_groups=8)
    started = time.perf_counter()
    query = pair.asof_join().start(
        output=cj.sinks.delta(str(work / "out")),
        checkpoint=str(work / "checkpoint"),
        trigger=DRAIN,
        checkpoint_interval=interval,
    )
    query.await_termination(progress=False)
    seconds = time.perf_counter() - started
    assert query.progress is not None
    assert query.progress.is_conserved
    manifests = Manifests(open_store(spark, str(work / "checkpoint")))
    found = [manifest for number in manifests.batch_ids() if (manifest := manifests.read(number))]
    return seconds, [dict(each.durations_ms) for each in found]


@contextlib.contextmanager
def _timed() -> Iterator[list[float]]:
    """Take the seconds that each batch spends on its manifest and on looking whether it still has the lease."""
    batches: list[float] = []
    spent = 0.0

    def timed(method: Callable[..., Any], *, ends_batch: bool) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal spent
            started = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent += time.perf_counter() - started
                if ends_batch:
                    batches.append(spent)
                    spent = 0.0

        return run

    with (
        mock.patch.object(Manifests, "write", timed(Manifests.write, ends_batch=True)),
        mock.patch.object(Lease, "check", timed(Lease.check, ends_batch=False)),
    ):
        yield batches


def measure_silence(spark: SparkSession, folder: Path, findings: Findings, interval: str | int) -> None:
    """Let a query run whose inputs have gone idle."""
    generate(Size(200, 40, 10, 1), folder)
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("200 ms")
    sides = (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    pair = cj.connect(*(open_input(folder, name, ddl, 1, watermark) for name, ddl in sides), key_groups=4)
    query = pair.asof_join().start(
        output=cj.sinks.delta(str(folder / "out")),
        checkpoint=str(folder / "checkpoint"),
        trigger=cj.Trigger.processing_time(),
        checkpoint_interval=interval,
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while query.progress is None or {each.status for each in query.progress.inputs} != {"idle"}:
            assert query.is_active, query.exception()
            assert time.monotonic() < deadline, "the inputs did not go idle"
            time.sleep(0.05)
        # What was taken beside the last batch with content, such as its progress row, comes to its end.
        time.sleep(2)
        before, committed = _files(folder), _commits(folder)
        time.sleep(SILENT_SECONDS)
        after, batches = _files(folder), _commits(folder) - committed
        output = spark.read.format("delta").load(str(folder / "out")).count()
    finally:
        query.stop()
    changed = sorted(str(path) for path in after.items() ^ before.items())
    told = f"{batches} batches in {SILENT_SECONDS:.0f} s, {len(changed)} files changed"
    told += f", such as {changed[0]}" if changed else ""
    asked = f"a batch without content commits nothing (checkpoint_interval={interval!r})"
    findings.add(asked, told, holds=not changed and batches > 0 and output > 0)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each file's size and time, of all but Spark's own log and the lease."""
    found = {}
    for path in (*(folder / "out").rglob("*"), *(folder / "checkpoint").rglob("*")):
        name = path.relative_to(folder)
        if {"spark", "beats"} & set(name.parts) or "lease.json" in name.name or path.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):
            found[str(name)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


def _commits(folder: Path) -> int:
    return max(int(path.name) for path in (folder / "checkpoint" / "spark" / "commits").glob("[0-9]*"))


def main() -> None:
    """Measure, print what was asked beside what was measured, and end with 1 if anything is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=200, help="how large the state is")
    parser.add_argument("--trades", type=int, default=2_000_000, help="trades of the runs with and without snapshots")
    parser.add_argument("--rounds", type=int, default=2, help="how often each of these runs, after one that warms up")
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that everything works")
    arguments = parser.parse_args()
    trades = 20_000 if arguments.smoke else arguments.trades
    size = Size(trades, trades // 5, 100 if arguments.smoke else 10_000, 4 if arguments.smoke else 10)
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="cojoin-checkpoint-cost-") as name:
        folder = Path(name)
        spark = make_session("checkpoint cost", folder, memory="4g")
        measure_what_is_written(spark, folder / "state", 4 if arguments.smoke else arguments.state_mb, findings)
        measure_a_minute(spark, folder / "minute", size, 1 if arguments.smoke else arguments.rounds, findings)
        for number, interval in enumerate(("10 minutes", "1 second")):
            measure_silence(spark, folder / f"silence-{number}", findings, interval)
        spark.stop()
    print(f"\n{text_table([('asked', 'measured', ''), *findings.rows])}")
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
