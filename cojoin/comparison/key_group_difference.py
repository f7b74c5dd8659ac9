"""Runs both versions over the rows of one key group; returns the rows in which their outputs differ, some explained.

The rows of a key never leave their key group, so comparing the two versions of a row needs no shuffle. The inputs and
both versions' outputs of one key group are in memory at once. Without Spark, all rows are compared as one key group.

For a join an explanation has the matched row of each version, its distance from the row, and the key's other right rows
around that time; if several have the same event time, it names the columns that order them. For a function it has the
key's rows that each version emitted around the one that differs, if the output has the key's columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.comparison.comparison import changed_settings
from cojoin.comparison.difference import ArrowRows, Difference, OutputDifference, examples_of, sum_counts
from cojoin.comparison.row_matching import canonical, compare_rows, differing
from cojoin.engine.callbacks import user_traceback
from cojoin.engine.display import format_span, show_row, show_value
from cojoin.engine.joins import IntervalJoin, TemporalJoin
from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.values.hashes import rows_digest
from cojoin.engine.values.rows import decode_column, decode_rows
from cojoin.errors import ConfigurationError, FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.comparison.comparison import ComparedOutput, Comparison
    from cojoin.comparison.row_matching import Differing
    from cojoin.embedded.embedded_execution import EmbeddedExecution
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control


@dataclass(frozen=True)
class KeyGroupDifference:
    """The difference of two versions in one output of one key group.

    The counts are of the rows in each version (``a``, ``b``), ``only_in_a``, ``only_in_b`` and ``changed``;
    ``by_column`` counts the changed rows in which a column differs. The rows have the schema of
    ``ComparedOutput.differing``.
    """

    counts: Counter[str]
    by_column: Counter[str]
    rows: pa.Table


def compare_key_group(
    comparison: Comparison, rows: Sides, controls: tuple[Sequence[Control], Sequence[Control]]
) -> dict[str, KeyGroupDifference]:
    """Return the difference of two versions in each output of one key group; each version has its control rows."""
    made = [
        _run(which, plan, rows, known)
        for which, plan, known in zip("ab", (comparison.a, comparison.b), controls, strict=True)
    ]
    differences = {}
    for output in comparison.outputs:
        a, b = (_compared(tables[output.name], output) for tables in made)
        differing = compare_rows(a, b, output.identity)
        explainer = Explainer(comparison, output, rows, (a, b))
        differences[output.name] = _difference(
            output, a, b, differing, _explained(explainer, differing, comparison.examples)
        )
    return differences


def _run(which: str, plan: Plan, rows: Sides, controls: Sequence[Control]) -> dict[str, pa.Table]:
    # An input's columns may be in another order in each version; their order decides between rows of equal time.
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
    chosen = [position for kind in kinds for position in np.flatnonzero(kind)[:examples].tolist()]
    if chosen:
        explainer.narrow([(int(one[position]), int(other[position])) for position in chosen])
    for position in chosen:
        texts[position] = explainer.text(int(one[position]), int(other[position]))
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
    # The names of each row's differing columns; null for a row that only one version has.
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


_NEAR = 3
"""The number of a key's rows that are shown before and after a moment."""


class Explainer:
    """Explains differing rows of one output in one key group, from the inputs' rows and both versions' output."""

    def __init__(self, comparison: Comparison, output: ComparedOutput, rows: Sides, made: Sides) -> None:
        self._plans, self._output, self._rows, self._made = (comparison.a, comparison.b), output, rows, made
        self._is_join = output.name == OUTPUT and not any(
            isinstance(plan.operation, KeyedCoProcess) for plan in self._plans
        )

    def narrow(self, positions: Sequence[tuple[int, int]]) -> None:
        """Keep only right rows of the keys at these positions (in a, in b), which makes explanations faster."""
        plan = self._plans[0]
        if not (self._is_join and self._has_times() and plan.left.key):
            return
        key = plan.left.key[0]
        dtype = plan.left.schema.field(key).type
        # For other types, ``is_in`` is not equality: 0.0 equals -0.0, but is not in a set that has only -0.0.
        if not (pa.types.is_integer(dtype) or pa.types.is_string(dtype)):
            return
        name = output_names(plan)[0][key]
        right = self._rows[1].column(plan.right.key[0])
        # The keys stay in Arrow, since a text need not be valid UTF-8.
        keys = [
            made.column(name).take(pa.array([row[side] for row in positions if row[side] >= 0], pa.int64()))
            for side, made in enumerate(self._made)
        ]
        values = pa.concat_arrays([chunk.cast(right.type) for column in keys for chunk in column.chunks])
        near = self._rows[1].filter(pc.is_in(right, value_set=values))
        self._rows = (self._rows[0], near)

    def text(self, a: int, b: int) -> str:
        """Return the explanation of a row at positions in both versions' outputs; -1 where one has no such row."""
        positions = {"a": a, "b": b}
        if self._output.name == REJECTED:
            return ""
        if self._is_join and self._has_times():
            return "\n".join(self._joined(positions))
        return "\n".join(self._emitted_near(positions))

    def _has_times(self) -> bool:
        """Return whether the compared columns identify a match."""
        plan = self._plans[0]
        of_left, of_right = output_names(plan)
        needed = {*of_left.values(), of_right.get(str(plan.right.event_time), "")}
        return needed <= set(self._output.columns.names)

    def _joined(self, positions: Mapping[str, int]) -> Iterator[str]:
        plan = self._plans[0]
        names, of_right = output_names(plan)
        matched = of_right[str(plan.right.event_time)]
        present = [
            (which, made.slice(position, 1))
            for (which, position), made in zip(positions.items(), self._made, strict=True)
            if position >= 0
        ]
        rows = present[0][1]
        moment = _micros(rows, names[str(plan.left.event_time)], plan.left.axis)
        for which, position in positions.items():
            if position < 0:
                yield f"{which} has no such row."
        for which, row in present:
            yield f"{which} {self._match(_micros(row, matched, plan.right.axis), moment)}"
        times = (moment, *(_micros(row, matched, plan.right.axis) for _, row in present))
        around = next(time for time in times if time is not None)
        key = [rows.column(names[name])[0] for name in plan.left.key]
        yield from self._rivals(key, around, present)

    def _match(self, matched: int | None, moment: int | None) -> str:
        left, right = (spec.name for spec in self._plans[0].inputs)
        if matched is None:
            return f"matches no row of {right!r} with it."
        if moment is None:
            return f"has no row of {left!r} for the row of {right!r} of {_time(matched)}."
        apart = "at the same time" if matched == moment else _apart(matched - moment)
        # Columns are shown as they came.
        zone = " UTC" if self._plans[0].right.axis is not None or self._plans[0].left.axis is not None else ""
        return f"matches it with the row of {right!r} at {_time(matched)}{zone}, {apart}."

    def _rivals(self, key: list[pa.Scalar], around: int, present: list[tuple[str, pa.Table]]) -> Iterator[str]:
        """Yield lines that show a key's right rows around a time, and mark those that a version matched."""
        plan = self._plans[0]
        spec, own = plan.right, self._rows[1]
        own = own.filter(_with_key(own, spec.key, key)).select(spec.schema.names)
        of_key = show_row(dict(zip(spec.key, (_shown(value) for value in key), strict=True)))
        of_key = f" of {of_key}" if of_key else ""
        if not own.num_rows:
            yield f"{spec.name!r} has no rows{of_key}."
            return
        micros = spec.event_micros(own)
        order = np.argsort(micros, kind="stable")
        middle = int(np.searchsorted(micros[order], around, side="right"))
        chosen = set(range(max(0, middle - _NEAR), min(len(order), middle + _NEAR)))
        marks: dict[int, list[str]] = {}
        for which, row in present:
            for position in self._places_of(own.take(pa.array(order)), row):
                marks.setdefault(position, []).append(which)
                chosen.add(position)
        hidden = [name for name in spec.schema.names if name not in (*spec.key, spec.event_time)]
        listed = decode_rows(own.take(pa.array(order)).select(hidden), beyond=str) if hidden else [None] * len(order)
        note = f", of which these are near ({len(chosen)} of {own.num_rows:,})" if len(chosen) < own.num_rows else ""
        yield f"{spec.name!r} has rows{of_key}{note}:"
        for position in sorted(chosen):
            row = listed[position]
            text = "" if row is None else f"  {show_row(row.as_dict())}"
            mark = f"  <- {' and '.join(marks[position])}" if position in marks else ""
            yield f"  {_time(int(micros[order][position]))}{text}{mark}"
        if not any(isinstance(each.operation, IntervalJoin) for each in self._plans):
            yield from self._ties(micros[order], marks)

    def _places_of(self, rows: pa.Table, row: pa.Table) -> list[int]:
        """Return the position, among sorted right rows, of an output row's right row: the last of equal ones."""
        plan = self._plans[0]
        names = {own: in_output for own, in_output in output_names(plan)[1].items() if in_output in row.column_names}
        wanted = canonical(row.select(list(names.values())).rename_columns(list(names)))
        if not names or all(column.null_count for column in wanted.columns):
            return []
        time = micros_of(wanted, str(plan.right.event_time), plan.right.axis)
        same_time = np.flatnonzero(plan.right.event_micros(rows) == time)
        near = canonical(rows.select(list(names)).take(pa.array(same_time))).cast(wanted.schema)
        repeated = wanted.take(pa.array(np.zeros(len(same_time), dtype=np.int64)))
        equal_rows: list[int] = same_time[~differing(near, repeated).any(axis=1)].tolist()
        return equal_rows[-1:]

    def _ties(self, micros: NDArray[np.int64], marks: Mapping[int, list[str]]) -> Iterator[str]:
        times = {int(micros[position]) for position in marks}
        for time in sorted(times):
            count = int((micros == time).sum())
            if count > 1:
                orders = [", ".join(_tie_order(plan)) for plan in self._plans]
                by = orders[0] if orders[0] == orders[1] else f"{orders[0]} in a, of {orders[1]} in b"
                known = any(plan.right.known is not None for plan in self._plans)
                first = "of those that are known by then the one known last counts, then " if known else ""
                yield f"{count} of them have the time {_time(time)}; {first}the last one in the order of {by} counts."

    def _emitted_near(self, positions_of: Mapping[str, int]) -> Iterator[str]:
        plan = self._plans[0]
        schema = self._output.columns
        key = [name for name in plan.left.key if name in schema.names]
        if len(key) < len(plan.left.key) or any(
            schema.field(name).type != plan.left.schema.field(name).type for name in key
        ):
            columns = " and ".join(map(repr, plan.left.key))
            yield f"The output has no key column {columns} of the input's type, so the rows near it are not known."
            return
        which, own_position = next(pair for pair in positions_of.items() if pair[1] >= 0)
        version = self._made["ab".index(which)]
        values = [version.column(name)[own_position] for name in key]
        with_key = show_row(dict(zip(key, (_shown(value) for value in values), strict=True)))
        with_key = f" with {with_key}" if with_key else ""
        rank = int(np.count_nonzero(_with_key(version.slice(0, own_position), key, values).to_numpy()))
        for (name, position), made in zip(positions_of.items(), self._made, strict=True):
            positions = np.flatnonzero(_with_key(made, key, values).to_numpy())
            if not len(positions):
                yield f"{name} emits no rows{with_key}."
                continue
            middle = int(np.searchsorted(positions, position)) if position >= 0 else min(rank, len(positions))
            near = positions[max(0, middle - _NEAR) : middle + _NEAR]
            shown = f"{len(near)} of {len(positions):,}"
            note = f", of which these are near ({shown})" if len(near) < len(positions) else ""
            yield f"{name} emits rows{with_key}{note}:"
            rows = decode_rows(made.take(pa.array(near)), beyond=str)
            for row, row_position in zip(rows, near.tolist(), strict=True):
                yield f"  {show_row(row.as_dict())}{'  <- this one' if row_position == position else ''}"


def _tie_order(plan: Plan) -> list[str]:
    """Return the columns that order right rows of the same event time, the most significant first."""
    order, right = [*plan.right.source_order], plan.right
    if isinstance(plan.operation, TemporalJoin) and plan.operation.ranks(right) != right.ranks:
        order.insert(len(order) if right.sequence else 0, "deletes last")
    return [*order, "the row's content"]


def _with_key(table: pa.Table, names: Any, values: list[pa.Scalar]) -> pa.ChunkedArray:
    same = (pc.equal(table.column(name), value) for name, value in zip(names, values, strict=True))
    every = pa.chunked_array([np.ones(table.num_rows, dtype=bool)])
    return reduce(pc.and_, (pc.fill_null(mask, False) for mask in same), every)


def _shown(value: pa.Scalar) -> Any:
    return decode_column(pa.array([value]), str)[0]


def _micros(rows: pa.Table, name: str, axis: TimeAxis | None) -> int | None:
    return None if rows.column(name).null_count else int(micros_of(rows, name, axis)[0])


def _time(micros: int) -> str:
    return show_value(decode_column(pa.array([micros], pa.timestamp("us", "UTC")), str)[0])


def _apart(micros: int) -> str:
    span = format_span(abs(micros) // 1000) if abs(micros) >= 1000 else f"{abs(micros)} µs"
    return f"{span} {'later' if micros > 0 else 'earlier'}"


_TIMELESS = ("name", "sequence", "late", "null_key")
"""The settings of an input that do not change its watermark."""


def embedded_difference(comparison: Comparison, a: EmbeddedExecution, b: EmbeddedExecution) -> Difference:
    """Return the difference of two versions over inputs in memory, which must have the same rows."""
    for side, (one, other) in enumerate(zip(a.rows, b.rows, strict=True)):
        if one is not other:
            _check_rows(comparison.a.inputs[side].name, one, other.select(one.column_names))
    # Each version has its own event time and watermark, and so its own control rows over the rows of a.
    of_a = a.controls()
    controls = of_a, of_a if _have_same_watermarks(comparison) else replace(a, inputs=comparison.b.inputs).controls()
    by_output = compare_key_group(comparison, a.rows, controls)
    outputs, examples = {}, []
    for output in comparison.outputs:
        group = by_output[output.name]
        rows, counts = group.rows, sum_counts(output, [group.counts], [group.by_column])
        name = output.name
        outputs[name] = OutputDifference(name, counts, output.identity, ArrowRows(output, rows))
        examples += examples_of(output, rows.filter(rows.column("explanation").is_valid()), comparison.examples)
    return Difference(outputs, changed_settings(comparison.a, comparison.b), tuple(examples))


def _have_same_watermarks(comparison: Comparison) -> bool:
    """Return whether the rows give the inputs of both versions the same watermarks."""
    inputs = zip(comparison.a.inputs, comparison.b.inputs, strict=True)
    return all(replace(two, **{name: getattr(one, name) for name in _TIMELESS}) == one for one, two in inputs)


def _check_rows(name: str, one: pa.Table, other: pa.Table) -> None:
    # Equal tables are recognised at once, unless a NaN is in them or their rows stand in another order.
    if one.num_rows == other.num_rows and (one.equals(other) or rows_digest(one) == rows_digest(other)):
        return
    contents = (
        f"{one.num_rows:,} rows in a and {other.num_rows:,} in b"
        if one.num_rows != other.num_rows
        else "other rows in b than in a"
    )
    msg = (
        f"input {name!r} has {contents}; diff compares two versions over the same history, so connect both to the same "
        f"inputs, such as pair.asof_join() and pair.asof_join(allow_exact_matches=False)"
    )
    raise ConfigurationError(msg)
