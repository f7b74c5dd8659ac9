"""A connection to a Kafka cluster: requests that are repeated while no broker answers, and what is refused at once.

It keeps one client of librdkafka, made with the settings of the user. While no broker answers, a request is repeated
until ``patience_ms`` has passed since the first try. An error that waiting does not resolve (a wrong password, no
permission) is raised at once. Before a query starts, a listener that speaks another protocol is an error within seconds
(``refusals``). While a query runs, a refused token may be an old one, so another one is tried until the patience ends.

No message contains a token or the value of a setting that may be secret. The log of librdkafka goes to the logger
``cojoin.kafka.client`` at the level ``DEBUG``, with its secrets masked. The first request costs some 60 ms, and with a
token (``tokens``) a second more.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.kafka.cluster_options import DebugLog, check_installed
from cojoin.kafka.refusals import (
    ConnectionLog,
    is_alert,
    is_ended,
    login_problem,
    protocol_problem,
    setting_problem,
)
from cojoin.spark.sources.secrets import Secrets

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
except ImportError:
    pass  # an optional dependency: ``check_installed`` reports it

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.kafka.cluster_options import ClusterOptions
    from cojoin.kafka.tokens import Tokens

__all__ = ["PERMISSION_ERRORS", "UNKNOWN_ERRORS", "Connection"]

_Answer = TypeVar("_Answer")

_FIRST_TRY_SECONDS, _LONGEST_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 10.0, 0.5

# A broker that is still starting closes connections just like a listener of another protocol.
_OTHER_PROTOCOL_SECONDS = 6.0

# librdkafka waits up to 10 s by default, so a broker that is back would still seem to be away.
_DEFAULTS = {"reconnect.backoff.ms": "100", "reconnect.backoff.max.ms": "1000"}

# Errors by librdkafka's names; those that begin with "_" are its own, the others come from a broker.
UNKNOWN_ERRORS = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"}
"""The errors of a topic or partition that does not exist, or that a broker which has just started does not know yet."""

PERMISSION_ERRORS = {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}
"""The errors of a user who lacks a permission."""

_LOGIN = {
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
}
_MOVED = {"FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH"}
_PASSING = _MOVED | {
    *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE", "_WAIT_COORD", "_WAIT_CACHE"),
    *("_DESTROY_BROKER", "BROKER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE"),
    *("NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"),
    *("REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"),
}

# A range is read once, so fetching beyond it (64 MB by default) only costs memory. A full queue must not wait long.
_READING = {"queued.max.messages.kbytes": "16384", "fetch.queue.backoff.ms": "5"}

_NO_GROUP = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
}


class Connection:
    """A connection to a Kafka cluster, for one thread of one process.

    Args:
        options: How the cluster is reached.
        what: The caller, for messages, such as ``"input 'trades'"``.
        at_start: Whether no query runs yet. Then a listener that speaks another protocol is an error after seconds;
            otherwise it is treated as a broker that is still starting.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
        ConfigurationError: A setting is unknown, or its value is wrong. Each request raises it, too, where the login or
            a permission is refused.
        QueryFailedError: Each request raises it where no broker answers in time.
    """

    def __init__(self, options: ClusterOptions, what: str, *, at_start: bool = False) -> None:
        check_installed(what)
        self._options, self._what, self._at_start = options, what, at_start
        self._heard: list[KafkaError] = []
        self._hearing = ConnectionLog()
        self._tokens = self._token_login()
        # A client with a token takes a second, which a task that only consumes does without.
        self._admin: AdminClient | None = None if self._tokens else self._made(AdminClient, options.settings)
        self._is_closed = False

    @property
    def patience_ms(self) -> int | None:
        """How long a request waits while no broker answers, in milliseconds; None waits forever."""
        return self._options.patience_ms

    def consumer(self, fetching: Mapping[str, str] | None = None) -> Consumer:
        """Return a consumer for ``assign``: it is in no group, commits nothing, and reports each partition's end.

        An offset that does not exist is an error of the consumer: it does not skip to another one. The caller closes
        it.

        Args:
            fetching: librdkafka's settings for how much is fetched at once, where that should be little.
        """
        group = {"group.id": f"cojoin-{uuid.uuid4().hex}"}
        return self._made(Consumer, group | _READING | dict(self._options.settings) | dict(fetching or {}) | _NO_GROUP)

    def is_passing(self, error: KafkaError) -> bool:
        """Return whether an error, such as a consumer's, may pass by itself, as when a broker is away."""
        return error.name() in _PASSING or error.retriable()

    def text(self, error: KafkaError) -> str:
        """Return an error's text, without secrets."""
        return self._mask(error.str().strip())

    @property
    def last_problem(self) -> str | None:
        """What was last heard of a login or a token that fails, without secrets; None where nothing was."""
        heard = [self.text(each) for each in self._heard if _is_login(each)]
        problem = None if self._tokens is None else self._tokens.problem
        return problem or (heard[-1] if heard else None)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._admin, self._is_closed = None, True

    @property
    def _client(self) -> AdminClient:
        assert not self._is_closed, "the cluster was closed"
        if self._admin is None:
            self._admin = self._made(AdminClient, self._options.settings)
        return self._admin

    def _token_login(self) -> Tokens | None:
        if self._options.token is None:
            return None
        from cojoin.kafka.tokens import Tokens  # noqa: PLC0415 - most logins have none

        return Tokens(self._options.token, self._what, Secrets.of_settings(self._options.settings))

    def _mask(self, text: str) -> str:
        return self._options.mask(text) if self._tokens is None else self._tokens.mask(text)

    def _patiently(self, ask: Callable[[float], _Answer]) -> _Answer:
        """Repeat a request until there is an answer or the patience ends; each try waits longer than the one before."""
        begin, patience = time.monotonic(), self._options.patience_ms
        seconds, self._heard, self._hearing = _FIRST_TRY_SECONDS, [], ConnectionLog()
        while True:
            left = None if patience is None else begin + patience / 1_000 - time.monotonic()
            timeout = seconds if left is None else min(seconds, max(left, _FIRST_TRY_SECONDS))
            try:
                self._client.poll(0)  # where librdkafka wants another token since the last request
                return ask(timeout)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
            finally:
                self._client.poll(0)  # runs the callbacks of the log and of connection errors
            if reason.name() in _MOVED:
                # librdkafka would keep asking the partition leaders that it knows, so a new client is made.
                self._admin = self._made(AdminClient, self._options.settings)
            waited = time.monotonic() - begin
            if reason.name() not in UNKNOWN_ERRORS and not self.is_passing(reason) and not self._may_renew(reason):
                self._refuse(reason)
            for heard in self._heard:
                # A login whose connection was closed may be due to a broker that stops or starts.
                if _is_login(heard) and not self._may_renew(heard):
                    self._refuse(heard)
            if self._at_start and waited > _OTHER_PROTOCOL_SECONDS and self._hearing.ended is not None:
                break
            if patience is not None and waited + _PAUSE_SECONDS >= patience / 1_000:
                self._give_up(waited, reason)
            seconds = min(2 * seconds, _LONGEST_TRY_SECONDS)
            time.sleep(_PAUSE_SECONDS)
        ended = str(self._hearing.ended)
        msg = f"{self._what}: {protocol_problem(self._servers, self._options.settings, ended)}"
        raise ConfigurationError(msg)

    def _may_renew(self, reason: KafkaError) -> bool:
        """Return whether a refused login may be one of a token that has just expired."""
        if self._tokens is None or not _is_login(reason):
            return False
        self._tokens.forget()
        return not self._at_start

    def _refuse(self, reason: KafkaError) -> NoReturn:
        if _is_login(reason) or reason.name() in _LOGIN:
            msg = f"{self._what}: {login_problem(self._servers, self._options.settings, self.text(reason))}"
            raise ConfigurationError(msg) from None
        if reason.name() in PERMISSION_ERRORS:
            msg = f"{self._what}: {self._servers} do not let this user ask: {self.text(reason)}"
            raise ConfigurationError(msg) from None
        msg = f"{self._what}: {self._servers} answered with an error: {self.text(reason)} ({reason.name()})"
        raise QueryFailedError(msg) from None

    def _give_up(self, waited: float, reason: KafkaError) -> NoReturn:
        problem = None if self._tokens is None else self._tokens.problem
        telling = [each for each in self._heard if each.name() != "_ALL_BROKERS_DOWN"]
        last = self.text(telling[-1] if telling else reason)
        ended = self._hearing.ended
        if ended is not None:
            last = protocol_problem(self._servers, self._options.settings, ended)
        last = problem or last
        msg = (
            f"{self._what}: {self._servers} did not answer as a Kafka cluster for {waited:.0f} s: {last}; see that the "
            f"brokers run and can be reached, or wait for longer with patience="
        )
        raise QueryFailedError(msg) from None

    @property
    def _servers(self) -> str:
        return self._options.bootstrap_servers

    def _made(self, kind: Callable[..., _Answer], settings: Mapping[str, str]) -> _Answer:
        defaults = {} if _DEFAULTS.keys() & settings.keys() else _DEFAULTS
        config: dict[str, Any] = {**defaults, **settings, "bootstrap.servers": self._servers}
        if self._tokens is not None:
            self._tokens.fetch(self._options.patience_ms, at_start=self._at_start)
            config["oauth_cb"] = self._tokens
        try:
            return kind(config | {"error_cb": self._hear, "logger": DebugLog(self._mask, self._overhear)})
        except KafkaException as error:
            text = error.args[0].str().strip()
        # Not in the except block: the error's context would hold librdkafka's text, which may quote a value.
        return self._refuse_setting(text)

    def _refuse_setting(self, text: str) -> NoReturn:
        settings = self._options.settings
        said = self._mask(text)
        named = [name for name in settings if name in said]
        msg = f"{self._what}: {setting_problem(settings, named, said)}"
        raise ConfigurationError(msg)

    def _hear(self, error: KafkaError) -> None:
        self._heard = [*self._heard[-9:], error]
        self._overhear(self.text(error))

    def _overhear(self, text: str) -> None:
        self._hearing.hear(text)


def _is_login(heard: KafkaError) -> bool:
    """Return whether brokers refuse a login; one whose connection only ended may be due to a broker that stops."""
    return is_alert(heard.str()) or (heard.name() in _LOGIN and not is_ended(heard.str()))
