"""How a Kafka cluster is reached: librdkafka's settings, of which those that may be secret are never shown."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.values.arguments import milliseconds
from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages
from cojoin.spark.sources.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.kafka.tokens import TokenFunction

__all__ = ["ClusterOptions", "DebugLog", "check_installed"]

# Named after the client, which is the name that users look for.
_LOG = logging.getLogger("cojoin.kafka.client")


@dataclass(frozen=True)
class ClusterOptions:
    """How a Kafka cluster is reached. It can be pickled, and its ``repr`` shows only the servers.

    Attributes:
        bootstrap_servers: The brokers' addresses, such as ``"localhost:9092"``.
        settings: librdkafka's settings, such as ``security.protocol``; they may hold secrets.
        patience_ms: How long a request waits while no broker answers, in milliseconds; None waits forever.
        token: The user's function that returns tokens for OAUTHBEARER; None for other logins.

    >>> ClusterOptions("localhost:9092", {"sasl.password": "opensesame"})
    ClusterOptions(bootstrap_servers='localhost:9092')
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_ms: int | None = field(default=60_000, repr=False)
    token: TokenFunction | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, bootstrap_servers: Any, options: Mapping[str, Any] | None, patience: Any, token: Any, what: str
    ) -> ClusterOptions:
        """Return how a cluster is reached by what a user wrote, checked as far as possible without a broker.

        Args:
            bootstrap_servers: The brokers' addresses.
            options: librdkafka's settings.
            patience: A duration; None waits forever.
            token: The user's function that returns tokens; None where there is none.
            what: The caller, for messages.

        Raises:
            ConfigurationError: One of them is not valid.
        """
        if not isinstance(bootstrap_servers, str) or not bootstrap_servers.strip():
            msg = f"{what}: bootstrap_servers: expected such as 'localhost:9092', got {bootstrap_servers!r}"
            raise ConfigurationError(msg)
        called = [str(name) for name, value in (options or {}).items() if callable(value)]
        if called:
            msg = f"{what}: option {called[0]!r}: expected a text, got a function; one that returns tokens is token="
            raise ConfigurationError(msg)
        settings = {str(name): str(value) for name, value in (options or {}).items()}
        patience_ms = None if patience is None else milliseconds(patience, f"{what}: patience")
        if token is None:
            return cls(bootstrap_servers, settings, patience_ms)
        from cojoin.kafka.tokens import TokenFunction, with_token_login  # noqa: PLC0415 - most logins have none

        asked = TokenFunction.of(token, what)
        return cls(bootstrap_servers, with_token_login(settings, what), patience_ms, asked)

    def mask(self, text: str) -> str:
        """Return a text in which the value of every setting that may be secret is masked."""
        return Secrets.of_settings(self.settings).mask(text)


@dataclass(frozen=True)
class DebugLog:
    """A logger for librdkafka, without secrets.

    Attributes:
        mask: Returns a text without secrets.
        hear: Takes each line.
    """

    mask: Callable[[str], str]
    hear: Callable[[str], None]

    def log(self, level: int, text: str, *values: object) -> None:
        """Write a line of librdkafka's to the log, without secrets."""
        del level  # a broker that is away for a moment is not an error of the program
        said = self.mask(text % values)
        self.hear(said)
        _LOG.debug("%s", said)


def check_installed(what: str) -> None:
    """Check that confluent-kafka is installed.

    Args:
        what: The caller, for the message, such as ``"input 'trades'"``.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
    """
    check_packages(what, "kafka", "confluent_kafka")
