"""The cost of a batch that holds little or nothing, and of an idle query: ``python -m benchmarks.batch [--rounds 3]``.

Each run has a process and a session of its own. Plain Spark's stream that copies the left input into a Delta table is
the floor. Both inputs of the join, an as-of join by four key groups, are small parquet files.

* ``few rows``: each batch reads one file of three rows from each input; the result is counted.
* ``empty``: batches without rows, which run one after the other since the inputs may become idle. Plain Spark has none.
* ``idle``: a live query without idle inputs, and nothing arrives, so no batch runs; Spark looks for files all the time.

Seconds are the medians of Spark's own ``triggerExecution``, without the first quarter, in which the JVM compiles. CPU
is that of the process and all its children in the same time, for each batch; of an idle query, for each second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import cojoin as cj
from benchmarks.footprint import Footprint
from benchmarks.join.result import count_rows, result_files
from benchmarks.join.spark_side import open_session
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAYS = (("few rows", "plain"), ("few rows", "cojoin"), ("empty", "cojoin"), ("idle", "plain"), ("idle", "cojoin"))
BATCHES, ROWS, IDLE_SECONDS, DEADLINE_SECONDS = 80, 3, 20, 300
BEGIN, SECOND = 1_760_000_000_000_000, 1_000_000
COLUMNS = "k long, at timestamp, v long"
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def write_inputs(root: Path, files: int) -> None:
    """Write small files of both inputs, a second of event time each."""
    for side in ("left", "right"):
        (root / side).mkdir()
        for number in range(files):
            times = pa.array([BEGIN + number * SECOND + row for row in range(ROWS)], pa.timestamp("us", "UTC"))
            path = root / side / f"{number:05}.parquet"
            pq.write_table(pa.table({"k": list(range(ROWS)), "at": times, "v": [number] * ROWS}), path)
            os.utime(path, (BEGIN // SECOND + number,) * 2)


def start(spark: SparkSession, case: str, way: str, root: Path) -> cj.Query | None:
    """Start a query of this process; plain Spark's has no object of cojoin's."""
    is_live = case != "few rows"
    if way == "plain":
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(f"{root}/left")
        writer = rows.writeStream.format("delta").option("checkpointLocation", f"{root}/checkpoint")
        (writer if is_live else writer.trigger(availableNow=True)).start(f"{root}/out")
        return None
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    if case == "empty":
        watermark = watermark.with_idleness("1 second")
    options = {"maxFilesPerTrigger": "1"}
    inputs = [
        cj.Input(
            cj.sources.files(f"{root}/{side}", "parquet", schema=COLUMNS, options=options),
            "k",
            "at",
            side,
            watermark=watermark,
        )
        for side in ("left", "right")
    ]
    trigger = cj.Trigger.processing_time() if is_live else cj.Trigger.available_now(drain=True)
    joined = cj.connect(*inputs, key_groups=4).asof_join(suffixes=("", "_right"))
    return joined.start(output=cj.sinks.delta(f"{root}/out"), checkpoint=f"{root}/checkpoint", trigger=trigger)


def run(case: str, way: str, root: Path, number: int) -> dict[str, Any]:
    """Run a query of so many batches in a new session, and return the figures of all but the first quarter."""
    spark = open_session("batch")
    write_inputs(root, number if case == "few rows" else 4)
    batches: dict[int, dict[str, float]] = {}
    with Footprint(os.getpid()) as footprint:
        query = start(spark, case, way, root)
        (stream,) = spark.streams.active
        if case == "idle":
            time.sleep(IDLE_SECONDS)
            before = footprint.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            figures = {"cpu": (footprint.cpu_seconds() - before) / IDLE_SECONDS}
        else:
            _follow(stream, batches, number // 4)
            before, first = footprint.cpu_seconds(), max(batches)
            _follow(stream, batches, number)
            counted = [durations for batch_id, durations in batches.items() if batch_id > first]
            cpu = (footprint.cpu_seconds() - before) / (max(batches) - first)
            names = ("triggerExecution", *PARTS)
            figures = {"cpu": cpu} | {name: statistics.median(each.get(name, 0) for each in counted) for name in names}
        if case != "few rows":
            (query or stream).stop()
        if query is not None:
            query.await_termination(progress=False)
        stream.awaitTermination()
    if case == "few rows":
        assert count_rows(result_files(root / "out", "delta")) == number * ROWS
    return figures


def _follow(stream: StreamingQuery, batches: dict[int, dict[str, float]], wanted: int) -> None:
    """Collect the durations of a query's batches until so many have run, or it has ended."""
    end = time.monotonic() + DEADLINE_SECONDS
    while len(batches) < wanted and time.monotonic() < end:
        is_active = stream.isActive
        for progress in stream.recentProgress:
            if "addBatch" in progress["durationMs"]:
                batches[progress["batchId"]] = progress["durationMs"]
        if not is_active:
            return
        time.sleep(0.2)


def run_in_process(case: str, way: str, number: int = BATCHES) -> dict[str, Any]:
    """Run a query of so many batches in a process of its own, and return its figures."""
    command = [sys.executable, "-m", "benchmarks.batch", "--way", case, way, str(number)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure each way in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs; 3")
    parser.add_argument("--only", help="a case, such as 'empty'; by default all")
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.way is not None:
        with tempfile.TemporaryDirectory(prefix="cojoin-batch-") as name:
            case, one_way, number = chosen.way
            print(json.dumps(run(case, one_way, Path(name), int(number))))
        return
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    ways = [way for way in WAYS if chosen.only in (None, way[0])]
    for _, way in itertools.product(range(chosen.rounds), ways):
        figures.setdefault(way, []).append(run_in_process(*way))
    lines = [("batches", "way", "seconds", "of plain's (each round)", "CPU seconds", "of plain's", *PARTS)]
    for case, way in ways:
        runs, floors = figures[case, way], figures.get((case, "plain"), [])
        middle = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        seconds = "" if case == "idle" else f"{middle['triggerExecution'] / 1000:.3f}"
        parts = [f"{middle[name] / 1000:.3f}" if name in middle else "" for name in PARTS]
        lines.append(
            (
                case,
                way,
                seconds,
                _ratios(runs, floors, "triggerExecution"),
                f"{middle['cpu']:.3f}",
                _ratios(runs, floors, "cpu"),
                *parts,
            )
        )
    print(text_table(lines))


def _ratios(runs: list[dict[str, float]], floors: list[dict[str, float]], name: str) -> str:
    ratios = sorted(one[name] / two[name] for one, two in zip(runs, floors, strict=False) if name in one)
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


if __name__ == "__main__":
    main()
