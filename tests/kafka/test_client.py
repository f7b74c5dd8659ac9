"""A cluster: its options, its answers, how it waits while no broker answers, and what it refuses at once."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions, DebugLog
from tests.servers import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.kafka.client import Partition
    from tests.servers.broker import Broker


def test_options_are_pickled_and_show_no_secret() -> None:
    options = ClusterOptions("one:9092", {"sasl.password": "open", "ssl.key.password": "opensesame", "client.id": "us"})
    assert repr(options) == "ClusterOptions(bootstrap_servers='one:9092')"
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.mask("opensesame, open, us") == "***, ***, us"
    assert ClusterOptions("one:9092", {"sasl.password": ""}).mask("text") == "text"


def test_what_librdkafka_logs_is_heard_without_secrets() -> None:
    heard: list[str] = []
    log = DebugLog(ClusterOptions("one:9092", {"sasl.password": "opensesame"}).mask, heard.append)
    log.log(20, "%s of %s", "the password", "opensesame")
    assert heard == ["the password of ***"]


START = 1_767_571_200_000  # 2026-01-05
WHAT = "input 'trades'"


def fill(broker: Broker, topic: str, timestamps: dict[int, list[int]], **settings: str) -> None:
    """Make a topic of 4 partitions, whose records have these timestamps."""
    broker.create_topic(topic, 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **settings})
    for partition, moments in timestamps.items():
        for moment in moments:
            producer.produce(topic, b"{}", partition=partition, timestamp=moment)
    assert producer.flush(20) == 0


def parts(topic: str) -> list[Partition]:
    return [(topic, number) for number in range(4)]


def cluster(broker: Broker, patience_ms: int | None = 10_000, **settings: str) -> Cluster:
    return Cluster(ClusterOptions(broker.bootstrap_servers, settings, patience_ms), WHAT)


@pytest.mark.kafka
def test_answers_of_full_empty_and_disordered_partitions(broker: Broker) -> None:
    times = {0: [START + 10 * each for each in range(100)], 1: [START, START + 50], 2: [START + 9, START + 7, START]}
    fill(broker, "client-answers", times)
    asked, read = cluster(broker), parts("client-answers")

    assert asked.partitions()["client-answers"] == [0, 1, 2, 3]
    assert list(asked.earliest(read).values()) == [0, 0, 0, 0]
    assert list(asked.latest(read).values()) == [100, 2, 3, 0]
    assert asked.first_at(read, START + 8) == {
        read[0]: (1, START + 10),
        read[1]: (1, START + 50),
        read[2]: (0, START + 9),
        read[3]: None,
    }
    assert list(asked.first_at(read, START + 991).values()) == [None] * 4
    assert asked.first_at(read[1:2], -5) == {read[1]: (0, START)}
    assert asked.latest([read[2], read[0], read[2]]) == {read[2]: 3, read[0]: 100}
    assert asked.latest([]) == {}
    asked.close()
    asked.close()


@pytest.mark.kafka
def test_the_end_is_before_open_transactions_unless_they_are_wanted(broker: Broker) -> None:
    fill(broker, "client-transactions", {0: [START]})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("client-transactions", b"{}", partition=0, timestamp=START + 5)
    producer.flush(20)
    first = [("client-transactions", 0)]
    try:
        assert cluster(broker).latest(first) == {first[0]: 1}
        assert cluster(broker).first_at(first, START + 5) == {first[0]: None}
        open_too = cluster(broker, **{"isolation.level": "read_uncommitted"})
        assert open_too.latest(first) == {first[0]: 2}
        assert open_too.first_at(first, START + 5) == {first[0]: (1, START + 5)}
    finally:
        producer.abort_transaction(20)


@pytest.mark.kafka
def test_a_topic_or_partition_that_is_not_there_is_named_at_once(broker: Broker) -> None:
    broker.create_topic("client-trades", 4)
    begin = time.monotonic()
    with pytest.raises(cj.ConfigurationError, match=r"input 'trades': .* no topic 'client-trade'.*'client-trades'"):
        cluster(broker).latest([("client-trade", 0), ("client-trades", 0)])
    with pytest.raises(cj.ConfigurationError, match="no topic 'client-trade'"):
        cluster(broker).first_at([("client-trade", 0)], START)
    with pytest.raises(cj.ConfigurationError, match=r"'client-trades' has no partition 4; it has \[0, 1, 2, 3\]"):
        cluster(broker).latest([*parts("client-trades"), ("client-trades", 4)])
    assert time.monotonic() - begin < 5


@contextmanager
def silent(broker: Broker, seconds: float = 60) -> Iterator[None]:
    """Stop the broker's process for so long, or until the block ends."""
    os.kill(broker.pid, signal.SIGSTOP)
    # On a busy machine its threads come to a stop one by one, and may answer until then.
    states = [*Path(f"/proc/{broker.pid}/task").glob("*/stat")]
    while any(state.read_text().rpartition(")")[2].split()[0] not in "Tt" for state in states):
        time.sleep(0.001)
    again = threading.Timer(seconds, os.kill, (broker.pid, signal.SIGCONT))
    again.start()
    try:
        yield
    finally:
        again.cancel()
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.kafka
def test_a_consumer_tells_the_end_and_passes_over_nothing(broker: Broker) -> None:
    fill(broker, "client-consumer", {0: [START, START + 1]})
    consumer = cluster(broker).consumer()
    try:
        consumer.assign([TopicPartition("client-consumer", 0, 1)])
        record, end = (consumer.poll(10) for _ in range(2))
        assert record.error() is None
        assert record.offset() == 1
        assert end.error().name() == "_PARTITION_EOF"
        consumer.assign([TopicPartition("client-consumer", 0, 77)])
        assert consumer.poll(10).error().name() == "_AUTO_OFFSET_RESET"
    finally:
        consumer.close()


@pytest.mark.kafka
def test_it_waits_for_a_silent_broker_and_answers_are_whole(broker: Broker) -> None:
    fill(broker, "client-silent", {0: [START]})
    asked, read = cluster(broker), parts("client-silent")
    ends = asked.latest(
        read
    )  # librdkafka knows the leaders: it gives a wrong offset, and no error, when they are silent
    begin = time.monotonic()
    with silent(broker, 1.2):
        assert asked.latest(read) == ends
    assert time.monotonic() - begin > 1.1
    with silent(broker, 1.2):
        assert asked.first_at(read, START)[read[3]] is None


@pytest.mark.kafka
def test_patience_ends(broker: Broker) -> None:
    asked = cluster(broker, 1_500)
    broker.create_topic("client-patience", 4)
    asked.latest(parts("client-patience"))
    for again in (asked, cluster(broker, 1_500)):
        begin = time.monotonic()
        with (
            silent(broker),
            pytest.raises(
                cj.QueryFailedError, match=r"input 'trades': 127.0.0.1:\d+ did not answer .* for \d s: .*pat"
            ),
        ):
            again.latest(parts("client-patience"))
        assert 0.9 < time.monotonic() - begin < 4
    assert asked.latest(parts("client-patience"))[("client-patience", 3)] == 0


@pytest.mark.kafka
def test_a_server_that_is_not_there_is_told_without_noise(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cojoin.kafka.client")
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    nobody = Cluster(ClusterOptions(servers, {"client.id": "opensesame", "sasl.password": "opensesame"}, 1_000), WHAT)
    with pytest.raises(cj.QueryFailedError, match=rf"{servers} did not answer .* Connection refused"):
        nobody.partitions()
    nobody.close()
    assert capfd.readouterr() == ("", "")
    assert "Connection refused" in caplog.text  # the client's id stands in front of it
    assert "***" in caplog.text
    assert "opensesame" not in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


@pytest.mark.kafka
def test_a_refused_login_is_told_at_once(broker: Broker) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "handshake",  # a word of the message
    }
    with pytest.raises(cj.ConfigurationError, match=r"input 'trades': .* refused the login: .*\*\*\*.*sasl") as refused:
        cluster(broker, 60_000, **login).partitions()
    assert "handshake" not in str(refused.value)


@pytest.mark.kafka
def test_which_errors_may_pass() -> None:
    asked = Cluster(ClusterOptions("127.0.0.1:1"), WHAT)
    assert asked.is_passing(KafkaError(KafkaError._TRANSPORT))
    assert asked.is_passing(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert not asked.is_passing(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not asked.is_passing(KafkaError(KafkaError._AUTO_OFFSET_RESET))


@pytest.mark.kafka
def test_without_the_package_the_module_loads_and_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from cojoin.kafka.client import Cluster, ClusterOptions\n"
        "Cluster(ClusterOptions('localhost:9092'), 'input x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "EnvironmentSetupError: input x: expected the package confluent-kafka, found none" in done.stderr
    assert 'run: pip install "cojoin[kafka]"' in done.stderr
