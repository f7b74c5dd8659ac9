"""The columns of a join's result, by one rule for every join, and its rows, built from places in sorted rows.

The result has the left's columns unchanged, so the key comes once, under the left's name; then the right's columns
without its key. The right's event time becomes ``<right's name>_event_time`` where its name is taken; any other equal
names need ``suffixes``. The right's columns are nullable, since a row may have no match. Where a right row may stand
without a left row, the left's columns are nullable too, except the key, which then holds the right's (SQL's ``USING``),
and is null only in rows with a null key that are let out unmatched.

It costs one Arrow ``take`` for each column, or two where rows are repeated, and no Python for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.input_spec import refuse_known
from cojoin.engine.joins.search import at
from cojoin.engine.values.arguments import check_word
from cojoin.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.plan import Plan

Suffixes: TypeAlias = tuple[str, str]
"""The suffixes for a name that both inputs have, left and right, such as ``("", "_customer")``."""

_KEEPING = {"left": "how='left', or 'full' of an interval join", "right": "interval_join with how='right' or 'full'"}
"""The joins that keep the rows of a side that have no match."""

_KEEPING_THE_RIGHT = ("right", "full", "outer", "right_outer", "full_outer", "rightouter", "fullouter")


def check_how(how: Any, words: Sequence[str]) -> None:
    """Check ``how`` of a join that looks up a right row for each left row."""
    if how in _KEEPING_THE_RIGHT:
        whole = "right" if how.startswith("right") else "full"
        msg = (
            f"how: expected {' or '.join(map(repr, words))}, got {how!r}: this join looks up a right row for each left "
            f"row, and has no result for a right row alone; to keep the rows of the right input, make it the left one, "
            f"or use interval_join(..., how={whole!r})"
        )
        raise ConfigurationError(msg)
    check_word("how", how, words)


def joined_schema(
    left: InputSpec,
    right: InputSpec,
    suffixes: Suffixes | None,
    *,
    how: str = "left",
    deletes: str | None = None,
    timeless_right: bool = False,
    knows_right: bool = False,
) -> pa.Schema:
    """Return the columns of a join's result.

    ``how`` names the sides whose rows without a match are in it: ``"left"``, ``"right"``, ``"full"`` or ``"inner"``.
    ``deletes`` is the right's column that marks deletes, which it lacks. With ``timeless_right`` the right input may be
    a table without event time, with ``knows_right`` its rows may have known times.

    Raises:
        ConfigurationError: The suffixes are invalid, or the join takes no deletes, or drops the side whose rows with a
            null key are to be emitted unmatched.
        SchemaError: An input has no event time, or names collide; the message says what to change.
    """
    if left.row_number is not None and right.row_number is not None:
        return pa.schema([left.schema.field(left.row_number), right.schema.field(right.row_number)])
    _check(suffixes)
    _check_null_keys(left, right, how)
    refuse_known(left, "a left input", "a left row is joined at its event time")
    if not knows_right:
        refuse_known(right, "interval_join", "it pairs rows by the distance of their event times")
    _check_rows(left, right, deletes, timeless_right=timeless_right)
    payload = _right_fields(right, deletes)
    taken = {name.lower() for name in left.schema.names}
    keys = {name.lower() for name in left.key}
    renamed = {}
    for field in payload:
        if field.name == right.event_time and field.name.lower() in taken:
            renamed[field.name] = f"{right.name}_event_time"
    equal = {field.name.lower() for field in payload if field.name not in renamed} & taken
    if equal and suffixes is None:
        shown = ", ".join(repr(field.name) for field in payload if field.name.lower() in equal)
        msg = (
            f"inputs {left.name!r} and {right.name!r} both have {shown}; "
            f'distinguish them with suffixes=("", "_{right.name}"), or rename or drop them in one input'
        )
        raise SchemaError(msg)
    left_suffix, right_suffix = suffixes or ("", "")
    fields = []
    for field in left.schema:
        named = field.with_name(field.name + left_suffix) if field.name.lower() in equal - keys else field
        is_optional = how in {"right", "full"} and (field.name not in left.key or right.null_key == "unmatched")
        fields.append(named.with_nullable(True) if is_optional else named)
    for field in payload:
        suffix = right_suffix if field.name.lower() in equal else ""
        fields.append(pa.field(renamed.get(field.name, field.name + suffix), field.type, nullable=True))
    _refuse_duplicates(fields, left, right)
    return pa.schema(fields)


def _right_fields(right: InputSpec, deletes: str | None) -> list[pa.Field]:
    """Return the right's columns that a result has: all but its key and those that only say what is deleted."""
    without = {*right.key, deletes, *right.technical}
    return [field for field in right.schema if field.name not in without]


def output_names(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Return for each input of a join its columns that the output has, each with its name there."""
    return names_in_output(*plan.inputs, plan.output.names, getattr(plan.operation, "deletes", None))


def names_in_output(
    left: InputSpec, right: InputSpec, output: Sequence[str], deletes: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return ``output_names`` by the names of the output's columns, and by the join's ``deletes`` where it has any."""
    of_right = [field.name for field in _right_fields(right, deletes)]
    own = len(left.schema)
    return dict(zip(left.schema.names, output, strict=False)), dict(zip(of_right, output[own:], strict=False))


def left_order(left: InputSpec, schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the columns of a result by which a join emits its left rows in order; None where none have that order.

    None have it where late rows are applied, nor with local times: a change of clocks may put one before earlier ones.
    """
    is_local = left.axis is not None and left.axis.zone is not None
    if left.event_time is None or left.late == "apply" or is_local:
        return None
    return tuple(schema.field(left.schema.get_field_index(name)).name for name in (left.event_time, *left.sequence))


def _check_rows(left: InputSpec, right: InputSpec, deletes: str | None, *, timeless_right: bool) -> None:
    """Check that both inputs have event times, and no deletes that the join does not take."""
    for spec in (left, right):
        if spec.changes is not None and spec.deletes != deletes:
            raise without_deletes(spec)
        if spec.event_time is None and not (timeless_right and spec is right and right.static):
            msg = f"input {spec.name!r} has no event time, by which this join matches rows; name its event_time= column"
            raise SchemaError(msg)


def without_deletes(spec: InputSpec) -> ConfigurationError:
    """Return the error about an input with deletes, or ends of validity, for a join that has none."""
    return ConfigurationError(
        f"the rows of input {spec.name!r} are versions and deletes of a table, and this join has no deletes; use "
        f"temporal_join, with {spec.name!r} as the right input"
    )


def allows_no_time(right: InputSpec, limit: str | None) -> bool:
    """Return whether a table without event time may be the right input; ``limit`` is a setting that needs the times."""
    if limit is not None and right.static and right.event_time is None:
        msg = (
            f"{limit}: input {right.name!r} has no event time, so its rows are known from the beginning of time, and "
            f"this setting compares times; name the table's event_time= column, or leave {limit}= out"
        )
        raise ConfigurationError(msg)
    return limit is None


@dataclass(frozen=True)
class JoinedColumns:
    """Builds the rows of a join's result, of ``joined_schema``, without the right's column ``deletes``.

    Of inputs with row numbers, the result is these alone.
    """

    left: InputSpec
    right: InputSpec
    schema: pa.Schema
    deletes: str | None = None

    def take(self, rows: tuple[SortedRows, SortedRows], left: NDArray[np.int64], right: NDArray[np.int64]) -> pa.Table:
        """Return the result's rows, from the places of their left and right rows in the sorted rows, or -1."""
        if self.left.row_number is not None and self.right.row_number is not None:
            numbers = _take(rows[0], [self.left.row_number], left), _take(rows[1], [self.right.row_number], right)
            return pa.Table.from_arrays([each.column(0) for each in numbers], schema=self.schema)
        columns = _take(rows[0], rows[0].table.column_names, left).columns
        if _some_missing(left):
            keys = _take(rows[1], self.right.key, right)
            for name, key in zip(self.left.key, keys.columns, strict=True):
                place = rows[0].table.column_names.index(name)
                columns[place] = pc.coalesce(columns[place], key)
        of_right = _take(rows[1], [field.name for field in _right_fields(self.right, self.deletes)], right)
        return pa.Table.from_arrays([*columns, *of_right.columns], schema=self.schema)

    def alone(self, side: int, rows: tuple[SortedRows, SortedRows]) -> pa.Table:
        """Return the result's rows for rows of one side; the other side has none."""
        places, none = np.arange(len(rows[side])), np.full(len(rows[side]), -1)
        return self.take(rows, *((none, places) if side else (places, none)))


def _take(rows: SortedRows, names: Sequence[str], places: NDArray[np.int64]) -> pa.Table:
    """Return some columns of the rows at some places, nulls for -1."""
    # Taking strings is many times faster from one chunk for each column.
    table = rows.table.select(list(names)).combine_chunks()
    missing = places < 0 if _some_missing(places) else None
    if len(places) > len(rows):
        # Neighbours in the result are mostly neighbours in the sorted rows, which spares the processor's caches.
        return table.take(pa.array(rows.order)).take(pa.array(places, mask=missing))
    return table.take(pa.array(at(rows.order, places), mask=missing))


def _some_missing(positions: NDArray[np.int64]) -> bool:
    return len(positions) > 0 and int(positions.min()) < 0


def _check(suffixes: Suffixes | None) -> None:
    if suffixes is None:
        return
    pair = isinstance(suffixes, (tuple, list)) and len(suffixes) == 2
    if not pair or not all(isinstance(suffix, str) for suffix in suffixes) or suffixes[0] == suffixes[1]:
        msg = f'suffixes: expected two different strings such as ("", "_customer"), got {suffixes!r}'
        raise ConfigurationError(msg)


def _check_null_keys(left: InputSpec, right: InputSpec, how: str) -> None:
    """Check that the join keeps the unmatched rows of a side whose rows with a null key are to be emitted unmatched."""
    for spec, keeping in ((left, ("left", "full")), (right, ("right", "full"))):
        if spec.null_key == "unmatched" and how not in keeping:
            msg = (
                f"input {spec.name!r}: null_key='unmatched': such rows of {spec.name!r} match none, and this join, "
                f"with how={how!r}, emits no row of {spec.name!r} without a match; leave null_key= out, so that "
                f"they are rejected and counted, or choose a join that keeps them: {_KEEPING[keeping[0]]}"
            )
            raise ConfigurationError(msg)


def _refuse_duplicates(fields: list[pa.Field], left: InputSpec, right: InputSpec) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            msg = (
                f"the join of inputs {left.name!r} and {right.name!r} would have two columns {field.name!r}; "
                f"choose other suffixes=, another name= for the input, or rename the column"
            )
            raise SchemaError(msg)
        seen.add(field.name.lower())
