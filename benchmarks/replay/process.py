"""One contender of ``replay.py`` in a process of its own: ``python -m benchmarks.replay.process NAME JOB.json WORK``.

Prints one JSON line. The session's start is left out for all alike, and so is the comparison with the oracle, which is
made before the line is printed. `aligned` is the replay with cojoin's own source, whose tasks pack the rows,
`aligned-by-spark` the same where Spark makes rows of the records, `plain` reads the same records by
Spark's and writes them without joining, `unaligned` joins what Spark's source reads with one watermark a topic, and
`by-partition` the same with one a partition. `flink` is Flink's own source and function (``by_flink``). Started again
in the same folder, a join goes on where it was.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.footprint import Footprint
from benchmarks.replay.by_flink import run_flink
from benchmarks.replay.job import Measured, Replay
from cojoin.engine.batch_report import parse_report
from tests.kafka.records import CUSTOMER_DDL, OUT_OF_ORDERNESS_SECONDS, PARTITIONS, TRADE_DDL
from tests.kafka.topics import native
from tests.servers.jars import kafka_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CONTENDERS", "connect", "find_faults"]

CONTENDERS = ("plain", "aligned", "aligned-by-spark", "unaligned", "by-partition", "flink")
ALIGNED = ("aligned", "aligned-by-spark")
SIDES = (("trades", TRADE_DDL), ("customers", CUSTOMER_DDL))
KEY_GROUPS = 8


def connect(name: str, replay: Replay) -> cj.ConnectedInputs:
    """Connect the two topics as the contender reads them."""
    sides = [
        cj.Input(
            _aligned(replay, side) if name in ALIGNED else _native(replay, side),
            key="customer_id",
            event_time="event_time",
            name=what,
            # Spark's source is given as a DataFrame, which says nothing of partitions by itself.
            partition=["topic", "partition"] if name == "by-partition" else (),
            sequence=() if name in ALIGNED else ["topic", "partition", "offset"],
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDERNESS_SECONDS} seconds"),
        )
        for side, (what, _) in enumerate(SIDES)
    ]
    return cj.connect(*sides, key_groups=KEY_GROUPS)


def _aligned(replay: Replay, side: int) -> Any:
    return cj.kafka.source(
        replay.servers,
        replay.topics[side],
        **({"schema": SIDES[side][1]} if replay.format == "json" else {"value": _value(replay)}),
        max_drift=f"{replay.drift_minutes} minutes",
        max_records=replay.max_records,
    )


def _value(replay: Replay) -> Any:
    return getattr(cj.kafka, replay.format)(replay.registry)


def _native(replay: Replay, side: int) -> DataFrame:
    # Spark rounds each partition's share of the limit down: some room, or a last batch takes up what that leaves.
    most = -(-replay.sizes[side] // replay.batches) + 2 * PARTITIONS
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return native(spark, replay.servers, replay.topics[side], SIDES[side][1], most)


def run_join(name: str, replay: Replay, work: Path) -> dict[str, Any]:
    """Join into Delta, for the first time or again, until all is drained."""
    written = _manifests(work)
    if not (written and written[-1]["report"]["drained"]):  # a drained query has written all, and would be refused
        query = (
            connect(name, replay)
            .asof_join(suffixes=("", "_customer"))
            .start(
                output=cj.sinks.delta(str(work / "out")),
                checkpoint=str(work / "checkpoint"),
                trigger=cj.Trigger.available_now(drain=True),
            )
        )
        query.await_termination(progress=False)
        written = _manifests(work)
    reports = [parse_report(each["report"]) for each in written]
    assert all(report.is_conserved for report in reports), "rows vanished"
    assert reports[-1].drained, reports[-1].ending()
    if name in ALIGNED:
        assert all((each.reading == "direct") == (name == "aligned") for each in reports[-1].inputs)
    durations = [each["durations_ms"] for each in written]
    return {
        "batches": [(each["execute"] + each.get("output", 0)) / 1000 for each in durations],
        "late": [each.rejected.get("late", 0) + each.late_applied for each in reports[-1].inputs],
        "buffered": [max(report.inputs[side].buffered for report in reports) for side in range(2)],
    }


def _manifests(work: Path) -> list[dict[str, Any]]:
    paths = sorted((work / "checkpoint" / "manifest").glob("[0-9]*.json"))
    return [json.loads(path.read_text())["content"] for path in paths]


def run_plain(replay: Replay, work: Path) -> dict[str, Any]:
    """Read, decode and write the same records with Spark alone: the floor."""
    trades, customers = (_native(replay, side) for side in range(2))
    query = (
        trades.unionByName(customers, allowMissingColumns=True)
        .writeStream.format("delta")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "out"))
    )
    query.awaitTermination()
    return {"batches": [each["batchDuration"] / 1000 for each in query.recentProgress if each["numInputRows"]]}


def find_faults(expected: pa.Table, frame: DataFrame) -> dict[str, int]:
    """Count rows that are missing, there twice, invented or different; return none where all are as expected."""
    # Times as epoch microseconds: no time zone can touch them.
    times = {"micros": "event_time", "customers_micros": "customers_event_time"}
    frame = frame.withColumns({name: F.unix_micros(column) for name, column in times.items()})
    return compare(expected, frame.select(*expected.column_names).toArrow())


def compare(expected: pa.Table, rows: pa.Table) -> dict[str, int]:
    """Count faults as ``find_faults``, of rows with the columns that are expected."""
    found = rows.select(expected.column_names).cast(expected.schema).sort_by("trade_id")
    wanted_ids, ids = (table.column("trade_id").to_numpy() for table in (expected, found))
    known = np.isin(ids, wanted_ids)
    place = np.searchsorted(wanted_ids, ids[known])
    found, wanted = found.filter(pa.array(known)), expected.take(pa.array(place))
    differs = np.zeros(len(place), dtype=bool)
    for name in expected.column_names:
        one, other = found.column(name), wanted.column(name)
        if not one.equals(other):
            unequal = pc.fill_null(pc.not_equal(one, other), False)
            one_is_null = pc.xor(pc.is_null(one), pc.is_null(other))
            differs |= pc.or_(unequal, one_is_null).to_numpy()
    counts = {
        "missing": len(np.setdiff1d(wanted_ids, ids)),
        "twice": len(ids) - len(np.unique(ids)),
        "invented": int((~known).sum()),
        "different": int(differs.sum()),
    }
    return {name: count for name, count in counts.items() if count}


def _faults_of_plain(replay: Replay, frame: DataFrame) -> dict[str, int]:
    trades, versions = (frame.select(name).distinct().count() - 1 for name in ("trade_id", "version_id"))
    missing = sum(replay.sizes) - trades - versions
    twice = frame.count() - trades - versions
    return {name: count for name, count in (("missing", missing), ("twice", twice)) if count}


def make_session(name: str, heap: str) -> SparkSession:
    """Start Spark as a user has it, with the Kafka connector where Spark's own source is read."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": heap,
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    if name not in ALIGNED:
        settings |= kafka_settings()
    return cj.spark_session(f"replay {name}", master="local[2]", conf=settings)


def main(name: str, job: Path, work: Path) -> None:
    """Run one contender and check what it wrote."""
    replay = Replay.read(job)
    if name == "flink":
        with Footprint() as memory:
            run = run_flink(job, work, memory.cpu_seconds)
        faults = compare(replay.expected(), run.rows)
        used, peak = run.cpu_seconds, memory.peak
        print(Measured(name, run.seconds, [run.seconds], peak, faults=faults, cpu_seconds=used).to_json(), flush=True)
        return
    spark = make_session(name, replay.heap)
    spark.conf.set("spark.cojoin.kafka", "spark" if name == "aligned-by-spark" else "")
    with Footprint() as memory:
        started, used = time.perf_counter(), memory.cpu_seconds()
        found = run_plain(replay, work) if name == "plain" else run_join(name, replay, work)
        seconds, used = time.perf_counter() - started, memory.cpu_seconds() - used
    written = spark.read.format("delta").load(str(work / "out"))
    faults = _faults_of_plain(replay, written) if name == "plain" else find_faults(replay.expected(), written)
    measured = Measured(name, seconds, peak_bytes=memory.peak, faults=faults, cpu_seconds=used, **found)
    print(measured.to_json(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
