"""How long a query takes to its first rows: ``python -m benchmarks.first_row [--rounds 3]``.

Each run has a process and a session of its own. Its first query is the cold one; the same query again, with another
checkpoint and another output, is the warm one. The times are those from ``connect()`` to the first commit with rows in
the output's log, and of these what ``connect()`` and ``start()`` take. The floor is plain Spark's stream that copies
the left input into a Delta table, from ``readStream`` on. A session's own start is not among the times.

Inputs are small parquet files, or Delta tables of the same files. Outputs are Delta tables, whose rows are counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cojoin as cj
from benchmarks.join.contender import Job
from benchmarks.join.generate import DISORDER_SECONDS, Size, generate
from benchmarks.join.result import count_rows, result_files
from benchmarks.join.spark_side import as_tables, open_inputs, open_session, open_sources
from cojoin.engine.display import text_table

WAYS = ("plain", "files", "plain-delta", "delta")
FLOORS = {"files": "plain", "delta": "plain-delta"}
SIZE = Size(20_000, 4_000, 1_000, 2)
PARTS = ("connect", "start", "first row")


def run(way: str, job: Job, expected: int) -> dict[str, float]:
    """Run a query in the active session, and return the seconds of its parts."""
    spark = open_session("first row")
    tables = as_tables(job) if way.endswith("delta") else None
    seconds: dict[str, float] = {}
    begin = time.perf_counter()
    watching = threading.Thread(target=_await_rows, args=(job.out, seconds, begin))
    watching.start()
    if way in FLOORS:
        watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
        inputs = [
            cj.Input(source, "customer_id", "event_time", name=name, watermark=watermark)
            for name, source in zip(("trades", "customers"), open_sources(job, tables), strict=True)
        ]
        joined = cj.connect(*inputs, key_groups=4).asof_join()
        seconds["connect"] = time.perf_counter() - begin
        query = joined.start(
            output=cj.sinks.delta(str(job.out)),
            checkpoint=str(job.work / "checkpoint"),
            trigger=cj.Trigger.available_now(drain=True),
        )
        seconds["start"] = time.perf_counter() - begin
        query.await_termination(progress=False)
    else:
        rows, _ = open_inputs(spark, job, tables)
        writer = rows.writeStream.format("delta").option("checkpointLocation", str(job.work / "checkpoint"))
        seconds["connect"] = time.perf_counter() - begin
        stream = writer.trigger(availableNow=True).start(str(job.out))
        seconds["start"] = time.perf_counter() - begin
        stream.awaitTermination()
    watching.join()
    assert count_rows(result_files(job.out, "delta")) == expected
    return seconds


def _await_rows(table: Path, seconds: dict[str, float], begin: float) -> None:
    while time.perf_counter() < begin + 120:
        for commit in (table / "_delta_log").glob("*.json"):
            if '"add":' in commit.read_text():
                seconds["first row"] = time.perf_counter() - begin
                return
        time.sleep(0.005)


def run_in_process(way: str, folder: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of a way's cold and warm query, in a process of its own; ``folder`` has the data."""
    command = [sys.executable, "-m", "benchmarks.first_row", "--way", way, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {label: seconds for line in lines for label, seconds in line.items()}


def main() -> None:
    """Measure each way in turn, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs; 3")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.way is not None:
        for label in ("cold", "warm"):
            work = chosen.folder / f"{chosen.way}-{label}-{time.time_ns()}"
            work.mkdir()
            print(
                json.dumps(
                    {label: run(chosen.way, Job(chosen.way, "delta", chosen.folder / "data", work), SIZE.trades)}
                )
            )
        return
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cojoin-first-row-") as name:
        generate(SIZE, Path(name) / "data")
        for _ in range(chosen.rounds):
            for way in WAYS:
                for label, seconds in run_in_process(way, Path(name)).items():
                    found.setdefault((way, label), []).append(seconds)
    for label in ("cold", "warm"):
        lines = [("way", *(f"to {part}, s" for part in PARTS), "of plain's (each round)")]
        for way in WAYS:
            runs = found[way, label]
            floors = found[FLOORS.get(way, way), label]
            ratios = sorted(one["first row"] / two["first row"] for one, two in zip(runs, floors, strict=True))
            middles = (f"{statistics.median(each[part] for each in runs):.2f}" for part in PARTS)
            lines.append((way, *middles, ", ".join(f"{ratio:.2f}" for ratio in ratios)))
        print(f"{label}\n{text_table(lines)}\n")


if __name__ == "__main__":
    main()
