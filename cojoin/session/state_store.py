"""Spark's own state store, read without the query that has written it.

Spark: ``StateDataSource``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.store import Store

__all__ = ["ENCODED", "STATE_COLUMNS", "load_states", "names_missing_state"]

STATE_COLUMNS = ("key.key_group AS label", "value.groupState.state AS content")
"""The key and the state of each value, as SQL."""

ENCODED = re.compile(r"[\s%\[\]{}^`|\"<>\\#?]")
"""The characters in a path that Spark's reader of state encodes, and then looks for."""


def load_states(spark: SparkSession, files: Store, batch_id: int) -> DataFrame:
    """Return the state values after a batch, as Spark shows them; ``STATE_COLUMNS`` are what is needed of them.

    Args:
        spark: The session.
        files: The checkpoint.
        batch_id: The batch.

    Raises:
        SPARK_ERRORS: Spark no longer has the state.
    """
    # The format needs classes that a session loads only with its first stream.
    _ = spark.streams
    store = spark.read.format("statestore").option("batchId", batch_id).load(files.path("spark"))
    # Spark Connect looks at the files only when it is asked something.
    _ = store.columns
    return store


def names_missing_state(error: BaseException) -> bool:
    """Return whether an error of reading the values says that Spark no longer has them."""
    return any(each in str(error) for each in ("STATE_STORE", "FileNotFound"))
