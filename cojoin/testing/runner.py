"""One call of a harness: splits its micro-batch by key group, runs the operators, and returns their rows as events."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
from cojoin.engine.operator import OUTPUT, REJECTED, Batch
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.testing.checks import refuse_finished, unfinished
from cojoin.testing.events import Event, HarnessError, Record, Rejected, SideRecord
from cojoin.testing.harness_key_groups import groups_of
from cojoin.testing.stamps import StampedYields, joined_timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.engine.operator import Emission, Operator
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.operator_watermark import OperatorWatermark
    from cojoin.testing.events import Element
    from cojoin.testing.harness_inputs import BoundInput

__all__ = ["Call", "Prepared", "check_conservation", "output_watermark", "prepare_call", "run_call"]


@dataclass(frozen=True)
class Call:
    """The content of one call of a harness.

    Attributes:
        sides: Both inputs.
        elements: The rows of each input.
        controls: The watermarks and statuses that the test sets.
        processing_time: The clock, in epoch milliseconds.
        end: Whether the inputs end after this call.
        resumed: Whether this is the first call after a restore.
    """

    sides: tuple[BoundInput, BoundInput]
    elements: tuple[Sequence[Element], Sequence[Element]]
    controls: Sequence[Control]
    processing_time: int
    end: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Prepared:
    """The checked rows of a call.

    Attributes:
        tables: The rows of each input.
        heard: The control rows that map tasks would send after them.
    """

    tables: Sequence[pa.Table]
    heard: Sequence[Control]


def output_watermark(watermark: int, delay: int) -> int:
    """Return the watermark of the output: the operator's watermark minus the output delay.

    Args:
        watermark: The operator's watermark, in epoch milliseconds.
        delay: How far the watermark may be past a record's timestamp when it is emitted, in milliseconds.
    """
    if watermark in (NONE, END_OF_TIME):
        return watermark
    return NONE if delay == END_OF_TIME else max(NONE, watermark - delay)


def prepare_call(call: Call, watermarks: OperatorWatermark) -> Prepared:
    """Return the checked rows of a call and their control rows; no operator has run yet.

    Args:
        call: The call.
        watermarks: The watermarks before the call.

    Raises:
        SchemaError: A row does not fit its input's columns.
        HarnessError: The input or the source partition of a row is finished.
    """
    tables, heard = [], []
    for side, elements, known in zip(call.sides, call.elements, watermarks.inputs, strict=True):
        if elements:
            refuse_finished(known, side.what)
        table = side.table(elements)
        tables.append(table)
        if elements:
            control = side.control(elements, table, unfinished(known), call.processing_time)
            for name in control.partitions:
                refuse_finished(known, side.what, name)
            heard.append(control)
    return Prepared(tables, heard)


def run_call(call: Call, prepared: Prepared, operators: Sequence[Operator], operation: Any) -> list[Event]:
    """Run a call on all key groups and return the events in order.

    Args:
        call: The call.
        prepared: Its rows.
        operators: The operator of each key group.
        operation: The join or function that the operators run.

    Raises:
        HarnessError: A row was lost or counted twice.
    """
    tables = prepared.tables
    groups = [groups_of(side.spec.keys(table), len(operators)) for side, table in zip(call.sides, tables, strict=True)]
    events: list[Event] = []
    for group, operator in enumerate(operators):
        left, right = (table.filter(pa.array(each == group)) for table, each in zip(tables, groups, strict=True))
        controls = [
            replace(control, rows=int(np.count_nonzero(groups[control.input - 1] == group)))
            for control in prepared.heard
        ]
        batch = Batch((left, right), [*controls, *call.controls], call.end, call.processing_time, resumed=call.resumed)
        events += _events(operator, operation, batch)
        check_conservation(operator)
    return events


def _events(operator: Operator, operation: Any, batch: Batch) -> list[Event]:
    if not isinstance(operator, KeyedCoProcessOperator):
        joined: list[Event] = []
        for emission in operator.process(batch):
            if emission.kind == REJECTED:
                joined += _rejected(emission.table)
                continue
            stamps = joined_timestamps(operation, *operator.inputs, emission.table)
            joined += map(Record, decode_rows(emission.table), stamps)
        return joined
    yields: list[tuple[str, int | None]] = []
    operator.gather(lambda context: StampedYields(context, yields))
    emissions = list(operator.process(batch))
    rejected = [event for each in emissions if each.kind == REJECTED for event in _rejected(each.table)]
    return [*rejected, *_in_order_of_yields(emissions, yields)]


def _in_order_of_yields(emissions: list[Emission], stamps: list[tuple[str, int | None]]) -> Iterator[Event]:
    """Yield the rows of all outputs in the order in which the callbacks yielded them."""
    rows: dict[str, list[Any]] = defaultdict(list)
    for emission in emissions:
        rows[emission.kind] += decode_rows(emission.table)
    sources = {kind: iter(values) for kind, values in rows.items()}
    for kind, timestamp in stamps:
        value = next(sources[kind])
        yield Record(value, timestamp) if kind == OUTPUT else SideRecord(kind, value, timestamp)


def _rejected(table: pa.Table) -> list[Event]:
    micros = table.column("event_time").cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("input", "reason", "row", "watermark")]
    return [
        Rejected(name, reason, json.loads(row), None if time is None else time // 1_000, watermark)
        for name, reason, row, watermark, time in zip(*columns, micros, strict=True)
    ]


def check_conservation(operator: Operator) -> None:
    """Check that an operator has lost no row, and counted none twice.

    Raises:
        HarnessError: It has.
    """
    for spec, counts in zip(operator.inputs, operator.report()["inputs"], strict=True):
        rejected = sum(counts["rejected"].values())
        if counts["rows_in"] != counts["done"] + counts["buffered"] + rejected:
            msg = (
                f"input {spec.name!r}: rows were lost, or counted twice: {counts['rows_in']} in, but {counts['done']} "
                f"done + {counts['buffered']} buffered + {rejected} rejected"
            )
            raise HarnessError(msg)
