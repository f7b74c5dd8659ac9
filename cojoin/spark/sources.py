"""Where an input's rows come from, said in one line: Delta tables, folders of files; of Kafka, see ``cojoin.kafka``.

A source is a description that cojoin opens itself, as a stream or whole. A bare DataFrame serves as well; a source
knows more: where another query would go on with it, and some know their partitions and their span of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.positions import check_position, with_losses_accepted
from cojoin.errors import ConfigurationError
from cojoin.locations import is_path
from cojoin.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["Source", "delta", "files"]


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
        """Give what tells it from other sources, however it is spelled; options, which may hold secrets, are left out.

        Args:
            spark: The session, whose file systems make paths absolute.
        """
        location = self.location
        if location is not None and is_path(location):
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
        return check_position(spark, what, self.format, self.location, offset)

    def with_losses_accepted(self, spark: SparkSession, what: str, offset: str | None) -> str | None:
        """Give a position moved behind what ``lost_since`` tells; the arguments are the same."""
        return with_losses_accepted(spark, what, self.format, self.location, offset)

    def span(self) -> tuple[int, int] | None:
        """Give the times of the first and the last of what it holds now, in epoch milliseconds; None where unknown."""
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
