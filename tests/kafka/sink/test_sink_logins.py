"""A sink writes by each way to log in, and a login that is refused is told before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from pyspark.serializers import CloudPickleSerializer

import cojoin as cj
from cojoin.spark.sinks.sink import OutputId
from tests.kafka.logins import LOGINS, allow, login, secrets, user_of
from tests.kafka.replayed import join, make, row, run, version, write
from tests.kafka.sink.batches import write_batch
from tests.kafka.sink.committed import read_committed
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka


def grant_writing(broker: Broker, user: str, topic: str, outputs: str = "cojoin-") -> None:
    """Let a user write to a topic exactly once, by outputs whose names begin so."""
    allow(broker, user, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    allow(broker, user, ResourceType.TRANSACTIONAL_ID, outputs, AclOperation.WRITE, prefixed=True)
    allow(broker, user, ResourceType.GROUP, outputs, AclOperation.READ, prefixed=True)


def sink_by(broker: Broker, how: str, topic: str, **options: str) -> cj.sinks.KafkaSink:
    given = login(broker, how)
    return cj.sinks.kafka(topic=topic, **{**given, "options": {**given["options"], **options}})


@pytest.mark.parametrize("how", LOGINS)
def test_a_batch_is_written_by_each_login(broker: Broker, caplog: pytest.LogCaptureFixture, how: str) -> None:
    caplog.set_level(logging.DEBUG)
    topic = f"sink-login-{how.lower()}"
    make(broker, topic)
    # Other tests begin with users that have no rights.
    grant_writing(broker, user_of(how), topic, f"cojoin-{topic}")
    sink = sink_by(broker, how, topic, debug="all")
    # As the task of a worker gets it.
    to = _sent(sink).target(OutputId(topic, "output", 1))
    write_batch(to)
    assert [each.key for each in read_committed(broker.bootstrap_servers, topic)] == [b"1"]
    assert "rdkafka" in caplog.text
    for secret in secrets(broker):
        assert secret not in caplog.text + repr(sink) + repr(to)


def _sent(sink: cj.sinks.KafkaSink) -> cj.sinks.KafkaSink:
    spark = CloudPickleSerializer()
    return spark.loads(spark.dumps(sink))  # type: ignore[no-any-return]


@pytest.mark.spark
def test_a_login_that_is_refused_is_told_before_the_start(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topics = ("sink-login-l", "sink-login-r")
    servers = make(broker, *topics, "sink-login-out")
    sink = sink_by(broker, "SCRAM-SHA-512", "sink-login-out", **{"sasl.password": "opensesame-wrong"})
    with refused("output, sink kafka sink-login-out: ", "refused the login", "invalid credentials"):
        run(join(servers, *topics), tmp_path, output=sink)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.spark
@pytest.mark.slow  # Two queries more; each login's transaction is written above.
@pytest.mark.parametrize("how", ["token", "mutual"])
def test_the_join_runs_into_a_topic(spark: SparkSession, broker: Broker, tmp_path: Path, how: str) -> None:
    topics = (f"sink-join-{how}-l", f"sink-join-{how}-r", f"sink-join-{how}-out")
    servers = make(broker, *topics)
    write(servers, topics[0], [row(each, each) for each in range(5)])
    write(servers, topics[1], [version(7, 0), version(8, 2.5)])
    grant_writing(broker, user_of(how), topics[2])
    run(join(servers, *topics[:2]), tmp_path, drain=True, output=sink_by(broker, how, topics[2]))
    found = sorted((each.json["id"], each.json["v"]) for each in read_committed(servers, topics[2]))
    assert found == [(each, 8 if each > 2 else 7) for each in range(5)]
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        content = file.read_bytes()
        assert not [secret for secret in secrets(broker) if secret.encode() in content], file
