"""Which partitions an input reads: topics by name or by pattern, whole or only some of their partitions.

A topic or partition that is created later is read as well where its name matches; one that was named must exist from
the start. Kafka's internal topics, whose names begin with two underscores, match no pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.kafka.client import Partition

__all__ = ["Topics"]

_INTERNAL = "__"


@dataclass(frozen=True)
class Topics:
    """A choice of topics; ``of`` makes one.

    Attributes:
        names: The topics that were named.
        pattern: A regular expression that a whole name must match; matching topics are read beside the named ones.
        only: The partitions that are read, for topics of which not all are.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Any, pattern: Any, partitions: Any) -> Topics:
        """Return the topics that a user's arguments describe.

        Args:
            topics: A name, several, or None.
            pattern: A regular expression, or None.
            partitions: ``{"trades": [0, 1]}``, or None.

        Raises:
            ConfigurationError: The arguments name no topic, or have another form.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        if not all(isinstance(name, str) and name.strip() for name in names):
            msg = f"topics: expected a topic's name, or a list of names, got {topics!r}"
            raise ConfigurationError(msg)
        try:
            only = {
                str(name): tuple(sorted({int(number) for number in each})) for name, each in (partitions or {}).items()
            }
        except (AttributeError, TypeError, ValueError):
            only = {"": ()}
        if not all(numbers and min(numbers) >= 0 for numbers in only.values()):
            example = "{'trades': [0, 1]}"
            msg = f"partitions: expected topics with their partitions' numbers, such as {example}, got {partitions!r}"
            raise ConfigurationError(msg)
        try:
            re.compile(pattern or "")
        except (re.error, TypeError) as error:
            msg = f"topic_pattern: expected a regular expression, got {pattern!r}: {error}"
            raise ConfigurationError(msg) from error
        found = cls(tuple(dict.fromkeys([*(name.strip() for name in names), *only])), pattern or None, only)
        if not found.names and found.pattern is None:
            msg = "source kafka: expected topics, topic_pattern or partitions, got none"
            raise ConfigurationError(msg)
        return found

    def __str__(self) -> str:
        spelled = [f"{name}{list(self.only[name])}" if name in self.only else name for name in self.names]
        return ", ".join([*spelled, *([f"/{self.pattern}/"] if self.pattern else [])])

    def found(self, there: Mapping[str, list[int]], what: str) -> list[Partition]:
        """Return the partitions that are read.

        Args:
            there: All topics of the cluster, with their partitions' numbers.
            what: The input, for messages.

        Raises:
            ConfigurationError: A topic or partition that was named does not exist, or the pattern matches no topic.
        """
        matching = [
            name
            for name in sorted(there)
            if self.pattern is not None and not name.startswith(_INTERNAL) and re.fullmatch(self.pattern, name)
        ]
        if self.pattern is not None and not (matching or self.names):
            msg = f"{what}: no topic matches {self.pattern!r}"
            raise ConfigurationError(msg + did_you_mean(self.pattern, there))
        partitions: list[Partition] = []
        for name in dict.fromkeys([*self.names, *matching]):
            if name not in there:
                msg = f"{what}: there is no topic {name!r}{did_you_mean(name, there)}"
                raise ConfigurationError(msg)
            missing = set(self.only.get(name, ())) - set(there[name])
            if missing:
                msg = f"{what}: topic {name!r} has no partition {min(missing)}; it has {there[name]}"
                raise ConfigurationError(msg)
            partitions += [(name, number) for number in self.only.get(name, there[name])]
        return partitions
