"""The rows of one key over event time: the inputs' rows, the ranges of versions, the matches, and a function's timers.

The matches are those of the join's output, run on the key's rows alone, since other keys' rows do not matter to them.

A function runs on the key's rows alone, too. All rows come in one micro-batch, as in a run to the end of time. Then
time advances from one row or timer to the next, and the timers are noted after each. Timers that a function sets again
and again without end are followed for a while after the last row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.display import short_value, show_value
from cojoin.engine.input_spec import InputSpec, controls_of
from cojoin.engine.joins import AsofJoin, TemporalJoin
from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.joins.search import known_first
from cojoin.engine.local.kept_tables import KeptTables
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.ordering import OrderedPart, total_order
from cojoin.engine.plan import Plan
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.arguments import microseconds
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.keys import key_shape, key_values
from cojoin.engine.values.rows import Row, decode_column
from cojoin.engine.values.tables import take_rows
from cojoin.errors import ConfigurationError, FunctionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.embedded.embedded_execution import EmbeddedExecution
    from cojoin.engine.local.local_run import BatchOutput
    from cojoin.engine.operator import Sides
    from cojoin.engine.ordering import Ranks


FOREVER = 1 << 62
"""Microseconds that stand for no end."""

_MOST_KEYS = 20


@dataclass(frozen=True)
class TimedRow:
    """A row: its event time in epoch microseconds, and its columns besides key and time as a label."""

    micros: int
    label: str


@dataclass(frozen=True)
class Version(TimedRow):
    """A right row of an as-of or temporal join, and the times between which left rows match it, in epoch microseconds.

    ``-FOREVER`` and ``FOREVER`` stand for no bound; a tombstone deletes its key. ``effective`` is the later of its
    event time and its known time.
    """

    begins: int = 0
    ends: int = 0
    is_tombstone: bool = False
    effective: int = 0


@dataclass(frozen=True)
class KeyRows:
    """A key's rows, in total order; the right ones of as-of and temporal joins are ``Version``s.

    The matches are, for each time of a left row, the times of the right rows that it matched, in epoch microseconds; of
    versions their effective times.
    """

    key: str
    left: Sequence[TimedRow]
    right: Sequence[TimedRow]
    matches: dict[int, list[int]]


def read_keys(keys: Any, spec: InputSpec) -> list[tuple[Any, ...]]:
    """Return the keys that a user names, one or several, as tuples."""
    count = len(spec.key)
    several = isinstance(keys, (list, set, frozenset, range, np.ndarray, pa.Array, pa.ChunkedArray)) or hasattr(
        keys, "to_list"
    )
    if isinstance(keys, tuple):
        several = count == 1 or (bool(keys) and all(isinstance(key, tuple) for key in keys))
    tuples = []
    for key in (key.as_py() if isinstance(key, pa.Scalar) else key for key in (keys if several else [keys])):
        values = key_values(key, spec.key)
        if values is None or any(value is None for value in values):
            more = ", or a list of some" if count else ", since the inputs have no key"
            msg = f"keys: expected {key_shape(spec.key)}{more}, got {key!r}"
            raise ConfigurationError(msg)
        tuples.append(values)
    if not 1 <= len(tuples) <= _MOST_KEYS:
        msg = f"keys: expected 1 to {_MOST_KEYS} keys, which a picture has room for, got {len(tuples):,}"
        raise ConfigurationError(msg)
    return [tuple(value.item() if hasattr(value, "item") else value for value in key) for key in tuples]


def rows_by_key(rows: Sides, inputs: tuple[InputSpec, InputSpec], keys: Sequence[tuple[Any, ...]]) -> list[Sides]:
    """Return the rows of each key, in total order; rows without event time, which are rejected, are left out."""
    sides = []
    for key in keys:
        left, right = (_of_key(table, spec, key) for table, spec in zip(rows, inputs, strict=True))
        if not left.num_rows and not right.num_rows:
            existing = _first_keys(rows, inputs)
            names = " and ".join(repr(spec.name) for spec in inputs)
            msg = f"keys: inputs {names} have no row of the key {key_text(key)}; they have {existing}"
            raise ConfigurationError(msg)
        sides.append((left, right))
    return sides


def key_rows(plan: Plan, execution: EmbeddedExecution, key: tuple[Any, ...], rows: Sides) -> KeyRows:
    """Return one key's rows in a join, with their matches."""
    left, right = plan.inputs
    table = replace(execution, rows=rows).run(plan).output
    times = [
        _micros_or_none(table, names[str(spec.event_time)], spec.axis)
        for names, spec in zip(output_names(plan), plan.inputs, strict=True)
    ]
    matches: dict[int, list[int]] = {}
    for of_left, of_right in zip(*times, strict=True):
        if of_left is not None and of_right is not None:
            matches.setdefault(of_left, []).append(of_right)
    matches = {time: sorted(set(partners)) for time, partners in matches.items()}
    lefts = sorted_rows(rows[0], left, labels_of(rows[0], left))
    rights = _right_rows(plan.operation, rows[1], right)
    if right.known is not None:
        matches = {time: _effective_of(partners, time, rights) for time, partners in matches.items()}
    return KeyRows(key_text(key), lefts, rights, matches)


def _effective_of(partners: Sequence[int], time: int, versions: Sequence[TimedRow]) -> list[int]:
    """Return the effective times of the versions of some event times that a left row of a time has matched."""
    known = [(row.micros, row.effective) for row in versions if isinstance(row, Version) and row.effective <= time]
    return [max(effective for micros, effective in known if micros == partner) for partner in partners]


def sorted_rows(table: pa.Table, spec: InputSpec, labels: Sequence[str]) -> list[TimedRow]:
    """Return the rows of one key, which are in total order, with their labels."""
    return [TimedRow(*each) for each in zip(_times(table, spec), labels, strict=True)]


def labels_of(table: pa.Table, spec: InputSpec, without: Sequence[str | None] = ()) -> list[str]:
    """Return for each row its columns as text, without key, event time and source order."""
    known = None if spec.known is None else spec.known.column
    hidden = {*spec.key, spec.event_time, known, *spec.source_order, *without}
    columns = [decode_column(table.column(name), str) for name in table.column_names if name not in hidden]
    return (
        [", ".join(map(short_value, row)) for row in zip(*columns, strict=True)] if columns else [""] * table.num_rows
    )


def _right_rows(operation: Any, table: pa.Table, spec: InputSpec) -> list[TimedRow]:
    if isinstance(operation, AsofJoin):
        micros, effective = _times(table, spec), spec.micros(table).tolist()
        reach = FOREVER if operation.tolerance is None else microseconds(operation.tolerance, "tolerance")
        ranges = _known_ranges(micros, effective, reach) if spec.known else _ranges(micros, operation.direction, reach)
        rows = zip(micros, labels_of(table, spec), ranges, effective, strict=True)
        return [Version(time, label, *span, effective=since) for time, label, span, since in rows]
    if isinstance(operation, TemporalJoin):
        table = _in_order(table, spec, operation.ranks(spec))
        reach = FOREVER if operation.retention is None else microseconds(operation.retention, "retention")
        micros, effective = _times(table, spec), spec.micros(table).tolist()
        labels = labels_of(table, spec, [operation.deletes, *spec.technical])
        ranges = _known_ranges(micros, effective, reach) if spec.known else _ranges(micros, "backward", reach)
        if spec.known is not None and spec.known.valid_to is not None:
            ends = spec.ends(table).tolist()
            ranges = [(since, max(since, min(until, end))) for (since, until), end in zip(ranges, ends, strict=True)]
        dead = operation.tombstones(table, spec).tolist()
        return [
            Version(time, "" if is_dead else label, *((time, time) if is_dead else span), is_dead, since)
            for time, label, span, is_dead, since in zip(micros, labels, ranges, dead, effective, strict=True)
        ]
    return sorted_rows(table, spec, labels_of(table, spec))


def _ranges(micros: Sequence[int], direction: str, reach: int) -> list[tuple[int, int]]:
    """Return the times at which left rows match each of a key's versions, which are in total order."""
    distinct = sorted(set(micros))
    positions = {time: position for position, time in enumerate(distinct)}
    ranges = []
    for row, time in enumerate(micros):
        position = positions[time]
        before = distinct[position - 1] if position else None
        after = distinct[position + 1] if position + 1 < len(distinct) else None
        if micros[row + 1 : row + 2] == [time]:
            ranges.append((time, time))  # of equal times the last in the total order matches
        elif direction == "backward":
            ranges.append((time, min(time + reach, FOREVER if after is None else after)))
        elif direction == "forward":
            ranges.append((max(time - reach, -FOREVER if before is None else before), time))
        else:
            begins = -FOREVER if before is None else (before + time) // 2
            ends = FOREVER if after is None else (time + after) // 2
            ranges.append((max(time - reach, begins), min(time + reach, ends)))
    return ranges


def _known_ranges(micros: Sequence[int], effective: Sequence[int], reach: int) -> list[tuple[int, int]]:
    """Return the same for versions with known times: from the effective time until that of a greater version."""
    ranges, end = [], FOREVER
    for time, since in zip(reversed(micros), reversed(effective), strict=True):
        ranges.append((since, max(since, min(time + reach, end))))
        end = min(end, since)
    return ranges[::-1]


def _of_key(table: pa.Table, spec: InputSpec, key: tuple[Any, ...]) -> pa.Table:
    mask = table.column(str(spec.event_time)).is_valid()
    for name, value in zip(spec.key, key, strict=True):
        mask = pc.and_(mask, pc.fill_null(pc.equal(table.column(name), _typed(value, name, spec)), False))
    return _in_order(table.filter(mask).combine_chunks(), spec, spec.ranks)


def _in_order(table: pa.Table, spec: InputSpec, ranks: Ranks | None) -> pa.Table:
    """Return the rows of one key in the total order."""
    one_key = np.zeros(table.num_rows, dtype=np.int64)
    ranks = known_first(spec, ranks)
    part = OrderedPart(one_key, spec.event_micros(table), 0, table, spec.source_order, ranks=ranks)
    return take_rows(table, total_order([part]))


def _typed(value: Any, name: str, spec: InputSpec) -> pa.Scalar:
    field = spec.schema.field(name)
    try:
        return encode_rows([(value,)], pa.schema([field]), "keys").column(0)[0]
    except (FunctionError, SchemaError) as error:
        msg = f"keys: expected a value of {name!r}, which is {field.type}, got {value!r}"
        raise ConfigurationError(msg) from error


def _first_keys(rows: Sides, inputs: tuple[InputSpec, InputSpec]) -> str:
    distinct: dict[tuple[Any, ...], None] = {}
    for table, spec in zip(rows, inputs, strict=True):
        first = spec.keys(table.slice(0, 1_000))
        columns = [decode_column(column, str) for column in first.columns]
        distinct |= dict.fromkeys(each for each in zip(*columns, strict=True) if None not in each)
    texts = [key_text(key) for key in distinct]
    return ", ".join([*texts[:5], *(["..."] if len(texts) > 5 else [])]) or "no rows"


def key_text(key: tuple[Any, ...]) -> str:
    """Return a key as text: its only value, or its columns' values in brackets."""
    return show_value(key[0]) if len(key) == 1 else f"({', '.join(map(show_value, key))})"


def _times(table: pa.Table, spec: InputSpec) -> list[int]:
    return [int(each) for each in spec.event_micros(table)]


def _micros_or_none(table: pa.Table, name: str, axis: TimeAxis | None) -> list[int | None]:
    valid = table.column(name).is_valid().to_pylist()
    micros = micros_of(table, name, axis)
    return [int(time) if known else None for time, known in zip(micros, valid, strict=True)]


_STEPS_AFTER_LAST_ROW = 100


@dataclass
class SeenTimer:
    """An event-time timer: its time, and the time of the row or timer that set it, in epoch microseconds.

    ``set_at`` is None for a timer that was set in arrival order. The outcome is ``"fired"``, ``"deleted"``, or
    ``"waiting"`` if the timer was not followed to its end.
    """

    timestamp: int
    set_at: int | None
    outcome: str = "waiting"


@dataclass
class FunctionRun:
    """A function's rows with event time by output, ``output`` for the main one, and its event-time timers in order."""

    outputs: dict[str, list[TimedRow]] = field(default_factory=dict)
    timers: list[SeenTimer] = field(default_factory=list)


def run_function(plan: Plan, rows: Sides) -> FunctionRun:
    """Run a function over one key's rows of both inputs, to the end of time."""
    run = FunctionRun({"output": []})
    hidden = {*plan.left.key, *plan.right.key}
    times = np.concatenate([spec.millis(table) for spec, table in zip(plan.inputs, rows, strict=True)])
    moments = sorted({int(each) for each in times})
    waiting: dict[int, SeenTimer] = {}
    with LocalRun(_without_watermarks(plan), keeps_operators=True, notes_rows=True) as local:
        _take(local.process(rows, controls_of(rows, local.plan.inputs)), run, hidden)
        _look(local, None, waiting, run)
        nothing = rows[0].slice(0, 0), rows[1].slice(0, 0)
        after_last = 0
        while moments or waiting:
            now = min([*moments[:1], *waiting])
            after_last += not moments
            if after_last > _STEPS_AFTER_LAST_ROW:
                break
            moments = [each for each in moments if each > now]
            reached = [Control(number, watermarks={ONE_PARTITION: now}) for number in (1, 2)]
            _take(local.process(nothing, reached), run, hidden)
            _look(local, now, waiting, run)
    return run


def _without_watermarks(plan: Plan) -> Plan:
    """Return a plan whose inputs admit each row and make no watermarks."""
    left, right = (
        InputSpec(
            spec.name,
            spec.schema,
            spec.key,
            spec.event_time,
            sequence=spec.source_order,
            watermark=WatermarkStrategy.no_watermarks(),
            axis=spec.axis,
        )
        for spec in plan.inputs
    )
    return Plan(plan.operation, left, right, 1)


def _look(local: LocalRun, now: int | None, waiting: dict[int, SeenTimer], run: FunctionRun) -> None:
    """Note the timers that are new, and those that are gone, since the last look."""
    timers = KeptTables(local.operators).timers
    is_timed = pc.equal(timers.column(timers.num_columns - 2), TimeDomain.EVENT_TIME.value)
    present = set(timers.column(timers.num_columns - 1).filter(is_timed).cast(pa.int64()).to_pylist())
    for gone in waiting.keys() - present:
        waiting.pop(gone).outcome = "fired" if now is not None and gone <= now else "deleted"
    for timestamp in sorted(present - waiting.keys()):
        waiting[timestamp] = SeenTimer(1_000 * timestamp, None if now is None else 1_000 * now)
        run.timers.append(waiting[timestamp])


def _take(output: BatchOutput, run: FunctionRun, hidden: set[str]) -> None:
    for row in (row for group in output.groups for row in group.rows()):
        if row.timestamp is not None:
            values = row.value.as_dict() if isinstance(row.value, Row) else {"": row.value}
            label = ", ".join(short_value(value) for name, value in values.items() if name not in hidden)
            run.outputs.setdefault(row.output, []).append(TimedRow(1_000 * row.timestamp, label))
