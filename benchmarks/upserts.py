"""Upserts beside appends and a MERGE by hand: ``python -m benchmarks.upserts [--trades 5000000] [--rounds 3]``.

All ways do the same as-of join of files into a Delta table, each in a process of its own, in turns:

- ``append``: the floor, every row.
- ``insert-only``: an upsert by the trade's number, which never comes twice, so that every row is new.
- ``upsert``: an upsert by the customer, of which each batch has most: the last trade of each stays.
- ``merge``: the same by hand, as one writes it in ``foreachBatch``: a window for the last row, and a MERGE.

The tables are compared in the same run, with what DuckDB makes of the appended one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.join.contender import OUTPUT_COLUMNS, OUTPUT_DDL, Job
from benchmarks.join.generate import DISORDER_SECONDS, Size, generate
from benchmarks.join.spark_side import open_session, open_sources
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAYS = ("append", "insert-only", "upsert", "merge")
FLOORS = {"insert-only": "append", "upsert": "merge"}
_KEYS = {"insert-only": "trade_id", "upsert": "customer_id"}


def run(way: str, job: Job) -> dict[str, float]:
    """Run a query in a session of its own, and return its seconds and the largest memory of its driver in MB."""
    spark = open_session("upserts")
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    inputs = [
        cj.Input(source, "customer_id", "event_time", name=name, watermark=watermark)
        for name, source in zip(("trades", "customers"), open_sources(job), strict=True)
    ]
    out = str(job.out)
    if way == "merge":
        spark.sql(f"CREATE TABLE delta.`{out}` ({OUTPUT_DDL}) USING delta")
    output = by_hand(out) if way == "merge" else cj.sinks.delta(out, upsert=_KEYS.get(way, ()))
    begin = time.perf_counter()
    query = (
        cj.connect(*inputs, key_groups=4)
        .asof_join()
        .start(output=output, checkpoint=f"{job.work}/checkpoint", trigger=cj.Trigger.available_now(drain=True))
    )
    query.await_termination(progress=False)
    seconds = time.perf_counter() - begin
    # Not the maximum of getrusage, which a new program has from the process that started it.
    memory = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "megabytes": int(memory.split()[1]) / 1024}


def by_hand(table: str) -> cj.sinks.SinkLike:
    """Return the function of a batch that merges the last row of each customer."""

    def merge(frame: DataFrame, batch_id: int) -> None:
        del batch_id
        newest = Window.partitionBy("customer_id").orderBy(*(F.col(name).desc() for name in ("event_time", "trade_id")))
        rows = frame.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")
        rows.createOrReplaceTempView("rows")
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{table}` t USING rows s ON t.customer_id = s.customer_id "
            "WHEN MATCHED AND s.event_time >= t.event_time THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return merge


def check(folders: dict[str, Path]) -> None:
    """Raise an AssertionError unless all tables hold what DuckDB makes of the appended one."""
    with duckdb.connect() as connection:
        for way, folder in folders.items():
            files = ", ".join(f"'{uri}'" for uri in DeltaTable(str(folder)).file_uris())
            columns = ", ".join(OUTPUT_COLUMNS)
            connection.sql(f'CREATE VIEW "{way}" AS SELECT {columns} FROM read_parquet([{files}])')
        # The times of a customer are whole milliseconds, and may be equal: then the rows' content decides.
        order = ", ".join(f"{name} DESC NULLS LAST" for name in ("event_time", *OUTPUT_COLUMNS))
        connection.sql(
            "CREATE TABLE last AS SELECT * FROM append "
            f"QUALIFY row_number() OVER (PARTITION BY customer_id ORDER BY {order}) = 1"
        )
        for way in folders:
            wanted = "last" if way in {"upsert", "merge"} else "append"
            for one, two in ((way, wanted), (wanted, way)):
                query = f'SELECT count(*) FROM (SELECT * FROM "{one}" EXCEPT ALL SELECT * FROM "{two}")'
                (different,) = connection.sql(query).fetchall()[0]
                assert not different, f"{different} rows of {one} are not in {two}"


def main() -> None:
    """Measure each way in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=5_000_000, help="how many; a tenth as many customers")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs; 3")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS, help="some of the ways; append is needed")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.way is not None:
        work = chosen.folder / chosen.way
        work.mkdir(parents=True)
        print(json.dumps(run(chosen.way, Job(chosen.way, "delta", chosen.folder.parent / "data", work))))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in chosen.only}
    with tempfile.TemporaryDirectory(prefix="cojoin-upserts-") as name:
        size = Size.of(chosen.trades, chosen.trades // 10)
        generate(size, Path(name) / "data")
        for number in range(chosen.rounds):
            folder = Path(name) / f"round-{number}"
            for way in chosen.only if number % 2 == 0 else reversed(chosen.only):
                command = [sys.executable, "-m", "benchmarks.upserts", "--way", way, "--folder", str(folder)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[way].append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
                print(way, found[way][-1], flush=True)
            check(
                {way: folder / way / "out" for way in ("append", *(each for each in chosen.only if each != "append"))}
            )
            subprocess.run(["rm", "-r", str(folder)], check=True)
    lines = [("way", "seconds (median)", "trades a second", "driver, MB", "of", "ratios (each round)")]
    for way, runs in found.items():
        floor = FLOORS.get(way, "append")
        ratios = sorted(one["seconds"] / two["seconds"] for one, two in zip(runs, found.get(floor, []), strict=False))
        seconds = statistics.median(each["seconds"] for each in runs)
        memory = max(each["megabytes"] for each in runs)
        rate = f"{chosen.trades / seconds:,.0f}"
        lines.append(
            (way, f"{seconds:.1f}", rate, f"{memory:,.0f}", floor, ", ".join(f"{each:.2f}" for each in ratios))
        )
    print(f"\n{text_table(lines)}\nall tables are as DuckDB makes them of the appended one")


if __name__ == "__main__":
    main()
