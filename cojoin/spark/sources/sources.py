"""The sources of an input: ``delta`` for Delta tables and ``files`` for folders.

A source is a description that cojoin opens itself, as a stream or as a static DataFrame. An ``Input`` also takes a
plain DataFrame, but a restored query can only continue with a source. Some sources have partitions and a span of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.values.arguments import check_flag
from cojoin.engine.values.types import as_schema, parse_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.sources.options import as_options
from cojoin.spark.sources.source import PlacedAt, Source
from cojoin.storage.locations import Location, as_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cojoin.engine.values.arguments import Duration

__all__ = ["PlacedAt", "Source", "delta", "files"]

_FORMATS = ("parquet", "json", "csv", "orc", "avro", "text", "xml")


def delta(
    location: Location,
    *,
    changes: bool = False,
    static: bool = False,
    refresh: Duration | None = None,
    clock_skew: Duration | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Return a source that reads a Delta table.

    A stream first reads the table's present snapshot, ``maxFilesPerTrigger`` files (1,000 by default) per micro-batch
    in the order in which they were written, and then the table's commits. A commit that updates or deletes rows stops
    it with an error, unless ``changes=True`` or Delta's option ``skipChangeCommits`` is given.

    In a query (``Joined.start``) the order of the files makes no row late. While the snapshot is read, the input's
    watermark does not pass the smallest event time of the unread files, which Delta's file statistics contain. If
    the statistics lack the event time (an expression, or a column after the first 32), the watermark does not advance
    until the snapshot is read. Nor does it advance while a commit is read that has more files than a micro-batch takes.

    Where that gives the same rows, cojoin itself chooses the files of each micro-batch by the table's log, and the
    Python workers read them: on Spark 4.2 and later, with a column as event time, for almost all tables, those with
    mapped columns and deletion vectors among them (guide 06 has a list). Else Delta's own source reads the table, and
    so it does if the session has ``spark.cojoin.delta=spark`` at ``connect``. ``query.progress`` has the reader and the
    reason, as ``inputs[0].reading``. Both have the same offsets, so a checkpoint continues with either.

    Rows ahead of the watermark wait in the state. For a large table whose files overlap in event time, set a larger
    ``maxFilesPerTrigger`` or cluster the table by event time.

    With ``changes=True`` the table's changes are read after its present rows, from Delta's change data feed: inserted
    and updated rows are versions, and deleted rows are tombstones; ``temporal_join`` needs no option for them. The
    feed is switched on with ``ALTER TABLE ... SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')``. Each row has
    ``_deleted``, ``_commit_version`` and ``_commit_timestamp`` next to the table's columns; a join's result leaves
    them out, except for the one that is the event time. If event time is a column of the table, a deleted row takes
    effect at the later of that column and its commit's time. If a row is updated to an event time that is null or too
    far ahead, the new version is rejected and the former one stays valid; the progress counts both (``rejected``,
    ``unchanged``). The other input's rows wait until all present rows are in the state; the progress has the number
    of those read.

    With the event time ``_commit_timestamp``, a bounded run (``Trigger.available_now()``) first takes the time of the
    driver's clock and then reads the table's newest version. Later commits have later times, unless their writers'
    clocks are behind. So the input's watermark at the end is the time taken less ``clock_skew``, or the version's own
    time if it is later: a table that does not change does not delay a daily job. Rows of commits with earlier times
    are late, and the progress counts them (``late_commits``).

    With ``static=True`` the table is the right side of a join with a stream. One version of it is read: the newest at
    the query's first start, for all the query's runs. It is loaded as a whole before the first left row is joined, and
    does not hold the watermark back. With ``event_time=None`` in its ``Input`` its rows, one for each key, are valid
    at all times. With ``refresh="1 hour"``, the newest version replaces the loaded one between two micro-batches, an
    hour or more after the last load by their processing times; a bounded run checks this at its start. A refresh
    changes the rows that are emitted after it, and none before.

    Args:
        location: A path (with a ``/``, or a ``pathlib.Path``), or a table's name.
        changes: Whether the table's changes are read after its present rows.
        static: Whether the table is read as one version, to be joined with a stream.
        refresh: The time from a load to that of the newest version, such as ``"1 hour"`` or a ``timedelta``, in as-of
            and temporal joins; it implies ``static``. None means never.
        clock_skew: With ``changes=True`` and the event time ``_commit_timestamp``, how far the clocks of the table's
            writers may be behind the driver's; None is a minute.
        options: Options of Delta's source, such as ``maxFilesPerTrigger``. With ``static`` they are those of Delta's
            reader; ``versionAsOf`` then names the version.

    Returns:
        The source, for ``cojoin.Input``.

    Raises:
        ConfigurationError: The location, the refresh or the options are invalid, or contradict each other.

    Example:
        >>> trades = delta("/lake/trades", options={"maxFilesPerTrigger": 100})
        >>> customers = delta("/lake/customers", refresh="1 hour")
    """
    place = as_location(location, "sources.delta", expected="a path or a table's name")
    check_flag("sources.delta: static", static)
    check_flag("sources.delta: changes", changes)
    if changes:
        from cojoin.spark.sources.delta_changes import delta_changes  # noqa: PLC0415 - it extends this module

        if static or refresh is not None:
            msg = (
                f"sources.delta {place!r}: expected changes=True, or static=True or refresh=, got both: a static table "
                f"has no changes; leave one out"
            )
            raise ConfigurationError(msg)
        return delta_changes(place, as_options(options, f"sources.delta {place!r}"), clock_skew)
    if clock_skew is not None:
        msg = (
            f"sources.delta {place!r}: clock_skew= is about the commits of a table whose changes are read; leave it "
            f"out, or give changes=True"
        )
        raise ConfigurationError(msg)
    if static or refresh is not None:
        from cojoin.spark.sources.delta_static import static_table  # noqa: PLC0415 - it extends this module

        return static_table(place, options, refresh)
    return Source("delta", place, None, as_options(options, f"sources.delta {place!r}"))


def files(
    path: Location,
    format: str,  # noqa: A002 - Spark's name
    *,
    schema: str | StructType | pa.Schema | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Return a source that reads a folder of files.

    Spark reads files in the order of their modification times, by default all present files in one micro-batch. With
    ``maxFilesPerTrigger`` or ``maxBytesPerTrigger`` this must also be the order of event time, within the bound of the
    watermark strategy: the watermark follows the rows read so far, so rows of a file that is read too late are late.
    A stream silently ignores a file that is a week or more older, by modification time, than the newest that it has
    read: copy old files with new times, or set Spark's option ``maxFileAge``, such as ``"3650d"``.

    A value of a CSV, JSON or XML file that does not fit its column is null, and CSV's columns go by their order, as
    Spark's options have it by default; ``{"mode": "FAILFAST"}`` ends the query at such a value instead, and
    ``{"header": True, "enforceSchema": False}`` compares the names in CSV's header.

    Parquet files of a local or mounted folder are read by the Python workers themselves where that gives the same rows
    as Spark's reader: the usual types, event time a column, and no option or setting that changes how a file is
    read. Offsets and the log of what was read are Spark's in any case, so a checkpoint continues either way.
    The reader and the reason are in ``query.progress``, as ``inputs[0].reading``. ``connect`` chooses the reader by up
    to four files; a later file that differs (another type of a column, old calendars, a folder named ``column=value``)
    stops the query with an error. If the session has ``spark.cojoin.parquet=spark`` at ``connect``, Spark reads all.

    Args:
        path: The folder; a stream reads files as they appear.
        format: ``"parquet"``, ``"json"``, ``"csv"``, ``"orc"``, ``"avro"``, ``"text"`` or ``"xml"``.
        schema: The columns, as DDL, a ``StructType`` or an Arrow schema. It is required, since a stream of files can't
            infer it.
        options: Options of the format, such as ``maxFilesPerTrigger``.

    Returns:
        The source, for ``cojoin.Input``.

    Raises:
        ConfigurationError: An argument is invalid, or ``schema`` is missing.
        SchemaError: The schema does not parse.

    Example:
        >>> files("/lake/trades", "parquet", schema="customer_id bigint, event_time timestamp").format
        'parquet'
    """
    name = format.lower() if isinstance(format, str) else ""
    if name not in _FORMATS:
        if isinstance(path, str) and path.lower() in _FORMATS:
            msg = f"sources.files: expected the path, then the format; got them as ({path!r}, {format!r})"
            raise ConfigurationError(msg)
        near = f": use cojoin.sources.delta({path!r})" if name == "delta" else did_you_mean(str(format), _FORMATS)
        msg = f"sources.files: format: expected a format of files, got {format!r}{near}"
        raise ConfigurationError(msg)
    place = as_location(path, "sources.files")
    if schema is None:
        msg = (
            f"files {place!r}: expected schema=, such as 'customer_id long, event_time timestamp': "
            f"a stream of files can't infer it"
        )
        raise ConfigurationError(msg)
    ddl = schema if isinstance(schema, str) else schema_to_ddl(as_schema(schema, "schema"), label="schema")
    parse_schema(ddl, label="schema")
    return Source(name, place, ddl, as_options(options, f"sources.files {place!r}"))
