"""A topic that was deleted and made anew, and another cluster, are told from those that were read."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.reader import AlignedReader
from tests.kafka.replayed import LEFT, admin, join, make, row, run, start, version, write
from tests.servers.broker import CLUSTER_ID
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

WHAT = "input 'left'"
NOTHING: Any = None
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
        WHAT, "topic 'ids-l' was deleted and made anew", known["topics"]["ids-l"], "new query", kind=cj.CheckpointError
    ):
        source.recognised(NOTHING, WHAT, known)


def test_a_topic_that_is_away_keeps_its_id(broker: Broker) -> None:
    servers = make(broker, "ids-away-1", "ids-away-2")
    source = cj.kafka.source(servers, schema=LEFT, topic_pattern="ids-away-.*")
    known = source.recognised(NOTHING, WHAT, None)
    assert sorted(known["topics"]) == ["ids-away-1", "ids-away-2"]
    delete(servers, "ids-away-1")
    assert source.recognised(NOTHING, WHAT, known) == known
    make(broker, "ids-away-1")
    with refused("topic 'ids-away-1' was deleted and made anew", kind=cj.CheckpointError):
        source.recognised(NOTHING, WHAT, known)


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
    with refused("source kafka ids-running", "was deleted and made anew", kind=cj.QueryFailedError):
        reader.partitions(ends, later)
    reader.stop()


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
    with refused("input 'left'", "'ids-own-l' was deleted and made anew", kind=cj.CheckpointError):
        start(joined, tmp_path)
    origin = cj.Checkpoint(str(tmp_path / "checkpoint"))
    with refused("input 'left'", "'ids-own-l' was deleted and made anew", kind=cj.CheckpointError):
        joined.start(
            output=cj.sinks.delta(str(tmp_path / "other")),
            checkpoint=str(tmp_path / "restored"),
            trigger=cj.Trigger.available_now(),
            restore_from=origin,
            allow_data_loss=True,
        )
