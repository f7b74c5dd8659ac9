"""Joins of two frames in memory whose result is the left frame, in its order, with columns of the right one.

The operators get the left's key and event time alone, and the right's rows, both numbered. Their output is pairs of
numbers (``InputSpec.row_number``), so the left's other columns are never converted: they keep their types, and pandas
keeps its index. The right's columns are taken from its own frame where both are of one library, and else from Arrow.

Rows without a key or an event time are left out before the run, and counted. Without key columns all rows have one key.
Whole numbers of two widths, and decimals of two scales, are compared in the type that holds both.

It costs what the join costs without its columns, and one ``take`` for each column of the right; with ``how="inner"``
and in an interval join also one for each column of the left. The order of the left costs an assignment by number, and
in an interval join a sort of the pairs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from cojoin.embedded.frames import check_size, narrowed, read_arrow, read_as_is, specify, with_spark_types, with_types
from cojoin.embedded.libraries import is_pandas, is_polars, library_of
from cojoin.engine.input import TimeMeaning, check_names, check_pair
from cojoin.engine.input_spec import split_admitted
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.operator import OUTPUT
from cojoin.engine.ordering import stable_argsort
from cojoin.engine.plan import Plan
from cojoin.engine.values.tables import as_spark_column
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.embedded.libraries import Library
    from cojoin.engine.input import Input, TimeMeaning
    from cojoin.engine.input_spec import InputSpec

Join: TypeAlias = AsofJoin | TemporalJoin | IntervalJoin

_MOST_DIGITS = 38


class Unmatchable(NamedTuple):
    """The rows of a frame that can't match, because their key or their event time is null."""

    rows_in: int
    """How many rows the frame has."""

    reasons: Mapping[str, int]
    """How many of them can't match, by reason."""


@dataclass(frozen=True)
class _Side:
    """A frame that is joined.

    Attributes:
        declared: Its declaration.
        frame: Its rows as the result has them: of pandas or Polars, or an Arrow table.
        library: Its library, for advice.
        names: The names of all its columns, of a pandas DataFrame those of its index levels first.
        rows: The rows as Arrow has them; of the left its key and event time alone.
        typed: The same in Spark's types.
    """

    declared: Input
    frame: Any
    library: Library
    names: Sequence[str]
    rows: pa.Table
    typed: pa.Table

    @classmethod
    def of(cls, declared: Input, columns: Sequence[str] | None) -> _Side:
        """Return a declared frame as a side; its rows have the named columns alone, or with None all of them."""
        label, source = f"input {declared.name!r}", declared.source
        frame = source if is_pandas(source) or is_polars(source) else read_arrow(source, label)
        rows, chosen = frame, None
        if is_pandas(frame):
            check_pandas(label)
            from cojoin.embedded.pandas_frames import level_names, with_levels  # noqa: PLC0415 - it imports pandas

            names = level_names(frame, label)
            if columns is None:
                frame = rows = with_levels(frame, label)
            elif set(columns) <= set(names):
                chosen = columns
        else:
            names = list(frame.columns if is_polars(frame) else frame.column_names)
            check_names(names, label)
            rows = frame if columns is None else narrowed(frame, columns)
        # Advice for a table names places of columns, and a relation has types that its table does not show. Polars'
        # own types are refused where they are converted.
        library = library_of(rows if is_polars(frame) else source, label)
        exported = read_as_is(rows, label, library, chosen, shared=True)
        typed = with_spark_types(exported, label, library)
        return cls(declared, frame, library, names, exported, typed)


def join_frames(
    left: Input, right: Input, join: Join, times: TimeMeaning
) -> tuple[Any, tuple[Unmatchable, Unmatchable]]:
    """Return the left's rows with their matches, in the left's order, as a frame of the left's library.

    Args:
        left: The left frame, declared; its key is a tuple of names.
        right: The right frame.
        join: A join whose ``how`` is ``"left"`` or ``"inner"``.
        times: The meaning of times that are not timestamps.

    Returns:
        The joined rows, and for each frame the rows that can't match.

    Raises:
        ConfigurationError: The frames do not fit together, or not into memory.
        SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
    """
    check_size(left.source, right.source, f"inputs {left.name!r} and {right.name!r}")
    wanted = list(dict.fromkeys([*left.key, left.event_time]))
    sides = _with_common_keys(*_with_times(_Side.of(left, wanted), _Side.of(right, None), times))
    one, two = (specify(side.declared, side.declared.name, side.typed, side.library) for side in sides)
    check_pair(one, two, (sides[0].library, sides[1].library))
    # The result's names depend on all of the left's names, and not on its types.
    named = replace(one, schema=pa.schema([(name, pa.null()) for name in sides[0].names]))
    of_left, of_right = output_names(Plan(join, named, two, 1))
    keyed = sides[0].typed.select(list(dict.fromkeys([*one.key, str(one.event_time)])))
    (one, lefts), (two, rights) = _numbered(one, keyed), _numbered(two, sides[1].typed)
    (lefts, left_out), (rights, right_out) = split_admitted(lefts, one, 0), split_admitted(rights, two, 0)
    with LocalRun(Plan(join, one, two, 1), keeps_operators=True) as run:
        # No watermark is needed before the end of input.
        pairs = run.process((lefts, rights), end_of_input=True).tables()[OUTPUT]
    places, matches = _in_order(pairs, keyed.num_rows, join)
    added = _Added(list(of_right), list(of_right.values()), matches)
    joined = _assembled(sides[0], list(of_left.values()), places, sides[1], added)
    return joined, (_unmatchable(keyed, left_out), _unmatchable(sides[1].typed, right_out))


def _unmatchable(rows: pa.Table, rejected: Mapping[str, pa.Table]) -> Unmatchable:
    return Unmatchable(rows.num_rows, {reason: table.num_rows for reason, table in rejected.items()})


def _with_times(left: _Side, right: _Side, times: TimeMeaning) -> tuple[_Side, _Side]:
    """Return both sides, declared with the meaning of their times."""
    sides = (left, right)
    types = [
        side.typed.schema.field(name).type if (name := side.declared.event_time) in side.typed.column_names else None
        for side in sides
    ]
    known = right.declared.known_at
    known_type = right.typed.schema.field(known).type if known in right.typed.column_names else None
    one, two = times.named((left.declared, right.declared), (types[0], types[1]), known_type)
    return replace(left, declared=one), replace(right, declared=two)


def _with_common_keys(left: _Side, right: _Side) -> tuple[_Side, _Side]:
    """Return both sides with keys of one type, where there is a type of their kind that holds the values of both."""
    tables = with_types([left.declared, right.declared], [left.typed, right.typed])
    for names in zip(left.declared.key, right.declared.key, strict=True):
        if all(name in table.column_names for name, table in zip(names, tables, strict=True)):
            common = _common(*(table.schema.field(name).type for name, table in zip(names, tables, strict=True)))
            if common is not None:
                tables = [_cast(table, name, common) for table, name in zip(tables, names, strict=True)]
    return replace(left, typed=tables[0]), replace(right, typed=tables[1])


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type that holds all values of two unequal types of integers, or of decimals; None if none does.

    >>> _common(pa.int32(), pa.int64()), _common(pa.decimal128(5, 1), pa.decimal128(4, 3))
    (DataType(int64), Decimal128Type(decimal128(7, 3)))
    """
    if pa.types.is_signed_integer(one) and pa.types.is_signed_integer(two):
        return max(one, two, key=lambda dtype: int(dtype.bit_width))
    if pa.types.is_decimal(one) and pa.types.is_decimal(two):
        scale = max(one.scale, two.scale)
        digits = max(one.precision - one.scale, two.precision - two.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None
    return None


def _cast(table: pa.Table, name: str, dtype: pa.DataType) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, table.column(name).cast(dtype))


def _numbered(spec: InputSpec, table: pa.Table) -> tuple[InputSpec, pa.Table]:
    """Return an input whose last column numbers its rows."""
    taken = {name.lower() for name in table.column_names}
    number = pa.field(next(name for name in map("row_{}".format, count()) if name not in taken), pa.int64())
    numbered = table.append_column(number, pa.array(np.arange(table.num_rows)))
    return replace(spec, schema=numbered.schema, row_number=number.name), numbered


def _in_order(pairs: pa.Table, rows: int, join: Join) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return the rows of the result, in the order of the left's rows.

    Args:
        pairs: The numbers of the left's and the right's rows that match, a null where none does.
        rows: How many rows the left has.
        join: The join.

    Returns:
        For each row of the result the place of its left row, and of its right row or -1. None stands for the left's
        rows as they are.
    """
    lefts, rights = pairs.column(0).to_numpy(), pairs.column(1).fill_null(-1).to_numpy()
    if not isinstance(join, IntervalJoin):
        matches = np.full(rows, -1, dtype=np.int64)
        matches[lefts] = rights
        if join.how == "left":
            return None, matches
        places = np.flatnonzero(matches >= 0)
        return places, matches[places]
    if join.how == "left":
        # Rows that can't match are not among the pairs.
        missing = np.ones(rows, dtype=bool)
        missing[lefts] = False
        alone = np.flatnonzero(missing)
        lefts, rights = np.append(lefts, alone), np.append(rights, np.full(len(alone), -1))
    in_order = stable_argsort(lefts)
    return lefts[in_order], rights[in_order]


class _Added(NamedTuple):
    """The columns that the right adds to the left's rows."""

    names: Sequence[str]
    """Their names in the right frame."""

    renamed: Sequence[str]
    """Their names in the result."""

    matches: NDArray[np.int64]
    """For each row of the result the place of its right row, or -1."""


def _assembled(left: _Side, names: Sequence[str], places: NDArray[np.int64] | None, right: _Side, added: _Added) -> Any:
    """Return the result as a frame of the left's library.

    Args:
        left: The left side.
        names: The names of its columns in the result.
        places: The left's rows in the result; None for all as they are.
        right: The right side.
        added: Its columns in the result.
    """
    frame = left.frame
    if is_pandas(frame):
        from cojoin.embedded.pandas_frames import append_columns, as_pandas, pick  # noqa: PLC0415 - it imports pandas

        if is_pandas(right.frame):
            columns = pick(right.frame, added.names, added.matches)
        else:
            columns = as_pandas(_picked(right.rows.select(list(added.names)), added.matches))
        return append_columns(frame if places is None else frame.take(places), names, columns, added.renamed)
    if is_polars(frame):
        rows = frame if places is None else frame[places]
        rows = rows.rename(dict(zip(rows.columns, names, strict=True)))
        return rows.hstack(_in_polars(right, added).get_columns())
    rows = frame if places is None else _picked(frame, places)
    columns = _picked(right.rows.select(list(added.names)), added.matches)
    fields = [field.with_name(name) for field, name in zip(rows.schema, names, strict=True)]
    fields += [field.with_name(name) for field, name in zip(columns.schema, added.renamed, strict=True)]
    schema = pa.schema(fields, metadata=frame.schema.metadata)
    return pa.Table.from_arrays([*rows.columns, *columns.columns], schema=schema)


def _in_polars(right: _Side, added: _Added) -> Any:
    polars = sys.modules["polars"]
    if is_polars(right.frame) and added.names:
        matches = polars.Series(pa.array(added.matches, mask=added.matches < 0))
        columns = right.frame.select(polars.col(list(added.names)).gather(matches))
    else:
        columns = polars.from_arrow(_picked(right.rows.select(list(added.names)), added.matches))
    return columns.rename(dict(zip(added.names, added.renamed, strict=True)))


def _picked(table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
    """Return rows by their places, nulls for -1; of types from which Arrow takes none in Spark's type."""
    indices = pa.array(places, mask=places < 0)
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            # Taking texts is many times faster from one chunk.
            taken = column.combine_chunks().take(indices)
        except pa.ArrowNotImplementedError:
            taken = as_spark_column(column, f"column {field.name!r}").combine_chunks().take(indices)
        columns.append(taken)
        fields.append(field.with_type(taken.type).with_nullable(True))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=table.schema.metadata))
