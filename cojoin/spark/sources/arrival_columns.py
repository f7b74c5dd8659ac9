"""The order in which a source's rows arrive, as a column: the offset, a file's time, or the time of a Delta commit.

The commit that wrote a row of a Delta table is known by the row's file: the log has it as added in that commit. It is
not known for a file that was added without a change of data, as OPTIMIZE does, nor where the commit has left the log.
Of a file that was added several times, as with deletion vectors, it is the first. It costs the reading of the log's
commits, and a join of the rows with the names of their files. (Delta's protocol, "Add File and Remove File".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import COMMITTED_AT
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError
from cojoin.session.delta_tables import table_log
from cojoin.session.kinds import active_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.table_log import TableLog
    from cojoin.spark.sources.source import Source

__all__ = ["with_arrival"]

_FILE_TIME = "_file_modification_time"
_FILE = "__cojoin_file"


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
    log = table_log(spark, str(source.location))
    assert log is not None
    names = [F.col(back_quoted(name)) for name in frame.columns]
    files = _commit_times(spark, log)
    rows = frame.select(*names, F.col("_metadata.file_name").alias(_FILE))
    return rows.join(F.broadcast(files), _FILE, "left").select(*names, COMMITTED_AT)


def _commit_times(spark: SparkSession, log: TableLog) -> DataFrame:
    """Return the names of a table's files, with the times of the commits that added them."""
    latest, times = -1, dict[str, int]()
    for version in log.versions():
        commit = log.commit(version)
        if commit.timestamp is None:
            continue
        # As Delta does it: a commit that a slow clock dates before the former one is a millisecond after that.
        latest = max(latest + 1, commit.timestamp)
        for file in commit.added:
            if file.changes_data:
                times.setdefault(file.path.rpartition("/")[2], latest)
    rows = pa.table({_FILE: pa.array(list(times), pa.string()), "millis": pa.array(list(times.values()), pa.int64())})
    return spark.createDataFrame(rows).select(_FILE, F.timestamp_millis("millis").alias(COMMITTED_AT))
