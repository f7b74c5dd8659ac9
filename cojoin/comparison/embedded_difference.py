"""The comparison of two versions over inputs in memory, in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.comparison.comparison import changed_settings
from cojoin.comparison.difference import Counts, Difference, OutputDifference, examples_of
from cojoin.comparison.differing_rows import ArrowRows
from cojoin.comparison.key_group_difference import compare_key_group
from cojoin.engine.values.hashes import rows_digest
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.comparison.comparison import Comparison
    from cojoin.embedded.embedded_execution import EmbeddedExecution

__all__ = ["embedded_difference"]

_TIMELESS = ("name", "sequence", "late", "null_key")
"""The settings of an input that do not change its watermark."""


def embedded_difference(comparison: Comparison, a: EmbeddedExecution, b: EmbeddedExecution) -> Difference:
    """Return how two versions over inputs in memory differ.

    Args:
        comparison: What is compared.
        a: The execution of the first version, whose rows both versions process.
        b: The execution of the second version, which must have the same rows.

    Raises:
        ConfigurationError: The rows of an input differ.
        FunctionError: A function raised an error, or returned an invalid value.
    """
    for place, (one, other) in enumerate(zip(a.rows, b.rows, strict=True)):
        if one is not other:
            _check_rows(comparison.a.inputs[place].name, one, other.select(one.column_names))
    # Each version has its own event time and watermark, and so its own view of time over the rows of a.
    of_a = a.controls()
    controls = of_a, of_a if _tell_alike(comparison) else replace(a, inputs=comparison.b.inputs).controls()
    found_by_output = compare_key_group(comparison, a.rows, controls)
    outputs, examples = {}, []
    for output in comparison.outputs:
        found = found_by_output[output.name]
        rows, counts = found.rows, Counts.of(output, [found.counts], [found.by_column])
        name = Difference.name_of(output)
        outputs[name] = OutputDifference(name, counts, output.identity, ArrowRows(output, rows))
        examples += examples_of(output, rows.filter(rows.column("explanation").is_valid()), comparison.examples)
    return Difference(outputs, changed_settings(comparison.a, comparison.b), tuple(examples))


def _tell_alike(comparison: Comparison) -> bool:
    """Return whether the rows give the inputs of both versions the same watermarks."""
    inputs = zip(comparison.a.inputs, comparison.b.inputs, strict=True)
    return all(replace(two, **{name: getattr(one, name) for name in _TIMELESS}) == one for one, two in inputs)


def _check_rows(name: str, one: pa.Table, other: pa.Table) -> None:
    # Equal tables are found at once, unless a NaN is in them or their rows stand in another order.
    if one.num_rows == other.num_rows and (one.equals(other) or rows_digest(one) == rows_digest(other)):
        return
    told = f"{one.num_rows:,} rows in a and {other.num_rows:,} in b" if one.num_rows != other.num_rows else "other rows"
    msg = (
        f"input {name!r} has {told}; diff compares two versions over the same history, so connect both to the same "
        f"inputs, such as pair.asof_join() and pair.asof_join(allow_exact_matches=False)"
    )
    raise ConfigurationError(msg)
