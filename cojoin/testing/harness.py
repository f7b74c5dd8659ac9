"""The harness: drives the real operator and the real watermarks of two inputs, one call at a time.

Each call is a micro-batch of its own: what it says of the inputs goes in as rows and control rows, what comes out is
added to the log in the order of Flink's output: rejected rows, rows, then the watermark that caused them, then the
status. After each call the law of conservation is checked: rows in = done + buffered + rejected, for each input.
(Flink: ``KeyedTwoInputStreamOperatorTestHarness``, ``ProcessFunctionTestHarnesses``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.side_outputs import check_tags
from cojoin.engine.time.operator_watermark import ONE_PARTITION, Control, TimePolicy
from cojoin.engine.time.watermarks import NONE, AllIdle, Status, format_time
from cojoin.engine.values.choices import check_flag, check_word
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError
from cojoin.testing.checks import (
    check_inputs,
    check_instance,
    epoch_millis,
    input_number,
    partition_name,
    refuse_finished,
    unfinished,
)
from cojoin.testing.events import NOT_GIVEN, Element, Event, HarnessError, StatusChange, Time, Watermark
from cojoin.testing.harness_inputs import BoundInput, HarnessInput
from cojoin.testing.harness_key_groups import decode_states, encode_states, restore_states
from cojoin.testing.inspection import Inspection
from cojoin.testing.outcome import Outcome, count_records
from cojoin.testing.runner import Call, output_watermark, prepare_call, run_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

    from cojoin.engine.functions import Order
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.side_outputs import OutputTag

__all__ = ["Harness", "Operation", "RegressingWatermarks"]

RegressingWatermarks: TypeAlias = Literal["error", "ignore"]
"""What becomes of a watermark below the one that the same partition gave before.

- *error*: a ``HarnessError``: mostly it is a mistake of the test.
- *ignore*: it changes nothing, as in a job, and as in Flink.
"""

Partition: TypeAlias = "str | tuple[Any, ...] | None"


class Operation(Protocol):
    """What a harness runs: the configuration of a join, or of a function's run."""

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the output."""

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> Operator:
        """Make the operator of one key group."""


class Harness(Outcome, Inspection):
    """Runs a function over two keyed inputs without Spark; ``Harness.of`` runs a join.

    Args:
        function: The function, as ``process`` takes it; or any operation (``Harness.of``).
        output_type: The columns of what the function yields: DDL, a ``StructType`` or an Arrow schema.
        input1: The first (left) input.
        input2: The second (right) input.
        order: ``"event_time"`` or ``"arrival"``.
        side_outputs: The tags that it may yield to.
        processing_time_timers: Whether it sets timers of processing time; None looks, as ``process`` does.
        when_all_idle: What time does when both inputs are idle: ``"hold"`` or, as in Flink, ``"max"``.
        hold_left_until: Time stands still until the right input's watermark has reached this, in epoch milliseconds.
        processing_time: Where the clock begins, in epoch milliseconds; 0 is unknown.
        key_groups: How many operators share the keys.
        fresh_calls: Whether every call runs in operators, and copies of the function, of their own, restored from the
            state that the call before left: so it is in Spark, and what a function keeps in its attributes is lost.
            False keeps them, as Flink does, and ``close`` closes the function; only a restore follows a failure.
        regressing_watermarks: ``"error"`` or ``"ignore"``.

    Attributes:
        log: All that came out, in order.

    Raises:
        ConfigurationError: A value that can't be right, as in a query.

    >>> class Greet(KeyedCoProcessFunction):
    ...     def process_element1(self, trade, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
    ...     def on_timer(self, timestamp, ctx):
    ...         yield (f"goodbye {ctx.get_current_key()}",)
    >>> person = HarnessInput("name string", key="name")
    >>> with Harness(Greet(), "greeting string", input1=person, input2=person) as harness:
    ...     harness.process_element1(("Ada",), 1_000)
    ...     harness.process_watermark(1_005)
    ...     harness.take()
    [Record(value=Row(greeting='goodbye Ada'), timestamp=1005), Watermark(timestamp=1005)]
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction | Operation,
        output_type: Any = None,
        *,
        input1: HarnessInput,
        input2: HarnessInput,
        order: Order = "event_time",
        side_outputs: Sequence[OutputTag] = (),
        processing_time_timers: bool | None = None,
        when_all_idle: AllIdle = "hold",
        hold_left_until: int | None = None,
        processing_time: int = 0,
        key_groups: int = 1,
        fresh_calls: bool = True,
        regressing_watermarks: RegressingWatermarks = "error",
    ) -> None:
        check_word("when_all_idle", when_all_idle, get_args(AllIdle))
        check_word("regressing_watermarks", regressing_watermarks, get_args(RegressingWatermarks))
        check_flag("fresh_calls", fresh_calls)
        if type(key_groups) is not int or key_groups < 1:
            msg = f"key_groups: expected one or more, got {key_groups!r}"
            raise ConfigurationError(msg)
        if hold_left_until is not None:
            hold_left_until = epoch_millis(hold_left_until, "hold_left_until")
        self._sides = (BoundInput(input1, 1), BoundInput(input2, 2))
        self._inputs = (self._sides[0].spec, self._sides[1].spec)
        check_inputs(*self._inputs)
        self._operation: Operation
        if isinstance(function, KeyedCoProcessFunction) or not hasattr(function, "create_operator"):
            output = as_schema(output_type, "output_type")
            self._operation = KeyedCoProcess(
                cast("KeyedCoProcessFunction", function),
                output,
                order,
                check_tags(side_outputs, type(function).__name__),
                processing_time_timers,
            )
        else:
            check_instance(function)
            if output_type is not None or order != "event_time" or side_outputs or processing_time_timers is not None:
                msg = (
                    "output_type, order, side_outputs, processing_time_timers: an operation has its own; leave them out"
                )
                raise ConfigurationError(msg)
            self._operation = function
        self._schema = self._operation.output_schema(*self._inputs)
        self._time = TimePolicy(when_all_idle, hold_left_until)
        self._now = epoch_millis(processing_time, "processing_time", clock=True)
        self._fresh, self._suppresses = fresh_calls, regressing_watermarks == "ignore"
        self._operators = [self._create() for _ in range(key_groups)]
        self._resumed, self._ended, self._failed = False, False, False
        self._calls, self._taken = 0, 0
        self._emitted: dict[str, int] = {}
        self.log: list[Event] = []

    @classmethod
    def of(cls, operation: Operation, *, input1: HarnessInput, input2: HarnessInput, **options: Any) -> Self:
        """Make a harness of any operation, such as ``cojoin.engine.joins.AsofJoin()``.

        Args:
            operation: The configuration of a join, or of a function's run.
            input1: The left input.
            input2: The right input.
            options: Those of ``Harness`` from ``when_all_idle`` on.

        >>> from cojoin.engine.joins import AsofJoin
        >>> trades = HarnessInput("customer string, amount double", key="customer", name="trades")
        >>> customers = HarnessInput("id string, tier string", key="id", name="customers")
        >>> harness = Harness.of(AsofJoin(), input1=trades, input2=customers)
        >>> harness.process_element2(("a", "gold"), 1_000)
        >>> harness.process_element1(("a", 2.5), 1_200)
        >>> harness.process_watermark(1_500)
        >>> [row.tier for row in harness.output]
        ['gold']
        """
        return cls(operation, input1=input1, input2=input2, **options)

    def _create(self) -> Operator:
        return self._operation.create_operator(*self._inputs, self._time)

    def process_element1(self, value: Any, timestamp: Time = NOT_GIVEN, *, partition: Partition = None) -> None:
        """Send a row of the first (left) input.

        Args:
            value: A tuple, a dict or a ``Row``; with the event time among its values, or without.
            timestamp: The event time in epoch milliseconds, or as an aware datetime; None is a row without time.
            partition: The source partition that it comes from.

        Raises:
            SchemaError: It does not fit the input's columns, or its time was left out.
            HarnessError: The input is finished.
            FunctionError: The function failed; the harness is where it was, or waits for ``restore`` (``fresh_calls``).
        """
        self.process_batch([Element(value, timestamp, partition)], [])

    def process_element2(self, value: Any, timestamp: Time = NOT_GIVEN, *, partition: Partition = None) -> None:
        """Send a row of the second (right) input; see ``process_element1``."""
        self.process_batch([], [Element(value, timestamp, partition)])

    def process_batch(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Send several rows in one micro-batch, as Spark would; within a key they come in the declared order.

        Args:
            elements1: Rows of the first input that have their event time among their values, or ``Element``s.
            elements2: Rows of the second input.
        """
        self._call(*self._elements(elements1, elements2))

    def process_table1(self, text: str) -> None:
        """Send the rows of a text table (``parse_table``) to the first input, each in a call of its own, top to bottom.

        Columns that the table leaves out are null.
        """
        for row in self._parsed(0, text):
            self.process_element1(row)

    def process_table2(self, text: str) -> None:
        """Send the rows of a text table to the second input; see ``process_table1``."""
        for row in self._parsed(1, text):
            self.process_element2(row)

    def process_watermark1(self, timestamp: int, *, partition: Partition = None) -> None:
        """Move the first input's watermark: no more rows with a timestamp at or below it will come.

        Args:
            timestamp: Epoch milliseconds.
            partition: The source partition whose watermark it is; None is all that are known.

        Raises:
            HarnessError: It is no whole number; it goes back (``regressing_watermarks``); or the input is finished.
        """
        self._call(controls=[self._watermark(0, timestamp, partition)])

    def process_watermark2(self, timestamp: int, *, partition: Partition = None) -> None:
        """Move the second input's watermark; see ``process_watermark1``."""
        self._call(controls=[self._watermark(1, timestamp, partition)])

    def process_watermark(self, timestamp: int) -> None:
        """Move both inputs' watermarks in one call."""
        self._call(controls=[self._watermark(side, timestamp, None) for side in (0, 1)])

    def set_processing_time(self, timestamp: int) -> None:
        """Move the clock, in epoch milliseconds from 0 on, and let its timers fire. It stands still between calls."""
        self._call(now=epoch_millis(timestamp, "processing time", clock=True))

    def set_idle(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Declare an input, or one of its source partitions, idle: it no longer holds time back."""
        self._declare(number, partition, "idle")

    def set_active(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Declare an input, or a source partition, active; one that was not known holds time back until it speaks.

        Raises:
            HarnessError: It is finished, and that is for good.
        """
        self._declare(number, partition, "active")

    def set_finished(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Declare an input, or one of its source partitions, finished: nothing comes from it any more."""
        self._declare(number, partition, "finished")

    def end_input(self) -> None:
        """Drain: both inputs finish, time goes to its end, and every timer set before fires. Nothing can follow."""
        self._call(end=True)
        self._ended = True

    def run_static(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Run everything in one batch to the end of time, as for static inputs; no other call can be made.

        Args:
            elements1: As in ``process_batch``; so ``elements2``.
            elements2: Rows of the second input.
        """
        if self._calls:
            msg = f"run_static: expected a harness that was not used, got one after {self._calls} calls; make a new one"
            raise HarnessError(msg)
        self._call(*self._elements(elements1, elements2), end=True)
        self._ended = True

    def snapshot(self) -> bytes:
        """Return all that the key groups keep: states, timers, buffers, watermarks and counters, without pickle."""
        return encode_states([operator.snapshot() for operator in self._operators], self._now)

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot, of this harness or of another: other key groups, a changed function, more columns.

        Raises:
            CodecError: The bytes are no snapshot of a harness.
            CheckpointError: They are of another operation, or of columns that can't become this one's.
        """
        states, now = decode_states(data)
        operators = [self._create() for _ in self._operators]
        restore_states(operators, states)
        self.close()
        self._operators, self._now = operators, now
        self._resumed, self._ended, self._failed = True, operators[0].watermark.status() == "finished", False

    def close(self) -> None:
        """Close the function, where calls are not fresh; leaving the ``with`` block does it."""
        for operator in self._operators:
            operator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _elements(self, *elements: Iterable[Any]) -> tuple[list[Element], list[Element]]:
        first, second = ([each if isinstance(each, Element) else Element(each) for each in side] for side in elements)
        return first, second

    def _check_ready(self) -> None:
        if self._ended:
            msg = "the inputs have ended, and nothing can follow; make a new harness"
            raise HarnessError(msg)
        if self._failed:
            msg = "the call before failed half way (fresh_calls=False); restore a snapshot, or make a new harness"
            raise HarnessError(msg)

    def _watermark(self, side: int, timestamp: int, partition: Partition) -> Control:
        timestamp = epoch_millis(timestamp, f"{self._sides[side].what}: watermark")
        self._check_ready()
        watermark = self._operators[0].watermark.inputs[side]
        known = watermark.partitions()
        names = [partition_name(partition)] if partition is not None else unfinished(watermark) or [ONE_PARTITION]
        refuse_finished(watermark, self._sides[side].what, names[0])
        for name in names:
            current = known.get(name, NONE)
            if timestamp < current and not self._suppresses:
                msg = (
                    f"{self._sides[side].what}, partition {name!r}: its watermark is {current} "
                    f"({format_time(current)}) and can't go back to {timestamp} ({format_time(timestamp)}); in a job "
                    f"this would change nothing: say so with regressing_watermarks='ignore'"
                )
                raise HarnessError(msg)
        return Control(self._sides[side].number, processing_time=self._now, watermarks=dict.fromkeys(names, timestamp))

    def _declare(self, number: Literal[1, 2], partition: Partition, status: Status) -> None:
        self._check_ready()
        number = input_number(number)
        name = None if partition is None else partition_name(partition)
        if status != "finished":
            refuse_finished(self._operators[0].watermark.inputs[number - 1], self._sides[number - 1].what, name)
        self._call(controls=[Control(number, processing_time=self._now, statuses={name: status})])

    def _call(
        self,
        elements1: Sequence[Element] = (),
        elements2: Sequence[Element] = (),
        controls: Sequence[Control] = (),
        *,
        end: bool = False,
        now: int | None = None,
    ) -> None:
        """Run a micro-batch; where it fails, fresh operators leave the harness as it was."""
        self._check_ready()
        now = self._now if now is None else now
        call = Call(self._sides, (elements1, elements2), controls, now, end=end, resumed=self._resumed)
        before = self._operators[0].watermark
        prepared = prepare_call(call, before)
        was, time = before.status(), before.current()
        operators = self._operators
        if self._fresh:
            operators = [self._create() for _ in self._operators]
            for fresh, old in zip(operators, self._operators, strict=True):
                fresh.restore(old.snapshot())
        try:
            self._failed = not self._fresh
            events = run_call(call, prepared, operators, self._operation)
            self._failed = False
        finally:
            if self._fresh:
                for operator in operators:
                    operator.close()
        self._operators, self._resumed, self._now = operators, False, now
        self._calls += 1
        after = operators[0].watermark
        delay = operators[0].output_delay_ms
        moved = output_watermark(after.current(), delay)
        changes: list[Event] = [StatusChange(after.status())] if after.status() != was else []
        wakes = changes if after.status() == "active" else []
        watermarks: list[Event] = [Watermark(moved)] if moved > output_watermark(time, delay) else []
        self.log += [*wakes, *events, *watermarks, *(changes if not wakes else [])]
        self._emitted = count_records(events)
