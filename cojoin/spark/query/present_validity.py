"""The check of rows with a span of validity on Spark, before a run starts: that none ends early, and none overlaps.

It looks at what is there: a static DataFrame, a version of a static side before it is loaded, or the present rows of a
table that is going to be streamed. What comes later is checked where it is read: a row that ends before it begins is
rejected, and of rows that overlap the one that begins last is valid. It costs one pass over the keys and the two
columns, sorted by key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import ends_too_early, overlapping
from cojoin.engine.values.rows import back_quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.bound_input import BoundInput

__all__ = ["check_present_validity", "check_rows_validity"]

_WRONG, _OVERLAPS = 1, 2


def check_present_validity(inputs: Iterable[BoundInput]) -> None:
    """Check the rows with a span of validity that are there now.

    Args:
        inputs: The inputs; those without such rows, and streams whose present rows are not known, are left out.

    Raises:
        ConfigurationError: Rows end before they begin, or rows of a key overlap.
    """
    for bound in inputs:
        frame = bound.present_rows() if _has_validity(bound.spec) else None
        if frame is not None:
            check_rows_validity(frame, bound.spec)


def check_rows_validity(frame: DataFrame, spec: InputSpec) -> None:
    """Check the rows of a static DataFrame, if they have a span of validity.

    Args:
        frame: All rows of the input.
        spec: The input.

    Raises:
        ConfigurationError: Rows end before they begin, or rows of a key overlap.
    """
    if not _has_validity(spec):
        return
    assert spec.changes is not None
    valid_from, valid_to = str(spec.changes.valid_from), str(spec.changes.valid_to)
    # Columns are renamed by position, since a user's may have any name.
    keys = [f"k{place}" for place in range(len(spec.key))]
    chosen = [frame[back_quoted(name)].alias(alias) for name, alias in zip(spec.key, keys, strict=True)]
    times = frame[back_quoted(valid_from)].alias("begins"), frame[back_quoted(valid_to)].alias("ends")
    rows = frame.select(*chosen, *times).where(_all(F.col(name).isNotNull() for name in (*keys, "begins")))
    rows = rows.where(F.col("ends").isNull() | (F.col("ends") != F.col("begins")))
    by_key = Window.partitionBy(*keys).orderBy("begins", "ends")
    before = F.lag(F.struct("begins", "ends", F.expr("true").alias("is_one"))).over(by_key)
    rows = rows.withColumn("before", before)
    is_open = F.col("before.ends").isNull() | (F.col("before.ends") > F.col("begins"))
    found = F.when(F.col("ends") < F.col("begins"), _WRONG).when(F.col("before.is_one") & is_open, _OVERLAPS)
    first = F.min(F.struct(*keys, "begins", "ends", "before"))
    told = rows.withColumn("found", found).where("found IS NOT NULL").groupBy("found")
    by_kind = {row.found: row for row in told.agg(F.count("*").alias("rows"), first.alias("example")).collect()}
    if _WRONG in by_kind:
        row = by_kind[_WRONG]
        raise ends_too_early(spec, row.rows, _shown(spec, row.example, row.example))
    if _OVERLAPS in by_kind:
        row = by_kind[_OVERLAPS]
        one, other = (_shown(spec, row.example, times) for times in (row.example.before, row.example))
        raise overlapping(spec, row.rows, one, other)


def _has_validity(spec: InputSpec) -> bool:
    return spec.changes is not None and spec.changes.valid_from is not None


def _shown(spec: InputSpec, keys: Any, times: Any) -> str:
    assert spec.changes is not None
    values = [(name, keys[f"k{place}"]) for place, name in enumerate(spec.key)]
    values += [(str(spec.changes.valid_from), str(times["begins"])), (str(spec.changes.valid_to), times["ends"])]
    return f"Row({', '.join(f'{name}={value if value is None else str(value)!r}' for name, value in values)})"


def _all(conditions: Iterable[Column]) -> Column:
    found = F.expr("true")
    for each in conditions:
        found &= each
    return found
