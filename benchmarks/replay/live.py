"""From history to live, with the broker away: ``python -m benchmarks.replay.live [--seconds 120] [--away 30]``.

Two topics of a real broker hold three weeks. They are replayed; then the same checkpoint goes on live, while a producer
writes to both, for two minutes by default. A part of the way through, the broker's process is stopped for a while and
goes on: writer and query wait for it. At the end all is drained, and every row compared with the oracle.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import cojoin as cj
from benchmarks.findings import Findings
from benchmarks.session import make_session
from tests.kafka.history import fill, make_history
from tests.kafka.live_writer import LiveWriter
from tests.kafka.records import PARTITIONS, expected_join
from tests.kafka.replayed import historic, run, start
from tests.kafka.test_client import silent
from tests.kafka.topics import assert_conserved, assert_joined
from tests.servers.broker import Broker

TOPICS = ("trades", "customers")
PATIENCE_SECONDS = 240


def go_live(joined: cj.Joined, writer: LiveWriter, broker: Broker, folder: Path, total: int, away: float) -> cj.Query:
    """Join live while the topics are written and, for a while, nobody answers; until all is read."""
    live = start(joined, folder, cj.Trigger.processing_time("1 second"))

    def leave() -> None:
        with silent(broker, away):
            time.sleep(away)

    if away:
        absence = threading.Timer(20, leave)
        absence.start()
    writer.join()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while live.is_active and time.monotonic() < deadline:
        if live.progress is not None and sum(each.rows_in for each in live.progress.inputs) >= total + writer.written():
            break
        time.sleep(0.1)
    live.stop()
    return live


def main() -> None:
    """Replay, go live, drain, compare; ends with 1 if anything is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long the producer writes")
    parser.add_argument("--away", type=float, default=30, help="for how many of them the broker is stopped")
    arguments = parser.parse_args()
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="cojoin-live-") as name, Broker() as broker:
        folder, servers = Path(name), broker.bootstrap_servers
        spark, history = make_session("live", folder), make_history()
        for topic, records in zip(TOPICS, (history.trades, history.customers), strict=True):
            broker.create_topic(topic, PARTITIONS)
            fill(servers, topic, records)
        joined = historic(servers, *TOPICS, idle="5 seconds", max_records=9_000)
        replayed = run(joined, folder)
        total = len(history.trades) + len(history.customers)
        with LiveWriter(servers, TOPICS, history, seconds=arguments.seconds, begin=history.end) as writer:
            live = go_live(joined, writer, broker, folder, total, arguments.away)
        error = live.exception()
        findings.add("the live query went on by itself", str(error or f"{live.batches} batches"), holds=error is None)
        records = writer.records()
        last = run(joined, folder, drain=True).progress
        assert last is not None
        try:
            assert_joined(spark, str(folder / "out"), expected_join(records))
            assert_conserved(spark, str(folder / "checkpoint"))
            wrong = ""
        except AssertionError as difference:
            wrong = str(difference)
        read = f"{replayed.batches} batches of history, then {writer.written():,} live records"
        findings.add("nothing lost, nothing twice", wrong or f"exact: {read}", holds=not wrong)
        late = sum(sum(each.rejected.values()) + each.late_applied for each in last.inputs)
        findings.add("no row is late", f"{late:,}", holds=not late)
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
