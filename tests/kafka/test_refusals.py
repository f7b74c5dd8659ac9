"""Why a cluster refuses: told within seconds, in plain words, before a query starts, and without secrets."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.refusals import ConnectionLog
from tests.kafka.replayed import LEFT, make
from tests.servers.broker import CERTIFIED_HOST, USERS
from tests.servers.certificates import make_certificates
from tests.servers.tls import registry_behind_tls
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
ALI = {"sasl.mechanism": "PLAIN", "sasl.username": "ali", "sasl.password": USERS["ali"]}
QUICK_SECONDS = 15


def ask(servers: str, **settings: str) -> None:
    """Ask a cluster as a query does that is to start, with the patience that is usual."""
    Cluster(ClusterOptions(servers, settings), WHAT, at_start=True).partitions()


def authority(broker: Broker, folder: Path) -> str:
    """Return a file with the broker's certificate, which it signed itself."""
    host, _, port = broker.tls_servers.partition(":")
    (folder / "ca.pem").write_text(ssl.get_server_certificate((host, int(port))))
    return str(folder / "ca.pem")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"secrity.protocol": "opensesame"}, "option 'secrity.protocol': .*No such .*did you mean 'security.protocol'"),
        ({"no.such.thing": "opensesame"}, "option 'no.such.thing': .*No such .*CONFIGURATION.md, has all"),
        ({"socket.timeout.ms": "-77077"}, "option 'socket.timeout.ms': .* outside allowed range"),
        ({"kafka.security.protocol": "SSL"}, "option 'kafka.security.protocol': .* have no 'kafka.' in front"),
        ({"sasl.jaas.config": "password=opensesame"}, ".*; expected sasl.mechanism, sasl.username and sasl.password"),
        ({"security.protocol": "SSL", "ssl.key.pem": "opensesame"}, "option 'ssl.key.pem': "),
        ({"security.protocol": "SASL_SSL", "sasl.password": "opensesame"}, "options: .* expected the option sasl.mech"),
    ],
)
def test_a_wrong_setting_is_named_without_a_secret(settings: dict[str, str], text: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=f"input 'trades': {text}") as refused:
        Cluster(ClusterOptions("127.0.0.1:1", settings), WHAT)
    assert "opensesame" not in str(refused.value)
    assert refused.value.__context__ is None


def test_a_value_that_is_no_secret_is_shown_with_what_was_expected() -> None:
    expected = "expected one of plaintext, ssl, sasl_plaintext, sasl_ssl; did you mean 'sasl_ssl'"
    with refused("option 'security.protocol'", 'Invalid value "SASL_SLL"', expected):
        Cluster(ClusterOptions("127.0.0.1:1", {"security.protocol": "SASL_SLL", "sasl.password": "opensesame"}), WHAT)
    with refused("Unsupported SASL mechanism: PLAN", "PLAIN, SCRAM-SHA-256"):
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAN", "sasl.username": "a"}
        Cluster(ClusterOptions("127.0.0.1:1", settings | {"sasl.password": "b"}), WHAT)


@pytest.mark.parametrize(
    ("listener", "settings", "parts"),
    [
        ("login", {}, ("ended it without an answer", "plaintext (librdkafka's default)", "sasl_plaintext")),
        pytest.param(
            *("tls", {}, ("ended it without an answer", "security.protocol is plaintext")),
            marks=pytest.mark.slow,  # it takes the seconds that a broker may need to start, as the first does
        ),
        pytest.param(
            *("tls", {"security.protocol": "SASL_PLAINTEXT"} | ALI, ("ended it without", "is SASL_PLAINTEXT")),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("plain", {"security.protocol": "SSL"}, ("ended it without an answer", "security.protocol is SSL")),
            marks=pytest.mark.slow,
        ),
        ("plain", {"security.protocol": "SASL_PLAINTEXT"} | ALI, ("refused the login", "takes no logins by SASL")),
        (
            "login",
            {"security.protocol": "SASL_PLAINTEXT"} | ALI | {"sasl.password": "wrong"},
            ("refused the login", "Invalid username or password"),
        ),
        (
            "login",
            {"security.protocol": "SASL_PLAINTEXT"} | ALI | {"sasl.mechanism": "SCRAM-SHA-256"},
            ("refused the login", "supported mechanisms: PLAIN"),
        ),
    ],
)
def test_a_listener_of_another_protocol_or_login_is_told_soon(
    broker: Broker, listener: str, settings: dict[str, str], parts: tuple[str, ...]
) -> None:
    servers = {"plain": broker.bootstrap_servers, "login": broker.login_servers, "tls": broker.tls_servers}[listener]
    begin = time.monotonic()
    with refused(WHAT, servers, "security.protocol", *parts):
        ask(servers, **settings)
    assert time.monotonic() - begin < QUICK_SECONDS


def test_a_certificate_says_what_is_wrong_with_it(broker: Broker, tmp_path: Path) -> None:
    tls, trusted = {"security.protocol": "SSL"}, authority(broker, tmp_path)
    with refused(WHAT, "is trusted, and is for another IP address", "not valid for '127.0.0.1'", "advertised"):
        ask(broker.tls_servers, **tls, **{"ssl.ca.location": trusted})
    with refused("is trusted, and is for another IP address"):
        ask(broker.tls_servers, **tls, **{"ssl.ca.pem": (tmp_path / "ca.pem").read_text()})
    with refused("is not trusted (self", "this machine's own", "ssl.ca.location"):
        ask(broker.tls_servers, **tls)
    unchecked = {"ssl.ca.location": trusted, "ssl.endpoint.identification.algorithm": "none"}
    assert CERTIFIED_HOST  # what it names; who does not ask for it is served
    Cluster(ClusterOptions(broker.tls_servers, tls | unchecked), WHAT).partitions()


def test_a_certificate_that_has_ended_is_told(tmp_path: Path) -> None:
    ended = make_certificates(tmp_path, "ali", ended=True)
    options = {"security.protocol": "SSL", "ssl.ca.location": str(ended.authority)}
    with registry_behind_tls(ended) as url, refused("is not valid now (certificate has expired): renew it, or set the"):
        ask(url.removeprefix("https://"), **options)


@pytest.mark.spark
def test_it_is_told_where_a_query_would_start(spark: SparkSession, broker: Broker) -> None:
    del spark
    make(broker, "refusals-l")
    begin = time.monotonic()
    with refused("source kafka refusals-l", "refused the login", "takes no logins by SASL"):
        options = {"security.protocol": "SASL_PLAINTEXT"} | ALI
        cj.kafka.source(broker.bootstrap_servers, "refusals-l", schema=LEFT, options=options).open()
    assert time.monotonic() - begin < QUICK_SECONDS


def test_a_broker_that_is_away_is_not_taken_for_another_protocol() -> None:
    hearing = ConnectionLog()
    hearing.add("FAIL [rdkafka#producer-1] [thrd:x:1/bootstrap]: x:1/bootstrap: Disconnected (after 0ms in state UP)")
    assert hearing.ended == "x:1/bootstrap: Disconnected (after 0ms in state UP)"
    hearing.add("x:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)")
    assert hearing.ended is None
