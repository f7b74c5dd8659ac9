"""What was typed about the reading of topics, checked as far as no broker is needed.

A topic's source is a description: it is made before Spark is started, so a mistake in it is told at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.cli.typed_locations import Location
    from cojoin.kafka.kafka_source import KafkaSource
    from cojoin.spark.sources.sources import Source

__all__ = ["KafkaArguments", "check_kafka", "kafka_arguments", "up_to"]

_FOR_ALL = ("max_drift", "max_records", "patience", "undecodable", "tombstones", "data_loss")
_PER_SIDE = ("from", "to")
_NOTHING_READ = "-"


@dataclass(frozen=True)
class KafkaArguments:
    """How one input's topics are read.

    Attributes:
        servers: The brokers.
        topics: The topics.
        settings: What ``cojoin.kafka.source`` is given further; it may hold secrets.
        archive: Where the topics' older records are.
    """

    servers: str
    topics: list[str]
    settings: Mapping[str, Any] = field(repr=False)
    archive: Location | None

    def source(self, archive: Source | None = None, *, live: bool = False) -> KafkaSource:
        """Describe them as an input.

        Args:
            archive: The opened ``archive``.
            live: Without the end that was asked for.

        Raises:
            ConfigurationError: A value that can't be right.
        """
        from cojoin.kafka.kafka_source import source  # noqa: PLC0415 - so that --help is quick

        further: dict[str, Any] = {} if archive is None else {"archive": archive}
        return source(self.servers, self.topics, **{**self.settings, **further, **({"to": None} if live else {})})

    @property
    def begins_at_latest(self) -> bool:
        """Whether a part of it begins at what is there when it is asked, so that it can't be read again."""
        return any(point.kind == "latest" for point in self.source().range.from_.values())


def check_kafka(typed: Mapping[str, Any]) -> None:
    """See that what is said of topics is said of topics.

    Args:
        typed: The words' values, by the options' names.

    Raises:
        ConfigurationError: A replay has no topic, or an option is said of an input that is none.
    """
    topics = [side for side in ("left", "right") if typed[side].kind == "kafka"]
    if typed["command"] == "replay" and not topics:
        msg = (
            f"expected a topic as --left, as --right, or as both, such as kafka:localhost:9092/trades, got "
            f"{typed['left']} and {typed['right']}; `cojoin run` joins these"
        )
        raise ConfigurationError(msg)
    said = {name: bool(topics) for name in (*_FOR_ALL, *_PER_SIDE)}
    said |= {f"{side}_{name}": side in topics for side in ("left", "right") for name in (*_PER_SIDE, "archive")}
    for name, is_right in said.items():
        if typed.get(name) is not None and not is_right:
            side = name.partition("_")[0]
            of = f"--{side} {typed[side]} is none" if side in typed and side != name else "none of the inputs is one"
            msg = f"--{name.replace('_', '-')}: that is said of a Kafka topic, and {of}"
            raise ConfigurationError(msg)


def kafka_arguments(
    typed: Mapping[str, Any], side: str, name: str, schema: str | None, options: Mapping[str, str]
) -> KafkaArguments | None:
    """Return how an input's topics are read; None where it is no topic.

    Args:
        typed: The words' values, by the options' names.
        side: ``"left"`` or ``"right"``.
        name: The input's name.
        schema: The columns of the records' values.
        options: librdkafka's settings.

    Raises:
        ConfigurationError: A value that can't be right.
    """
    if typed[side].kind != "kafka":
        return None
    if schema is None:
        example = "'customer_id long, event_time timestamp'"
        msg = f"input {name!r}: expected --{side}-schema, such as {example}: what a record's JSON value holds"
        raise ConfigurationError(msg)
    for option in options:
        if option.startswith("kafka."):
            msg = (
                f"--{side}-option {option}=***: the settings of a topic are librdkafka's, "
                f"which have no 'kafka.' before them; expected such as {option.removeprefix('kafka.')}=***"
            )
            raise ConfigurationError(msg)
    settings = {each: typed[each] for each in _FOR_ALL if typed[each] is not None}
    if settings.get("patience") == "none":
        settings["patience"] = None
    for argument, called in (("from", "from_"), ("to", "to")):
        own, both = typed.get(f"{side}_{argument}"), typed.get(argument)
        if own is not None or both is not None:
            settings[called] = both if own is None else own
    servers, topics = typed[side].kafka_parts()
    settings |= {"schema": schema, "options": options}
    made = KafkaArguments(servers, topics, settings, typed[f"{side}_archive"])
    made.source()
    if typed["verify"] and made.begins_at_latest:
        msg = f"--verify: input {name!r} begins at 'latest', which is later when it is read again; begin at a time"
        raise ConfigurationError(msg)
    return made


def up_to(source: Source, offset: str) -> Source:
    """Return topics as far as a query has read them.

    Args:
        source: The topics.
        offset: Where the query stands, as Spark's offset log has it.
    """
    from cojoin.kafka.kafka_source import KafkaSource  # noqa: PLC0415
    from cojoin.kafka.positions import positions_of  # noqa: PLC0415
    from cojoin.kafka.ranges import Point  # noqa: PLC0415 - so that --help is quick

    assert isinstance(source, KafkaSource)
    if offset == _NOTHING_READ:
        return source
    # A partition that came since is read up to its beginning: not at all.
    ends: dict[tuple[str | None, int | None], Point] = {(None, None): Point("earliest")}
    ends |= {each: Point("offset", at) for each, at in positions_of(json.loads(offset)).items()}
    return replace(source, range=replace(source.range, to=ends))
