"""The locations of inputs and outputs, as a user types them: ``kind:place``, such as ``delta:/lake/trades``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.sources.secrets import without_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.sinks.sinks import Sink
    from cojoin.spark.sources.sources import Source

__all__ = ["ARCHIVES", "SINKS", "SOURCES", "Location"]

_FILES = ("parquet", "orc", "json", "csv")
_SELF_DESCRIBING = ("parquet", "orc")
SOURCES = ("kafka", "delta", *_FILES)
SINKS = ("delta", "parquet", "kafka")
ARCHIVES = ("delta", "parquet")


@dataclass(frozen=True)
class Location:
    """The location of an input or an output.

    Attributes:
        kind: One of ``SOURCES``.
        place: A path, a table's name, ``host:port,.../topic,...``, or ``host:port,.../^pattern``.
    """

    kind: str
    place: str

    @classmethod
    def parse(cls, text: str, kinds: tuple[str, ...] = SOURCES) -> Location:
        """Read ``kind:place``.

        Raises:
            ConfigurationError: The text has another form, or the kind is unknown.
        """
        kind, colon, place = text.partition(":")
        if not colon or not place:
            msg = f"expected KIND:PLACE, such as delta:/lake/trades, got {text!r}; the kinds are {', '.join(kinds)}"
            raise ConfigurationError(msg)
        if kind not in kinds:
            msg = f"expected one of {', '.join(kinds)} before the colon, got {kind!r}{did_you_mean(kind, kinds)}"
            raise ConfigurationError(msg)
        location = cls(kind, place)
        if kind == "kafka":
            location.kafka_parts()
        return location

    def __str__(self) -> str:
        return without_login(f"{self.kind}:{self.place}")

    def kafka_parts(self) -> tuple[str, list[str], str | None]:
        """Return the brokers, the topics, and the pattern of the topics' names, which begins with ``^``.

        Raises:
            ConfigurationError: One of them is missing.
        """
        servers, _, topics = self.place.partition("/^") if "/^" in self.place else self.place.rpartition("/")
        pattern = topics if "/^" in self.place else None
        named = [] if pattern is not None else [topic.strip() for topic in topics.split(",") if topic.strip()]
        if not servers or not (named or pattern):
            msg = f"expected kafka:HOST:PORT/TOPIC, such as kafka:localhost:9092/trades, got {str(self)!r}"
            raise ConfigurationError(msg)
        return servers, named, pattern

    @property
    def name(self) -> str:
        """The input's default name: that of the topic, the table or the folder."""
        if self.kind == "kafka":
            _, topics, pattern = self.kafka_parts()
            return re.sub(r"\W+", "_", topics[0] if topics else str(pattern)).strip("_")
        last = re.split(r"[/\\]", self.place.rstrip("/\\"))[-1]
        return re.sub(r"\W+", "_", last.rsplit(".", 1)[-1] if self.kind == "delta" else last).strip("_")

    def source(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> Source:
        """Return the location as a source; for topics, ``KafkaArguments.source`` does so.

        Args:
            spark: The session.
            schema: The columns as DDL. It may be None for a Delta table and for files that contain their schema.
            options: Spark's options for the source.

        Raises:
            ConfigurationError: The schema is missing, or is given for a Delta table, which has its own.
        """
        from cojoin.spark.sources import sources  # noqa: PLC0415 - so that --help is quick

        if self.kind == "delta":
            if schema is not None:
                msg = f"{self}: a Delta table has its own schema; leave the schema out"
                raise ConfigurationError(msg)
            return sources.delta(self.place, options=options)
        if schema is None and self.kind in _SELF_DESCRIBING:
            schema = _own_schema(spark, self.kind, self.place, options)
        if schema is None:
            example = "'customer_id long, event_time timestamp'"
            msg = (
                f"{self}: {self.kind} files don't contain their schema; give one with --left-schema or --right-schema, "
                f"such as {example}"
            )
            raise ConfigurationError(msg)
        return sources.files(self.place, self.kind, schema=schema, options=options)

    def sink(self, key: Sequence[str] = (), options: Mapping[str, str] | None = None) -> Sink:
        """Return the location as a sink.

        Args:
            key: For a topic, the columns of the records' key; none writes records without a key.
            options: For a topic, settings of librdkafka.

        Raises:
            ConfigurationError: The location names several topics, or none.
        """
        from cojoin.spark.sinks import sinks  # noqa: PLC0415 - so that --help is quick

        if self.kind == "delta":
            return sinks.delta(self.place)
        if self.kind == "parquet":
            return sinks.parquet(self.place)
        servers, topics, pattern = self.kafka_parts()
        if len(topics) != 1:
            msg = f"{self}: expected one topic to write to, got {', '.join(topics) or pattern}"
            raise ConfigurationError(msg)
        return sinks.kafka(servers, topics[0], key=key[0] if len(key) == 1 else (list(key) or None), options=options)


def _own_schema(spark: SparkSession, kind: str, place: str, options: Mapping[str, str]) -> str:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - so that --help is quick

    reader: Any = spark.read.format(kind).options(**options)
    try:
        return str(reader.load(place).schema.toDDL())
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        msg = (
            f"{kind}:{place}: no schema can be read from there; check the folder, or give an input's schema with "
            f"--left-schema or --right-schema: {reason}"
        )
        raise ConfigurationError(msg) from error
