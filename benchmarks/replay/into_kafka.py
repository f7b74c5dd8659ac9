"""Joined rows into a topic and into a Delta table: ``python -m benchmarks.replay.into_kafka [--rounds N] [--smoke]``.

A real broker holds three weeks of trades and versions. They are joined as of, in one session, in turn into a Delta
table, into a topic exactly once, and into one in parallel; a small run into each comes first, which is not counted.
Records of the topics, read committed, are compared with the oracle: each trade once, with the customer's tier. Times
are those of whole queries, from their start to their end, and of the sink alone where the driver can tell it apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cojoin as cj
from benchmarks.findings import Findings
from benchmarks.replay.job import Replay, prepare
from benchmarks.replay.process import connect, make_session
from cojoin.engine.display import text_table
from tests.kafka.history import make_history
from tests.kafka.records import PARTITIONS
from tests.kafka.sink.committed import read_committed
from tests.servers.broker import Broker

SINKS = ("delta", "exactly_once", "exactly_once_parallel")
LEAST_ROWS_A_SECOND, MOST_OF_DELTAS_TIME = 60_000, 2.0


@dataclass(frozen=True)
class Run:
    """What one run took.

    Attributes:
        seconds: The whole query.
        sink_seconds: The sink, as the manifests have it; of a Delta table, without what the workers wrote.
        rows: How many rows came out.
        faults: What is wrong with a topic.
    """

    seconds: float
    sink_seconds: float
    rows: int
    faults: str


def run(replay: Replay, name: str, broker: Broker, folder: Path) -> Run:
    """Join the topics into one sink."""
    topic = f"{folder.name}"
    if name == "delta":
        sink: cj.sinks.Sink = cj.sinks.delta(str(folder / "out"))
    else:
        broker.create_topic(topic, PARTITIONS)
        delivery: Any = name
        sink = cj.sinks.kafka(replay.servers, topic, key="customer_id", timestamp="event_time", delivery=delivery)
    joined = connect("aligned", replay).asof_join(suffixes=("", "_customer"))
    trigger = cj.Trigger.available_now(drain=True)
    started = time.perf_counter()
    query = joined.start(output=sink, checkpoint=str(folder / "checkpoint"), trigger=trigger)
    query.await_termination(progress=False)
    seconds = time.perf_counter() - started
    manifests = [
        json.loads(path.read_text())["content"] for path in (folder / "checkpoint" / "manifest").glob("[0-9]*")
    ]
    rows = sum(each["report"]["emitted"]["output"] for each in manifests)
    sink_seconds = sum(each["durations_ms"].get("output", 0) for each in manifests) / 1000
    return Run(seconds, sink_seconds, rows, "" if name == "delta" else find_faults(replay, topic))


def find_faults(replay: Replay, topic: str) -> str:
    """Return how a topic's trades and their tiers differ from the oracle's."""
    expected = replay.expected()
    wanted = Counter(zip(expected["trade_id"].to_pylist(), expected["tier"].to_pylist(), strict=True))
    found = Counter(
        (row["trade_id"], row.get("tier")) for row in (r.json for r in read_committed(replay.servers, topic))
    )
    missing, unwanted = (wanted - found).total(), (found - wanted).total()
    return f"{missing:,} missing, {unwanted:,} twice or wrong" if missing or unwanted else ""


def measure(replays: tuple[Replay, Replay], broker: Broker, folder: Path, rounds: int) -> dict[str, list[Run]]:
    """Run all sinks in turn; the first round has few rows, and warms up."""
    results: dict[str, list[Run]] = {name: [] for name in SINKS}
    for number in range(rounds + 1):
        for name in SINKS:
            work = folder / f"into-{name}-{number}".replace("_", "-")
            work.mkdir()
            found = run(replays[number > 0], name, broker, work)
            print(f"{name}: {found}", flush=True)
            if number:
                results[name].append(found)
    return results


def main() -> None:
    """Fill the topics, join them into all sinks, and end with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=1_000_000, help="trades, over three weeks")
    parser.add_argument("--versions", type=int, default=100_000, help="versions of customers, over the same")
    parser.add_argument("--max-records", type=int, default=500_000, help="records of an input in a batch")
    parser.add_argument("--heap", default="1g", help="the JVM's heap")
    parser.add_argument("--rounds", type=int, default=3, help="how often each sink has its turn")
    parser.add_argument("--smoke", action="store_true", help="a small run, to see that everything works")
    arguments = parser.parse_args()
    sizes = (20_000, 2_000) if arguments.smoke else (arguments.trades, arguments.versions)
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="cojoin-into-") as name, Broker() as broker:
        replays = []
        for what, counts in (("small", (20_000, 2_000)), ("full", sizes)):
            (Path(name) / what).mkdir()
            topics = (f"{what}-trades", f"{what}-customers")
            history = make_history(*counts, keys=10_000)
            replays.append(prepare(broker, history, Path(name) / what, arguments.max_records, topics))
        spark = make_session("aligned", arguments.heap)
        rounds = 1 if arguments.smoke else arguments.rounds
        results = measure((replays[0], replays[1]), broker, Path(name), rounds)
        spark.stop()
    medians = {each: statistics.median(found.seconds for found in runs) for each, runs in results.items()}
    table = [("sink", "seconds", "joined rows/s", "of Delta's time", "sink alone", "result")]
    for each, runs in results.items():
        faults = next((found.faults for found in runs if found.faults), "")
        alone = statistics.median(found.sink_seconds for found in runs)
        rate, share = runs[0].rows / medians[each], medians[each] / medians["delta"]
        table.append((each, f"{medians[each]:.1f}", f"{rate:,.0f}", f"{share:.2f}", f"{alone:.1f}", faults or "exact"))
        findings.add(f"{each} equals the oracle", faults or "exact", holds=not faults)
    print(f"\n{text_table(table)}\n")
    rows, seconds = results["exactly_once"][0].rows, medians["exactly_once"]
    rate, share = rows / seconds, seconds / medians["delta"]
    asked = f"{LEAST_ROWS_A_SECOND:,} rows a second, or at most {MOST_OF_DELTAS_TIME} of the Delta sink's time"
    holds = rate >= LEAST_ROWS_A_SECOND or share <= MOST_OF_DELTAS_TIME
    findings.add(asked, f"{rate:,.0f} rows a second, {share:.2f} of the time", holds=holds)
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
