"""What a batch costs at 1, 2 and 4 executors, and where the driver becomes the limit.

    python -m benchmarks.executors [--executors 1 2 4] [--trades 200000] [--batches 12]

An as-of join of parquet files into Delta runs on a standalone cluster on this machine, whose executors have a core
each, with four key groups and one shuffle partition for each of them. All share this machine's cores, so seconds say
little; counted are costs, which do not depend on that. Of the batches, each with as many rows, the medians are shown,
without the first third, in which the JVMs compile.

- *a batch*: Spark's ``triggerExecution``, in seconds.
- *the driver*: the milliseconds of it in which no job of the batch runs.
- *tasks*: how many there are, and the seconds for which executors ran them.
- *shuffled*: the bytes that tasks write for other tasks.
- *requests*: those that a server of S3's protocol has from one batch to the next, with everything on it; a run of its
  own, with a snapshot in the middle of its batches.

The last column says with how many cores the tasks of such a batch would take as long as the driver: from there on more
executors make a batch at most twice as fast. Tasks of empty batches are counted, too. Every output is compared with
pandas in the same run.
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
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from benchmarks.findings import open_input
from benchmarks.join.generate import CUSTOMERS_DDL, DISORDER_SECONDS, TRADES_DDL, Size, generate
from benchmarks.join.oracle import check
from benchmarks.session import ROOT
from cojoin.engine.display import text_table
from tests.servers.cluster import Cluster
from tests.servers.jars import s3_jars
from tests.servers.s3 import BUCKET, requests_of, s3_process, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEYS, FILES_A_BATCH, GROUPS_A_CORE = 10_000, 2, 4


@dataclass
class Costs:
    """The costs of one batch.

    Attributes:
        spans: From when to when its jobs ran, in epoch milliseconds.
        tasks: How many tasks it had.
        run_ms: The milliseconds for which executors ran them.
        shuffled: The bytes they wrote for others.
    """

    spans: list[tuple[int, int]] = field(default_factory=list)
    tasks: int = 0
    run_ms: int = 0
    shuffled: int = 0

    def jobs_ms(self) -> int:
        """Return for how many milliseconds at least one of its jobs ran."""
        total, end = 0, 0
        for begin, stop in sorted(self.spans):
            total += max(0, stop - max(begin, end))
            end = max(end, stop)
        return total


def of_event_log(events: Iterable[dict[str, Any]]) -> dict[int, Costs]:
    """Return the costs of each batch by Spark's event log."""
    costs: dict[int, Costs] = defaultdict(Costs)
    of_stage: dict[int, int] = {}
    of_job: dict[int, tuple[int, int]] = {}
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerJobStart" and (batch := event["Properties"].get("streaming.sql.batchId")) is not None:
            of_job[event["Job ID"]] = int(batch), event["Submission Time"]
            of_stage |= dict.fromkeys(event["Stage IDs"], int(batch))
        elif kind == "SparkListenerJobEnd" and event["Job ID"] in of_job:
            number, begin = of_job[event["Job ID"]]
            costs[number].spans.append((begin, event["Completion Time"]))
        elif kind == "SparkListenerTaskEnd" and event["Stage ID"] in of_stage:
            batch_costs, metrics = costs[of_stage[event["Stage ID"]]], event["Task Metrics"]
            batch_costs.tasks += 1
            batch_costs.run_ms += metrics["Executor Run Time"]
            batch_costs.shuffled += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    return dict(costs)


def run(executors: int, batches: int, data: Path, root: str, endpoint: str | None) -> dict[str, float]:
    """Run the join on a cluster of its own, and return the medians of its batches."""
    folder = Path(tempfile.mkdtemp(dir=data.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    conf = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "768m",
        "spark.cores.max": str(executors),
        "spark.sql.shuffle.partitions": str(executors),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    if endpoint is not None:
        conf["spark.jars"] = ",".join(map(str, s3_jars()))
        conf |= {f"spark.hadoop.{name}": value for name, value in settings_for(endpoint).items()}
    requests = [0]
    with Cluster(workers=executors, memory="1g") as cluster:
        spark = cj.spark_session("executors", master=cluster.master_url, conf=conf)
        watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
        sides = (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        inputs = [open_input(data, name, ddl, FILES_A_BATCH, watermark) for name, ddl in sides]
        joined = cj.connect(*inputs, key_groups=GROUPS_A_CORE * executors).asof_join()
        reports: dict[int, float] = {}

        def note(_report: Any) -> None:
            if endpoint is not None:
                requests.append(requests_of(endpoint).total())

        query = joined.start(
            output=cj.sinks.delta(f"{root}/out"),
            checkpoint=f"{root}/checkpoint",
            trigger=cj.Trigger.available_now(drain=True),
            checkpoint_interval=batches // 2,
            on_progress=note,
        )
        (stream,) = spark.streams.active
        is_active = True
        while is_active:
            # Asked first, so that the last batches are seen, too.
            is_active = stream.isActive
            reports |= {
                one["batchId"]: one["durationMs"]["triggerExecution"]
                for one in stream.recentProgress
                if "addBatch" in one["durationMs"]
            }
            time.sleep(0.3)
        query.await_termination(progress=False)
        out = spark.read.format("delta").load(f"{root}/out").select("trade_id", "tier", "credit").toPandas()
        check(data, out)
        spark.stop()
    (log,) = (path for path in folder.iterdir() if path.is_file())
    with log.open() as lines:
        costs = of_event_log(map(json.loads, lines))
    counted = [number for number in range(batches // 3, batches) if number in reports and number in costs]
    figures = {
        "batch": statistics.median(reports[number] for number in counted) / 1000,
        "driver": statistics.median(max(0, reports[number] - costs[number].jobs_ms()) for number in counted),
        "tasks": statistics.median(costs[number].tasks for number in counted),
        "seconds": statistics.median(costs[number].run_ms for number in counted) / 1000,
        "shuffled": statistics.median(costs[number].shuffled for number in counted),
    }
    if endpoint is not None:
        changes = [after - before for before, after in itertools.pairwise(requests[1:])]
        figures["requests"] = statistics.median(changes[: batches - 1])
    return figures


def measure(executors: int, batches: int, data: Path, root: str, endpoint: str | None = None) -> dict[str, float]:
    """Run the join in a process of its own."""
    program = "import json, sys; from pathlib import Path; from benchmarks.executors import run; "
    program += "a = sys.argv[1:]; print(json.dumps(run(int(a[0]), int(a[1]), Path(a[2]), a[3], a[4] or None)))"
    command = [sys.executable, "-c", program, str(executors), str(batches), str(data), root, endpoint or ""]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def table(figures: Sequence[tuple[int, dict[str, float], dict[str, float]]], trades: int) -> str:
    """Return all figures as a table; the second of each are those on S3's protocol."""
    heads = ("executors", "a batch, s", "the driver, ms", "tasks", "their time, s", "shuffled, MB", "requests", "limit")
    lines = [heads]
    for executors, local, remote in figures:
        lines.append(
            (
                str(executors),
                f"{local['batch']:.2f}",
                f"{local['driver']:.0f}",
                f"{local['tasks']:.0f}",
                f"{local['seconds']:.2f}",
                f"{local['shuffled'] / 1e6:.2f}",
                f"{remote['requests']:.0f}",
                f"{1000 * local['seconds'] / local['driver']:.0f} cores",
            )
        )
    return f"{trades:,} trades and {trades // 5:,} versions a batch, all rows right\n\n{text_table(lines)}"


def main() -> None:
    """Measure each number of executors, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", nargs="+", type=int, default=[1, 2, 4], help="their numbers; 1 2 4")
    parser.add_argument("--trades", type=int, default=200_000, help="trades of a batch; 200,000")
    parser.add_argument("--batches", type=int, default=12, help="batches with rows; 12")
    chosen = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory(prefix="cojoin-executors-") as name, s3_process(Path(name)) as endpoint:
        folder = Path(name)
        rows = chosen.trades * chosen.batches
        generate(Size(rows, rows // 5, KEYS, FILES_A_BATCH * chosen.batches), folder / "data")
        for executors in chosen.executors:
            local = measure(executors, chosen.batches, folder / "data", f"{name}/local-{executors}")
            remote = measure(executors, chosen.batches, folder / "data", f"s3a://{BUCKET}/{executors}", endpoint)
            print(f"{executors} executors: {local} {remote}", flush=True)
            figures.append((executors, local, remote))
    print(table(figures, chosen.trades))


if __name__ == "__main__":
    main()
