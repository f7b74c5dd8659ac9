"""A query as tools see it that know nothing of cojoin: the lag of its consumer group, and a scrape of Prometheus.

One query of topics that transactions have written serves most of it. It stands still within its third batch while the
tools look: an output that is a function waits there.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.kafka.positions import positions_of
from cojoin.session.sessions import open_store
from cojoin.spark.query import observers
from tests.kafka.lags import committed, lags, log_ends, set_offsets
from tests.kafka.replayed import START, join, make, row, version, write
from tests.servers import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.kafka.client import Partition
    from tests.kafka.replayed import Written
    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

LEFT, RIGHT = "outside-l", "outside-r"
WAITS_IN = 2


@pytest.fixture(scope="module")
def scrape() -> Iterator[Callable[[], dict[tuple[str, ...], float]]]:
    """Scrapes this process as Prometheus does: each sample by its name and the values of cojoin's labels."""
    (port,) = free_ports(1)
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    server, thread = start_http_server(port, addr="127.0.0.1")

    def samples() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *(value for name, value in sample.labels.items() if name.startswith("cojoin_"))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    yield samples
    server.shutdown()
    thread.join()
    server.server_close()


def write_in_transactions(servers: str, topic: str, records: list[Written]) -> None:
    """Write records in a transaction that is committed, and some of them again in one that is aborted."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "transactional.id": topic})
    producer.init_transactions(30)
    for written, end in ((records, producer.commit_transaction), (records[:2], producer.abort_transaction)):
        producer.begin_transaction()
        write_with(producer, topic, written)
        end(30)


def write_with(producer: Producer, topic: str, records: list[Written]) -> None:
    import json

    for each in records:
        producer.produce(topic, json.dumps(each.value).encode(), partition=each.partition, timestamp=each.time)
    assert producer.flush(30) == 0


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def counted(spark: SparkSession, checkpoint: str) -> dict[Partition, int]:
    """Return the offsets that the last counted batch has read, by its manifest."""
    import json

    last = Manifests(open_store(spark, checkpoint)).last()
    assert last is not None
    return {each: at for line in last.offsets[:-1] for each, at in positions_of(json.loads(line)).items()}


@pytest.mark.slow
def test_lag_metrics_and_progress_of_a_query(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    scrape: Callable[[], dict[tuple[str, ...], float]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observers, "_AGAIN_SECONDS", 0.2)
    servers = make(broker, LEFT, RIGHT, partitions=2)
    write_in_transactions(servers, LEFT, [row(each, each, each % 2) for each in range(12)])
    write_in_transactions(servers, RIGHT, [version(each, each - 0.5, each % 2) for each in range(12)])
    # The ends are those of markers, after records that nobody sees.
    assert sum(log_ends(servers, LEFT).values()) == 12 + 2 + 4
    checkpoint, group = str(tmp_path / "checkpoint"), "outside ä.`b`"
    waiting, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        frame.count()
        if batch_id == WAITS_IN:
            waiting.set()
            assert go_on.wait(400)

    def on_progress(report: Any) -> None:
        seen.append(report.batch_id)
        msg = "the pager is down"
        raise OSError(msg)

    def start() -> cj.Query:
        return join(servers, LEFT, RIGHT, max_records=3, group=group).start(
            output=take,
            checkpoint=checkpoint,
            trigger=cj.Trigger.available_now(),
            name="enrich",
            on_progress=on_progress,
        )

    query = start()
    wait_until(lambda: waiting.is_set() or not query.is_active)
    assert query.progress is not None
    assert query.progress.batch_id == WAITS_IN - 1
    # In the middle of a run: what the last counted batch has read, whatever is planned.
    positions = counted(spark, checkpoint)
    wait_until(lambda: committed(servers, group, LEFT, RIGHT) == positions)
    behind = {each: end - positions[each] for each, end in log_ends(servers, LEFT, RIGHT).items()}
    assert lags(spark, servers, group) == behind
    assert min(behind.values()) > 0
    unread = {"left": LEFT, "right": RIGHT}
    expected = {name: sum(lag for (each, _), lag in behind.items() if each == topic) for name, topic in unread.items()}
    lag = "cojoin_input_offset_lag"
    wait_until(lambda: {name: scrape().get((lag, name, "enrich")) for name in unread} == expected)
    found = scrape()
    for name, each in zip(unread, query.progress.inputs, strict=True):
        assert found["cojoin_input_rows_total", name, "enrich"] == each.rows_in
        assert found["cojoin_input_buffered", name, "enrich"] == each.buffered
        assert found["cojoin_input_watermark_seconds", name, "enrich"] == each.watermark / 1000
    assert found["cojoin_output_rows_total", "output", "enrich"] == query.progress.rows_out
    assert found["cojoin_query_batches_total", "enrich"] == WAITS_IN
    assert found["cojoin_query_batch_duration_seconds_count", "execute", "enrich"] == WAITS_IN
    assert found["cojoin_query_watermark_seconds", "enrich"] == query.progress.watermark / 1000
    assert found["cojoin_query_event_time_lag_seconds", "enrich"] > time.time() - START / 1000 - 3600
    assert found["cojoin_query_state_size_bytes", "enrich"] == query.progress.state_bytes > 0
    assert (found["cojoin_query_active", "enrich"], found["cojoin_query_epoch", "enrich"]) == (1, 1)

    go_on.set()
    query.await_termination(progress=False)
    assert {*lags(spark, servers, group).values()} == {0}
    assert seen == [*range(query.batches)]
    found = scrape()
    assert found["cojoin_query_active", "enrich"] == 0
    assert found["cojoin_input_rows_total", "left", "enrich"] == 12
    assert (lag, "left", "enrich") not in found
    (warning,) = [each.getMessage() for each in caplog.records if "on_progress" in each.getMessage()]
    assert "query enrich: on_progress failed at batch 0: OSError: the pager is down" in warning

    # As after a kill between a batch's manifest and the commit; nothing new is there.
    set_offsets(servers, group, dict.fromkeys(positions, 0))
    again = start()
    again.await_termination(progress=False)
    assert again.batches == 0
    assert {*lags(spark, servers, group).values()} == {0}
    # The group has no say in what is read: more records come, and only they are counted.
    set_offsets(servers, group, dict.fromkeys(positions, 0))
    write(servers, LEFT, [row(12, 12)])
    start().await_termination(progress=False)
    assert {*lags(spark, servers, group).values()} == {0}
    found = scrape()
    assert found["cojoin_input_rows_total", "left", "enrich"] == 13
    assert found["cojoin_query_epoch", "enrich"] == 3


@pytest.mark.slow
def test_a_group_with_a_member_is_told_and_the_query_may_be_stopped_from_within(
    spark: SparkSession, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer

    servers = make(broker, "taken-l", "taken-r")
    write(servers, "taken-l", [row(each, each) for each in range(6)])
    write(servers, "taken-r", [version(each, each - 0.5) for each in range(6)])
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "taken", "auto.offset.reset": "earliest"})
    consumer.subscribe(["taken-l"])
    wait_until(lambda: (consumer.poll(0.1), consumer.assignment())[1])
    stopped: list[cj.Query] = []
    has_query = threading.Event()

    def on_progress(report: Any) -> None:
        assert has_query.wait(60)
        stopped[0].stop()

    query = join(servers, "taken-l", "taken-r", max_records=3, group="taken").start(
        output=cj.sinks.delta(str(tmp_path / "out")),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=cj.Trigger.processing_time("1 second"),
        on_progress=on_progress,
    )
    stopped.append(query)
    has_query.set()
    try:
        assert query.await_termination(60, progress=False)
    finally:
        consumer.close()
    assert query.exception() is None
    told = [each.getMessage() for each in caplog.records if "could not commit the offsets" in each.getMessage()]
    assert len(told) == 2, "each input once"
    for message, name in zip(sorted(told), ("left", "right"), strict=True):
        assert f"input {name!r} has read" in message
        assert "consumer group 'taken' has members" in message
