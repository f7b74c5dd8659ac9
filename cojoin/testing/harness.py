"""The harness: drives the operator and the watermarks of a query without Spark, one call at a time.

Each call is a micro-batch of its own. Its rows, watermarks and statuses reach the operator as rows and control rows.
The output is appended to the log in the order of Flink's output: rejected rows, output rows, then the watermark that
caused them, then the status. A change to the active status comes first.

After each call the harness checks for each input that rows in = done + buffered + rejected.
(Flink: ``KeyedTwoInputStreamOperatorTestHarness``, ``ProcessFunctionTestHarnesses``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

from cojoin.engine.formats import format_time
from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.side_outputs import check_tags
from cojoin.engine.time.operator_watermark import ONE_PARTITION, Control, TimePolicy
from cojoin.engine.time.watermarks import NONE, AllIdle, Status
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
"""How a harness treats a watermark below the partition's current one.

- *error*: it raises a ``HarnessError``, because such a watermark is usually a mistake of the test.
- *ignore*: the watermark changes nothing, as in a job, and as in Flink.
"""

Partition: TypeAlias = "str | tuple[Any, ...] | None"


class Operation(Protocol):
    """What a harness runs: the configuration of a join or of a function."""

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the output."""

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> Operator:
        """Return a new operator for one key group."""


class Harness(Outcome, Inspection):
    """Runs a function or a join over two keyed inputs without Spark; ``Harness.of`` makes one for a join.

    Args:
        function: An instance of a ``KeyedCoProcessFunction``, or any operation (``Harness.of``).
        output_type: The columns of the rows that the function yields: DDL, a ``StructType`` or an Arrow schema.
        input1: The first (left) input.
        input2: The second (right) input.
        order: The order in which the function sees its rows: ``"event_time"`` or ``"arrival"``, as in ``process``.
        side_outputs: The tags of the function's side outputs.
        processing_time_timers: Whether the function sets processing-time timers; None looks for the call in its
            methods, as ``process`` does.
        when_all_idle: The watermark when both inputs are idle: ``"hold"`` keeps it, ``"max"`` advances it to the larger
            of theirs, as in Flink.
        hold_left_until: The operator's watermark does not advance until the right input's watermark has reached this
            time, in epoch milliseconds, or the right input is idle or finished. None does not hold it.
        processing_time: The time at which the clock starts, in epoch milliseconds; 0 means that it is unknown.
        key_groups: The number of key groups; each has its own operator.
        fresh_calls: Whether every call runs in new operators, with new copies of the function, restored from the
            state after the previous call. This is how Spark runs them: what a function keeps in its attributes is
            lost. False keeps the operators and the function between calls, as Flink does; then ``close`` closes the
            function, and after a failed call only ``restore`` is possible.
        regressing_watermarks: How a watermark below the current one is treated: ``"error"`` or ``"ignore"``.

    Attributes:
        log: The whole output so far, in order.

    Raises:
        ConfigurationError: An argument is invalid, as in a query.
        SchemaError: An input's columns do not parse, do not exist or have the wrong type, or the keys' types differ.

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
        """Return a harness that runs an operation, such as ``cojoin.engine.joins.AsofJoin()``.

        Args:
            operation: The configuration of a join or of a function.
            input1: The left input.
            input2: The right input.
            options: Further arguments of ``Harness``, from ``when_all_idle`` on.

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
        """Process one row of the first (left) input.

        Args:
            value: A tuple, a dict or a ``Row``. It may contain the event time or leave it out.
            timestamp: The event time in epoch milliseconds or as an aware datetime; None is a row without event time.
                Leave it out if the value contains it.
            partition: The source partition that the row comes from (see ``Element``).

        Raises:
            SchemaError: The row does not fit the input's columns, or its event time is neither in the value nor given.
            HarnessError: The input or the source partition is finished.
            FunctionError: The function raised an error. The harness is unchanged; with ``fresh_calls=False`` it accepts
                only ``restore``.
        """
        self.process_batch([Element(value, timestamp, partition)], [])

    def process_element2(self, value: Any, timestamp: Time = NOT_GIVEN, *, partition: Partition = None) -> None:
        """Process one row of the second (right) input; see ``process_element1``."""
        self.process_batch([], [Element(value, timestamp, partition)])

    def process_batch(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Process several rows in one micro-batch, as Spark would; the rows of a key come in the declared ``order``.

        Args:
            elements1: Rows of the first input: values that contain their event time, or ``Element``s.
            elements2: Rows of the second input, in the same forms.

        Raises:
            SchemaError: As in ``process_element1``, like the other errors.
            HarnessError: An input or a source partition is finished.
            FunctionError: The function raised an error.
        """
        self._call(*self._elements(elements1, elements2))

    def process_table1(self, text: str) -> None:
        """Process the rows of a text table (``parse_table``) of the first input, from top to bottom, one call each.

        Columns that the table leaves out are null; the event-time column must not be left out.
        """
        for row in self._parsed(0, text):
            self.process_element1(row)

    def process_table2(self, text: str) -> None:
        """Process the rows of a text table of the second input; see ``process_table1``."""
        for row in self._parsed(1, text):
            self.process_element2(row)

    def process_watermark1(self, timestamp: int, *, partition: Partition = None) -> None:
        """Advance the first input's watermark: no more rows with a timestamp at or below it are expected.

        Args:
            timestamp: The watermark in epoch milliseconds.
            partition: The source partition whose watermark it is; None means all known partitions that are not
                finished.

        Raises:
            HarnessError: It is not a whole number, it is below the current watermark (``regressing_watermarks``), or
                the input or partition is finished.
        """
        self._call(controls=[self._watermark(0, timestamp, partition)])

    def process_watermark2(self, timestamp: int, *, partition: Partition = None) -> None:
        """Advance the second input's watermark; see ``process_watermark1``."""
        self._call(controls=[self._watermark(1, timestamp, partition)])

    def process_watermark(self, timestamp: int) -> None:
        """Advance both inputs' watermarks in one call; see ``process_watermark1``."""
        self._call(controls=[self._watermark(side, timestamp, None) for side in (0, 1)])

    def set_processing_time(self, timestamp: int) -> None:
        """Set the clock and fire the processing-time timers that are due. The clock does not move between calls.

        Args:
            timestamp: The processing time in epoch milliseconds, not negative.

        Raises:
            HarnessError: It is not such a number.
        """
        self._call(now=epoch_millis(timestamp, "processing time", clock=True))

    def set_idle(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as idle: it no longer holds back the watermark."""
        self._declare(number, partition, "idle")

    def set_active(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as active.

        A source partition that was not known holds back the watermark until its first row or watermark.

        Raises:
            HarnessError: The input or partition is finished; this status is final.
        """
        self._declare(number, partition, "active")

    def set_finished(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as finished: no rows follow from it."""
        self._declare(number, partition, "finished")

    def end_input(self) -> None:
        """Drain: finish both inputs, advance the watermark to the end of time, and fire the timers set before.

        No further call is possible, except ``restore``.
        """
        self._call(end=True)
        self._ended = True

    def run_static(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Process all rows in one batch and drain, as for static inputs; it must be the only call.

        Args:
            elements1: Rows of the first input, as in ``process_batch``.
            elements2: Rows of the second input.

        Raises:
            HarnessError: Another call came before.
        """
        if self._calls:
            msg = f"run_static: expected a harness that was not used, got one after {self._calls} calls; make a new one"
            raise HarnessError(msg)
        self._call(*self._elements(elements1, elements2), end=True)
        self._ended = True

    def snapshot(self) -> bytes:
        """Return the state of all key groups as bytes without pickle: states, timers, buffers, watermarks, counters."""
        return encode_states([operator.snapshot() for operator in self._operators], self._now)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot of this harness or of another one.

        The number of key groups may differ, the function may have changed, and inputs may have more columns.

        Args:
            data: The bytes that ``snapshot`` returned.

        Raises:
            CodecError: The bytes are not a snapshot of a harness.
            CheckpointError: The snapshot is of another operation, or its columns can't become those of this harness.
        """
        states, now = decode_states(data)
        operators = [self._create() for _ in self._operators]
        restore_states(operators, states)
        self.close()
        self._operators, self._now = operators, now
        self._resumed, self._ended, self._failed = True, operators[0].watermark.status() == "finished", False

    def close(self) -> None:
        """Close the function (``fresh_calls=False``); the end of a ``with`` block calls this."""
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
        """Run a micro-batch; if it fails and calls are fresh, the harness is unchanged."""
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
