"""How many rows cross to Python at once: counted by rows where rows are known to be small, else by bytes as well.

Before each row, Spark asks whether an Arrow batch has reached its limit of bytes (64 MB), and adds up all columns to
know it: a third of what the JVM does for an as-of join. Rows that were never large in a run need no such care: a
thousand of them are at most 4 MB, and as many messages of packed rows (``messages``) 128 MB. Spark's limit stays until
both inputs have shown rows, where the state is so large that a snapshot of it is as well, where Python works on an
input's rows before they come here, and where the user has set a limit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cojoin.storage.java_classes import java_class
from cojoin.storage.session_settings import is_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RowSizes", "counted_by_rows", "runs_python"]

_SMALL_ROW_BYTES, _SMALL_STATE_BYTES = 4096, 256 << 20
_ROWS_AT_ONCE, _NO_LIMIT = 1024, (1 << 31) - 1
_MAX_ROWS, _MAX_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"


class RowSizes:
    """What a run has seen of its rows' sizes."""

    def __init__(self) -> None:
        self._largest = (0, 0)
        self._state_bytes = 0

    def observe(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Take what a batch's calls say of themselves."""
        for call in calls:
            left, right = call["row_bytes"]
            self._largest = max(left, self._largest[0]), max(right, self._largest[1])
        if calls:
            self._state_bytes = sum(call["state_bytes"] for call in calls)

    @property
    def are_small(self) -> bool:
        """Whether the next batch's rows may be counted."""
        are_known = min(self._largest) > 0
        return are_known and max(self._largest) <= _SMALL_ROW_BYTES and self._state_bytes <= _SMALL_STATE_BYTES


@contextlib.contextmanager
def counted_by_rows(session: SparkSession) -> Iterator[None]:
    """Have the jobs of a stream's own session go by rows alone meanwhile; limits of the user's stay."""
    rows_before = int(str(session.conf.get(_MAX_ROWS)))
    if is_set(session, _MAX_BYTES):
        yield
        return
    try:
        session.conf.set(_MAX_ROWS, min(rows_before, _ROWS_AT_ONCE) if rows_before > 0 else _ROWS_AT_ONCE)
        session.conf.set(_MAX_BYTES, _NO_LIMIT)
        yield
    finally:
        session.conf.set(_MAX_ROWS, rows_before)
        session.conf.unset(_MAX_BYTES)


def runs_python(frame: DataFrame) -> bool:
    """Tell whether Python works on the rows of a DataFrame."""
    pattern = java_class(frame.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()
    return bool(frame._jdf.queryExecution().analyzed().containsPattern(pattern))  # noqa: SLF001 - nothing else tells
