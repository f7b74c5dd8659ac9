"""The topics and partitions that an input reads, by name or by pattern, and the ids of topics and clusters.

A topic or partition that is created later is read from its beginning where its name matches; one that was named must
exist from the start. Kafka's internal topics, whose names begin with two underscores, match no pattern. Between two
starts of a query the choice may grow; a topic or partition that the query has read can't be left out, because its next
records would be missing without an error.

A topic that is deleted and created again gets another id. A checkpoint keeps the ids of the cluster and of the topics.
They are compared with what the brokers report at every start; the topics' ids are also compared for every batch. In
another cluster, or in a topic that was created again, an offset belongs to another record, so to continue would miss
records or read them twice, without an error. This is always refused: ``data_loss="skip"`` and ``allow_data_loss=True``
accept that records no longer exist, not that they are other ones. Brokers before Kafka 2.8 have no topic ids, and
checkpoints of cojoin 0.5.0 have neither id: their ids are added when they are known, and compared from the next start
on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.kafka.client import Partition


_INTERNAL = "__"
_NAMED = re.compile(r"(?P<name>[^\s,\[\]]+)(?:\[(?P<numbers>[\d, ]+)\])?")


@dataclass(frozen=True)
class Topics:
    """A choice of topics: those that are named, and those whose whole name matches the pattern; ``of`` makes one.

    ``only`` has the partitions that are read, for topics of which not all are.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Any, pattern: Any, partitions: Any) -> Topics:
        """Return the topics that a user's arguments describe; each may be None, but not all."""
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        if not all(isinstance(name, str) and name.strip() for name in names):
            msg = f"topics: expected a topic's name, or a list of names, got {topics!r}"
            raise ConfigurationError(msg)
        try:
            only = {
                str(name): tuple(sorted({int(number) for number in numbers}))
                for name, numbers in (partitions or {}).items()
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
        chosen = cls(tuple(dict.fromkeys([*(name.strip() for name in names), *only])), pattern or None, only)
        if not chosen.names and chosen.pattern is None:
            msg = "source kafka: expected topics, topic_pattern or partitions, got none"
            raise ConfigurationError(msg)
        return chosen

    def __str__(self) -> str:
        spelled = [f"{name}{list(self.only[name])}" if name in self.only else name for name in self.names]
        return ", ".join([*spelled, *([f"/{self.pattern}/"] if self.pattern else [])])

    @classmethod
    def parsed(cls, text: str) -> Topics:
        """Return the topics that a text of ``str`` describes, such as a checkpoint's location.

        >>> Topics.parsed("quotes, trades[0, 1], /trades-.*/")
        Topics(names=('quotes', 'trades'), pattern='trades-.*', only={'trades': (0, 1)})
        """
        named, slash, pattern = text.partition("/")
        named_topics = {each["name"]: each["numbers"] for each in _NAMED.finditer(named)}
        only = {name: tuple(map(int, numbers.split(","))) for name, numbers in named_topics.items() if numbers}
        return cls(tuple(named_topics), pattern.removesuffix("/") if slash else None, only)

    def left_out(self, former: Topics, read: Iterable[str]) -> list[str]:
        """Return, as texts, what a former choice has, with the known topics that it read, and this one does not.

        >>> Topics.of("trades", None, None).left_out(Topics.parsed("trades, /quotes-.*/"), ["quotes-1"])
        ["topic 'quotes-1'"]
        """
        read = sorted(read)
        lacking = [f"topic {name!r}" for name in dict.fromkeys([*former.names, *read]) if not self._has(name)]
        for name, numbers in self.only.items():
            if name in former.names or name in read:
                before = former.only.get(name)
                gone = None if before is None else sorted(set(before) - set(numbers))
                # The partitions that a whole topic had are not known.
                if gone is None or gone:
                    lacking.append(f"{'partitions' if gone is None else f'partition {gone[0]}'} of topic {name!r}")
        if former.pattern not in {None, self.pattern} and not read:
            lacking.append(f"topics of the pattern {former.pattern!r}")
        return lacking

    def check_kept(self, location: str, read: Iterable[str], label: str) -> None:
        """Check that nothing is left out of a former choice, as ``str`` returned it, and of the topics that it read."""
        former = Topics.parsed(location)
        left_out = self.left_out(former, read)
        if left_out:
            msg = (
                f"{label}: the checkpoint has read {former}, and this source reads {self}, without "
                f"{', '.join(left_out)}: expected all that was read before, because the records written from now on "
                f"would be missing; name it again, or begin a new query, with its own checkpoint"
            )
            raise CheckpointError(msg)

    def reads(self, partition: Partition) -> bool:
        """Return whether a partition is read."""
        topic, number = partition
        return number in self.only[topic] if topic in self.only else self._has(topic)

    def _has(self, name: str) -> bool:
        return name in self.names or self._matches(name)

    def _matches(self, name: str) -> bool:
        return self.pattern is not None and not name.startswith(_INTERNAL) and bool(re.fullmatch(self.pattern, name))

    def select(self, existing: Mapping[str, list[int]], label: str) -> list[Partition]:
        """Return the partitions that are read, of all topics of the cluster with their partitions' numbers."""
        matching = [name for name in sorted(existing) if self._matches(name)]
        if self.pattern is not None and not (matching or self.names):
            msg = f"{label}: no topic matches {self.pattern!r}"
            raise ConfigurationError(msg + did_you_mean(self.pattern, existing))
        partitions: list[Partition] = []
        for name in dict.fromkeys([*self.names, *matching]):
            if name not in existing:
                msg = f"{label}: topic {name!r} does not exist{did_you_mean(name, existing)}"
                raise ConfigurationError(msg)
            missing = set(self.only.get(name, ())) - set(existing[name])
            if missing:
                msg = f"{label}: topic {name!r} has no partition {min(missing)}; it has {existing[name]}"
                raise ConfigurationError(msg)
            partitions += [(name, number) for number in self.only.get(name, existing[name])]
        return partitions


def id_problem(known: Mapping[str, Any], current: Mapping[str, Any], servers: str) -> str | None:
    """Return the message for a source that differs from before; None where it does not, or where that can't be known.

    Both sides have ``cluster``, an id, and ``topics``, ids by name; each may be missing.

    >>> id_problem({"topics": {"trades": "a"}}, {"cluster": "c", "topics": {"trades": "a", "quotes": "b"}}, "one:9092")
    >>> print(id_problem({"topics": {"trades": "a"}}, {"topics": {"trades": "b"}}, "one:9092"))
    topic 'trades' was deleted and created again since it was read (its id was a and is b), so its offsets are other \
records'; begin a new query, with its own checkpoint
    """
    old, new = known.get("cluster"), current.get("cluster")
    if old is not None and new is not None and old != new:
        return (
            f"what was read is in the Kafka cluster {old}, and {servers} are the cluster {new}, where the same offsets "
            f"are other records'; name brokers of {old} as bootstrap_servers, or begin a new query, with its own "
            f"checkpoint"
        )
    topics = current.get("topics") or {}
    for name, one in (known.get("topics") or {}).items():
        two = topics.get(name)
        if one is not None and two is not None and one != two:
            return (
                f"topic {name!r} was deleted and created again since it was read (its id was {one} and is {two}), so "
                f"its offsets are other records'; begin a new query, with its own checkpoint"
            )
    return None


def merged_ids(known: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids to keep: those found now, and those of topics that do not exist at the moment.

    >>> merged_ids({"topics": {"trades-2025": "a"}}, {"cluster": "c", "topics": {"trades-2026": "b"}})
    {'cluster': 'c', 'topics': {'trades-2025': 'a', 'trades-2026': 'b'}}
    """
    topics = {**(known.get("topics") or {}), **(current.get("topics") or {})}
    cluster = current.get("cluster") or known.get("cluster")
    return ({"cluster": cluster} if cluster else {}) | ({"topics": topics} if topics else {})
