"""How long a live trade takes to its joined row: ``python -m benchmarks.replay.latency [--seconds N] [--smoke]``.

Both topics of a real broker get rows at a steady rate while ``asof_join`` reads them with ``cj.kafka.source`` and
writes Delta. A trade's latency is the time from when it was due to the commit of the table's version that has it, by
the time of the version's file. It is due once it has come and the watermarks of all partitions of both topics have
passed it: until then no join may let it out. Shown too is the time since it was sent, less the watermark's bound, which
is shorter, as most trades come some time after their event time. At the end all is drained and compared with an oracle.

Then, in the same session and at the same pace, plain Spark decodes two more topics and copies them into a Delta table.
There a trade is due when it is sent. The ratio is that of the two latencies.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.findings import Findings
from benchmarks.replay.latency_writer import Pace, SteadyWriter
from benchmarks.replay.process import find_faults
from cojoin.engine.display import text_table
from tests.kafka.records import CUSTOMER_DDL, PARTITIONS, TRADE_DDL, expected_join
from tests.servers.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

MEDIAN_SECONDS, LAST_HUNDREDTH_SECONDS = 2.5, 6.0
TOPICS, COPIED_TOPICS = ("trades", "customers"), ("copied-trades", "copied-customers")
KEY_GROUPS = 4
MARGIN_SECONDS, GRACE_SECONDS = 10, 15
"""Trades of the last seconds are not judged: what they wait for may never have been sent."""


def connect(servers: str, pace: Pace, max_drift: str) -> cj.Joined:
    """Describe the join."""
    bound = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{pace.disorder_ms} milliseconds")
    sides = [
        cj.Input(
            cj.kafka.source(servers, topic, schema=ddl, max_drift=max_drift),
            key="customer_id",
            event_time="event_time",
            name=topic,
            watermark=bound,
        )
        for topic, ddl in zip(TOPICS, (TRADE_DDL, CUSTOMER_DDL), strict=True)
    ]
    return cj.connect(*sides, key_groups=KEY_GROUPS).asof_join(suffixes=("", "_customer"))


def run_live(joined: cj.Joined, writer: SteadyWriter, folder: Path, trigger: str) -> list[dict[str, Any]]:
    """Join while the topics are written, then drain; gives the manifests of the live batches."""
    places = {"output": cj.sinks.delta(str(folder / "out")), "checkpoint": str(folder / "checkpoint")}
    seen: dict[str, dict[str, Any]] = {}
    with writer:
        query = joined.start(**places, trigger=cj.Trigger.processing_time(trigger))
        ends = float("inf")
        while time.monotonic() < ends and query.is_active:
            time.sleep(0.25)
            seen |= dict(_manifests(folder / "checkpoint" / "manifest", seen))
            # It goes on for a while, so that no trade that is judged is left to the drain.
            ends = ends if writer.is_writing else min(ends, time.monotonic() + GRACE_SECONDS)
        query.stop()
    if error := query.exception():
        raise error
    joined.start(**places, trigger=cj.Trigger.available_now(drain=True)).await_termination(progress=False)
    return sorted(seen.values(), key=lambda manifest: manifest["report"]["batch_id"])


def run_copy(spark: SparkSession, servers: str, writer: SteadyWriter, folder: Path, trigger: str) -> None:
    """Copy the topics while they are written, by Spark alone."""
    value = F.col("value").cast("string")
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    rows = stream.option("subscribe", ",".join(COPIED_TOPICS)).option("startingOffsets", "earliest").load()
    sides = [F.from_json(value, ddl).alias(name) for name, ddl in (("left", TRADE_DDL), ("right", CUSTOMER_DDL))]
    copied = rows.select("topic", *sides).select(
        "topic", "left.*", F.col("right.version_id").alias("version_id"), F.col("right.tier").alias("tier")
    )
    with writer:
        query = (
            copied.writeStream.format("delta")
            .option("checkpointLocation", f"{folder}/of-copy")
            .trigger(processingTime=trigger)
            .start(f"{folder}/copy")
        )
        while writer.is_writing and query.isActive:
            time.sleep(0.25)
        query.processAllAvailable()
        query.stop()


def _manifests(folder: Path, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read those that are new: only the newest few are kept as files."""
    for path in folder.glob("[0-9]*.json"):
        if path.name not in known:
            try:
                yield path.name, json.loads(path.read_text())["content"]
            except (OSError, ValueError):  # it is just being written, or was just folded into a table
                continue


def commit_times(table: Path) -> pd.Series:
    """Return, by trade, when the version that has it became visible, in epoch seconds."""
    times: list[pd.Series] = []
    for version in sorted((table / "_delta_log").glob("[0-9]*.json")):
        for line in version.read_text().splitlines():
            if added := json.loads(line).get("add"):
                ids = pq.read_table(table / unquote(added["path"]), columns=["trade_id"]).column(0).drop_null()
                times.append(pd.Series(version.stat().st_mtime, index=ids.to_numpy()))
    return pd.concat(times)


def latencies(writer: SteadyWriter, table: Path, warm_up: float) -> pd.DataFrame:
    """Return the latency of each trade that was sent after the warm-up and before the last seconds."""
    trades, _ = writer.sides()
    frame = trades.set_index("trade_id").assign(due=writer.due(), committed=commit_times(table))
    first, last = frame["sent"].min() + warm_up, frame["sent"].max() - MARGIN_SECONDS
    frame = frame[(frame["sent"] >= first) & (frame["sent"] <= last)]
    bound = writer.pace.disorder_ms / 1_000
    return pd.DataFrame(
        {
            "since it was due": frame["committed"] - frame["due"],
            "since it was sent, less the bound": frame["committed"] - frame["sent"] - bound,
            "since it was sent": frame["committed"] - frame["sent"],
        }
    )


def summary(seconds: dict[str, Any]) -> str:
    """Spell medians and 99th percentiles."""
    rows: list[tuple[str, ...]] = [("seconds", "median", "99th percentile", "most", "of")]
    for what, values in seconds.items():
        middle, late = np.percentile(values, [50, 99])
        rows.append((what, f"{middle:.2f}", f"{late:.2f}", f"{max(values):.2f}", f"{len(values):,}"))
    return text_table(rows)


def main() -> None:
    """Measure, and end with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90, help="for how long it is measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=45, help="seconds that are not measured, with the start")
    parser.add_argument("--rate", type=int, default=2_000, help="rows a second to each topic")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct customers")
    parser.add_argument("--disorder-ms", type=int, default=1_000, help="the disorder, and the watermark's bound")
    parser.add_argument("--max-drift", default="2 seconds", help="as cojoin.kafka.source takes it")
    parser.add_argument("--trigger", default="0 seconds", help="the time between batches, at the least")
    parser.add_argument("--smoke", action="store_true", help="a short run, to see that everything works")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    arguments = parser.parse_args()
    seconds, warm_up = (20, 30) if arguments.smoke else (arguments.seconds, arguments.warm_up)
    pace = Pace(seconds + warm_up + MARGIN_SECONDS, arguments.rate, arguments.keys, arguments.disorder_ms)
    findings = Findings()
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = cj.spark_session("latency", master="local[2]", conf=settings, kafka=True)
    with tempfile.TemporaryDirectory(prefix="cojoin-latency-") as work, Broker() as broker:
        folder = Path(work)
        for topic in (*TOPICS, *COPIED_TOPICS):
            broker.create_topic(topic, PARTITIONS)
        writer = SteadyWriter(broker.bootstrap_servers, TOPICS, pace)
        joined = connect(broker.bootstrap_servers, pace, arguments.max_drift)
        batches = run_live(joined, writer, folder, arguments.trigger)
        faults = find_faults(expected_join(writer.records()), spark.read.format("delta").load(str(folder / "out")))
        frame = latencies(writer, folder / "out", warm_up)
        beside = SteadyWriter(broker.bootstrap_servers, COPIED_TOPICS, pace)
        run_copy(spark, broker.bootstrap_servers, beside, folder, arguments.trigger)
        copied = spark.read.format("delta").load(f"{folder}/copy").count()
        findings.add("the copy has each row once", f"{copied:,}", holds=copied == sum(map(len, beside.sides())))
        of_copy = latencies(beside, folder / "copy", warm_up)["since it was sent"].to_numpy()
    parts = [each["durations_ms"] for each in batches]
    durations = [(each["execute"] + each.get("output", 0)) / 1_000 for each in parts]
    measured = {name: frame[name].to_numpy() for name in frame}
    shown = {**measured, "a batch, on the driver": durations[len(durations) // 3 :], "plain Spark's copy": of_copy}
    print(summary(shown), flush=True)
    pairs = zip(np.percentile(measured["since it was due"], [50, 99]), np.percentile(of_copy, [50, 99]), strict=True)
    middles, lates = (ours / theirs for ours, theirs in pairs)
    print(f"over the copy's: median {middles:.2f}, 99th percentile {lates:.2f}", flush=True)
    findings.add("equals the oracle", str(faults or "exact"), holds=not faults)
    middle, late = np.percentile(measured["since it was due"], [50, 99])
    findings.add(f"median below {MEDIAN_SECONDS} s", f"{middle:.2f} s", holds=bool(middle < MEDIAN_SECONDS))
    findings.add(
        f"99th percentile below {LAST_HUNDREDTH_SECONDS} s", f"{late:.2f} s", holds=bool(late < LAST_HUNDREDTH_SECONDS)
    )
    if arguments.output:
        percentiles = {name: np.percentile(each, [1, 25, 50, 75, 99, 100]).tolist() for name, each in measured.items()}
        report = {"pace": asdict(pace), "percentiles": percentiles, "faults": faults}
        report["batches"] = parts
        arguments.output.write_text(json.dumps(report, indent=1))
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
