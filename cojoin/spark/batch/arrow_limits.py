"""The size of the Arrow batches between the JVM and Python: limited by rows alone if rows are known to be small.

Before each row, Spark checks whether an Arrow batch has reached its limit in bytes (64 MB), for which it adds up all
columns. This is a third of the JVM's work in an as-of join. The check is not needed if all rows of a run so far are
small: a thousand of them take at most 4 MB, and a thousand messages of packed rows (``codec``) 128 MB.

Spark's limit in bytes remains

- until both inputs have had rows;
- if the state is so large that the rows of a snapshot are large, too;
- if a Python function processes an input's rows before cojoin does;
- if the user has set a limit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.session.kinds import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RowSizes", "counted_by_rows", "limits_bytes", "runs_python"]

_SMALL_ROW_BYTES, _SMALL_STATE_BYTES = 4096, 256 << 20
_ROWS_AT_ONCE, _NO_LIMIT = 1024, (1 << 31) - 1
_MAX_ROWS, _MAX_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"


class RowSizes:
    """The sizes of rows and of the state that a run has seen so far."""

    def __init__(self) -> None:
        self._largest = (0, 0)
        self._state_bytes = 0

    def observe(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Add the statistics of a batch's calls."""
        for call in calls:
            left, right = call["row_bytes"]
            self._largest = max(left, self._largest[0]), max(right, self._largest[1])
        if calls:
            self._state_bytes = sum(call["state_bytes"] for call in calls)

    @property
    def are_small(self) -> bool:
        """Whether the next batch's Arrow batches may be limited by rows alone."""
        are_known = min(self._largest) > 0
        return are_known and max(self._largest) <= _SMALL_ROW_BYTES and self._state_bytes <= _SMALL_STATE_BYTES


@contextlib.contextmanager
def counted_by_rows(session: SparkSession) -> Iterator[None]:
    """Limit Arrow batches by rows alone in a stream's own session during the block, unless the user has set a limit."""
    rows_before = int(str(session.conf.get(_MAX_ROWS)))
    if adapter_of(session).is_set(_MAX_BYTES):
        yield
        return
    try:
        session.conf.set(_MAX_ROWS, min(rows_before, _ROWS_AT_ONCE) if rows_before > 0 else _ROWS_AT_ONCE)
        session.conf.set(_MAX_BYTES, _NO_LIMIT)
        yield
    finally:
        session.conf.set(_MAX_ROWS, rows_before)
        session.conf.unset(_MAX_BYTES)


def limits_bytes(session: SparkSession) -> bool:
    """Return whether this version of Spark limits Arrow batches by bytes at all."""
    try:
        return bool(session.conf.get(_MAX_BYTES))
    except PySparkException:
        return False


def runs_python(frame: DataFrame) -> bool:
    """Return whether the plan of a DataFrame contains a Python function; with Spark Connect it is taken for granted."""
    return adapter_of(frame.sparkSession).runs_python(frame)
