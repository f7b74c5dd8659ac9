"""A function's run over one key's rows: its output rows with their times, and the timers from being set to the end.

It runs on the key's rows alone. All rows come in one micro-batch, as in a run to the end of time. Then time advances
from one row or timer to the next, and after each the timers are looked at. Timers that a function sets again and again
without end are followed for a while after the last row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.display import show_value
from cojoin.engine.input_spec import InputSpec, control_of
from cojoin.engine.local.kept_tables import KeptTables
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.plan import Plan
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.rows import Row
from cojoin.plots.timeline_rows import TimedRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.local.local_run import BatchOutput
    from cojoin.engine.operator import Sides

__all__ = ["FunctionRun", "SeenTimer", "run_function"]

_STEPS_AFTER_LAST_ROW = 100


@dataclass
class SeenTimer:
    """An event-time timer.

    Attributes:
        timestamp: When it is due, in epoch microseconds.
        set_at: The time of the row or timer that set it, in epoch microseconds; None if it was set in arrival order.
        outcome: ``"fired"``, ``"deleted"``, or ``"waiting"`` if it was not followed to its end.
    """

    timestamp: int
    set_at: int | None
    outcome: str = "waiting"


@dataclass
class FunctionRun:
    """What a function did with a key's rows.

    Attributes:
        outputs: Each output's rows by its name, ``"output"`` for the main one; rows without event time are left out.
        timers: The event-time timers, in the order in which they were seen.
    """

    outputs: dict[str, list[TimedRow]] = field(default_factory=dict)
    timers: list[SeenTimer] = field(default_factory=list)


def run_function(plan: Plan, rows: Sides) -> FunctionRun:
    """Run a function over one key's rows, to the end of time.

    Args:
        plan: A plan whose operation is a function.
        rows: The key's rows of both inputs.

    Raises:
        FunctionError: The function raised an error, or returned an invalid value.
    """
    run = FunctionRun({"output": []})
    hidden = {*plan.left.key, *plan.right.key}
    times = np.concatenate([spec.millis(table) for spec, table in zip(plan.inputs, rows, strict=True)])
    moments = sorted({int(each) for each in times})
    waiting: dict[int, SeenTimer] = {}
    with LocalRun(_without_watermarks(plan), keeps_operators=True, notes_rows=True) as local:
        left, right = local.plan.inputs
        _take(local.process(rows, [control_of(1, rows[0], left), control_of(2, rows[1], right)]), run, hidden)
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
    """Return a plan whose watermarks come from outside, and which takes each row as it is."""
    left, right = (
        InputSpec(
            spec.name,
            spec.schema,
            spec.key,
            spec.event_time,
            sequence=spec.source_order,
            watermark=WatermarkStrategy.no_watermarks(),
        )
        for spec in plan.inputs
    )
    return Plan(plan.operation, left, right, 1)


def _look(local: LocalRun, now: int | None, waiting: dict[int, SeenTimer], run: FunctionRun) -> None:
    """Note which timers are new and which are gone since the last look."""
    timers = KeptTables(local.operators).timers
    is_timed = pc.equal(timers.column(timers.num_columns - 2), TimeDomain.EVENT_TIME.value)
    there = set(timers.column(timers.num_columns - 1).filter(is_timed).cast(pa.int64()).to_pylist())
    for gone in waiting.keys() - there:
        waiting.pop(gone).outcome = "fired" if now is not None and gone <= now else "deleted"
    for timestamp in sorted(there - waiting.keys()):
        waiting[timestamp] = SeenTimer(1_000 * timestamp, None if now is None else 1_000 * now)
        run.timers.append(waiting[timestamp])


def _take(output: BatchOutput, run: FunctionRun, hidden: set[str]) -> None:
    for row in (row for group in output.groups for row in group.rows()):
        if row.timestamp is not None:
            label = _label(row.value.as_dict() if isinstance(row.value, Row) else {"": row.value}, hidden)
            run.outputs.setdefault(row.output, []).append(TimedRow(1_000 * row.timestamp, label))


def _label(values: Mapping[str, Any], hidden: set[str]) -> str:
    return ", ".join(show_value(value) for name, value in values.items() if name not in hidden)
