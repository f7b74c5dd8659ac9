"""A stream without Spark, one micro-batch at a time, which comes back as a ``Step``.

A step runs as on Spark (``engine.local``): in new operators with new copies of the function, restored from the encoded
state of the step before. A step that fails changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.embedded.step import Step
from cojoin.engine.formats import format_time
from cojoin.engine.local.group_states import decode_states, encode_states
from cojoin.engine.local.local_run import LocalRun, epoch_millis
from cojoin.engine.observed import control_of
from cojoin.engine.user_frames import UserFrames
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.embedded.cuts import Cuts
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control

__all__ = ["Stepper", "run_steps"]


class Stepper:
    """Runs a plan as a stream in this process, one micro-batch with each ``step``.

    Args:
        plan: The operation and its inputs.
        key_groups: The number of key groups; each has its own operator.

    Attributes:
        plan: The same plan.
        batch_id: The number of the last micro-batch; -1 before the first one.
        processing_time: The clock in epoch milliseconds; 0 while it is unknown.

    Raises:
        ConfigurationError: The number of key groups is not a whole number above zero.
    """

    def __init__(self, plan: Plan, key_groups: int = 1) -> None:
        self._run = LocalRun(plan, key_groups)
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
        """Run one micro-batch.

        Args:
            rows: The rows of the left and of the right input, in the order in which they come.
            processing_time: The clock in epoch milliseconds. 0 leaves it as it is, at first unknown. While it is
                unknown no row is too far ahead, and nothing becomes idle.
            end_of_input: Whether both inputs end after these rows; nothing can follow.
            controls: What is known of time. None is what the map tasks of Spark would observe of these rows: the
                largest event time of each source partition.
            holds: The upper bounds of the inputs' watermarks in this step, in epoch milliseconds, by input number.
            snapshots: The versions of tables that are the initial snapshots of change feeds, by input number.

        Returns:
            What came in, what came out, and what is kept after it.

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
            observed = zip((1, 2), (left, right), plan.inputs, strict=True)
            controls = [control_of(number, each, spec, now) for number, each, spec in observed if each.num_rows]  # type: ignore[arg-type]
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
        """Restore a snapshot of this stepper, of a step or of a harness.

        The number of key groups may differ, the function may have changed, and inputs may have more columns.

        Args:
            data: The bytes that ``snapshot`` returned.
            resumed: Whether the next step is the first one after a pause, so that idleness starts anew.

        Raises:
            CodecError: The bytes are not such a snapshot.
            CheckpointError: The snapshot is of another operation, or its states and columns can't become those of this
                plan.
        """
        saved = decode_states(data)
        self._run.restore(saved.states, resumed=resumed, checks_states=True)
        self._go_on(saved.batch_id, saved.processing_time)

    def restore_parts(
        self,
        header: Mapping[str, Any],
        tables: Mapping[str, pa.Table],
        *,
        batch_id: int = -1,
        keeps_counts: bool = True,
        resumed: bool = True,
    ) -> None:
        """Restore a state, or a part of one, that was read from a checkpoint.

        Args:
            header: The header of all key groups together (``engine.rescaling.merged_header``); its processing time
                becomes the clock.
            tables: The state's tables, of all keys or of some; a missing one is empty. They have the rows of segments,
                too.
            batch_id: The micro-batch after which the state was taken.
            keeps_counts: Whether the counters of rows done and rejected go on; with tables of some keys they would
                count rows of the others.
            resumed: As in ``restore``.

        Raises:
            CheckpointError: The state is of another operation, or can't become that of this plan.
        """
        self._run.restore_parts(header, tables, keeps_counts=keeps_counts, resumed=resumed)
        self._go_on(batch_id, header["processing_time"])

    def _go_on(self, batch_id: int, processing_time: int) -> None:
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

    Args:
        stepper: A new stepper.
        cuts: The micro-batches.
        times: The processing time of each, in epoch milliseconds.
        drain: Whether the inputs end after the last micro-batch; this step's time is that of the last one, as on Spark.
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
