"""Runs deliveries on the operators of a plan, and returns each output's rows by key, as texts that compare.

A row of a function's output belongs to the key whose callback yielded it, a row of a join to the key in its columns.
Watermarks come from the delivery, so the inputs' strategies are replaced by one that makes none.

It costs some milliseconds for each micro-batch and key group.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from cojoin.engine.display import cells
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.operator import REJECTED
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CojoinError
from cojoin.testing.determinism.deliveries import RowTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.local.key_group import GroupOutput
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.testing.determinism.deliveries import Delivery, MicroBatch

__all__ = ["DeliveryRunner", "RowText", "RunOutput"]

RowText: TypeAlias = "tuple[str, ...]"
"""A row's cells, as ``engine.display`` spells them."""


@dataclass(frozen=True)
class RunOutput:
    """What a run emitted.

    Attributes:
        rows: The rows by output and key, in the order in which they were emitted. Rejected rows are sorted, under the
            key ``""``, without the watermark that they met.
        error: The error that ended the run, or None.
    """

    rows: dict[str, dict[str, list[RowText]]] = field(default_factory=dict)
    error: str | None = None

    def of_key(self, key: str) -> RunOutput:
        """Return what was emitted for one key."""
        own = {output: {key: keys[key]} for output, keys in self.rows.items() if key in keys}
        return RunOutput(own, self.error)

    def differs(self, other: RunOutput, *, ordered: bool) -> bool:
        """Return whether two runs emitted different rows; two that both failed do not differ.

        Args:
            other: The other run's output.
            ordered: Whether the order of a key's rows counts.
        """
        if self.error is not None or other.error is not None:
            return (self.error is None) != (other.error is None)
        if self.rows == other.rows or ordered:
            return self.rows != other.rows
        return self._sorted() != other._sorted()

    def _sorted(self) -> dict[str, dict[str, list[RowText]]]:
        return {output: {key: sorted(rows) for key, rows in keys.items()} for output, keys in self.rows.items()}


class DeliveryRunner:
    """Runs deliveries of the rows of two inputs.

    Args:
        plan: The operation and its inputs.
        rows: The rows of both inputs.
    """

    def __init__(self, plan: Plan, rows: Sides) -> None:
        self.plan = plan.with_inputs(watermark=WatermarkStrategy.no_watermarks())
        self.tables: Sides = (rows[0].combine_chunks(), rows[1].combine_chunks())
        self.left = rows[0].num_rows
        known: list[int | None] = []
        for spec, table in zip(self.plan.inputs, self.tables, strict=True):
            millis = spec.timestamps(table).tolist()
            valid = [False] * len(millis)
            if spec.event_time is not None:
                valid = table.column(spec.event_time).is_valid().to_pylist()
            known += [time if is_known else None for time, is_known in zip(millis, valid, strict=True)]
        self.times = RowTimes(known, self.left)

    @property
    def all_rows(self) -> range:
        """The numbers of all rows."""
        return range(len(self.times.times))

    @cached_property
    def keys(self) -> list[str]:
        """The key of each row, as the outputs name it."""
        tables = zip(self.plan.inputs, self.tables, strict=True)
        return [_key_text(key) for spec, table in tables for key in decode_rows(spec.keys(table), str)]

    def run(self, delivery: Delivery) -> RunOutput:
        """Return what a delivery emits, or the error of the function."""
        try:
            return self.run_or_raise(delivery)
        except CojoinError as error:
            return RunOutput(error=str(error))

    def run_or_raise(self, delivery: Delivery) -> RunOutput:
        """Return what a delivery emits.

        Raises:
            FunctionError: The function raised an error, or returned an invalid value.
            ConservationError: A row was lost or counted twice.
        """
        found: dict[str, dict[str, list[RowText]]] = defaultdict(lambda: defaultdict(list))
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
                    _add(group, found)
        # ``defaultdict``s compare and iterate as dicts do, but would grow when they are read.
        rows_of = {output: dict(keys) for output, keys in found.items()}
        if REJECTED in rows_of:
            rows_of[REJECTED] = {"": sorted(rows_of[REJECTED][""])}
        return RunOutput(rows_of)

    def _new_run(self, key_groups: int) -> LocalRun:
        return LocalRun(self.plan, key_groups, keeps_operators=True, notes_rows=True)

    def _batch(self, delivery: Delivery, number: int) -> tuple[Sides, list[Control], bool]:
        """Return a batch's rows, the watermarks after them, and whether the inputs end."""
        batch, ends = delivery.batches[number], number == len(delivery.batches) - 1
        rows = np.array(batch.rows, dtype=np.int64)
        places = rows[rows < self.left], rows[rows >= self.left] - self.left
        left, right = (table.take(pa.array(place)) for table, place in zip(self.tables, places, strict=True))
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


def _add(group: GroupOutput, found: dict[str, dict[str, list[RowText]]]) -> None:
    """Add what a key group emitted in a batch to what was found."""
    for table in group.rejected_tables():
        found[REJECTED][""] += map(cells, decode_rows(table.drop_columns("watermark"), str))
    for row in group.rows(str):
        found[row.output][_key_text(row.key)].append(cells(row.value))


def _key_text(key: Sequence[Any]) -> str:
    """Return a key as text: its only value, or the tuple of its columns' values."""
    return repr(key[0] if len(key) == 1 else tuple(key))
