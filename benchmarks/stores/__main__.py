"""The same join, and plain Spark's copy, on local files and on S3's protocol, in turns within one run.

    python -m benchmarks.stores [--trades 400000] [--files 4] [--rounds 3] [--smoke] [--conf NAME=VALUE]

The server is moto's, in a process of its own on this machine: it answers in some milliseconds, one request at a time,
and all of S3's requests go over the loopback. So the ratio says what the requests and the copies cost, not what a
network does. Each round has both stores and both programs, one after the other, and each ratio is that of neighbours. A
first round warms the JVM up and is not counted.

- *a join*: from the start of the query to its end, with a checkpoint each second batch, ``files`` batches and a drain.
- *a copy*: plain Spark's stream of the left input from parquet files into a Delta table, in as many batches.
- *a batch*: what the join's manifests say, without the first.
- *an operation*: writing, reading and swapping a small file, as a lease, a heartbeat or a manifest does.
- *requests*: those that the server had from one batch of rows to the next, by the join, and by the copy as a whole over
  its batches.

Every output is compared with pandas in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections import Counter
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
from tests.servers.s3 import BUCKET, requests_of, s3_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRAIN = cj.Trigger.available_now(drain=True)
LOCAL, S3 = "local files", "s3a://"
OPERATIONS = 50


@dataclass(frozen=True)
class Run:
    """What one run of both programs took: seconds, and a batch's requests."""

    join: float
    copy: float
    batch: float
    operation: float
    requests: Counter[str]
    requests_of_copy: Counter[str]


def run(spark: SparkSession, data: Path, root: str, endpoint: str, files: int) -> Run:
    """Run the join and the copy with everything below a root, and check the join's rows."""
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    sides = (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    pair = cj.connect(*(open_input(data, name, ddl, 1, watermark) for name, ddl in sides), key_groups=4)
    requests: list[Counter[str]] = []
    started = time.perf_counter()
    query = pair.asof_join().start(
        output=cj.sinks.delta(f"{root}/out"),
        checkpoint=f"{root}/checkpoint",
        trigger=DRAIN,
        checkpoint_interval=2,
        on_progress=lambda _report: requests.append(requests_of(endpoint)),
    )
    query.await_termination(progress=False)
    join = time.perf_counter() - started
    out = spark.read.format("delta").load(f"{root}/out").select("trade_id", "tier", "credit")
    check(data, out.toPandas())
    of_batches = [after - before for before, after in itertools.pairwise(requests[:files])]
    of_batch = sorted(of_batches, key=Counter.total)[len(of_batches) // 2]
    store = open_store(spark, f"{root}/checkpoint")
    manifests = Manifests(store)
    found = [each for number in manifests.batch_ids()[1:] if (each := manifests.read(number)) is not None]
    batch = statistics.median(sum(each.durations_ms.values()) / 1000 for each in found)
    before, started = requests_of(endpoint), time.perf_counter()
    trades = spark.readStream.schema(TRADES_DDL).option("maxFilesPerTrigger", 1).parquet(str(data / "trades"))
    writer = trades.writeStream.format("delta").option("checkpointLocation", f"{root}/of-copy")
    writer.trigger(availableNow=True).start(f"{root}/copy").awaitTermination()
    copy, of_copy = time.perf_counter() - started, requests_of(endpoint) - before
    started = time.perf_counter()
    for number in range(OPERATIONS):
        store.create(f"probes/{number}", b"1")
        read = store.read_tagged(f"probes/{number}")
        assert read is not None
        store.replace(f"probes/{number}", b"2", read.tag)
    operation = (time.perf_counter() - started) / 3 / OPERATIONS
    return Run(join, copy, batch, operation, of_batch, of_copy)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=400_000, help="rows on the left, 400,000")
    parser.add_argument("--files", type=int, default=4, help="files of each input, so batches; 4")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count; 3")
    parser.add_argument("--smoke", action="store_true", help="a small round, to see that everything works")
    parser.add_argument("--conf", action="append", default=[], help="a setting of the session, NAME=VALUE, for both")
    arguments = parser.parse_args()
    conf = dict(each.split("=", 1) for each in arguments.conf)
    trades = 4_000 if arguments.smoke else arguments.trades
    rounds = 1 if arguments.smoke else arguments.rounds
    local, s3 = list[Run](), list[Run]()
    with tempfile.TemporaryDirectory(prefix="cojoin-stores-") as name, s3_process(Path(name)) as endpoint:
        folder = Path(name)
        generate(Size(trades, trades // 5, 1_000, arguments.files), folder / "data")
        spark = make_session("stores", folder, s3=endpoint, conf=conf)
        for number in range(rounds + 1):
            for label, root, runs in ((LOCAL, name, local), (S3, f"s3a://{BUCKET}", s3)):
                took = run(spark, folder / "data", f"{root}/run-{number}", endpoint, arguments.files)
                print(f"round {number}, {label}: {took.join:.1f} s, copy {took.copy:.1f} s, rows equal", flush=True)
                if number:
                    runs.append(took)
        spark.stop()
    rows = [("what", LOCAL, S3, "times as long (each round)")]
    for what, unit, factor in (("join", "s", 1), ("copy", "s", 1), ("batch", "s", 1), ("operation", "ms", 1000)):
        here, there = ([getattr(each, what) for each in runs] for runs in (local, s3))
        middles = (f"{factor * statistics.median(each):.2f} {unit}" for each in (here, there))
        ratios = sorted(far / near for near, far in zip(here, there, strict=True))
        rows.append((f"a {what}", *middles, ", ".join(f"{each:.2f}" for each in ratios)))
    of_both = sorted((b.join / a.join) / (b.copy / a.copy) for a, b in zip(local, s3, strict=True))
    requests = statistics.median(each.requests.total() for each in s3)
    of_copy = statistics.median(each.requests_of_copy.total() for each in s3) / arguments.files
    print(f"\n{trades:,} trades, {arguments.files} batches and a drain:\n\n{text_table(rows)}\n")
    print(f"the join's ratio over the copy's: {', '.join(f'{each:.2f}' for each in of_both)}")
    print(f"requests for a batch of rows: {requests:.0f}, of the copy {of_copy:.0f}")
    for label, counts in (
        ("the join's, in one batch", s3[-1].requests),
        ("the copy's, in all", s3[-1].requests_of_copy),
    ):
        print(f"\n{label}:\n" + "\n".join(f"{count:6} {name}" for name, count in counts.most_common(60)))


if __name__ == "__main__":
    main()
