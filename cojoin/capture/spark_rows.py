"""The rows of some keys, or all rows, of inputs of Spark, collected into this process.

Spark reads them once, filtered by key and by event time. A stream whose source is one of ``cojoin.sources`` is read as
it is now, from its beginning. How many rows may come is limited, since all are kept in memory.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.tables import as_spark_column
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import Column

    from cojoin.engine.operator import Sides
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.spark_execution import SparkExecution

__all__ = ["MOST_ROWS", "collect_rows"]

MOST_ROWS = 1_000_000
"""How many rows of an input are collected at most."""


def collect_rows(
    execution: SparkExecution, keys: Sequence[tuple[Any, ...]] | None, span: tuple[datetime, datetime] | None
) -> Sides:
    """Return rows of both inputs, left first.

    Args:
        execution: The execution of the inputs.
        keys: The keys whose rows are wanted; None for all.
        span: The span of event time; None for all.

    Raises:
        ConfigurationError: An input is a stream that can't be read as a whole, or has too many rows.
    """
    left, right = (_collected(bound, keys, span) for bound in execution.bound)
    return left, right


def _collected(
    bound: BoundInput, keys: Sequence[tuple[Any, ...]] | None, span: tuple[datetime, datetime] | None
) -> pa.Table:
    spec = bound.spec
    frame = bound.static_frame(
        stream="a streaming DataFrame, whose rows can't be read again: declare it with one of cojoin.sources, connect "
        "a static DataFrame of the same rows, or capture from the query's checkpoint",
        need="a test needs rows that end",
    )
    columns = [F.col(back_quoted(name)) for name in spec.key]
    if keys is not None:
        frame = frame.where(reduce(or_, [_equals(columns, key) for key in keys]))
    if span is not None and spec.event_time is not None:
        time = F.col(back_quoted(spec.event_time))
        frame = frame.where((time >= F.lit(span[0])) & (time < F.lit(span[1])))
    chosen = frame.select(*(F.col(back_quoted(name)).alias(f"c{at}") for at, name in enumerate(spec.schema.names)))
    table: pa.Table = chosen.limit(MOST_ROWS + 1).toArrow()
    if table.num_rows > MOST_ROWS:
        which = "" if keys is None else f" of the {len(keys)} keys"
        msg = (
            f"input {spec.name!r} has more than {MOST_ROWS:,} rows{which}, too many for a test: "
            f"{'name keys=, or ' if keys is None else ''}take a shorter time with span=(start, end)"
        )
        raise ConfigurationError(msg)
    arrays = [as_spark_column(column, f"input {spec.name!r}") for column in table.columns]
    return table.from_arrays(arrays, names=spec.schema.names).cast(spec.schema)


def _equals(columns: Sequence[Column], key: tuple[Any, ...]) -> Column:
    return reduce(and_, [column == F.lit(value) for column, value in zip(columns, key, strict=True)])
