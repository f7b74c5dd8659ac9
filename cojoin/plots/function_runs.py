"""A function's run over one key's rows: its output rows with their times, and the timers from being set to the end.

It runs in the harness, whose output carries event times, on the key's rows alone. All rows come in one micro-batch, as
in a run to the end of time. Then time advances from one row or timer to the next, and after each the timers are looked
at. Timers that a function sets again and again without end are followed for a while after the last row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.formats import show_value
from cojoin.engine.values.rows import Row, decode_rows
from cojoin.plots.timeline_rows import TimedRow
from cojoin.testing.events import Record, SideRecord
from cojoin.testing.harness import Harness
from cojoin.testing.harness_inputs import HarnessInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.testing.events import Event

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
    inputs = [_declared(spec) for spec in plan.inputs]
    run = FunctionRun({"output": []})
    times = np.concatenate([spec.millis(table) for spec, table in zip(plan.inputs, rows, strict=True)])
    moments = sorted({int(each) for each in times})
    waiting: dict[int, SeenTimer] = {}
    options: dict[str, Any] = {"input1": inputs[0], "input2": inputs[1], "fresh_calls": False}
    with Harness.of(plan.operation, **options) as harness:
        harness.process_batch(*map(decode_rows, rows))
        _look(harness, None, waiting, run)
        after_last = 0
        while moments or waiting:
            now = min([*moments[:1], *waiting])
            after_last += not moments
            if after_last > _STEPS_AFTER_LAST_ROW:
                break
            moments = [each for each in moments if each > now]
            harness.process_watermark(now)
            _look(harness, now, waiting, run)
        hidden = {*plan.left.key, *plan.right.key}
        _take(harness.take(), run, hidden)
    return run


def _look(harness: Harness, now: int | None, waiting: dict[int, SeenTimer], run: FunctionRun) -> None:
    """Note which timers are new and which are gone since the last look."""
    there = {each.timestamp for each in harness.timers() if each.time_domain == "event_time"}
    for gone in waiting.keys() - there:
        waiting.pop(gone).outcome = "fired" if now is not None and gone <= now else "deleted"
    for timestamp in sorted(there - waiting.keys()):
        waiting[timestamp] = SeenTimer(1_000 * timestamp, None if now is None else 1_000 * now)
        run.timers.append(waiting[timestamp])


def _take(events: Iterable[Event], run: FunctionRun, hidden: set[str]) -> None:
    for event in events:
        if isinstance(event, (Record, SideRecord)) and event.timestamp is not None:
            name = event.tag if isinstance(event, SideRecord) else "output"
            label = _label(event.value.as_dict() if isinstance(event.value, Row) else {"": event.value}, hidden)
            run.outputs.setdefault(name, []).append(TimedRow(1_000 * event.timestamp, label))


def _label(values: Mapping[str, Any], hidden: set[str]) -> str:
    return ", ".join(show_value(value) for name, value in values.items() if name not in hidden)


def _declared(spec: InputSpec) -> HarnessInput:
    return HarnessInput(spec.schema, spec.key, spec.event_time, spec.name, sequence=spec.source_order)
