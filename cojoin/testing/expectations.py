"""Assertions on an output: the expected rows are a text table, and a failure shows the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.display import cells, difference
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError
from cojoin.testing.harness import Harness
from cojoin.testing.harness_tables import header_of, parse_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from cojoin.engine.functions import OutputTag

__all__ = ["assert_output"]


def assert_output(
    actual: Harness | Sequence[Any],
    expected: str,
    *,
    tag: OutputTag | str | None = None,
    schema: Any = None,
    any_order: bool = False,
) -> None:
    """Assert that an output has exactly the rows of a text table.

    ``cojoin.testing.harness_tables`` describes the format of the table.

    Args:
        actual: A harness, of which the whole main output is compared; or rows, such as ``harness.output[2:]``.
        expected: The table. Columns that its header leaves out are not compared.
        tag: The side output of the harness to compare in place of the main output, as an ``OutputTag`` or its id.
        schema: The columns of the rows as DDL, a ``StructType`` or an Arrow schema; required for rows, and not allowed
            for a harness.
        any_order: Whether to ignore the order of the rows.

    Raises:
        AssertionError: The rows differ: ``-`` marks a missing row, ``+`` an extra one.
        ConfigurationError: ``schema`` is missing for rows or given for a harness, ``tag`` is given for rows, or the
            tag is not declared.
        SchemaError: The table can't be read.

    >>> assert_output([("a", 1), ("b", 2)], '''
    ...     id | visits
    ...     a  | 1
    ...     b  | 3
    ... ''', schema="id string, visits long")
    Traceback (most recent call last):
        ...
    AssertionError: the output differs: - is missing, + is too much
      id | visits
      ---+-------
      a  | 1
    - b  | 3
    + b  | 2
    """
    columns, rows = _rows(actual, tag, schema)
    wanted_rows = parse_table(expected, columns)
    wanted_names = header_of(expected)
    places = [columns.names.index(name) for name in wanted_names]
    found = [cells([row[place] for place in places]) for row in rows]
    wanted = [cells(row) for row in wanted_rows]
    if any_order:
        found, wanted = sorted(found), sorted(wanted)
    told = difference(wanted_names, wanted, found)
    if told is not None:
        msg = f"the output differs: - is missing, + is too much\n{told}"
        raise AssertionError(msg)


def _rows(actual: Harness | Sequence[Any], tag: OutputTag | str | None, schema: Any) -> tuple[pa.Schema, Sequence[Any]]:
    if isinstance(actual, Harness):
        if schema is not None:
            msg = "schema: a harness knows its own; leave it out"
            raise ConfigurationError(msg)
        return actual.schema_of(tag), actual.output if tag is None else actual.side_output(tag)
    if schema is None or tag is not None:
        msg = "expected schema=, and no tag=, for rows that are no harness's"
        raise ConfigurationError(msg)
    columns = as_schema(schema, "schema")
    return columns, [tuple(row[name] for name in columns.names) if isinstance(row, dict) else row for row in actual]
