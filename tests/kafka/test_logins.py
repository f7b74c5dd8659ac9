"""Each way to log in is let in, and each that is refused is told within seconds, without secrets."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from tests.kafka.logins import LOGINS, TOKEN_BEGIN, grant, login, read_to_the_end, secrets, unsigned_token, user_of
from tests.kafka.replayed import LEFT, RIGHT, make, pairs, row, run, version, write
from tests.servers.certificates import make_certificates
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
QUICK_SECONDS = 15


def options_of(arguments: dict[str, Any], patience: str = "1 minute") -> ClusterOptions:
    token = arguments.get("token")
    return ClusterOptions.of(arguments["bootstrap_servers"], arguments["options"], patience, token, WHAT)


@pytest.mark.parametrize(
    "how", [pytest.param(each, marks=pytest.mark.slow) if each == "token" else each for each in LOGINS]
)
def test_each_login_is_let_in_and_logs_no_secret(broker: Broker, caplog: pytest.LogCaptureFixture, how: str) -> None:
    caplog.set_level(logging.DEBUG)
    name = f"logins-{how.lower()}"
    make(broker, name)
    write(broker.bootstrap_servers, name, [row(each, each) for each in range(3)])
    grant(broker, user_of(how), name)
    source = cj.kafka.source(topics=name, schema=LEFT, **with_options(login(broker, how), {"debug": "all"}))
    source.check(is_new=True)
    assert read_to_the_end(source)[0] == [(name, 0, offset) for offset in range(3)]
    asked = Cluster(options_of(login(broker, how)), WHAT, at_start=True)
    with refused(WHAT, "do not let this user read topic 'logins-of-others'", "grant it READ and DESCRIBE"):
        asked.partitions(["logins-of-others"])
    assert "rdkafka" in caplog.text
    for secret in secrets(broker):
        assert secret not in caplog.text


def wrong_logins(broker: Broker, folder: Path) -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """Return logins that a broker refuses, or whom this side refuses, with what is told."""
    other = make_certificates(folder, "cassim")
    plain, scram, token, mutual = (login(broker, how) for how in ("PLAIN", "SCRAM-SHA-512", "token", "mutual"))
    ended = {"token": lambda: (unsigned_token(seconds=-120), 60)}
    no_tls = {"security.protocol": "SASL_PLAINTEXT"}
    anonymous = {name: value for name, value in mutual["options"].items() if "key" not in name and "cert" not in name}
    stranger = {"ssl.certificate.location": str(other.client), "ssl.key.location": str(other.client_key)}
    own = str(other.authority)
    return {
        "password": (with_options(plain, {"sasl.password": "opensesame-wrong"}), ("Invalid username or password",)),
        "scram": (with_options(scram, {"sasl.password": "opensesame-wrong"}), ("invalid credentials", "SCRAM-SHA-512")),
        "user": (with_options(scram, {"sasl.username": "nobody"}), ("refused the login", "invalid credentials")),
        "mechanism": (
            with_options({**mutual, "bootstrap_servers": broker.login_servers}, no_tls | scram_user(scram)),
            ("refused the login", "supported mechanisms: PLAIN"),
        ),
        "authority": (
            {**scram, "options": {**without(scram["options"], "ssl.ca.pem"), "ssl.ca.location": own}},
            ("is not trusted (", "the option ssl.ca.location"),
        ),
        "expired": (token | ended, ("refused the login", "invalid_token", "it has expired")),
        "function": (token | {"token": failing}, ("token: the function failing failed: OSError: no answer by ***",)),
        "no certificate": ({**mutual, "options": anonymous}, ("wants a certificate of the client, and got none",)),
        "another's": (
            {**mutual, "options": anonymous | stranger},
            ("that of the option ssl.certificate.location, which it does not trust",),
        ),
    }


def failing() -> Any:
    msg = f"no answer by {unsigned_token()}"
    raise OSError(msg)


def scram_user(scram: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in scram["options"].items() if name.startswith("sasl.")}


def with_options(arguments: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    return {**arguments, "options": {**arguments["options"], **options}}


def without(options: dict[str, str], name: str) -> dict[str, str]:
    return {each: value for each, value in options.items() if each != name}


@pytest.mark.slow
def test_what_is_refused_is_told_soon_with_the_reason(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, (arguments, parts) in wrong_logins(broker, tmp_path).items():
        begin = time.monotonic()
        source = cj.kafka.source(topics="logins-wrong", schema=LEFT, **with_options(arguments, {"debug": "all"}))
        with pytest.raises(cj.ConfigurationError) as caught:
            source.check(is_new=True)
        assert time.monotonic() - begin < QUICK_SECONDS, name
        said = str(caught.value)
        assert said.startswith("source kafka logins-wrong: "), name
        assert all(part in said for part in parts), (name, said)
        for text in (said, repr(caught.value.__context__), repr(caught.value.__cause__)):
            assert "opensesame" not in text, name
            assert TOKEN_BEGIN not in text, name
    assert "opensesame" not in caplog.text
    assert TOKEN_BEGIN not in caplog.text


@pytest.mark.slow  # nine seconds that pass
def test_a_token_is_renewed_while_requests_and_records_go_on(broker: Broker) -> None:
    make(broker, "logins-renewed")
    grant(broker, user_of("token"), "logins-renewed")
    asked: list[float] = []

    def token() -> tuple[str, float]:
        asked.append(time.monotonic())
        if len(asked) == 2:
            msg = "away for a moment"
            raise OSError(msg)
        return unsigned_token(seconds=4), 4

    cluster = Cluster(options_of({**login(broker, "token"), "token": token}), WHAT)
    for number in range(6):
        write(broker.bootstrap_servers, "logins-renewed", [row(number, number)])
        assert cluster.latest([("logins-renewed", 0)]) == {("logins-renewed", 0): number + 1}
        time.sleep(1.5)
    assert len(asked) >= 3


@pytest.mark.slow  # it waits until the patience ends
def test_a_running_query_is_patient_with_a_token_and_says_what_is_wrong(broker: Broker) -> None:
    def expired() -> tuple[str, float]:
        return unsigned_token(seconds=-120), 60

    cluster = Cluster(options_of({**login(broker, "token"), "token": expired}, "3 seconds"), WHAT)
    with refused(WHAT, "did not answer", "invalid_token", "patience=", kind=cj.QueryFailedError):
        cluster.partitions()


def joined_by(broker: Broker, left: str, right: str, topics: tuple[str, str]) -> cj.Joined:
    """Join two topics, each read with a login of its own."""
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    one, other = (
        cj.Input(
            cj.kafka.source(topics=topic, schema=schema, **login(broker, how)),
            key="k",
            event_time="at",
            name=name,
            watermark=strategy,
        )
        for topic, schema, how, name in ((topics[0], LEFT, left, "left"), (topics[1], RIGHT, right, "right"))
    )
    return cj.connect(one, other, key_groups=2).asof_join(suffixes=("", "_right"))


@pytest.mark.spark
@pytest.mark.slow  # the join by SCRAM and a token is in test_secrets
@pytest.mark.parametrize(("left", "right"), [("PLAIN", "mutual"), ("token", "SCRAM-SHA-512")])
def test_the_join_runs(spark: SparkSession, broker: Broker, tmp_path: Path, left: str, right: str) -> None:
    topics = (f"logins-{left.lower()}-l", f"logins-{right.lower()}-r")
    servers = make(broker, *topics)
    write(servers, topics[0], [row(each, each) for each in range(5)])
    write(servers, topics[1], [version(7, 0), version(8, 2.5)])
    for how, topic in zip((left, right), topics, strict=True):
        grant(broker, user_of(how), topic)
    run(joined_by(broker, left, right, topics), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(each, 8 if each > 2 else 7) for each in range(5)]
