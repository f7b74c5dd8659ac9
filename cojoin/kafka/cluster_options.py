"""How a Kafka cluster is reached: librdkafka's settings, of which those that may be secret are never shown."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cojoin.errors import EnvironmentSetupError
from cojoin.spark.sources.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    >>> ClusterOptions("localhost:9092", {"sasl.password": "opensesame"})
    ClusterOptions(bootstrap_servers='localhost:9092')
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_ms: int | None = field(default=60_000, repr=False)

    def mask(self, text: str) -> str:
        """Return a text in which the value of every setting that may be secret is masked."""
        return Secrets.of_settings(self.settings).mask(text)


@dataclass(frozen=True)
class DebugLog:
    """A logger for librdkafka, which masks secrets."""

    options: ClusterOptions
    hear: Callable[[str], None]

    def log(self, level: int, text: str, *values: object) -> None:
        """Write a line of librdkafka's to the log, without secrets."""
        del level  # a broker that is away for a moment is not an error of the program
        said = self.options.mask(text % values)
        self.hear(said)
        _LOG.debug("%s", said)


def check_installed(what: str) -> None:
    """Check that confluent-kafka is installed.

    Args:
        what: The caller, for the message, such as ``"input 'trades'"``.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
    """
    if find_spec("confluent_kafka") is None:
        msg = f'{what}: expected the package confluent-kafka, found none; run: pip install "cojoin[kafka]"'
        raise EnvironmentSetupError(msg)
