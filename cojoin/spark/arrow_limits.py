"""How many rows cross to Python at once: counted by rows where rows are known to be small, else by bytes as well.

Before each row, Spark asks whether an Arrow batch has reached its limit of bytes (64 MB), and adds up all columns to
know it: a third of what the JVM does for an as-of join. Rows that were small in the last batch need no such care: a
thousand of them are at most 4 MB, and as many messages of packed rows (``messages``) 128 MB; rows would have to grow to
hundreds of times their size from one batch to the next to be too many. A run's first batch, of which nothing is known,
keeps Spark's limit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["counted_by_rows"]

_SMALL_ROW_BYTES = 4096
_MAX_BYTES, _NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str((1 << 31) - 1)
_MAX_ROWS, _ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch", "1024"


@contextlib.contextmanager
def counted_by_rows(session: SparkSession, row_bytes: int | None) -> Iterator[None]:
    """Have the jobs that are run meanwhile go by rows alone, if rows are small.

    Args:
        session: The stream's own session: nobody else's jobs see the setting.
        row_bytes: How many bytes a row had; None where that is not known.
    """
    if row_bytes is None or row_bytes > _SMALL_ROW_BYTES:
        yield
        return
    settings = {_MAX_BYTES: _NO_LIMIT, _MAX_ROWS: _ROWS}
    before = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, str(value))
