"""A stream without Spark, one micro-batch at a time, each of which comes back as a ``Step``.

A step runs as on Spark (``engine.local``): in new operators with new copies of the function, restored from the encoded
state of the step before. A step that fails changes nothing. It keeps the state after it as bytes, from which its tables
are made when they are read. So a step costs what the state costs, and a list of many steps that many times.

A step shows itself as a text, and as HTML in notebooks: the counts and watermarks, and below them only what there is:
the rows that came in, each output, the rows that wait, timers and states. Long tables and long values are cut, and the
text says so. Of what is kept, a cut table shows first what is new or has changed in the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.embedded.result import Outputs
from cojoin.engine.callbacks import UserFrames
from cojoin.engine.display import Display, Section, format_time, text_rows
from cojoin.engine.input_spec import controls_of
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.kept_tables import KeptTables
from cojoin.engine.local.local_run import LocalRun, decode_states, encode_states, epoch_millis, restored_operators
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.hashes import row_hashes
from cojoin.engine.values.tables import take_rows
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cojoin.embedded.micro_batches import Cuts
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.local.key_group import Observer
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control


_MOST_ROWS = 10
"""The most rows of each table that a step shows."""


@dataclass(frozen=True, repr=False, eq=False)
class Step(Outputs):
    """One micro-batch of ``Joined.steps``; in a notebook it shows itself as tables.

    Attributes:
        plan: What is run.
        rows: The rows of the left and of the right input that came in this step, as Arrow tables.
        tables: Each output's rows of this step by its name: ``"output"``, ``"rejected"`` and the side outputs' tag ids.
        report: The counts and watermarks after the step, as in a query's progress; ``print(step.report.table())``.
        snapshot: All that is kept after the step, for ``Stepper.restore``.
        before: All that was kept before the step, so that the step shows first what has changed.
    """

    plan: Plan
    rows: Sides
    tables: Mapping[str, pa.Table]
    report: BatchReport
    snapshot: bytes = field(repr=False)
    before: bytes = field(repr=False)

    @property
    def batch_id(self) -> int:
        """The step's number, from 0 on."""
        return self.report.batch_id

    @property
    def processing_time(self) -> int:
        """The step's processing time in epoch milliseconds; 0 if it is unknown."""
        return self.report.processing_time

    @property
    def watermark(self) -> int:
        """The operator's watermark after the step, in epoch milliseconds; ``-2**63`` while there is none.

        After the step that ends the inputs it is ``2**63 - 1``.
        """
        return self.report.watermark

    @property
    def input_watermarks(self) -> tuple[int, int]:
        """The watermarks of the left and of the right input after the step, as ``watermark``."""
        left, right = self.report.inputs
        return left.watermark, right.watermark

    @cached_property
    def waiting(self) -> Sides:
        """The rows of the left and of the right input that wait for the watermark or for a match, in total order."""
        return self._kept.waiting

    @cached_property
    def timers(self) -> pa.Table:
        """The timers that wait, by time: the key columns, ``domain``, and ``timestamp`` in UTC to the millisecond."""
        return self._kept.timers

    @cached_property
    def state(self) -> pa.Table:
        """The entries of each key, besides waiting rows and timers.

        For a function a row for each key that has a state: the key columns, and a column for each state. For as-of and
        temporal joins the versions in force, with the right input's columns. For interval joins nothing.
        """
        return self._kept.state

    @cached_property
    def _kept(self) -> KeptTables:
        return KeptTables(restored_operators(self.plan, self.snapshot))

    @cached_property
    def _kept_before(self) -> KeptTables:
        return KeptTables(restored_operators(self.plan, self.before))

    def __repr__(self) -> str:
        return self._display().text()

    def _repr_html_(self) -> str:
        return f"<div>{self._display().html()}</div>"

    def _display(self) -> Display:
        report = self.report
        clock = f"processing time {format_time(report.processing_time)}" if report.processing_time else "clock unknown"
        held = f" (held by {report.holding_input!r})" if report.holding_input else ""
        as_they_came = any(spec.time_axis is not None for spec in self.plan.inputs)
        zone = "watermarks and timers are in UTC, columns as they came" if as_they_came else "times are in UTC"
        head = f"step {report.batch_id}: watermark {format_time(report.watermark)}{held}, {clock}; {zone}"
        return Display(head, report.table_rows(), sections=[*self._batch_sections(), *self._kept_sections()])

    def _batch_sections(self) -> Iterator[Section]:
        """Yield the rows that came in and those that were emitted."""
        came = zip(self.plan.inputs, self.rows, strict=True)
        tables = [
            *((f"rows of {spec.name!r} that came in", table) for spec, table in came),
            (OUTPUT, self.output),
            *((f"side output {tag.tag_id!r}", table) for tag, table in self.side_outputs.items()),
            (REJECTED, self.rejected),
        ]
        for title, table in tables:
            if table.num_rows:
                yield Section.of(title, table, _MOST_ROWS, millis=["watermark"] if title == REJECTED else [])
            elif title == OUTPUT:
                yield Section("output: no rows")

    def _kept_sections(self) -> Iterator[Section]:
        """Yield what is kept; where a table is cut, rows that were not kept before come first."""
        left, right = (spec.name for spec in self.plan.inputs)
        is_function = isinstance(self.plan.operation, KeyedCoProcess)
        reads: dict[str, Callable[[KeptTables], pa.Table]] = {
            f"rows of {left!r} that wait": lambda kept: kept.waiting[0],
            f"rows of {right!r} that wait": lambda kept: kept.waiting[1],
            "timers": lambda kept: kept.timers,
            "states" if is_function else f"rows of {right!r} in force": lambda kept: kept.state,
        }
        for title, read in reads.items():
            table, note = read(self._kept), ""
            if table.num_rows > _MOST_ROWS:
                known = np.isin(row_hashes(table), row_hashes(read(self._kept_before)))
                changed = int(np.count_nonzero(~known))
                if 0 < changed < table.num_rows:
                    note = f"; the {changed:,} that this step has added or changed come first"
                left_out = table.num_rows - _MOST_ROWS
                table = take_rows(table, np.argsort(known, kind="stable")[:_MOST_ROWS])
                yield Section(title + note, text_rows(table, _MOST_ROWS), left_out)
            elif table.num_rows:
                yield Section.of(title, table, _MOST_ROWS)


class Stepper:
    """Runs a plan as a stream in this process, one micro-batch with each ``step``; ``observer`` is as in ``LocalRun``.

    ``batch_id`` is the last micro-batch's number, -1 before the first one; ``processing_time`` is the clock in epoch
    milliseconds, 0 while it is unknown.
    """

    def __init__(self, plan: Plan, key_groups: int = 1, *, observer: Observer | None = None) -> None:
        self._run = LocalRun(plan, key_groups, observer=observer)
        self.plan = plan
        self.batch_id, self.processing_time = -1, 0
        # Each step and the one after it share these bytes.
        self._last = self.snapshot()

    def step(
        self,
        rows: Sides,
        *,
        processing_time: int = 0,
        end_of_input: bool = False,
        controls: Sequence[Control] | None = None,
        holds: Mapping[int, int] | None = None,
        snapshots: Mapping[int, int] | None = None,
    ) -> Step:
        """Run one micro-batch of rows in the order in which they come.

        Args:
            rows: The rows of the left and of the right input.
            processing_time: The clock in epoch milliseconds. 0 leaves it as it is, at first unknown. While it is
                unknown no row is too far ahead, and nothing becomes idle.
            end_of_input: Whether both inputs end after these rows; nothing can follow.
            controls: The control rows; None makes those that Spark's map tasks would send after these rows.
            holds: The upper bounds of the inputs' watermarks in this step, in epoch milliseconds, by input number.
            snapshots: The versions of tables that are the initial snapshots of change feeds, by input number.

        Raises:
            ConfigurationError: The inputs have ended, or the clock goes back.
            SchemaError: The rows do not have their input's columns.
            FunctionError: The function raised an error, or returned an invalid value. The stepper is unchanged.
            ConservationError: A row was lost, or counted twice.
        """
        if self._run.watermark.status() == "finished":
            msg = "step: the inputs have ended, and nothing can follow; restore a snapshot, or make a new stepper"
            raise ConfigurationError(msg)
        now = self._clock(processing_time)
        left, right = (_typed(table, spec) for table, spec in zip(rows, self.plan.inputs, strict=True))
        # While the clock is unknown, no row is too far ahead of it.
        plan = self.plan if now else self.plan.with_inputs(max_ahead_ms=None)
        if controls is None:
            controls = controls_of((left, right), plan.inputs, now)
        with UserFrames():
            output = self._run.process(
                (left, right),
                controls,
                processing_time=now,
                end_of_input=end_of_input,
                holds=holds,
                snapshots=snapshots,
                plan=plan,
            )
        self.processing_time, self.batch_id = now, self.batch_id + 1
        before, self._last = self._last, self.snapshot()
        report = self._run.report(self.batch_id)
        return Step(self.plan, (left, right), output.tables(), report, self._last, before)

    def snapshot(self) -> bytes:
        """Return all that is kept, as bytes without pickle: states, timers, waiting rows, watermarks, counters, clock.

        A ``Harness`` of the same operation can restore it, too.
        """
        return encode_states(self._run.states(), self.processing_time, self.batch_id)

    def restore(self, data: bytes, *, resumed: bool = True) -> None:
        """Restore a snapshot of this stepper, of a step or of a harness; otherwise as ``LocalRun.restore``."""
        saved = decode_states(data)
        self._run.restore(saved.states, resumed=resumed, checks_states=True)
        self._continue(saved.batch_id, saved.processing_time)

    def restore_parts(
        self,
        header: Mapping[str, Any],
        tables: Mapping[str, pa.Table],
        *,
        batch_id: int = -1,
        keeps_counts: bool = True,
        resumed: bool = True,
    ) -> None:
        """Restore a state, or a part of one, that was read from a checkpoint; see ``LocalRun.restore_parts``.

        Its processing time becomes the clock, and ``batch_id`` is the micro-batch after which it was taken. The tables
        have the rows of segments, too. ``keeps_counts`` is for tables of all keys, whose rows the counters count.
        """
        self._run.restore_parts(header, tables, keeps_counts=keeps_counts, resumed=resumed)
        self._continue(batch_id, header["processing_time"])

    def _continue(self, batch_id: int, processing_time: int) -> None:
        self.batch_id, self.processing_time = batch_id, processing_time
        self._last = self.snapshot()

    def _clock(self, processing_time: int) -> int:
        now = epoch_millis(processing_time, "processing_time", clock=True)
        if 0 < now < self.processing_time:
            msg = (
                f"processing_time: it goes back, from {format_time(self.processing_time)} to {format_time(now)}; give "
                f"each step the time of the one before, or a later one"
            )
            raise ConfigurationError(msg)
        return now or self.processing_time


def run_steps(stepper: Stepper, cuts: Cuts, times: Sequence[int], *, drain: bool) -> Iterator[Step]:
    """Yield one step for each micro-batch, and with ``drain`` one more without rows, which ends both inputs.

    ``times`` are the processing times in epoch milliseconds; the drain has that of the last batch, as on Spark.
    """
    for number, now in enumerate(times):
        yield stepper.step(cuts.batch(number), processing_time=now)
    if drain:
        left, right = (spec.schema.empty_table() for spec in stepper.plan.inputs)
        yield stepper.step((left, right), end_of_input=True)


def _typed(table: pa.Table, spec: InputSpec) -> pa.Table:
    """Return rows with exactly the columns of their input, checked."""
    if not isinstance(table, pa.Table):
        msg = f"input {spec.name!r}: expected a pyarrow Table, got {type(table).__name__}"
        raise SchemaError(msg)
    if table.schema.equals(spec.schema):
        return table
    for name in spec.schema.names:
        if table.column_names.count(name) != 1:
            msg = (
                f"input {spec.name!r}: expected one column {name!r}, got {table.column_names.count(name)}"
                f"{did_you_mean(name, table.column_names)}"
            )
            raise SchemaError(msg)
    try:
        return table.select(spec.schema.names).cast(spec.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"input {spec.name!r}: its rows can't be cast to its columns: {error}"
        raise SchemaError(msg) from error
