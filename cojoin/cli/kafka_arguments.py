"""The arguments for reading Kafka topics, checked as far as that is possible without a broker.

A topic's source is only a description. It is made before Spark is started, so an error in it is reported at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cojoin.cli.record_options import RECORD_OPTIONS, record_settings
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.cli.typed_locations import Location
    from cojoin.kafka.kafka_source import KafkaSource
    from cojoin.spark.sources.sources import Source

__all__ = ["KafkaArguments", "check_kafka", "check_topics_written", "kafka_arguments", "up_to"]

_FOR_ALL = ("max_drift", "max_records", "patience", "undecodable", "tombstones", "data_loss")
_PER_SIDE = ("from", "to", "group", *RECORD_OPTIONS)
_NOTHING_READ = "-"


@dataclass(frozen=True)
class KafkaArguments:
    """The arguments for reading one input's topics.

    Attributes:
        servers: The brokers.
        topics: The topics that are named; none where a pattern is.
        settings: Further arguments of ``cojoin.kafka.source``; they may hold secrets.
        archive: The location of the topics' older records; None if there is none.
    """

    servers: str
    topics: list[str]
    settings: Mapping[str, Any] = field(repr=False)
    archive: Location | None

    def source(self, archive: Source | None = None) -> KafkaSource:
        """Return the topics as a source.

        Args:
            archive: The source that reads ``archive``.

        Raises:
            ConfigurationError: A value is invalid.
        """
        from cojoin.kafka.source_arguments import source  # noqa: PLC0415 - so that --help is quick

        further: dict[str, Any] = {} if archive is None else {"archive": archive}
        return source(self.servers, self.topics, **{**self.settings, **further})

    @property
    def begins_at_latest(self) -> bool:
        """Whether any reading begins at the latest offset, so that the same range can't be read again."""
        return any(point.kind == "latest" for point in self.source().range.from_.values())


def check_kafka(typed: Mapping[str, Any]) -> None:
    """Check that options for topics are given only for inputs that are topics.

    Args:
        typed: The values of the options, by their names.

    Raises:
        ConfigurationError: A replay has no topic, or an option for topics is given for another input.
    """
    topics = [side for side in ("left", "right") if typed[side].kind == "kafka"]
    if typed["command"] == "replay" and not topics:
        msg = (
            f"expected a topic as --left, as --right, or as both, such as kafka:localhost:9092/trades, got "
            f"{typed['left']} and {typed['right']}; `cojoin run` joins these"
        )
        raise ConfigurationError(msg)
    said = {name: bool(topics) for name in (*_FOR_ALL, *_PER_SIDE, "registry_option")}
    said |= {
        f"{side}_{name}": side in topics for side in ("left", "right") for name in (*_PER_SIDE, "archive", "column")
    }
    for name, is_right in said.items():
        if typed.get(name) is not None and not is_right:
            side = name.partition("_")[0]
            of = f"--{side} {typed[side]} is not one" if side in typed and side != name else "neither input is one"
            msg = f"--{name.replace('_', '-')} applies only to a Kafka topic, and {of}"
            raise ConfigurationError(msg)


def check_topics_written(typed: Mapping[str, Any]) -> None:
    """Check the outputs that are topics, and that options for them are given only for such ones.

    Args:
        typed: The values of the options, by their names.

    Raises:
        ConfigurationError: An option is given for another output, or --verify would have to read a topic.
    """
    topics = [name for name in ("output", "rejected") if typed[name] is not None and typed[name].kind == "kafka"]
    if typed["output_key"] is not None and "output" not in topics:
        msg = f"--output-key applies only to a Kafka topic, and --output {typed['output']} is not one"
        raise ConfigurationError(msg)
    if typed["output_option"] and not topics:
        msg = "--output-option applies only to a Kafka topic, and neither --output nor --rejected is one"
        raise ConfigurationError(msg)
    if topics and typed["verify"]:
        msg = f"--verify reads what was written, and --{topics[0]} {typed[topics[0]]} is a topic; write to delta:PATH"
        raise ConfigurationError(msg)
    for name in topics:
        typed[name].sink((), dict(typed["output_option"]))


def kafka_arguments(
    typed: Mapping[str, Any], side: str, name: str, schema: str | None, options: Mapping[str, str]
) -> KafkaArguments | None:
    """Return the arguments for reading an input's topics; None where the input is not a topic.

    Args:
        typed: The values of the options, by their names.
        side: ``"left"`` or ``"right"``.
        name: The input's name.
        schema: The columns of the records' values, as DDL.
        options: Settings of librdkafka.

    Raises:
        ConfigurationError: A value is missing or invalid.
    """
    if typed[side].kind != "kafka":
        return None
    for option in options:
        if option.startswith("kafka."):
            msg = (
                f"--{side}-option {option}=***: settings of a topic are librdkafka's, without the prefix 'kafka.'; "
                f"expected {option.removeprefix('kafka.')}=***"
            )
            raise ConfigurationError(msg)
    settings = {each: typed[each] for each in _FOR_ALL if typed[each] is not None}
    if settings.get("patience") == "none":
        settings["patience"] = None
    for argument, called in (("from", "from_"), ("to", "to"), ("group", "group")):
        own, both = typed.get(f"{side}_{argument}"), typed.get(argument)
        if own is not None or both is not None:
            settings[called] = both if own is None else own
    servers, topics, pattern = typed[side].kafka_parts()
    settings |= {"options": options, "topic_pattern": pattern, **record_settings(typed, side, name, schema)}
    made = KafkaArguments(servers, topics, settings, typed[f"{side}_archive"])
    made.source()
    if typed["verify"] and made.begins_at_latest:
        msg = (
            f"--verify: input {name!r} begins at 'latest', which has moved by the time it is read again; "
            f"begin at a time instead"
        )
        raise ConfigurationError(msg)
    return made


def up_to(source: Source, offset: str) -> Source:
    """Return a source of topics that ends at a query's offset in them.

    Args:
        source: The topics.
        offset: The query's offset, as its line in Spark's offset log.
    """
    from cojoin.kafka.kafka_source import KafkaSource  # noqa: PLC0415
    from cojoin.kafka.points import Point  # noqa: PLC0415 - so that --help is quick
    from cojoin.kafka.positions import positions_of  # noqa: PLC0415

    assert isinstance(source, KafkaSource)
    if offset == _NOTHING_READ:
        return source
    # A partition that was added since then ends at its earliest offset, so nothing of it is read.
    ends: dict[tuple[str | None, int | None], Point] = {(None, None): Point("earliest")}
    ends |= {each: Point("offset", at) for each, at in positions_of(json.loads(offset)).items()}
    return replace(source, range=replace(source.range, to=ends))
