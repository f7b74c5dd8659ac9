"""The check, before a query starts, that its Delta tables still have the columns that they had when it was built.

A table may be altered between ``connect`` and ``start``. Spark's stream would find that inside a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError
from cojoin.session.spark_errors import JAVA_ERRORS
from cojoin.spark.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from cojoin.spark.bound_input import BoundInput

__all__ = ["check_source_columns"]


def check_source_columns(inputs: Sequence[BoundInput]) -> None:
    """Check the tables that are streamed; a static side's columns are checked when it is loaded.

    Args:
        inputs: Both inputs.

    Raises:
        ConfigurationError: A table has other columns by now.
    """
    for bound in inputs:
        if not isinstance(bound.source, Source) or bound.source.format != "delta" or not bound.is_streaming:
            continue
        try:
            then, now = _columns(bound.frame.schema), _columns(bound.source.open().schema)
        except JAVA_ERRORS:
            # The stream's own error is clearer about a table that can't be read any more.
            continue
        if bound.spec.event_time not in now:
            # An event time that is an expression is a column of the query alone.
            then.pop(str(bound.spec.event_time), None)
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            each = [f"{name} ({then.get(name, 'missing')} then, {now.get(name, 'missing')} now)" for name in changed]
            msg = (
                f"input {bound.spec.name!r}: {bound.source.title}: columns have changed since the query was built: "
                f"{', '.join(each)}; make the inputs and connect them anew"
            )
            raise ConfigurationError(msg)


def _columns(schema: StructType) -> dict[str, str]:
    return {each.name: each.dataType.simpleString() for each in schema.fields}
