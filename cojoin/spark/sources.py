"""Where an input's rows come from, said in one line: Kafka topics, Delta tables, folders of files.

A source is a description that cojoin opens itself, as a stream or whole. A bare DataFrame serves as well; a source
knows more: a Kafka source carries topic, partition and offset, so watermarks follow each partition and ties fall by
offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.positions import check_position, with_losses_accepted
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean
from cojoin.locations import is_path
from cojoin.types import parse_schema, schema_to_ddl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

__all__ = ["Source", "delta", "files", "kafka"]

_KAFKA_COLUMNS = ("topic", "partition", "offset")

# Kafka's own default is a minute in which it seems to hang.
_PATIENCE = {"default.api.timeout.ms": "20000", "request.timeout.ms": "10000"}


@dataclass(frozen=True)
class Source:
    """A source, made by ``kafka``, ``delta`` or ``files``.

    Attributes:
        format: Spark's name of its format.
        location: A path, a table's name, or topics; None for formats that have none.
        schema: The columns as DDL, where the format does not know them.
        options: Spark's options for the format. They may hold secrets, so they are never shown.
        partition: The columns with the source partition that it gives.
        sequence: The columns with the order at the source that it gives.
    """

    format: str
    location: str | None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()

    def identity(self, spark: SparkSession) -> dict[str, str | None]:
        """Give what tells it from other sources, however it is spelled; options, which may hold secrets, are left out.

        Args:
            spark: The session, whose file systems make paths absolute.
        """
        location = self.location
        if self.format == "kafka":
            location = ",".join(sorted(topic.strip() for topic in str(location).split(",")))
        elif location is not None and is_path(location):
            location = CheckpointFiles(spark, location).root
        return {"format": self.format, "location": location}

    def together_with(self, other: Source) -> Source:
        """Give this source as it is read beside another; most are read alike beside any."""
        del other
        return self

    def check(self, *, is_new: bool) -> None:
        """See, before the query starts, what can be seen only where it begins.

        Args:
            is_new: Whether the query begins, or goes on from a checkpoint.

        Raises:
            ConfigurationError: It can't begin so.
        """

    def lost_since(self, spark: SparkSession, what: str, offset: str | None) -> list[str]:
        """Say what a source no longer has of what follows a position, a text for each loss.

        Args:
            spark: The session.
            what: The input, for messages.
            offset: The line of Spark's offset log.

        Raises:
            CheckpointError: The query can't go on with this source.
        """
        return check_position(spark, what, self.format, self.location, self.options, offset)

    def with_losses_accepted(self, spark: SparkSession, what: str, offset: str | None) -> str | None:
        """Give a position moved behind what ``lost_since`` tells; the arguments are the same."""
        return with_losses_accepted(spark, what, self.format, self.location, self.options, offset)

    def span(self) -> tuple[int, int] | None:
        """Give the times of the first and the last of what it holds now, in epoch milliseconds; None where unknown."""
        return None

    @property
    def has_log(self) -> bool:
        """Whether Spark keeps a log of its own of what it has read there, as it does for files."""
        return self.format not in {"kafka", "delta"}

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Open it with the active Spark session.

        Args:
            streaming: A stream, or all that is there now.

        Raises:
            ConfigurationError: There is no active session; no Kafka broker answers, or it has no such topic.
        """
        spark = SparkSession.getActiveSession()
        if spark is None:
            msg = (
                f"source {self.format} {self.location or ''}: there is no Spark session; "
                f"make one with cojoin.spark_session()"
            )
            raise ConfigurationError(msg)
        reader: Any = (spark.readStream if streaming else spark.read).format(self.format).options(**self.options)
        if self.format == "kafka":
            records = reader.load()
            _check_topics(spark, str(self.location), self.options)
            return _decoded(records, self.schema)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        is_table = self.format == "delta" and not is_path(str(self.location))
        frame: DataFrame = reader.table(self.location) if is_table else reader.load(self.location)
        return frame


def kafka(
    bootstrap_servers: str,
    topic: str | Sequence[str],
    *,
    schema: str | None = None,
    starting_offsets: str = "earliest",
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Read Kafka topics by Spark's own source.

    Args:
        bootstrap_servers: Such as ``"localhost:9092"``.
        topic: A topic, or several.
        schema: DDL of the records' JSON values, which become columns; without it ``key`` and ``value`` come as
            binary. A value that is not of this form has nulls, and its row is rejected for them.
        starting_offsets: Where a new query begins: ``"earliest"``, ``"latest"`` or Spark's JSON.
        options: Further options of Spark's Kafka source, such as ``maxOffsetsPerTrigger``. Never shown or stored by
            cojoin.

    Returns:
        A source with the value's columns, then ``topic``, ``partition`` and ``offset``.
    """
    topics = topic if isinstance(topic, str) else ",".join(topic)
    if schema is not None:
        taken = {name.lower() for name in parse_schema(schema, what="schema").names} & set(_KAFKA_COLUMNS)
        if taken:
            msg = (
                f"schema: the value's fields {sorted(taken)} have the names of Kafka's own columns; "
                f"read the topic with spark.readStream and rename them"
            )
            raise SchemaError(msg)
    settings = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topics, "startingOffsets": starting_offsets}
    settings |= {name: str(value) for name, value in (options or {}).items()}
    return Source("kafka", topics, schema, settings, ("topic", "partition"), ("offset",))


def delta(location: str, *, options: Mapping[str, Any] | None = None) -> Source:
    """Read a Delta table.

    Args:
        location: A path, or a table's name.
        options: Options of Delta's source, such as ``maxFilesPerTrigger``.
    """
    return Source("delta", location, None, _texts(options))


def files(path: str, format: str, *, schema: str | None = None, options: Mapping[str, Any] | None = None) -> Source:  # noqa: A002
    """Read a folder of files.

    Args:
        path: The folder; a stream takes files as they appear.
        format: ``"parquet"``, ``"json"``, ``"csv"``, ``"orc"`` or ``"avro"``.
        schema: DDL of the columns; a stream of files needs it.
        options: Options of the format, such as ``maxFilesPerTrigger``.
    """
    if schema is None:
        msg = (
            f"files {path!r}: expected schema=, such as 'customer_id long, event_time timestamp': "
            f"a stream of files can't infer it"
        )
        raise ConfigurationError(msg)
    parse_schema(schema, what="schema")
    return Source(format, path, schema, _texts(options))


def _texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (options or {}).items()}


def _check_topics(spark: SparkSession, location: str, options: Mapping[str, str]) -> None:
    """See that the topics are there: Spark would find out in the first batch, and not say which one is missing."""
    jvm: Any = getattr(spark, "_jvm", None)  # Spark Connect has none
    client = None if jvm is None else jvm.org.apache.kafka.clients.admin.AdminClient
    if "subscribe" not in options or not isinstance(client, JavaClass):
        return
    own = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    settings = jvm.java.util.HashMap()
    for name, value in (_PATIENCE | own).items():
        settings.put(name, value)
    try:
        admin = client.create(settings)
        try:
            there = {str(name) for name in admin.listTopics().names().get()}
        finally:
            admin.close()
    except Py4JJavaError as error:
        msg = f"source kafka {location}: {own['bootstrap.servers']} does not answer as a Kafka broker: {_cause(error)}"
        raise ConfigurationError(msg) from error
    for topic in options["subscribe"].split(","):
        if topic.strip() not in there:
            msg = f"source kafka: {own['bootstrap.servers']} has no topic {topic.strip()!r}"
            raise ConfigurationError(msg + did_you_mean(topic, there))


def _cause(error: Py4JJavaError) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage() or cause.toString())


def _decoded(records: DataFrame, schema: str | None) -> DataFrame:
    if schema is None:
        return records.select("key", "value", *_KAFKA_COLUMNS)
    # In our own spelling: Spark's plans refuse a char or varchar in a parsed schema.
    spelled = schema_to_ddl(parse_schema(schema, what="schema"))
    # The session's zone must not matter: a time without a zone of its own is read as UTC.
    value = F.from_json(F.col("value").cast("string"), spelled, {"timeZone": "UTC"})
    return records.select(value.alias("value"), *_KAFKA_COLUMNS).select("value.*", *_KAFKA_COLUMNS)
