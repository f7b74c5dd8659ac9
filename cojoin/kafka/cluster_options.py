"""How a Kafka cluster is reached: librdkafka's settings, of which those that may be secret are never shown."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cojoin.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ClusterOptions", "DebugLog", "check_installed"]

# By the name of what users know: the client, whose log it is.
_LOG = logging.getLogger("cojoin.kafka.client")
_SECRET = re.compile(r"password|secret|token|key|jaas|\.pem|oauthbearer\.config", re.IGNORECASE)


@dataclass(frozen=True)
class ClusterOptions:
    """How a Kafka cluster is reached. It can be pickled, and shows its servers alone.

    Attributes:
        bootstrap_servers: Such as ``"localhost:9092"``.
        settings: librdkafka's, such as ``security.protocol``; they may hold secrets.
        patience_ms: For how many milliseconds no broker may answer; None is for ever.

    >>> ClusterOptions("localhost:9092", {"sasl.password": "opensesame"})
    ClusterOptions(bootstrap_servers='localhost:9092')
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_ms: int | None = field(default=60_000, repr=False)

    def mask(self, text: str) -> str:
        """Return a text with the value of every setting that may be secret replaced."""
        secrets = {str(value) for name, value in self.settings.items() if _SECRET.search(name)} - {""}
        # The longest first: a part of a value must not break the mask of the whole.
        for value in sorted(secrets, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


@dataclass(frozen=True)
class DebugLog:
    """What librdkafka takes for a logger."""

    options: ClusterOptions
    hear: Callable[[str], None]

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line of librdkafka's, without secrets."""
        del level  # a broker that is away for a moment is no error of the program's
        said = self.options.mask(text % values)
        self.hear(said)
        _LOG.debug("%s", said)


def check_installed(what: str) -> None:
    """See that Kafka's client is there.

    Args:
        what: Who asks, for the message, such as ``"input 'trades'"``.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
    """
    if find_spec("confluent_kafka") is None:
        msg = f'{what}: expected the package confluent-kafka, found none; run: pip install "cojoin[kafka]"'
        raise EnvironmentSetupError(msg)
