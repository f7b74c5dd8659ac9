"""The same join with its checkpoint and its output on local files and on S3's protocol, in turns within one run.

    python -m benchmarks.stores [--trades 400000] [--files 4] [--rounds 3] [--smoke]

The server is moto's, in a process of its own on this machine: it answers in some milliseconds, one request at a time,
and all of S3's requests go over the loopback. So the ratio says what the requests and the copies cost, not what a
network does. Each round has both stores, one after the other, and the ratio is that of neighbours. A first round warms
the JVM up and is not counted.

- *a join*: from the start of the query to its end, with a checkpoint each second batch, ``files`` batches and a drain.
- *a batch*: what its manifests say, without the first.
- *an operation*: writing, reading and swapping a small file, as a lease, a heartbeat or a manifest does.

Every output is compared with pandas in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cojoin as cj
from benchmarks.findings import open_input
from benchmarks.join.generate import CUSTOMERS_DDL, DISORDER_SECONDS, TRADES_DDL, Size, generate
from benchmarks.join.oracle import check
from benchmarks.session import make_session
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.display import text_table
from cojoin.session.sessions import open_store
from tests.servers.s3 import BUCKET, s3_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRAIN = cj.Trigger.available_now(drain=True)
LOCAL, S3 = "local files", "s3a://"
OPERATIONS = 50


@dataclass(frozen=True)
class Run:
    """What one run took: in all, its middle batch, and a small file's operations, in seconds."""

    whole: float
    batch: float
    operation: float


def join(spark: SparkSession, data: Path, root: str) -> Run:
    """Run the join with everything below a root, and check its rows."""
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    sides = (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    pair = cj.connect(*(open_input(data, name, ddl, 1, watermark) for name, ddl in sides), key_groups=4)
    started = time.perf_counter()
    query = pair.asof_join().start(
        output=cj.sinks.delta(f"{root}/out"), checkpoint=f"{root}/checkpoint", trigger=DRAIN, checkpoint_interval=2
    )
    query.await_termination(progress=False)
    whole = time.perf_counter() - started
    out = spark.read.format("delta").load(f"{root}/out").select("trade_id", "tier", "credit")
    check(data, out.toPandas())
    files = open_store(spark, f"{root}/checkpoint")
    manifests = Manifests(files)
    found = [each for number in manifests.batch_ids()[1:] if (each := manifests.read(number)) is not None]
    batch = statistics.median(sum(each.durations_ms.values()) / 1000 for each in found)
    started = time.perf_counter()
    for number in range(OPERATIONS):
        files.create(f"probes/{number}", b"1")
        read = files.read_tagged(f"probes/{number}")
        assert read is not None
        files.replace(f"probes/{number}", b"2", read.tag)
    return Run(whole, batch, (time.perf_counter() - started) / 3 / OPERATIONS)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=400_000, help="rows on the left, 400,000")
    parser.add_argument("--files", type=int, default=4, help="files of each input, so batches; 4")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count; 3")
    parser.add_argument("--smoke", action="store_true", help="a small round, to see that everything works")
    arguments = parser.parse_args()
    trades = 4_000 if arguments.smoke else arguments.trades
    rounds = 1 if arguments.smoke else arguments.rounds
    runs: dict[str, list[Run]] = {LOCAL: [], S3: []}
    with tempfile.TemporaryDirectory(prefix="cojoin-stores-") as name, s3_process(Path(name)) as endpoint:
        folder = Path(name)
        generate(Size(trades, trades // 5, 1_000, arguments.files), folder / "data")
        spark = make_session("stores", folder, s3=endpoint)
        for number in range(rounds + 1):
            for store, root in ((LOCAL, name), (S3, f"s3a://{BUCKET}")):
                run = join(spark, folder / "data", f"{root}/run-{number}")
                print(f"round {number}, {store}: {run.whole:.1f} s, rows equal", flush=True)
                if number:
                    runs[store].append(run)
        spark.stop()
    rows = [("what", LOCAL, S3, "times as long (each round)")]
    for what, unit, factor in (("whole", "s", 1), ("batch", "s", 1), ("operation", "ms", 1000)):
        local, s3 = ([getattr(each, what) for each in runs[store]] for store in (LOCAL, S3))
        middles = (f"{factor * statistics.median(each):.2f} {unit}" for each in (local, s3))
        ratios = sorted(there / here for here, there in zip(local, s3, strict=True))
        rows.append(
            (f"a {what}" if what != "whole" else "a join", *middles, ", ".join(f"{each:.2f}" for each in ratios))
        )
    print(f"\n{trades:,} trades, {arguments.files} batches and a drain:\n\n{text_table(rows)}")


if __name__ == "__main__":
    main()
