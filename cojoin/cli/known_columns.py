"""Checks the inputs' columns before Spark starts, as far as the arguments name them.

All columns of a topic are known where its schema is typed; without one, Kafka's own and the further ones are. Of files,
the typed columns are known, to which Spark adds those of partitioned folders. Of a table only the columns that the
options name are known. An error in these is an error of the whole, so the errors are those of the join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.input import Input
from cojoin.engine.input_columns import InputColumns, check_names, check_pair
from cojoin.engine.inputs import InputSpec
from cojoin.engine.values.advice import Advice
from cojoin.engine.values.types import parse_schema, type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cojoin.cli.arguments import SideArguments
    from cojoin.engine.joins.asof import AsofJoin
    from cojoin.engine.values.advice import Kind

__all__ = ["check_known_columns"]


def check_known_columns(left: SideArguments, right: SideArguments, join: AsofJoin) -> None:
    """Check the known columns of both inputs.

    Args:
        left: The left input.
        right: The right input.
        join: The join.

    Raises:
        ConfigurationError: Both inputs have one name.
        SchemaError: A column that an option names is missing or has the wrong type, the keys differ, or equal names
            need suffixes.
    """
    one, two = _Known(left, "left"), _Known(right, "right")
    if one.has_all and two.has_all:
        check_pair(one.spec, two.spec, (one.advice, two.advice))
    if (one.has_all and two.has_all) or join.suffixes is None:
        # With suffixes, which names end up equal depends on all columns.
        join.output_schema(one.spec, two.spec)


class _Known:
    """The known columns of an input, and whether these are all."""

    def __init__(self, side: SideArguments, option: str) -> None:
        columns, self.has_all = pa.schema([]), False
        if side.kafka is not None:
            columns, self.has_all = side.kafka.source().known_columns()
        elif side.schema is not None:
            columns = parse_schema(side.schema)
        what = f"input {side.name!r}"
        check_names(columns.names, what)
        self.advice = _OptionAdvice(option)
        self.spec = _spec_of_all(side, columns, what, self.advice) if self.has_all else _spec_of_some(side, columns)


def _spec_of_all(side: SideArguments, columns: pa.Schema, what: str, advice: Advice) -> InputSpec:
    declared = Input(None, **side.declared)
    types = {field.name: type_to_ddl(field.type) for field in columns}
    found = InputColumns(what, {field.name: field for field in columns}, types, advice)
    return found.spec(declared, side.name, declared.event_time, None)


def _spec_of_some(side: SideArguments, columns: pa.Schema) -> InputSpec:
    """Return a specification of the known columns, and of those that the options name; the others' types are null."""
    known = {name.lower(): name for name in columns.names}

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(known.setdefault(name.lower(), name) for name in names)

    key, (event_time,) = named(side.declared["key"]), named([side.declared["event_time"]])
    named([*side.declared["partition"], *side.declared["sequence"]])
    fields = [columns.field(name) if name in columns.names else pa.field(name, pa.null()) for name in known.values()]
    return InputSpec(side.name, pa.schema(fields), key, event_time, watermark=side.declared["watermark"])


class _OptionAdvice(Advice):
    """Advice for columns whose types are options of the command line.

    Args:
        side: ``"left"`` or ``"right"``.
    """

    def __init__(self, side: str) -> None:
        self._side = side

    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return how a text or a time without zone is read as a ``timestamp``; None for other columns."""
        del role
        return self.cast(column, "timestamp") if kind in ("string", "timestamp_ntz") else None

    def cast(self, column: str, ddl: str) -> str:
        """Return how a column is read with one of Spark's types."""
        return f"write '{column} {ddl}' in --{self._side}-schema"

    def constant(self, column: str) -> str:
        """Return how the rows get a column with the same text; the command line can't add one."""
        return f"add a column {column!r} to the rows at their source"
