"""Compares the output with what pandas' ``merge_asof`` returns over the same rows, read as a whole.

``merge_asof`` finds each left row's match; the rows themselves stay in Arrow, so nothing is rounded. The output is
expected to have the rows that the watermark has passed, and the input counts without its rejected rows. Rows are
compared as multisets, with nulls, NaN and nested values. A late version applies only to later rows, so the two may
differ where versions were late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.ordering import OrderedPart, sort_keys, total_order
from cojoin.engine.values.arguments import microseconds

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.asof import AsofJoin

__all__ = ["Verdict", "admitted", "compare", "expected_rows"]


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison of two multisets of rows.

    Attributes:
        expected: The number of rows that ``merge_asof`` returns.
        found: The number of rows that the output has.
        missing: The rows that the output lacks.
        unexpected: The rows that only the output has.
    """

    expected: int
    found: int
    missing: pa.Table
    unexpected: pa.Table

    @property
    def is_equal(self) -> bool:
        """Whether both have the same rows."""
        return not self.missing.num_rows and not self.unexpected.num_rows


def admitted(table: pa.Table, spec: InputSpec) -> pa.Table:
    """Return an input's rows without those with a null key or event time, which are rejected."""
    table = table.select(spec.schema.names).cast(spec.schema)
    for name in (*spec.key, spec.event_time):
        table = table.filter(pc.is_valid(table.column(name)))
    return table


def expected_rows(
    join: AsofJoin, inputs: tuple[InputSpec, InputSpec], tables: tuple[pa.Table, pa.Table], watermark: int
) -> pa.Table:
    """Return the rows that the join must have emitted up to a watermark, according to ``merge_asof``.

    Args:
        join: The join.
        inputs: The left and the right input.
        tables: The admitted rows of the inputs.
        watermark: The operator's watermark, in epoch milliseconds.
    """
    left, right = inputs
    due = left.millis(tables[0]) <= watermark
    rows, versions = tables[0].filter(pa.array(due)), tables[1]
    rows = rows.take(pa.array(np.argsort(left.micros(rows), kind="stable")))
    micros = right.micros(versions)
    ordered = total_order([OrderedPart(np.zeros(len(micros), np.int64), micros, 0, versions, right.source_order)])
    versions = versions.take(pa.array(ordered))
    matches = _matches(join, _frame(rows, left), _frame(versions, right))
    if join.how == "inner":
        rows, matches = rows.filter(pa.array(matches >= 0)), matches[matches >= 0]
    payload = versions.select([name for name in right.schema.names if name not in right.key])
    found = payload.take(pa.array(matches, mask=matches < 0))
    return pa.Table.from_arrays([*rows.columns, *found.columns], schema=join.output_schema(left, right))


def compare(expected: pa.Table, found: pa.Table) -> Verdict:
    """Compare two tables of the same columns as multisets of rows."""
    both = pa.concat_tables([expected, found.select(expected.schema.names).cast(expected.schema)])
    if not both.num_rows:
        return Verdict(0, 0, both, both)
    keys = [key for column in both.columns for key in sort_keys(column)]
    order = np.lexsort(keys)
    first = np.ones(both.num_rows, dtype=bool)
    first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.flatnonzero(first)
    sign = np.where(order < expected.num_rows, 1, -1)
    surplus = np.add.reduceat(sign, starts)
    missing, unexpected = (
        both.take(pa.array(np.repeat(order[starts], np.maximum(side, 0)))) for side in (surplus, -surplus)
    )
    return Verdict(expected.num_rows, found.num_rows, missing, unexpected)


def _frame(table: pa.Table, spec: InputSpec) -> pd.DataFrame:
    """Return the times, keys and positions of sorted rows as a pandas DataFrame."""
    import pandas as pd  # noqa: PLC0415 - `cojoin demo --local` runs without it

    keys: dict[str, Any] = {f"key{number}": table.column(name).to_pandas() for number, name in enumerate(spec.key)}
    times = spec.micros(table)
    frame: pd.DataFrame = pd.DataFrame({"time": times, **keys, "position": np.arange(table.num_rows)})
    return frame


def _matches(join: AsofJoin, left: pd.DataFrame, right: pd.DataFrame) -> NDArray[np.int64]:
    """Return the position of each left row's version, or -1 where it has none."""
    import pandas as pd  # noqa: PLC0415 - as above

    if not len(left) or not len(right):
        return np.full(len(left), -1, dtype=np.int64)
    merged = pd.merge_asof(
        left,
        right,
        on="time",
        by=[name for name in left.columns if name.startswith("key")],
        tolerance=None if join.tolerance is None else microseconds(join.tolerance, "tolerance"),
        allow_exact_matches=join.allow_exact_matches,
        suffixes=("", "_match"),
    )
    return merged["position_match"].fillna(-1).to_numpy().astype(np.int64)
