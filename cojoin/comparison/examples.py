"""What each version says of a row that differs, in a few lines: the match and its rivals, or a function's rows near it.

For a join these are the matched row of each version, how far it is from the row, and the key's other rows of the right
input around that time; of several with one event time it says what decides. For a function these are the rows of the
key that each version emitted around the one that differs, if the output has the key's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.comparison.comparison import right_columns
from cojoin.comparison.row_equality import canonical, differing
from cojoin.engine.display import format_span, show_row
from cojoin.engine.joins import IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.rows import decode_column, decode_rows
from cojoin.engine.values.tables import event_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.comparison.comparison import ComparedOutput, Comparison
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan

__all__ = ["Explainer"]

_NEAR = 3
"""How many rows of a key are shown before and after a moment."""


class Explainer:
    """Explains differing rows of one output in one key group.

    Args:
        comparison: What is compared.
        output: The output.
        rows: The rows of both inputs.
        made: The rows of the output in version a and in version b.
    """

    def __init__(self, comparison: Comparison, output: ComparedOutput, rows: Sides, made: Sides) -> None:
        self._plans, self._output, self._rows, self._made = (comparison.a, comparison.b), output, rows, made
        self._is_join = output.name == OUTPUT and not any(
            isinstance(plan.operation, KeyedCoProcess) for plan in self._plans
        )

    def narrow(self, places: Sequence[tuple[int, int]]) -> None:
        """Keep only those right rows in view that explanations of some rows need, which are found faster then.

        Args:
            places: The rows' positions in both outputs, as ``text`` takes them.
        """
        if not (self._is_join and self._has_times()):
            return
        plan = self._plans[0]
        key = plan.left.key[0]
        dtype = plan.left.schema.field(key).type
        # For other types, being in a set is not what being equal is: 0.0 and -0.0 are equal.
        if not (pa.types.is_integer(dtype) or pa.types.is_string(dtype)):
            return
        name = dict(zip(plan.left.schema.names, plan.output.names, strict=False))[key]
        values = [
            made.column(name)[place].as_py()
            for row in places
            for place, made in zip(row, self._made, strict=True)
            if place >= 0
        ]
        right = self._rows[1].column(plan.right.key[0])
        near = self._rows[1].filter(pc.is_in(right, value_set=pa.array(values, right.type)))
        self._rows = (self._rows[0], near)

    def text(self, a: int, b: int) -> str:
        """Return what both versions say of a row, given by its positions in their outputs; -1 if there is none."""
        places = {"a": a, "b": b}
        if self._output.name == REJECTED:
            return ""
        if self._is_join and self._has_times():
            return "\n".join(self._joined(places))
        return "\n".join(self._emitted_near(places))

    def _has_times(self) -> bool:
        """Return whether the compared columns have all that identifies a match."""
        plan = self._plans[0]
        needed = {*plan.output.names[: len(plan.left.schema)], right_columns(plan).get(str(plan.right.event_time), "")}
        return needed <= set(self._output.columns.names)

    def _joined(self, places: Mapping[str, int]) -> Iterator[str]:
        plan = self._plans[0]
        names = dict(zip(plan.left.schema.names, plan.output.names, strict=False))
        matched = right_columns(plan)[str(plan.right.event_time)]
        present = [
            (which, made.slice(place, 1))
            for (which, place), made in zip(places.items(), self._made, strict=True)
            if place >= 0
        ]
        rows = present[0][1]
        moment = _micros(rows, names[str(plan.left.event_time)])
        for which, place in places.items():
            if place < 0:
                yield f"{which} has no such row."
        for which, row in present:
            yield f"{which} {self._match(_micros(row, matched), moment)}"
        around = next(time for time in (moment, *(_micros(row, matched) for _, row in present)) if time is not None)
        key = [rows.column(names[name])[0] for name in plan.left.key]
        yield from self._rivals(key, around, present)

    def _match(self, found: int | None, moment: int | None) -> str:
        left, right = (spec.name for spec in self._plans[0].inputs)
        if found is None:
            return f"has no match of {right!r} for it."
        if moment is None:
            return f"has no row of {left!r} for the row of {right!r} of {_time(found)}."
        apart = "at the same time" if found == moment else _apart(found - moment)
        return f"matches it with the row of {right!r} of {_time(found)}, {apart}."

    def _rivals(self, key: list[pa.Scalar], around: int, present: list[tuple[str, pa.Table]]) -> Iterator[str]:
        """Yield the rows of the right input of a key around a time, with marks at those that a version matched."""
        plan = self._plans[0]
        spec, own = plan.right, self._rows[1]
        own = own.filter(_with_key(own, spec.key, key)).select(spec.schema.names)
        told = show_row(dict(zip(spec.key, (_shown(value) for value in key), strict=True)))
        if not own.num_rows:
            yield f"{spec.name!r} has no rows of {told}."
            return
        micros = spec.micros(own)
        order = np.argsort(micros, kind="stable")
        middle = int(np.searchsorted(micros[order], around, side="right"))
        chosen = set(range(max(0, middle - _NEAR), min(len(order), middle + _NEAR)))
        marks: dict[int, list[str]] = {}
        for which, row in present:
            for place in self._places_of(own.take(pa.array(order)), row):
                marks.setdefault(place, []).append(which)
                chosen.add(place)
        hidden = [name for name in spec.schema.names if name not in (*spec.key, spec.event_time)]
        listed = decode_rows(own.take(pa.array(order)).select(hidden), beyond=str) if hidden else [None] * len(order)
        which = f", of which these are near ({len(chosen)} of {own.num_rows:,})" if len(chosen) < own.num_rows else ""
        yield f"{spec.name!r} has rows of {told}{which}:"
        for place in sorted(chosen):
            row = listed[place]
            text = "" if row is None else f"  {show_row(row.as_dict())}"
            mark = f"  <- {' and '.join(marks[place])}" if place in marks else ""
            yield f"  {_time(int(micros[order][place]))}{text}{mark}"
        if not isinstance(plan.operation, IntervalJoin):
            yield from self._ties(micros[order], marks)

    def _places_of(self, rows: pa.Table, row: pa.Table) -> list[int]:
        """Return where among sorted right rows is the one that an output row has; of equal ones the last."""
        plan = self._plans[0]
        names = {own: there for own, there in right_columns(plan).items() if there in row.column_names}
        wanted = canonical(row.select(list(names.values())).rename_columns(list(names)))
        if not names or all(column.null_count for column in wanted.columns):
            return []
        same_time = np.flatnonzero(plan.right.micros(rows) == event_micros(wanted, str(plan.right.event_time)))
        near = canonical(rows.select(list(names)).take(pa.array(same_time))).cast(wanted.schema)
        repeated = wanted.take(pa.array(np.zeros(len(same_time), dtype=np.int64)))
        found: list[int] = same_time[~differing(near, repeated).any(axis=1)].tolist()
        return found[-1:]

    def _ties(self, micros: NDArray[np.int64], marks: Mapping[int, list[str]]) -> Iterator[str]:
        times = {int(micros[place]) for place in marks}
        for time in sorted(times):
            count = int((micros == time).sum())
            if count > 1:
                orders = [", ".join(_tie_order(plan)) for plan in self._plans]
                by = orders[0] if orders[0] == orders[1] else f"{orders[0]} in a, by {orders[1]} in b"
                yield f"{count} of them have the time {_time(time)}; the last one counts, by {by}."

    def _emitted_near(self, places: Mapping[str, int]) -> Iterator[str]:
        plan = self._plans[0]
        schema = self._output.columns
        key = [name for name in plan.left.key if name in schema.names]
        if len(key) < len(plan.left.key) or any(
            schema.field(name).type != plan.left.schema.field(name).type for name in key
        ):
            columns = " and ".join(map(repr, plan.left.key))
            yield f"The output has no key column {columns}, so the rows near it are not known."
            return
        which, place = next((which, place) for which, place in places.items() if place >= 0)
        version = self._made["ab".index(which)]
        values = [version.column(name)[place] for name in key]
        told = show_row(dict(zip(key, (_shown(value) for value in values), strict=True)))
        at = int(np.count_nonzero(_with_key(version.slice(0, place), key, values).to_numpy()))
        for (name, position), made in zip(places.items(), self._made, strict=True):
            positions = np.flatnonzero(_with_key(made, key, values).to_numpy())
            if not len(positions):
                yield f"{name} emits no rows with {told}."
                continue
            near = positions[max(0, min(at, len(positions)) - _NEAR) : at + _NEAR]
            which = (
                f", of which these are near ({len(near)} of {len(positions):,})" if len(near) < len(positions) else ""
            )
            yield f"{name} emits rows with {told}{which}:"
            for row, found in zip(decode_rows(made.take(pa.array(near)), beyond=str), near.tolist(), strict=True):
                yield f"  {show_row(row.as_dict())}{'  <- this one' if found == position else ''}"


def _tie_order(plan: Plan) -> list[str]:
    """Return what decides between right rows of one event time, the first first."""
    order, right = [*plan.right.source_order], plan.right
    if isinstance(plan.operation, TemporalJoin) and plan.operation.ranks(right) != right.ranks:
        order.insert(len(order) if right.sequence else 0, "deletes last")
    return [*order, "the row's content"]


def _with_key(table: pa.Table, names: Any, values: list[pa.Scalar]) -> pa.ChunkedArray:
    flags = None
    for name, value in zip(names, values, strict=True):
        same = pc.fill_null(pc.equal(table.column(name), value), False)
        flags = same if flags is None else pc.and_(flags, same)
    return flags


def _shown(value: pa.Scalar) -> Any:
    return decode_column(pa.chunked_array([pa.array([value])]), str)[0]


def _micros(rows: pa.Table, name: str) -> int | None:
    column = rows.column(name)
    return None if column.null_count else int(event_micros(rows, name)[0])


def _time(micros: int) -> str:
    shown = str(decode_column(pa.chunked_array([pa.array([micros], pa.timestamp("us", "UTC"))]), str)[0])
    return shown.removesuffix("+00:00")


def _apart(micros: int) -> str:
    span = format_span(abs(micros) // 1000) if abs(micros) >= 1000 else f"{abs(micros)} µs"
    return f"{span} {'later' if micros > 0 else 'earlier'}"
