"""The topics that are read, those that may be added between two starts, and topics and clusters that are other ones."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewTopic

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.offsets_for_times import RecordLookup
from cojoin.kafka.reader import AlignedReader
from cojoin.kafka.topics import Topics
from tests.kafka.hard_topics import open_transaction
from tests.kafka.logins import read_to_the_end
from tests.kafka.replayed import (
    LEFT,
    RIGHT,
    START,
    Written,
    add_partitions,
    admin,
    join,
    make,
    pairs,
    rejected,
    row,
    run,
    start,
    version,
    write,
)
from tests.servers.broker import CLUSTER_ID
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

CODECS = ("gzip", "snappy", "lz4", "zstd")
MEGABYTES = 3 << 20
WHAT = "input 'left'"
NOTHING: Any = None
"""In the place of a session, which Kafka's identity does not need."""


@pytest.mark.parametrize(
    "chosen",
    [
        Topics.of("trades", None, None),
        Topics.of(["b.c-d_e", "a"], None, None),
        Topics.of(None, "tra(des|ins)-[0-9]{1,3}/?.*", None),
        Topics.of(["a"], "b, c[0]", {"d": [1, 0], "e": [7]}),
    ],
)
def test_a_checkpoint_s_text_is_read_as_the_topics_it_was_made_of(chosen: Topics) -> None:
    assert Topics.parsed(str(chosen)) == chosen


@pytest.mark.parametrize(
    ("chosen", "former", "read", "left_out"),
    [
        (("b, a"), "a, b", ["a", "b"], []),
        ("a, b", "a", ["a"], []),
        ("/[ab]/", "a, b", [], []),
        ("/[ab]/", "/a/", ["a"], []),
        ("a", "a, b", ["a", "b"], ["topic 'b'"]),
        ("/a.*/", "/b.*/, a", ["b1", "b2"], ["topic 'b1'", "topic 'b2'"]),
        ("/a.*/", "/b.*/", [], ["topics of the pattern 'b.*'"]),
        ("a[0, 1]", "a[0]", ["a"], []),
        ("a", "a[0]", ["a"], []),
        ("a[1, 2]", "a[0, 1]", ["a"], ["partition 0 of topic 'a'"]),
        ("a[0, 1]", "a", ["a"], ["partitions of topic 'a'"]),
        ("a, b[0]", "a", ["a"], []),
    ],
)
def test_a_choice_grows_and_does_not_shrink(chosen: str, former: str, read: list[str], left_out: list[str]) -> None:
    assert Topics.parsed(chosen).left_out(Topics.parsed(former), read) == left_out


@pytest.mark.kafka
def test_a_checkpoint_of_any_release_knows_what_is_left_out(broker: Broker) -> None:
    servers = make(broker, "topics-known-1", "topics-known-2")
    both, one = (
        cj.kafka.source(servers, ["topics-known-2", "topics-known-1"][:count], schema=LEFT) for count in (2, 1)
    )
    known = both.recognised(NOTHING, WHAT, None)
    released = {"format": "cojoin.kafka", "location": "topics-known-1, topics-known-2"}  # as 0.5.0 has it
    for each in (known, released):
        with refused(WHAT, "topic 'topics-known-1'", "name it again", kind=cj.CheckpointError):
            one.recognised(NOTHING, WHAT, each)
    assert both.recognised(NOTHING, WHAT, one.recognised(NOTHING, WHAT, None)) == known
    pattern = cj.kafka.source(servers, topic_pattern="topics-known-[0-9]", schema=LEFT)
    assert pattern.recognised(NOTHING, WHAT, known)["topics"] == known["topics"]


@pytest.mark.kafka
def test_an_end_past_markers_is_reached_and_an_open_transaction_is_told(broker: Broker) -> None:
    servers = make(broker, "topics-open", partitions=2)
    end_with_an_aborted_transaction(servers, "topics-open")
    source = cj.kafka.source(servers, "topics-open", schema=LEFT)
    assert source.look_ahead()[1] == []
    producer = open_transaction(servers, "topics-open", [(b"{}", START), (b"{}", START)], "topics-open")
    try:
        (told,) = source.look_ahead()[1]
        assert told.startswith(
            "source kafka topics-open: topic topics-open partition 0: a transaction is open from off"
        )
        assert "leaves 2 offsets" in told
        bounded = cj.kafka.source(servers, "topics-open", schema=LEFT, to={"topics-open": {0: 0}})
        assert bounded.look_ahead()[1] == []
        open_too = {"isolation.level": "read_uncommitted"}
        assert cj.kafka.source(servers, "topics-open", schema=LEFT, options=open_too).look_ahead()[1] == []
    finally:
        producer.abort_transaction(20)


@pytest.mark.kafka
def test_a_record_of_megabytes_needs_no_settings(broker: Broker) -> None:
    servers, part = large(broker, "topics-large"), ("topics-large", 0)
    write(servers, part[0], [Written(b"x" * MEGABYTES, time=START + each) for each in range(2)], **LARGE)
    cluster = Cluster(ClusterOptions(servers), WHAT)
    peeking = RecordLookup(cluster, WHAT)
    found = peeking.next_records({part: 1}, cluster.latest([part]), None)[part]
    assert found is not None
    assert found.timestamp == START + 1
    peeking.close()
    cluster.close()


LARGE = {"message.max.bytes": str(2 * MEGABYTES)}


def large(broker: Broker, topic: str) -> str:
    """Make a topic that takes records of megabytes."""
    client = admin(broker.bootstrap_servers)
    (made,) = client.create_topics(
        [NewTopic(topic, 1, 1, config={"max.message.bytes": str(2 * MEGABYTES), "compression.type": "producer"})]
    ).values()
    made.result(20)
    return broker.bootstrap_servers


def end_with_an_aborted_transaction(servers: str, topic: str) -> None:
    """Write records that are aborted to a partition 0, and return when the broker has ended it."""
    producer = open_transaction(servers, topic, [(b'{"id": 666}', START)] * 3, f"aborted-{topic}")
    producer.abort_transaction(20)
    await_marker(servers, topic)


def await_marker(servers: str, topic: str) -> None:
    """Wait until the broker has ended the transactions of a partition 0, which it does some time after the producer."""
    cluster, part, deadline = Cluster(ClusterOptions(servers), WHAT), (topic, 0), time.monotonic() + 60
    while cluster.latest([part]) != cluster.written([part]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fill_many(broker: Broker, name: str) -> Producer:
    """Fill three topics in all codecs, with megabytes and an aborted end; return who has a transaction open."""
    servers = large(broker, f"{name}-l-1")
    make(broker, f"{name}-l-2", f"{name}-r", partitions=2)
    big = row(4, 4)
    big.value["more"] = "x" * MEGABYTES
    for number, codec in enumerate(CODECS):
        options = {"compression.type": codec}
        write(servers, f"{name}-l-1", [row(number, number)], **options)
        write(servers, f"{name}-l-2", [row(10 + number, 10 + number, number % 2)], **options)
        write(servers, f"{name}-r", [version(number, 5 * number - 0.5, number % 2)], **options)
    write(servers, f"{name}-l-1", [big], **{"compression.type": "lz4", **LARGE})
    end_with_an_aborted_transaction(servers, f"{name}-l-1")
    late = b'{"id": 14, "k": 1, "at": "2026-01-05T00:14:00Z"}'
    return open_transaction(servers, f"{name}-l-2", [(late, START)], name)


@pytest.mark.kafka
@pytest.mark.slow
def test_topics_are_added_to_what_was_read_and_each_record_comes_once(broker: Broker) -> None:
    held, servers, names = fill_many(broker, "added"), broker.bootstrap_servers, ["added-l-1", "added-l-2"]
    read, ended = read_to_the_end(cj.kafka.source(servers, names, schema=LEFT))
    one, two = [("added-l-1", 0, each) for each in range(5)], [("added-l-2", each % 2, each // 2) for each in range(4)]
    assert read == sorted(one + two)
    # The end is past the aborted records and their marker, and before the open transaction.
    assert ended["positions"] == {"added-l-1": {"0": 9}, "added-l-2": {"0": 2, "1": 2}}
    held.commit_transaction(20)
    await_marker(servers, "added-l-2")
    make(broker, "added-more-1", "added-more-2")
    write(servers, "added-more-1", [row(20, 20), row(3, 3)])
    add_partitions(servers, "added-l-1", 2)
    write(servers, "added-l-1", [row(21, 21, 1)])
    more = cj.kafka.source(servers, names, topic_pattern="added-more-.*", schema=LEFT)
    read, ended = read_to_the_end(more, ended)
    new = [("added-l-1", 1, 0), ("added-l-2", 0, 2), ("added-more-1", 0, 0), ("added-more-1", 0, 1)]
    assert read == new
    assert read_to_the_end(more, ended)[0] == []


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow  # the same topics are read without Spark above
def test_topics_of_all_codecs_are_joined_and_added_to_a_list(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    held, servers = fill_many(broker, "many"), broker.bootstrap_servers
    with pytest.warns(UserWarning, match="topic many-l-2 partition 0: a transaction is open from offset 2 on"):
        query = run(joined(servers, topics=["many-l-1", "many-l-2"]), tmp_path)
    assert query.progress is not None
    assert [each.rows_in for each in query.progress.inputs] == [9, 4]
    assert len(query.progress.inputs[0].partitions) == 3
    held.commit_transaction(20)
    await_marker(servers, "many-l-2")

    with refused("input 'left'", "topic 'many-l-1'", "name it again", kind=cj.CheckpointError):
        run(joined(servers, topics=["many-l-2"]), tmp_path)
    make(broker, "many-more-1")
    write(servers, "many-more-1", [row(20, 20)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run(joined(servers, topics=["many-l-1", "many-l-2"], topic_pattern="many-more-.*"), tmp_path, drain=True)
    assert done.progress is not None
    assert done.progress.inputs[0].rows_in == 11
    expected = [(each, sum(each >= 5 * one - 0.5 for one in range(4)) - 1) for each in (*range(5), *range(10, 15), 20)]
    assert pairs(spark, tmp_path) == expected
    assert not (tmp_path / "checkpoint" / "rejected").exists() or rejected(spark, tmp_path) == []


def joined(servers: str, **left: Any) -> cj.Joined:
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    one, other = (
        cj.Input(cj.kafka.source(servers, **options), key="k", event_time="at", name=name, watermark=strategy)
        for name, options in (
            ("left", {"schema": LEFT, **left}),
            ("right", {"schema": RIGHT, "topics": "many-r"}),
        )
    )
    return cj.connect(one, other, key_groups=2).asof_join(suffixes=("", "_right"))


"""In the place of a session, which Kafka's identity does not need."""


def delete(servers: str, *topics: str) -> None:
    """Delete topics, and return when the broker knows them no longer."""
    client = admin(servers)
    for done in client.delete_topics(list(topics)).values():
        done.result(60)
    while set(topics) & client.list_topics(timeout=60).topics.keys():
        time.sleep(0.05)


def remake(broker: Broker, topic: str, records: int) -> None:
    """Delete a topic, and make it again with records."""
    delete(broker.bootstrap_servers, topic)
    make(broker, topic)
    write(broker.bootstrap_servers, topic, [row(each, each) for each in range(records)])


@pytest.mark.kafka
def test_a_topic_made_anew_and_another_cluster_are_refused(broker: Broker) -> None:
    servers = make(broker, "ids-l")
    source = cj.kafka.source(servers, "ids-l", schema=LEFT)
    known = source.recognised(NOTHING, WHAT, None)
    assert known["cluster"] == CLUSTER_ID
    assert source.recognised(NOTHING, WHAT, known) == known
    # One of release 0.5.0 knows neither: they are learnt.
    assert source.recognised(NOTHING, WHAT, {"format": "cojoin.kafka", "location": "ids-l"}) == known
    with refused(WHAT, "in the Kafka cluster another", f"cluster {CLUSTER_ID}", servers, kind=cj.CheckpointError):
        source.recognised(NOTHING, WHAT, known | {"cluster": "another"})
    remake(broker, "ids-l", 3)
    with refused(
        WHAT,
        "topic 'ids-l' was deleted and created again",
        known["topics"]["ids-l"],
        "new query",
        kind=cj.CheckpointError,
    ):
        source.recognised(NOTHING, WHAT, known)


@pytest.mark.kafka
def test_a_topic_that_is_away_keeps_its_id(broker: Broker) -> None:
    servers = make(broker, "ids-away-1", "ids-away-2")
    source = cj.kafka.source(servers, schema=LEFT, topic_pattern="ids-away-.*")
    known = source.recognised(NOTHING, WHAT, None)
    assert sorted(known["topics"]) == ["ids-away-1", "ids-away-2"]
    delete(servers, "ids-away-1")
    assert source.recognised(NOTHING, WHAT, known) == known
    make(broker, "ids-away-1")
    with refused("topic 'ids-away-1' was deleted and created again", kind=cj.CheckpointError):
        source.recognised(NOTHING, WHAT, known)


@pytest.mark.kafka
def test_a_running_query_ends_before_it_reads_what_was_made_anew(broker: Broker) -> None:
    servers = make(broker, "ids-running")
    write(servers, "ids-running", [row(each, each) for each in range(2)])
    source = cj.kafka.source(servers, "ids-running", schema=LEFT)
    ids = source.recognised(NOTHING, WHAT, None)["topics"]
    reader = AlignedReader(replace(source.reading(1), topic_ids=ids))
    ends = {"time": 9, "mark": None, "positions": {"ids-running": {"0": 2}}, "unread": {}}
    assert len(reader.partitions(reader.initialOffset(), ends)) == 1
    remake(broker, "ids-running", 9)
    later = ends | {"positions": {"ids-running": {"0": 9}}}
    with refused("source kafka ids-running", "was deleted and created again", kind=cj.QueryFailedError):
        reader.partitions(ends, later)
    reader.stop()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow  # four starts of a query; what each of them asks is seen above
def test_a_query_goes_on_with_its_own_topics_alone(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    del spark
    servers, file = make(broker, "ids-own-l", "ids-own-r"), tmp_path / "checkpoint" / "query.json"
    write(servers, "ids-own-l", [row(each, each) for each in range(4)])
    write(servers, "ids-own-r", [version(7, 0)])
    joined = join(servers, "ids-own-l", "ids-own-r", data_loss="skip")
    run(joined, tmp_path, checkpoint_interval=1)
    kept = json.loads(file.read_text())["content"]
    assert [each["cluster"] for each in kept["sources"]] == [CLUSTER_ID] * 2
    # As release 0.5.0 left it: the next start learns the ids, and goes on.
    kept["sources"] = [{name: each[name] for name in ("format", "location")} for each in kept["sources"]]
    file.write_text(json.dumps({"format": 4, **kept}, indent=2))
    write(servers, "ids-own-l", [row(4, 4)])
    run(joined, tmp_path, checkpoint_interval=1)
    assert "ids-own-l" in json.loads(file.read_text())["content"]["sources"][0]["topics"]

    # More records than were read: offsets alone would not tell.
    remake(broker, "ids-own-l", 9)
    with refused("input 'left'", "'ids-own-l' was deleted and created again", kind=cj.CheckpointError):
        start(joined, tmp_path)
    origin = cj.Snapshot(str(tmp_path / "checkpoint"))
    with refused("input 'left'", "'ids-own-l' was deleted and created again", kind=cj.CheckpointError):
        joined.start(
            output=cj.sinks.delta(str(tmp_path / "other")),
            checkpoint=str(tmp_path / "restored"),
            trigger=cj.Trigger.available_now(),
            restore_from=origin,
            allow_data_loss=True,
        )
