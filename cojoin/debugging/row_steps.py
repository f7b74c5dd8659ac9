"""A replayed batch in small steps: a function's by its callbacks, a join's by its rows and by the advance of time.

A function's batch runs once, as always, and is only watched, so the steps are exactly what happened. Each callback's
row or timer, its output, and the key's states and timers after it are noted. No state is read through its handle, so no
time-to-live is prolonged.

A join's batch is cut: each row comes alone while time stands still, and then the watermark advances from the time of
one waiting row to that of the next. That gives the same rows, since a join's results do not depend on how batches are
cut.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

from cojoin.checkpoints.inspect.key_state import KeyTimer
from cojoin.debugging.recorded_batches import controls_until, recorded_controls
from cojoin.engine.display import Display, Shown, format_time, show_row, show_value
from cojoin.engine.functions import encode_outputs
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import decode_rows, row_class
from cojoin.engine.values.tables import event_millis
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.checkpoints.progress_rows import RecordedBatch
    from cojoin.embedded.steps import Step, Stepper
    from cojoin.engine.functions import Context
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.keyed_process import KeyedCoProcess
    from cojoin.engine.local.key_group import Callback
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.values.rows import Row


@dataclass(frozen=True, repr=False)
class RowStep(Shown):
    """The effect of one row, one timer or one advance of the watermark; ``Debugger.steps(by="row")`` yields it.

    Attributes:
        batch_id: The real query's batch.
        kind: ``"row"``: a row was given to the function, or to the join; ``"timer"``: a timer fired; ``"rejected"``: a
            row was not admitted; ``"watermark"``: a join's watermark advanced.
        timestamp: The event time of the row, or the time of the timer, in epoch milliseconds; None without one.
        watermark: The operator's watermark that the function saw, or the join's after it, in epoch milliseconds.
        input: The name of the row's input.
        row: The row.
        domain: The timer's time domain, ``"event_time"`` or ``"processing_time"``.
        reason: Why the row was rejected, such as ``"late"``.
        outputs: The emitted rows, by output: ``"output"``, or a side output's tag id.
        state: A function's states of the key afterwards, by name.
        versions: In as-of and temporal joins, the rows of the right input that later rows can match, afterwards.
        timers: The key's timers afterwards.
        waiting: In a join, the rows of each input that wait afterwards, by the input's name.
    """

    batch_id: int
    kind: Literal["row", "timer", "rejected", "watermark"]
    timestamp: int | None
    watermark: int
    input: str | None = None
    row: Row | None = None
    domain: str | None = None
    reason: str | None = None
    outputs: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    versions: Sequence[Row] = ()
    timers: Sequence[KeyTimer] = ()
    waiting: Mapping[str, Sequence[Row]] = field(default_factory=dict)

    @property
    def output(self) -> list[Row]:
        """The rows of the main output."""
        return list(self.outputs.get(OUTPUT, ()))

    def _display(self) -> Display:
        lines = []
        for name, rows in self.outputs.items():
            lines += [f"  {name}: {show_row(row.as_dict())}" for row in rows]
        for name, value in self.state.items():
            lines.append(f"  state {name}: {show_value(value)}")
        lines += [f"  version in force: {show_row(row.as_dict())}" for row in self.versions]
        for name, rows in self.waiting.items():
            lines += [f"  {name} that waits: {show_row(row.as_dict())}" for row in rows]
        timers = ", ".join(f"{each.domain.replace('_', ' ')} {format_time(each.timestamp)}" for each in self.timers)
        lines += [f"  timers: {timers}"] if timers else []
        head = f"batch {self.batch_id}: {self._cause()} (watermark {format_time(self.watermark)})"
        return Display(head, notes=lines)

    def _cause(self) -> str:
        when = "" if self.timestamp is None else f" at {format_time(self.timestamp)}"
        if self.kind == "watermark":
            return "the watermark advanced"
        if self.kind == "timer":
            return f"{str(self.domain).replace('_', ' ')} timer{when}"
        row = "" if self.row is None else f": {show_row(self.row.as_dict())}"
        why = f" was rejected as {self.reason}" if self.kind == "rejected" else ""
        return f"row of {self.input!r}{when}{why}{row}"


class Callbacks:
    """Runs a function's batches and notes each callback as a step; ``note`` is an observer of their ``Stepper``."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._batch_id = plan, 0
        # What was yielded is converted after the batch: in a callback a wrong row would seem an error of its code.
        self._noted: list[tuple[RowStep, list[Any]]] = []

    def note(self, callback: Callback, ctx: Context) -> None:
        """Note the step of a callback, without its output rows, and what it yielded."""
        side, value, yielded, backend = callback
        watermark, timers = ctx.timer_service().current_watermark(), starmap(KeyTimer, backend.current_timers())
        kept: dict[str, Any] = {
            "state": backend.current_entries(),
            "timers": sorted(timers, key=lambda timer: (timer.timestamp, timer.domain)),
        }
        if side is None:
            step = RowStep(self._batch_id, "timer", value, watermark, domain=ctx.time_domain().value, **kept)
        else:
            name = self._plan.inputs[side].name
            step = RowStep(self._batch_id, "row", ctx.timestamp(), watermark, name, value, **kept)
        self._noted.append((step, yielded))

    def steps(self, stepper: Stepper, batch: RecordedBatch, rows: Sides) -> Iterator[RowStep]:
        """Run a batch; yield its rejected rows, then the function's rows and timers.

        Of a function that raises an error the callbacks before it are yielded.
        """
        self._batch_id = batch.batch_id
        self._noted.clear()
        try:
            step = run_batch(stepper, batch, rows)
        except FunctionError:
            yield from self._converted()
            raise
        yield from _rejected(batch, step)
        yield from self._converted()

    def _converted(self) -> list[RowStep]:
        process: KeyedCoProcess = self._plan.operation  # type: ignore[assignment]
        name, steps = type(process.function).__name__, []
        for step, yielded in self._noted:
            tables = encode_outputs(yielded, process.output, process.side_outputs, name)
            outputs = {tag or OUTPUT: decode_rows(table) for tag, table in tables if table.num_rows}
            steps.append(replace(step, outputs=outputs))
        return steps


def cuts_of(stepper: Stepper, batch: RecordedBatch, rows: Sides) -> Iterator[RowStep]:
    """Run a batch of a join in cuts; yield the effect of each row, and each advance of the watermark."""
    inputs = stepper.plan.inputs
    nothing = rows[0].slice(0, 0), rows[1].slice(0, 0)
    waiting: Sides = nothing
    reached = NONE
    for side, (spec, table) in enumerate(zip(inputs, rows, strict=True)):
        for position in range(table.num_rows):
            row = table.slice(position, 1)
            cut = (row, nothing[1]) if side == 0 else (nothing[0], row)
            # More rows of the same commit may come, so what is rejected of it is remembered.
            step = run_batch(stepper, batch, cut, (), ends=False, holds={1: NONE, 2: NONE})
            waiting, reached = step.waiting, step.watermark
            if step.rejected.num_rows:
                yield from _rejected(batch, step)
                continue
            timestamp = None if spec.event_time is None else int(event_millis(spec.micros(row))[0])
            yield _of_cut("row", batch, step, timestamp, spec.name, decode_rows(row)[0])
    if not (rows[0].num_rows or rows[1].num_rows):
        step = run_batch(stepper, batch, nothing, (), ends=False)
        waiting, reached = step.waiting, step.watermark
    for until in _times(inputs, waiting):
        if reached < until < max(each.watermark for each in batch.inputs):
            step = run_batch(stepper, batch, nothing, controls_until(batch, until), ends=False)
            if step.watermark > reached:
                yield _of_cut("watermark", batch, step)
            reached = step.watermark
    step = run_batch(stepper, batch, nothing)
    if step.watermark > reached or any(table.num_rows for table in step.tables.values()):
        yield _of_cut("watermark", batch, step)


def run_batch(
    stepper: Stepper,
    batch: RecordedBatch,
    rows: Sides,
    controls: Sequence[Control] | None = None,
    *,
    ends: bool = True,
    holds: Mapping[int, int] | None = None,
) -> Step:
    """Run a batch, or a cut of one, which ends the batch or not.

    Without control rows it takes those that were recorded after the batch. ``holds`` are upper bounds of the inputs'
    watermarks in this cut, in epoch milliseconds by input number.
    """
    # Batches without content are left out, so numbers may be missing.
    stepper.batch_id = batch.batch_id - 1
    return stepper.step(
        rows,
        processing_time=batch.processing_time,
        end_of_input=ends and batch.drained,
        controls=recorded_controls(batch) if controls is None else controls,
        holds=holds,
    )


def _times(inputs: Sequence[InputSpec], waiting: Sides) -> list[int]:
    """Return the times of rows that wait, in epoch milliseconds, ascending."""
    known = {
        time for spec, table in zip(inputs, waiting, strict=True) for time in event_millis(spec.micros(table)).tolist()
    }
    return sorted(known)


def _rejected(batch: RecordedBatch, step: Step) -> Iterator[RowStep]:
    for rejected in decode_rows(step.rejected):
        values = json.loads(rejected.row)
        row = row_class(tuple(values))(values.values())
        timestamp = None if rejected.event_time is None else int(rejected.event_time.timestamp() * 1000)
        watermark = step.watermark if rejected.watermark is None else rejected.watermark
        yield RowStep(batch.batch_id, "rejected", timestamp, watermark, rejected.input, row, reason=rejected.reason)


def _of_cut(
    kind: Literal["row", "watermark"],
    batch: RecordedBatch,
    step: Step,
    timestamp: int | None = None,
    name: str | None = None,
    row: Row | None = None,
) -> RowStep:
    outputs = {
        output: decode_rows(table) for output, table in step.tables.items() if table.num_rows and output != REJECTED
    }
    waiting = {
        spec.name: decode_rows(table)
        for spec, table in zip(step.plan.inputs, step.waiting, strict=True)
        if table.num_rows
    }
    return RowStep(
        batch.batch_id,
        kind,
        timestamp,
        step.watermark,
        name,
        row,
        outputs=outputs,
        versions=decode_rows(step.state),
        waiting=waiting,
    )
