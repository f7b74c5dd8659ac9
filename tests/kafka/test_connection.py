"""How a connection waits while no broker answers, what it refuses at once, and its consumers."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, TopicPartition

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from tests.kafka.test_client import START, WHAT, cluster, fill, parts
from tests.servers import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka


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


def test_which_errors_may_pass() -> None:
    asked = Cluster(ClusterOptions("127.0.0.1:1"), WHAT)
    assert asked.is_passing(KafkaError(KafkaError._TRANSPORT))
    assert asked.is_passing(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert not asked.is_passing(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not asked.is_passing(KafkaError(KafkaError._AUTO_OFFSET_RESET))


def test_without_the_package_the_module_loads_and_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from cojoin.kafka.client import Cluster, ClusterOptions\n"
        "Cluster(ClusterOptions('localhost:9092'), 'input x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "EnvironmentSetupError: input x: expected the package confluent-kafka, found none" in done.stderr
    assert 'run: pip install "cojoin[kafka]"' in done.stderr
