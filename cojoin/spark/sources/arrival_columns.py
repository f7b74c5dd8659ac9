"""The order in which a source's rows arrive, as a column: the offset, a file's time, or the time of a Delta commit.

The commit that wrote a row of a Delta table is known by the row's file: the log has it as added in that commit. It is
not known for a file that was added without a change of data, as OPTIMIZE does, nor where the commit has left the log.
Of a file that was added several times, as with deletion vectors, it is the first. It costs a Spark job over the log's
commits, and a join of the rows with the names of their files. (Delta's protocol, "Add File and Remove File".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.delta_log import commit_versions
from cojoin.delta_jvm.table_version import read_table
from cojoin.engine.row_changes import COMMITTED_AT
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError
from cojoin.session.kinds import active_session
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta_jvm.table_version import TableVersion
    from cojoin.spark.sources.source import Source

__all__ = ["with_arrival"]

_FILE_TIME = "_file_modification_time"
_FILE = "__cojoin_file"
_ACTIONS = (
    "add struct<path: string, dataChange: boolean>, commitInfo struct<timestamp: bigint, inCommitTimestamp: bigint>"
)


def with_arrival(source: Source, arrival: Any, what: str) -> tuple[DataFrame, Any]:
    """Return the present rows of a source, and the column by which they arrived, which is added if need be.

    Args:
        source: The source.
        arrival: The column that the user names; None is the source's own.
        what: What is read, for messages.

    Raises:
        ConfigurationError: The source has no end.
    """
    endless = source.why_endless()
    if endless is not None:
        msg = f"{what} has no end: {endless}"
        raise ConfigurationError(msg)
    frame = source.open(streaming=False)
    own = _own_arrival(source)
    if arrival not in (None, own) or own in frame.columns:
        return frame, own if arrival is None else arrival
    if own == _FILE_TIME:
        return frame.select("*", F.col("_metadata.file_modification_time").alias(_FILE_TIME)), own
    if own == COMMITTED_AT:
        return _with_commit_time(frame, source), own
    return frame, own


def _own_arrival(source: Source) -> str:
    if source.format == "delta":
        return COMMITTED_AT
    return source.sequence[0] if source.sequence else _FILE_TIME


def _with_commit_time(frame: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a Delta table with the time of the commit that wrote each."""
    spark = active_session()
    assert spark is not None
    table = read_table(spark, str(source.location))
    assert table is not None
    names = [F.col(back_quoted(name)) for name in frame.columns]
    files = _commit_times(spark, table)
    rows = frame.select(*names, F.col("_metadata.file_name").alias(_FILE))
    return rows.join(F.broadcast(files), _FILE, "left").select(*names, COMMITTED_AT)


def _commit_times(spark: SparkSession, table: TableVersion) -> DataFrame:
    """Return the names of a table's files, with the times of the commits that added them."""
    versions = commit_versions(spark, table)
    if not versions:
        return spark.createDataFrame([], f"{_FILE} string, {COMMITTED_AT} timestamp")
    lines = spark.read.schema(_ACTIONS).json([literally(f"{table.log_path}/{each:020d}.json") for each in versions])
    version = F.regexp_extract(F.col("_metadata.file_name"), r"(\d{20})", 1).cast("bigint").alias("version")
    actions = lines.select("add", "commitInfo", version)
    told = actions.where("commitInfo IS NOT NULL")
    millis = F.coalesce("commitInfo.inCommitTimestamp", "commitInfo.timestamp")
    told = told.groupBy("version").agg(F.max(millis).alias("millis"))
    # As Delta does it: a commit that a slow clock dates before the former one is a millisecond after that.
    before = Window.orderBy("version").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    times = told.select(
        "version",
        F.timestamp_millis(F.max(F.expr("millis - version")).over(before) + F.col("version")).alias(COMMITTED_AT),
    )
    file = F.element_at(F.split(F.url_decode("add.path"), "/"), -1)
    added = (
        actions.where("add IS NOT NULL AND add.dataChange")
        .groupBy(file.alias(_FILE))
        .agg(F.min("version").alias("version"))
    )
    return added.join(times, "version").select(_FILE, COMMITTED_AT)
