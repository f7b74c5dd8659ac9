"""Deliveries: how the rows of two inputs arrive in micro-batches, drawn from a seed, never late, and run on a plan.

A delivery decides the order of arrival, the cuts into micro-batches, the watermarks after each of them, the number of
key groups, the batches that begin with new operators, and the processing times. After each batch an input's watermark
is below the timestamp of each row that is still to come, so no row is late. It never passes the last event, since a
drain fires timers up to that time only. The inputs end with the last batch. Rows are numbers: those of the left input
from 0 on, then those of the right input.

A run returns each output's rows by key, as texts that compare. A row of a function's output belongs to the key whose
callback yielded it, a row of a join to the key in its columns. The delivery's watermarks replace the inputs'
strategies. It costs some milliseconds for each micro-batch and key group.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from cojoin.engine.display import cells
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.operator import REJECTED
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.keys import plain_key
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CojoinError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cojoin.engine.local.key_group import GroupOutput
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan


Aspect: TypeAlias = Literal["arrival", "cuts", "key_groups", "restarts", "processing_time"]
"""A thing that may vary between two deliveries of the same rows."""

ASPECTS: tuple[Aspect, ...] = get_args(Aspect)

_KEY_GROUPS = (1, 1, 1, 1, 2, 2, 3)
_BATCHES = (1, 2, 2, 2, 2, 3, 3, 3, 4, 5, 8)
_FIRST_CLOCK, _LAST_CLOCK = 1_600_000_000_000, 1_900_000_000_000
_STEPS = (1, 1_000, 60_000, 3_600_000, 86_400_000)
_LONG_DELIVERY = 0.01
_ROWS_OF_LONG = 60


@dataclass(frozen=True)
class RowTimes:
    """The event times of all rows, left ones first, in epoch milliseconds or None, and the number of left rows."""

    times: Sequence[int | None]
    left: int

    def of_side(self, side: int, rows: Collection[int]) -> list[int]:
        """Return the times of those rows that belong to an input: 0 is the left one."""
        known = [(row, self.times[row]) for row in rows]
        return [time for row, time in known if time is not None and (row >= self.left) == bool(side)]

    def last_events(self, rows: Collection[int]) -> tuple[int, int]:
        """Return the largest time of each input; ``NONE`` where there is none."""
        return max(self.of_side(0, rows), default=NONE), max(self.of_side(1, rows), default=NONE)

    def in_time(self, rows: Collection[int]) -> list[int]:
        """Return rows in the order of event time; at equal times the right input's come first, then as given."""
        return sorted(rows, key=lambda row: (self._or_none(row), row < self.left, row))

    def _or_none(self, row: int) -> int:
        time = self.times[row]
        return NONE if time is None else time


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of all key groups, with the rows of both inputs in the order of arrival.

    The watermarks are both inputs' after it, in epoch milliseconds; ``NONE`` leaves one as it was. ``restarts`` is
    whether new operators, restored from a snapshot, run it; the number of key groups changes only then. A processing
    time of 0 is unknown.
    """

    rows: tuple[int, ...]
    watermarks: tuple[int, int] = (NONE, NONE)
    key_groups: int = 1
    restarts: bool = False
    processing_time: int = 0


@dataclass(frozen=True)
class Delivery:
    """The arrival of rows in one or more micro-batches; the inputs end with the last one.

    A drain fires timers up to the largest event time of each input, in epoch milliseconds: ``last_events``.
    """

    batches: tuple[MicroBatch, ...]
    last_events: tuple[int, int]

    @classmethod
    def at_once(cls, rows: Sequence[int], times: RowTimes) -> Delivery:
        """Return the delivery of all rows in one batch and one key group."""
        return cls((MicroBatch(tuple(rows)),), times.last_events(rows))

    @property
    def rows(self) -> tuple[int, ...]:
        """All rows in the order of arrival."""
        return tuple(row for batch in self.batches for row in batch.rows)

    def varies(self, aspect: Aspect, times: RowTimes) -> bool:
        """Return whether an aspect differs from a delivery of all rows at once, in the order of event time."""
        if aspect == "arrival":
            return list(self.rows) != times.in_time(self.rows)
        if aspect == "cuts":
            return len(self.batches) > 1
        plain = {"key_groups": 1, "restarts": False, "processing_time": 0}[aspect]
        return any(getattr(batch, aspect) != plain for batch in self.batches)

    def of_rows(self, kept: Collection[int], last_events: tuple[int, int] | None = None) -> Delivery:
        """Return the delivery of some of the rows, without batches that have neither rows nor watermarks."""
        batches = [replace(each, rows=tuple(row for row in each.rows if row in kept)) for each in self.batches]
        full = [each for each in batches if each.rows or each.watermarks != (NONE, NONE)]
        return Delivery(tuple(full or batches[:1]), last_events or self.last_events)

    def merged(self, number: int) -> Delivery:
        """Return the delivery with a batch and the one after it as one batch."""
        one, two = self.batches[number], self.batches[number + 1]
        both = replace(two, rows=one.rows + two.rows, key_groups=one.key_groups, restarts=one.restarts)
        return replace(self, batches=(*self.batches[:number], both, *self.batches[number + 2 :]))

    def to_json(self) -> dict[str, Any]:
        """Return the delivery as JSON values."""
        return {"batches": [list(vars(each).values()) for each in self.batches], "last_events": self.last_events}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Delivery:
        """Return the delivery of a ``to_json``."""
        batches = [MicroBatch(tuple(rows), tuple(marks), *rest) for rows, marks, *rest in values["batches"]]
        left, right = values["last_events"]
        return cls(tuple(batches), (left, right))


def seeded(seed: int) -> Random:
    """Return the random numbers of a seed."""
    return Random(seed)  # noqa: S311 - nothing here is secret


def draw_delivery(random: Random, rows: Sequence[int], times: RowTimes, aspects: Collection[Aspect]) -> Delivery:
    """Return a random delivery of rows; aspects that are not named do not vary: rows then come in event time."""
    order = _draw_order(random, rows, times) if "arrival" in aspects else times.in_time(rows)
    bounds = _draw_bounds(random, len(order)) if "cuts" in aspects else [0, len(order)]
    pieces = [tuple(order[start:stop]) for start, stop in pairwise(bounds)]
    watermarks = _draw_watermarks(random, pieces, times)
    often = random.choice((0.0, 0.0, 0.4, 1.0)) if "restarts" in aspects else 0.0
    clock = random.randrange(_FIRST_CLOCK, _LAST_CLOCK) if "processing_time" in aspects and random.random() < 0.5 else 0
    step, groups, batches = random.choice(_STEPS), 1, []
    for number, (piece, marks) in enumerate(zip(pieces, watermarks, strict=True)):
        restarts = number > 0 and random.random() < often
        if "key_groups" in aspects and (restarts or number == 0):
            groups = random.choice(_KEY_GROUPS)
        batches.append(MicroBatch(piece, marks, groups, restarts, clock))
        clock = clock and clock + random.randrange(step + 1)
    return Delivery(tuple(batches), times.last_events(rows))


def _draw_order(random: Random, rows: Sequence[int], times: RowTimes) -> list[int]:
    """Draw an order: any, that of event time except for ties, or out of order within a bound."""
    order = list(rows)
    random.shuffle(order)
    ordered = times.in_time(order)
    kind = random.randrange(3)
    if kind == 0:
        return order
    known = sorted(times.of_side(0, order) + times.of_side(1, order))
    spread = 0 if kind == 1 or not known else (known[-1] - known[0]) // 8
    jitter = {row: (times.times[row] or 0) + random.randint(0, spread) for row in ordered}
    return sorted(order, key=jitter.__getitem__)


def _draw_bounds(random: Random, count: int) -> list[int]:
    if count <= _ROWS_OF_LONG and random.random() < _LONG_DELIVERY:
        return list(range(count + 1))
    batches = random.choice(_BATCHES)
    # An inner bound may equal another one or an end: then a batch has no rows, and time may advance alone.
    return [0, *sorted(random.randint(0, count) for _ in range(batches - 1)), count]


def _draw_watermarks(random: Random, pieces: Sequence[tuple[int, ...]], times: RowTimes) -> list[tuple[int, int]]:
    """Draw both inputs' watermarks after each batch: as far as no row becomes late, less far, or not at all."""
    how = random.choice(("not", "fully", "fully", "less", "less"))
    everything = [row for piece in pieces for row in piece]
    last = max(times.last_events(everything))
    watermarks: list[tuple[int, int]] = []
    limits = [last, last]
    for piece in reversed([*pieces[1:], ()]):
        for side in (0, 1):
            limits[side] = min([limits[side], *(time - 1 for time in times.of_side(side, piece))])
        watermarks.append((limits[0], limits[1]))
    watermarks.reverse()
    if how == "not" or last == NONE:
        return [(NONE, NONE)] * len(pieces)
    if how == "fully":
        return watermarks
    first = min(times.of_side(0, everything) + times.of_side(1, everything))
    drawn = []
    for marks in watermarks:
        left, right = (NONE if random.random() < 0.3 else random.randint(min(first, mark), mark) for mark in marks)
        drawn.append((left, right))
    return drawn


RowText: TypeAlias = "tuple[str, ...]"
"""A row's cells, as ``row_tables`` spells them."""


@dataclass(frozen=True)
class RunOutput:
    """The rows of a run by output and key, in the order in which they were emitted, or the error that ended it.

    Rejected rows are sorted, under the key ``""``, without the watermark that they met.
    """

    rows: dict[str, dict[str, list[RowText]]] = field(default_factory=dict)
    error: str | None = None

    def of_key(self, key: str) -> RunOutput:
        """Return the output for one key."""
        own = {output: {key: keys[key]} for output, keys in self.rows.items() if key in keys}
        return RunOutput(own, self.error)

    def differs(self, other: RunOutput, *, ordered: bool) -> bool:
        """Return whether two runs emitted different rows; two that both failed do not differ.

        The order of a key's rows counts only if ``ordered``.
        """
        if self.error is not None or other.error is not None:
            return (self.error is None) != (other.error is None)
        if self.rows == other.rows or ordered:
            return self.rows != other.rows
        return self._sorted() != other._sorted()

    def _sorted(self) -> dict[str, dict[str, list[RowText]]]:
        return {output: {key: sorted(rows) for key, rows in keys.items()} for output, keys in self.rows.items()}


class DeliveryRunner:
    """Runs deliveries of the rows of two inputs."""

    def __init__(self, plan: Plan, rows: Sides) -> None:
        self.plan = plan.with_inputs(watermark=WatermarkStrategy.no_watermarks())
        self.tables: Sides = (rows[0].combine_chunks(), rows[1].combine_chunks())
        self.left = rows[0].num_rows
        known: list[int | None] = []
        for spec, table in zip(self.plan.inputs, self.tables, strict=True):
            timeless = spec.without_time(table) | (spec.event_time is None)
            times = zip(spec.timestamps(table).tolist(), timeless.tolist(), strict=True)
            known += [None if lacks_time else time for time, lacks_time in times]
        self.times = RowTimes(known, self.left)

    @property
    def all_rows(self) -> range:
        """The numbers of all rows."""
        return range(len(self.times.times))

    @cached_property
    def keys(self) -> list[str]:
        """The key of each row, as the outputs name it."""
        tables = zip(self.plan.inputs, self.tables, strict=True)
        return [repr(plain_key(key)) for spec, table in tables for key in decode_rows(spec.keys(table), str)]

    def run(self, delivery: Delivery) -> RunOutput:
        """Return the output of a delivery, or the error of the function."""
        try:
            return self.run_or_raise(delivery)
        except CojoinError as error:
            return RunOutput(error=str(error))

    def run_or_raise(self, delivery: Delivery) -> RunOutput:
        """Return the output of a delivery."""
        rows_by_key: dict[str, dict[str, list[RowText]]] = defaultdict(lambda: defaultdict(list))
        with ExitStack() as stack:
            run = stack.enter_context(self._new_run(delivery.batches[0].key_groups))
            for number, batch in enumerate(delivery.batches):
                if number and batch.restarts:
                    states = run.states()
                    stack.close()
                    run = stack.enter_context(self._new_run(batch.key_groups))
                    run.restore(states, resumed=False)
                rows, controls, ends = self._batch(delivery, number)
                output = run.process(rows, controls, processing_time=batch.processing_time, end_of_input=ends)
                for group in output.groups:
                    _add(group, rows_by_key)
        # ``defaultdict``s compare and iterate as dicts do, but would grow when they are read.
        rows_of = {output: dict(keys) for output, keys in rows_by_key.items()}
        if REJECTED in rows_of:
            rows_of[REJECTED] = {"": sorted(rows_of[REJECTED][""])}
        return RunOutput(rows_of)

    def _new_run(self, key_groups: int) -> LocalRun:
        return LocalRun(self.plan, key_groups, keeps_operators=True, notes_rows=True)

    def _batch(self, delivery: Delivery, number: int) -> tuple[Sides, list[Control], bool]:
        """Return a batch's rows, the watermarks after them, and whether the inputs end."""
        batch, ends = delivery.batches[number], number == len(delivery.batches) - 1
        rows = np.array(batch.rows, dtype=np.int64)
        positions = rows[rows < self.left], rows[rows >= self.left] - self.left
        left, right = (table.take(pa.array(chosen)) for table, chosen in zip(self.tables, positions, strict=True))
        return (left, right), [self._control(delivery, batch, side, ends) for side in (0, 1)], ends

    def _control(self, delivery: Delivery, batch: MicroBatch, side: int, ends: bool) -> Control:
        number: Literal[1, 2] = 2 if side else 1
        mark, last = batch.watermarks[side], delivery.last_events[side]
        return Control(
            number,
            # The drain must know the last event; with this mark it does not move the watermark.
            partitions={ONE_PARTITION: last} if ends and last > NONE else {},
            marks={ONE_PARTITION: NONE},
            watermarks={ONE_PARTITION: mark} if mark > NONE else {},
        )


def _add(group: GroupOutput, rows: dict[str, dict[str, list[RowText]]]) -> None:
    """Add the rows that a key group emitted in a batch to those of a run."""
    for table in group.rejected_tables():
        rows[REJECTED][""] += map(cells, decode_rows(table.drop_columns("watermark"), str))
    for row in group.rows(str):
        rows[row.output][repr(plain_key(row.key))].append(cells(row.value))
