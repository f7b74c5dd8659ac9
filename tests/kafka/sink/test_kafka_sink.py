"""The sink's arguments, and a topic as an output: exactly once over kills, restores and replays."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from benchmarks.kills.topic_killing import PARTITIONS, TopicKilling, topic_faults
from cojoin.checkpoints.manifest import Manifests
from cojoin.kafka.formats.registry import RegisteredSchema
from cojoin.kafka.sink.serializers import _fields as fields_of
from tests.kafka.sink.committed import read_committed
from tests.seeds import SEED
from tests.spark.data import Folders, asof, connect, cut, generate
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, PAUSE, Saved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": "no topic"}, "topic: expected a topic's name of letters, digits, '.', '_' and '-', got 'no topic'"),
        ({"delivery": "exactly_one"}, "delivery: expected .*, got 'exactly_one'; did you mean 'exactly_once'?"),
        ({"tasks": 3}, "tasks: expected none with delivery='exactly_once'"),
        ({"delivery": "exactly_once_parallel", "tasks": 1}, "tasks: expected a whole number of 2 or more, got 1"),
        ({"missing_marker": "lost"}, "missing_marker: expected 'refuse' or 'expired', got 'lost'"),
        ({"options": {"acks": "1"}}, "option 'acks': expected 'all', got '1': fewer acknowledgements lose rows"),
        ({"options": {"transactional.id": "x"}}, "option 'transactional.id' can't be given"),
        ({"key": []}, "key: expected a column's name, or a list of names"),
        ({"key": ["id", "ID"]}, "key: expected each column once"),
        ({"headers": ["id"]}, "headers: expected a dict of names with their columns"),
        ({"timestamp": 5}, "timestamp: expected a column's name, got 5"),
    ],
)
def test_an_argument_that_does_not_fit_is_told(given: dict[str, Any], told: str) -> None:
    arguments = {"bootstrap_servers": "localhost:9092", "topic": "enriched"} | given
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.sinks.kafka(**arguments)


def test_a_json_schema_that_refers_to_others_is_refused_before_rows_are_written() -> None:
    """Rows are held to it by a serializer that is given one file."""
    found = RegisteredSchema("JSON", '{"oneOf": [{"$ref": "trade.json"}]}', (("trade.json", "{}"),))
    with pytest.raises(cj.SchemaError, match=r"^output refers to other schemas, trade\.json, .*; name another schema"):
        fields_of(found, None, "output")


def read(broker: Broker, topic: str) -> dict[int, list[tuple[bytes, dict[str, Any]]]]:
    found: dict[int, list[tuple[bytes, dict[str, Any]]]] = {each: [] for each in range(PARTITIONS)}
    for each in read_committed(broker.bootstrap_servers, topic):
        found[each.partition].append((each.key or b"", each.json))
    return found


class _FailingError(RuntimeError):
    """A batch fails after its output was written."""


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_a_query_writes_each_row_once_from_start_to_start(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows are rejected; a batch fails between its commit and its manifest; and a savepoint goes on elsewhere."""
    streams = generate(trades=120, customers=30, seed=SEED)
    pieces = list(zip(cut(streams.trades, 3), cut(streams.customers, 3), strict=True))
    folders, servers = Folders(tmp_path / "data"), broker.bootstrap_servers
    for name in ("sink-query", "sink-query-rejected"):
        broker.create_topic(name, PARTITIONS)
    options = {
        "output": cj.sinks.kafka(servers, "sink-query", key="customer_id", timestamp="event_time"),
        "rejected": cj.sinks.kafka(servers, "sink-query-rejected", key="reason"),
    }

    def add(number: int) -> None:
        trades, customers = pieces[number]
        keyless = trades.iloc[:1].assign(trade_id=-1 - number).astype({"customer_id": "Int64"})
        keyless["customer_id"] = None
        folders.add_trades(trades)
        folders.add_trades(keyless)
        folders.add_customers(customers)

    saved = Saved(spark, tmp_path / "query", folders, 2)
    add(0)
    saved.run(**options)
    add(1)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise _FailingError

        patched.setattr(Manifests, "write", fail)
        with pytest.raises(cj.QueryFailedError, match="_FailingError"):
            saved.run(**options)
    # It is run again as it was planned, and what follows it with the other strategy.
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("20 seconds")
    other = asof(connect(*folders.sources(), key_groups=2, watermark=strategy))
    saved.run(other, **options)
    saved.run(**options)
    manifest = saved.manifests.last()
    assert manifest is not None
    entry = manifest.outputs["output"]
    assert (entry["kafka"], entry["tasks"], entry["batch_id"] >= 0) == ("sink-query", 1, True)
    with refused("output went to kafka sink-query and would now go to Kafka topic sink-query-rejected"):
        swapped = [cj.sinks.kafka(servers, name) for name in ("sink-query-rejected", "sink-query")]
        saved.run(output=swapped[0], rejected=swapped[1])
    # A restored query goes on in the same topics, for nothing was written after the snapshot.
    new = Saved(spark, tmp_path / "new", folders, 3)
    add(2)
    new.run(trigger=DRAIN, restore_from=cj.Snapshot(saved.checkpoint), **options)
    assert topic_faults(streams.enriched(), read(broker, "sink-query")) == []
    rejected = [each for rows in read(broker, "sink-query-rejected").values() for _, each in rows]
    dead = [json.loads(each["row"])["trade_id"] for each in rejected]
    assert sorted(dead) == [-3, -2, -1]
    new.assert_conserved()
    again = Saved(spark, tmp_path / "again", folders, 3)
    with refused("a topic can't be cut back", "name a new topic", kind=cj.CheckpointError):
        again.run(restore_from=cj.Snapshot(saved.checkpoint), **options)


@pytest.mark.spark
@pytest.mark.kafka
def test_places_of_topics_are_refused(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("sink-place", PARTITIONS)
    servers = broker.bootstrap_servers
    sink = cj.sinks.kafka(servers, "sink-place")
    source = cj.kafka.source(servers, topic_pattern="sink-pl.*", schema="customer_id long, event_time timestamp")
    data = Folders(tmp_path / "data")
    inputs = cj.connect(
        cj.Input(source, key="customer_id", event_time="event_time", name="trades"),
        cj.Input(data.sources()[1], key="customer_id", event_time="event_time", name="customers"),
    )
    with refused("output: Kafka topic sink-place", "is read by the query"):
        inputs.asof_join().start(output=sink, checkpoint=f"{tmp_path}/one", trigger=PAUSE)
    two = Saved(spark, tmp_path / "two", data)
    with refused("rejected: Kafka topic sink-place", "is output"):
        two.run(output=sink, rejected=cj.sinks.kafka(servers, "sink-place", key="reason"))


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow  # Each kill has a driver of its own.
@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.more)])
def test_kills_in_all_phases_lose_and_double_nothing(
    spark: SparkSession, broker: Broker, shuffle_partitions: Callable[[int], None], tmp_path: Path, count: int
) -> None:
    shuffle_partitions(2)
    killing = TopicKilling(spark, tmp_path, SEED, broker)
    choice = random.Random(SEED)
    chosen = choice.sample(killing.choose(40), count)
    verdicts = [killing.kill(number, *each) for number, each in enumerate(chosen)]
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)
