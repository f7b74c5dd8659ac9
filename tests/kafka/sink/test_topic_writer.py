"""What a writer puts into a topic, and what it refuses, batch by batch; the brokers are real."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import cojoin as cj
from benchmarks.kills.topic_points import TOPIC_POINTS, TopicDeed, armed_in_worker
from cojoin.kafka.sink.topic_transactions import TopicMarker, TopicTransactions
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId, Position
from tests.kafka.sink.committed import read_committed
from tests.seeds import drawn
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.kafka.sink.kafka_sink import KafkaSink
    from cojoin.kafka.sink.topic_writer import TopicWriter
    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

OUTPUT = OutputId("0b8e", "output", 1)


def position(next_batch: int, written: dict[str, Any] | None = None, *, is_planned: bool = False) -> Position:
    return Position("/lake/checkpoint", next_batch, written or {}, is_planned)


def marker(batch_id: int, rows: int, offsets: str = "offsets", digest: int = 1) -> BatchMarker:
    return BatchMarker(batch_id, rows, digest, offsets)


def opened(sink: KafkaSink, spark: SparkSession, at: Position, output: OutputId = OUTPUT) -> TopicWriter:
    writer = sink.open(spark, output)
    writer.check(at)
    return writer


def topic_of(broker: Broker, name: str, partitions: int = 2, **options: Any) -> KafkaSink:
    broker.create_topic(name, partitions)
    return cj.sinks.kafka(broker.bootstrap_servers, name, **options)


def ids(broker: Broker, topic: str) -> list[int]:
    return sorted(each.json["id"] for each in read_committed(broker.bootstrap_servers, topic))


def in_tasks(tasks: int) -> dict[str, Any]:
    return {} if tasks == 1 else {"delivery": "exactly_once_parallel", "tasks": tasks}


def delete_marker(broker: Broker, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (future,) = admin.delete_consumer_groups([group]).values()
    future.result()


def test_rows_become_records(spark: SparkSession, broker: Broker) -> None:
    names = ("a.b", "ä `q", "at", "local", "day", "price", "raw", "ratio", "tags", "counts", "inner")
    row = (
        "(7, 'ü\"\\\\n', timestamp'2026-01-05T09:30:00.000125Z', timestamp_ntz'2026-01-05T09:30:00', "
        "date'2026-01-05', 0.000000001, X'00ff', double('NaN'), array('x', null), map(1, 2L), "
        "named_struct('x', 1, 'y', null))"
    )
    frame = spark.sql(f"SELECT * FROM VALUES {row}").toDF(*names)
    sink = topic_of(
        broker, "sink-types", key="a.b", headers={"who": "ä `q", "raw": "raw"}, timestamp="at", value="json"
    )
    writer = opened(sink, spark, position(0))
    writer.write(frame, marker(0, 1))
    (found,) = read_committed(broker.bootstrap_servers, "sink-types")
    assert found.key == b"7"
    assert found.headers == [("who", 'ü"\\n'.encode()), ("raw", b"\x00\xff")]
    assert found.timestamp == 1767605400000
    assert json.loads(found.value or b"", parse_float=str) == {
        "a.b": 7,
        "ä `q": 'ü"\\n',
        "at": "2026-01-05T09:30:00.000125Z",
        "local": "2026-01-05T09:30:00.000000",
        "day": "2026-01-05",
        "price": "1E-9",
        "raw": "AP8=",
        "ratio": "NaN",
        "tags": ["x", None],
        "counts": {"1": 2},
        "inner": {"x": 1},
    }


def test_keys_and_values_of_columns(spark: SparkSession, broker: Broker) -> None:
    frame = spark.createDataFrame([(1, "one", b"\x01"), (None, None, None)], "id long, name string, raw binary")
    cases: tuple[tuple[dict[str, Any], list[tuple[Any, Any]]], ...] = (
        ({"key": "name", "value": "raw"}, [(b"one", b"\x01"), (None, None)]),
        ({"key": ["ID", "name"], "value": ["name"]}, [(b'{"id":1,"name":"one"}', b'{"name":"one"}'), (b"{}", b"{}")]),
        ({"key": "raw", "value": "name"}, [(b"\x01", b"one"), (None, None)]),
    )
    for number, (options, wanted) in enumerate(cases):
        sink = topic_of(broker, f"sink-columns-{number}", **options)
        opened(sink, spark, position(0)).write(frame, marker(0, 2))
        found = read_committed(broker.bootstrap_servers, sink.topic)
        assert sorted(((each.key, each.value) for each in found), key=str) == sorted(wanted, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly_once", "exactly_once_parallel"])
def test_a_batch_is_there_once_whatever_is_run_again(spark: SparkSession, broker: Broker, delivery: Any) -> None:
    name = f"sink-once-{delivery}"
    sink = topic_of(broker, name, key="id", delivery=delivery)
    first = opened(sink, spark, position(0))
    written = first.write(spark.range(5), marker(0, 5))
    first.write(spark.range(5, 9), marker(1, 4))
    first.write(spark.range(5, 9), marker(1, 4))
    assert ids(broker, name) == [*range(9)]
    # A run that begins again with the batch that does not count; and one whose batch counts.
    entry = {**written, "batch_id": 0}
    again = opened(sink, spark, position(1, entry, is_planned=True), replace(OUTPUT, epoch=2))
    again.compare(marker(1, 4))
    again.write(spark.range(5, 9), marker(1, 4))
    again.write(spark.range(9, 11), marker(2, 2))
    opened(sink, spark, position(3, {**entry, "batch_id": 2}), replace(OUTPUT, epoch=3))
    assert ids(broker, name) == [*range(11)]
    with refused("fenced off: another run of this query has taken over at epoch 3", kind=cj.QueryFailedError):
        again.write(spark.range(11, 12), marker(3, 1))
    cases = (
        (marker(2, 3), "it had 2 rows then and has 3 now"),
        (marker(2, 2, digest=7), "its 2 rows are different now"),
        (marker(2, 2, "others"), "it ended at other source offsets then"),
        (marker(2, 0, digest=0), "it had 2 rows then and has 0 now"),
        (marker(1, 4), "has the query's batches up to 2 already"),
    )
    third = opened(sink, spark, position(2, {**entry, "batch_id": 1}, is_planned=True), replace(OUTPUT, epoch=4))
    for each, why in cases:
        with refused(why, kind=cj.QueryFailedError):
            third.compare(each)
    with (
        refused("expected 3 rows, got 2", kind=cj.QueryFailedError)
        if sink.tasks == 1
        else refused("expected 3 rows, and 2 were written", kind=cj.QueryFailedError)
    ):
        third.write(spark.range(2), marker(3, 3))
    if sink.tasks == 1:
        assert ids(broker, name) == [*range(11)]


@pytest.mark.slow
def test_a_topic_must_be_as_the_checkpoint_left_it(spark: SparkSession, broker: Broker) -> None:
    sink = topic_of(broker, "sink-position", key="id")
    writer = opened(sink, spark, position(0))
    written = {**writer.write(spark.range(2), marker(0, 2)), "batch_id": 0}
    writer.write(spark.range(2, 3), marker(1, 1))
    with refused(
        "up to 1, and the checkpoint continues with batch 0: the checkpoint is older", kind=cj.CheckpointError
    ):
        opened(sink, spark, position(0))
    with refused(
        "by the checkpoint, batch 2 was written, and it has the query's batches up to 1", kind=cj.CheckpointError
    ):
        opened(sink, spark, position(3, {**written, "batch_id": 2}))
    with refused("it is another topic of that name", "restore_from=", kind=cj.CheckpointError):
        opened(sink, spark, position(2, {**written, "topic_id": "77aa"}))
    with refused("it is another Kafka cluster", kind=cj.CheckpointError):
        opened(sink, spark, position(2, {**written, "cluster": "77aa"}))
    # The marker has expired: what was begun may be there, what was not begun is not.
    delete_marker(broker, "cojoin-0b8e-output")
    with refused("marker", "offsets.retention.minutes", "batch 2 was begun", kind=cj.CheckpointError):
        opened(sink, spark, position(2, {**written, "batch_id": 1}, is_planned=True))
    with refused("the checkpoint has batch 1, and it can't be known", "='expired'", kind=cj.CheckpointError):
        opened(sink, spark, position(2, {**written, "batch_id": 1}))
    known_expired = replace(sink, missing_marker="expired")
    with refused("batch 2 was begun", kind=cj.CheckpointError):
        opened(known_expired, spark, position(2, {**written, "batch_id": 1}, is_planned=True))
    later = opened(known_expired, spark, position(2, {**written, "batch_id": 1}), replace(OUTPUT, epoch=2))
    # It expires again, while the run lives.
    delete_marker(broker, "cojoin-0b8e-output")
    later.write(spark.range(3, 4), marker(2, 1))
    assert ids(broker, "sink-position") == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("former", "later"), drawn([(1, 3), (3, 2), (3, 1), (2, 3)], 2))
def test_another_number_of_tasks_is_known_before_a_batch_counts(
    spark: SparkSession, broker: Broker, former: int, later: int
) -> None:
    """A run with other tasks is killed after its first batch, which does not count."""
    name = f"sink-tasks-{former}-{later}"
    before = topic_of(broker, name, key="id", **in_tasks(former))
    after = cj.sinks.kafka(broker.bootstrap_servers, name, key="id", **in_tasks(later))
    written = {**opened(before, spark, position(0)).write(spark.range(5), marker(0, 5)), "batch_id": 0}
    killed = opened(after, spark, position(1, written), replace(OUTPUT, epoch=2))
    killed.write(spark.range(5, 9), marker(1, 4))
    begun = position(1, written, is_planned=True)
    with refused(f"last written in {later} tasks, and would now be written in {former}", kind=cj.CheckpointError):
        opened(before, spark, begun, replace(OUTPUT, epoch=3))
    again = opened(after, spark, begun, replace(OUTPUT, epoch=4))
    again.compare(marker(1, 4))
    again.write(spark.range(5, 9), marker(1, 4))
    again.write(spark.range(9, 11), marker(2, 2))
    assert ids(broker, name) == [*range(11)]
    # A checkpoint that is put back, or restored, from before the other tasks does not go on either.
    for number, sink in enumerate((before, after), start=5):
        with refused("up to 2, and the checkpoint continues with batch 1", kind=cj.CheckpointError):
            opened(sink, spark, position(1, written), replace(OUTPUT, epoch=number))
    with refused("its batches up to 2, and the snapshot has those up to 0", kind=cj.CheckpointError):
        before.continues_output_of(written, OUTPUT, successor="/lake/new", ends=False)
    # And back to the former tasks.
    entry = {**written, "tasks": later, "batch_id": 2}
    back = opened(before, spark, position(3, entry), replace(OUTPUT, epoch=7))
    back.write(spark.range(11, 12), marker(3, 1))
    assert ids(broker, name) == [*range(12)]


@pytest.mark.slow
def test_a_query_may_write_at_least_once_for_a_while(spark: SparkSession, broker: Broker) -> None:
    sink = topic_of(broker, "sink-for-a-while", key="id")
    plain = cj.sinks.kafka(broker.bootstrap_servers, "sink-for-a-while", key="id", delivery="at_least_once")
    opened(sink, spark, position(0)).write(spark.range(2), marker(0, 2))
    written = {**plain.open(spark, OUTPUT).write(spark.range(2, 4), marker(1, 2)), "batch_id": 1}
    with refused("batch 2 was begun with delivery='at_least_once'", kind=cj.CheckpointError):
        opened(sink, spark, position(2, written, is_planned=True), replace(OUTPUT, epoch=2))
    again = opened(sink, spark, position(2, written), replace(OUTPUT, epoch=3))
    again.write(spark.range(4, 5), marker(2, 1))
    opened(sink, spark, position(2, written, is_planned=True), replace(OUTPUT, epoch=4)).compare(marker(2, 1))
    assert ids(broker, "sink-for-a-while") == [*range(5)]


@pytest.mark.slow
def test_who_takes_over_ends_what_a_former_run_writes(spark: SparkSession, broker: Broker) -> None:
    """The former one has sent its rows, and stands still before it commits; then it wakes up."""
    sink = topic_of(broker, "sink-fenced", key="id")
    opened(sink, spark, position(0))
    former = TopicTransactions(sink.target(OUTPUT))
    former.take_over()
    former.begin()
    records = pa.RecordBatch.from_pydict({"key": [b"1"], "value": [b'{"id":77}']})
    former.send(records)
    ours = opened(sink, spark, position(0), replace(OUTPUT, epoch=2))
    with refused("fenced off: another process has begun to write this output", kind=cj.QueryFailedError):
        former.mark(TopicMarker(0, 1, 1, marker(0, 1)))
        former.commit()
    ours.write(spark.range(1), marker(0, 1))
    assert ids(broker, "sink-fenced") == [0]
    # It begins anew: it ends what we write, and finds our epoch. We write again.
    with refused("fenced off: another run of this query has taken over at epoch 2", kind=cj.QueryFailedError):
        former_writer = sink.open(spark, OUTPUT)
        former_writer.write(spark.range(1), marker(1, 1))
    ours.write(spark.range(1, 2), marker(1, 1))
    assert ids(broker, "sink-fenced") == [0, 1]


@pytest.mark.parametrize("name", ["marker sent", "committed, nothing told"])
def test_a_worker_that_is_killed_leaves_all_or_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, name: str
) -> None:
    (point,) = [each for each in TOPIC_POINTS if each.name == name]
    topic = f"sink-{name.replace(' ', '-').replace(',', '')}"
    sink = topic_of(broker, topic, key="id")
    writer = opened(sink, spark, position(0))
    deed = TopicDeed(str(tmp_path / "reached"), "worker", 0, 0)
    with armed_in_worker(point, "output", 0, deed), pytest.raises((PySparkException, Py4JError)):
        writer.write(spark.range(3), marker(0, 3))
    assert (tmp_path / "reached").exists()
    again = opened(sink, spark, position(0, is_planned=True), replace(OUTPUT, epoch=2))
    again.write(spark.range(3), marker(0, 3))
    again.write(spark.range(3, 4), marker(1, 1))
    assert ids(broker, topic) == [0, 1, 2, 3]


def test_what_can_be_known_is_refused_before_the_start(spark: SparkSession, broker: Broker) -> None:
    servers = broker.bootstrap_servers
    broker.create_topic("sink-refused", 1)
    with refused("have no topic 'sink-refusd'", "did you mean 'sink-refused'"):
        cj.sinks.kafka(servers, "sink-refusd").check_place(spark, "output")
    slow = cj.sinks.kafka(servers, "sink-refused", options={"transaction.timeout.ms": 3_600_000})
    with refused("option transaction.timeout.ms", "transaction.max.timeout.ms"):
        opened(slow, spark, position(0))
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"key": "idd"}, "the output has no column 'idd'; did you mean 'id'?"),
        ({"key": "tags"}, "which is array<string>; key=['tags'] writes it as JSON"),
        ({"value": "id"}, "expected a column of texts or bytes, got 'id', which is bigint"),
        ({"value": ["nope"]}, "the output has no column 'nope'"),
        ({"headers": {"h": "tags"}}, "header 'h': expected a column of texts, bytes"),
        ({"timestamp": "id"}, "expected a column of timestamps, got 'id'"),
    )
    for options, why in cases:
        with refused("output: sinks.kafka 'sink-refused': ", why):
            cj.sinks.kafka(servers, "sink-refused", **options).check_columns(schema, "output")


@pytest.mark.slow
def test_a_record_that_is_too_large_is_told_with_its_key(spark: SparkSession, broker: Broker) -> None:
    sink = topic_of(broker, "sink-large", key="id")
    writer = opened(sink, spark, position(0))
    frame = spark.range(2).selectExpr("id", "repeat('x', 900000 + int(id) * 400000) AS text")
    with refused(
        "a record is larger than topic 'sink-large' takes", "the key '1'", "max.message.bytes", kind=cj.QueryFailedError
    ):
        writer.write(frame, marker(0, 2))
    assert ids(broker, "sink-large") == []
    writer.write(frame.where("id = 0"), marker(0, 1))
    assert ids(broker, "sink-large") == [0]
