"""The same history as JSON and in formats of a schema registry, replayed in turn: ``--format avro --format protobuf``.

Each format has topics of its own, in which the schema changes in the middle. All are compared with the oracle, row for
row. A format's ratio is its time to that of JSON in the same round.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.replay.job import prepare
from benchmarks.replay.killing_a_replay import run_contender
from cojoin.engine.display import text_table
from tests.kafka.formats.encoded import Encoder
from tests.servers.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.findings import Findings
    from benchmarks.replay.job import Measured
    from tests.kafka.history import History
    from tests.servers.broker import Broker

__all__ = ["FORMATS", "run_formats"]

FORMATS = ("json", "avro", "protobuf", "json_schema")
SLOWEST = 2.5


def run_formats(
    broker: Broker,
    history: History,
    chosen: Sequence[str],
    *,
    rounds: int,
    max_records: int,
    heap: str,
    findings: Findings,
    small: bool,
) -> None:
    """Run the formats in turn, print what was measured, and add the findings.

    Args:
        broker: Where the topics go.
        history: What they hold.
        chosen: The formats; JSON is always among them.
        rounds: How often each runs.
        max_records: How many records of each input a batch has at most.
        heap: The heap of each JVM.
        findings: Receives whether the ratios are kept.
        small: Whether the run is too small for its speed to say anything.
    """
    names = tuple(name for name in FORMATS if name == "json" or name in chosen)
    turn = int(history.trades["micros"].median())
    results: list[dict[str, Measured]] = []
    with tempfile.TemporaryDirectory(prefix="cojoin-formats-") as folder, RegistryServer() as registry:
        jobs = {}
        for name in names:
            place = Path(folder) / name
            place.mkdir()
            topics = (f"trades-{name}", f"customers-{name}")
            encoders = tuple(
                Encoder.registered(registry, name, side, f"{topic}-value", turn)
                for topic, side in zip(topics, ("trades", "customers"), strict=True)
            )
            replay = prepare(broker, history, place, max_records, topics, encoders)
            jobs[name] = replace(replay, heap=heap, format=name, registry=registry.url).write(place)
            print(f"filled {' and '.join(topics)}", flush=True)
        for _ in range(rounds):
            measured = {}
            for name, job in jobs.items():
                with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as work:
                    measured[name] = run_contender("aligned", job, Path(work))
                print(name, measured[name].to_json(), file=sys.stderr, flush=True)
            results.append(measured)
    size = len(history.trades) + len(history.customers)
    rows = [("format", "seconds", "records/s", "of JSON's time", "result")]
    for name in names:
        seconds = statistics.median(each[name].seconds for each in results)
        ratio = statistics.median(each[name].seconds / each["json"].seconds for each in results)
        faults = [each[name].faults for each in results if each[name].faults]
        rows.append(
            (name, f"{seconds:.1f}", f"{size / seconds:,.0f}", f"{ratio:.2f}", str(faults[0]) if faults else "exact")
        )
        findings.add(f"{name} equals the oracle", str(faults[0]) if faults else "exact", holds=not faults)
        if not small:
            findings.add(f"{name}, of JSON's time, at most {SLOWEST}", f"{ratio:.2f}", holds=ratio <= SLOWEST)
    print(f"\n{text_table(rows)}\n", flush=True)
