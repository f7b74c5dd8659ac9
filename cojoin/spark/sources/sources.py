"""Where an input's rows come from, said in one line: Delta tables, folders of files; of Kafka, see ``cojoin.kafka``.

A source is a description that cojoin opens itself, as a stream or whole. A bare DataFrame serves as well; a source
knows more: where another query would go on with it, and some know their partitions and their span of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from cojoin.engine.values.types import as_schema, parse_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.sources.format_options import as_options
from cojoin.spark.sources.source_positions import check_position, with_losses_accepted
from cojoin.storage.locations import Location, as_location, is_path
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Source", "delta", "files"]

_FORMATS = ("parquet", "json", "csv", "orc", "avro", "text", "xml")


@dataclass(frozen=True)
class Source:
    """A source, made by ``delta`` or ``files``; ``cojoin.kafka.source`` makes one that knows more.

    Attributes:
        format: Spark's name of its format.
        location: A path or a table's name; None for formats that have none.
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
        """Return what tells it from others, however it is spelled; options, which may hold secrets, are left out.

        Args:
            spark: The session, whose file systems make paths absolute.
        """
        location = self.location
        if location is not None and is_path(location):
            location = CheckpointFiles(spark, location, "source").root
        return {"format": self.format, "location": location}

    def recognised(self, spark: SparkSession, what: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what a checkpoint keeps of it, having seen that it is still the one that the checkpoint has read.

        Args:
            spark: The session.
            what: The input, for messages.
            known: What the checkpoint keeps, also one of an earlier release; None where nothing was read yet.

        Raises:
            CheckpointError: Under the same name there is another.
        """
        del what, known
        return dict(self.identity(spark))

    def together_with(self, other: Source) -> Source:
        """Return this source as it is read beside another; most are read alike beside any."""
        del other
        return self

    def with_max_ahead(self, max_ahead_ms: int) -> Source:
        """Return this source as it is read where times further ahead of the clock are no times; most know none.

        Args:
            max_ahead_ms: The input's ``max_ahead``, in milliseconds.
        """
        del max_ahead_ms
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
        return check_position(spark, what, self.format, self.location, offset)

    def with_losses_accepted(self, spark: SparkSession, what: str, offset: str | None) -> str | None:
        """Return a position moved behind what ``lost_since`` tells; the arguments are the same."""
        return with_losses_accepted(spark, what, self.format, self.location, offset)

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last time of what it holds now, in epoch milliseconds; None where unknown."""
        return None

    @property
    def max_apart_ms(self) -> int | None:
        """How far the times that it goes by may be after its rows' event times; None where it goes by none."""
        return None

    @property
    def has_log(self) -> bool:
        """Whether Spark keeps a log of its own of what it has read there, as it does for files."""
        return self.format != "delta"

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Open it with the active Spark session.

        Args:
            streaming: A stream, or all that is there now.

        Raises:
            ConfigurationError: There is no active session.
        """
        spark = SparkSession.getActiveSession()
        if spark is None:
            msg = (
                f"source {self.format} {self.location or ''}: there is no Spark session; "
                f"make one with cojoin.spark_session()"
            )
            raise ConfigurationError(msg)
        reader: Any = (spark.readStream if streaming else spark.read).format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        is_table = self.format == "delta" and not is_path(str(self.location))
        frame: DataFrame = reader.table(self.location) if is_table else reader.load(self.location)
        return frame


def delta(location: Location, *, options: Mapping[str, Any] | None = None) -> Source:
    """Read a Delta table.

    A stream begins with what the table holds, ``maxFilesPerTrigger`` files a batch (1,000 by default) in the order in
    which Delta wrote them, then takes its commits. A query that is started (``Joined.start``) gets nothing late for
    that: until the first reading is through, the input's time comes no further than the least event time of the files
    that are still unread, as the table's own statistics have it; where they have none (of a computed event time, of a
    column beyond the first 32, under column mapping), it stands still until all is read. A commit in more files than a
    batch takes is read alike. What is ahead of time waits in the state, so a large table whose files do not follow each
    other in time wants a larger ``maxFilesPerTrigger``, or to be clustered by event time.

    Args:
        location: A path (with a ``/``, or a ``pathlib.Path``), or a table's name.
        options: Options of Delta's source, such as ``maxFilesPerTrigger``.

    Returns:
        The source, for ``cojoin.Input``.

    Raises:
        ConfigurationError: A location or options that are none.

    Example:
        >>> trades = delta("/lake/trades", options={"maxFilesPerTrigger": 100})
    """
    place = as_location(location, "sources.delta", expected="a path or a table's name")
    return Source("delta", place, None, as_options(options, f"sources.delta {place!r}"))


def files(
    path: Location,
    format: str,  # noqa: A002 - Spark's name
    *,
    schema: str | StructType | pa.Schema | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Read a folder of files.

    Spark takes files in the order in which they were modified last, without a limit all that are there at once. With
    ``maxFilesPerTrigger`` or ``maxBytesPerTrigger`` that order must be one of event time, give or take the watermark's
    delay: nothing else tells what the files hold, so rows of a file that is read too late are late.

    Args:
        path: The folder; a stream takes files as they appear.
        format: ``"parquet"``, ``"json"``, ``"csv"``, ``"orc"``, ``"avro"``, ``"text"`` or ``"xml"``.
        schema: The columns, as DDL, a ``StructType`` or an Arrow schema; a stream of files needs it.
        options: Options of the format, such as ``maxFilesPerTrigger``.

    Raises:
        ConfigurationError: A path, a format, a schema or options that are none.

    Example:
        >>> files("/lake/trades", "parquet", schema="customer_id bigint, event_time timestamp").format
        'parquet'
    """
    if not isinstance(format, str) or format.lower() not in _FORMATS:
        if isinstance(path, str) and path.lower() in _FORMATS:
            msg = f"sources.files: expected the path, then the format; got them as ({path!r}, {format!r})"
            raise ConfigurationError(msg)
        near = f": use cojoin.sources.delta({path!r})" if format == "delta" else did_you_mean(str(format), _FORMATS)
        msg = f"sources.files: format: expected a format of files, got {format!r}{near}"
        raise ConfigurationError(msg)
    place = as_location(path, "sources.files")
    if schema is None:
        msg = (
            f"files {place!r}: expected schema=, such as 'customer_id long, event_time timestamp': "
            f"a stream of files can't infer it"
        )
        raise ConfigurationError(msg)
    ddl = schema if isinstance(schema, str) else schema_to_ddl(as_schema(schema, "schema"), what="schema")
    parse_schema(ddl, what="schema")
    return Source(format, place, ddl, as_options(options, f"sources.files {place!r}"))


def __getattr__(name: str) -> Any:
    # Spark's readers have a method a format, and so have our sinks: whoever looks for one here is told the way.
    if name in _FORMATS:
        hint = f"; read a folder of files with cojoin.sources.files(path, {name!r}, schema=...)"
    elif name == "kafka":
        hint = "; read topics with cojoin.kafka.source(...)"
    else:
        hint = did_you_mean(name, ["delta", "files"])
    msg = f"module 'cojoin.sources' has no attribute {name!r}{hint}"
    raise AttributeError(msg)
