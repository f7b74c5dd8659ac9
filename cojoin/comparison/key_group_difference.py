"""Both versions over the rows of one key group, and the rows in which their outputs differ.

The rows of a key never leave their key group, so neither do the two versions of a row: comparing them needs no shuffle.
The inputs and both versions' outputs of one key group are in memory at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cojoin.comparison.examples import Explainer
from cojoin.comparison.row_matching import compare_rows
from cojoin.engine.callbacks import user_traceback
from cojoin.engine.local.local_run import LocalRun
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.comparison.comparison import ComparedOutput, Comparison
    from cojoin.comparison.row_matching import Differing
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control

__all__ = ["KeyGroupDifference", "compare_key_group"]


@dataclass(frozen=True)
class KeyGroupDifference:
    """How one output of two versions differs in one key group.

    Attributes:
        counts: ``a`` and ``b``, the rows of each version, ``only_in_a``, ``only_in_b`` and ``changed``.
        by_column: In how many of the changed rows each column differs.
        rows: The differing rows, in the schema of ``ComparedOutput.differing``.
    """

    counts: Counter[str]
    by_column: Counter[str]
    rows: pa.Table


def compare_key_group(
    comparison: Comparison,
    rows: Sides,
    controls: tuple[Sequence[Control], Sequence[Control]],
) -> dict[str, KeyGroupDifference]:
    """Return how each compared output of two versions differs in one key group.

    Args:
        comparison: What is compared.
        rows: The rows of both inputs, which both versions process.
        controls: What is known of time in version a, and in version b.

    Raises:
        FunctionError: A function raised an error, or returned an invalid value; the message says in which version.
    """
    made = [
        _run(which, plan, rows, known)
        for which, plan, known in zip("ab", (comparison.a, comparison.b), controls, strict=True)
    ]
    found = {}
    for output in comparison.outputs:
        a, b = (_compared(tables[output.name], output) for tables in made)
        differing = compare_rows(a, b, output.identity)
        explainer = Explainer(comparison, output, rows, (a, b))
        found[output.name] = _difference(output, a, b, differing, _explained(explainer, differing, comparison.examples))
    return found


def _run(which: str, plan: Plan, rows: Sides, controls: Sequence[Control]) -> dict[str, pa.Table]:
    # The columns of an input may stand in another order, which breaks its ties otherwise.
    left, right = (
        table.select(spec.schema.names).cast(spec.schema) for spec, table in zip(plan.inputs, rows, strict=True)
    )
    try:
        with LocalRun(plan, keeps_operators=True) as run:
            return run.process((left, right), controls, end_of_input=True).tables()
    except FunctionError as error:
        msg = f"version {which}: {error}"
        raise FunctionError(msg).with_traceback(user_traceback(error)) from None


def _compared(table: pa.Table, output: ComparedOutput) -> pa.Table:
    chosen = table.select(output.columns.names)
    # Arrow can't cast some columns to their own type, such as a list of nulls.
    return chosen if chosen.schema.equals(output.columns) else chosen.cast(output.columns)


def _explained(explainer: Explainer, differing: Differing, examples: int) -> list[str | None]:
    """Return an explanation for the first rows of each kind, and None for the others."""
    texts: list[str | None] = [None] * len(differing.one)
    one, other = differing.one, differing.other
    kinds = ((one >= 0) & (other >= 0), other < 0, one < 0)
    chosen = [place for kind in kinds for place in np.flatnonzero(kind)[:examples].tolist()]
    if chosen:
        explainer.narrow([(int(one[place]), int(other[place])) for place in chosen])
    for place in chosen:
        texts[place] = explainer.text(int(one[place]), int(other[place]))
    return texts


def _difference(
    output: ComparedOutput, a: pa.Table, b: pa.Table, differing: Differing, texts: list[str | None]
) -> KeyGroupDifference:
    one, other, columns = differing
    names = np.array(output.columns.names, dtype=object)
    both = (one >= 0) & (other >= 0)
    counts = Counter(
        a=a.num_rows,
        b=b.num_rows,
        changed=int(both.sum()),
        only_in_a=int((other < 0).sum()),
        only_in_b=int((one < 0).sum()),
    )
    by_column = Counter({name: int(count) for name, count in zip(names, columns.sum(axis=0), strict=True) if count})
    offsets = np.concatenate([[0], np.cumsum(columns.sum(axis=1))]).astype(np.int32)
    # The names of a row's columns, row by row; rows that only one version has stand as null.
    listed = pa.array(names[np.nonzero(columns)[1]], pa.string())
    differs = pa.ListArray.from_arrays(pa.array(offsets), listed, mask=pa.array(~both))
    rows = [_structs(a, one), _structs(b, other), differs, pa.array(texts, pa.string())]
    return KeyGroupDifference(counts, by_column, pa.Table.from_arrays(rows, schema=output.differing))


def _structs(table: pa.Table, positions: NDArray[np.int64]) -> pa.Array:
    """Return rows by position as structs; -1 becomes a null."""
    missing = positions < 0
    taken = (table.combine_chunks() if len(positions) else table).take(pa.array(positions, mask=missing))
    fields = [field.with_nullable(True) for field in table.schema]
    columns = [column.combine_chunks() for column in taken.columns]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(missing))
