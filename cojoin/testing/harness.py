"""The harness: drives the operator and the watermarks of a query without Spark, one call at a time.

Each call is a separate micro-batch of a ``LocalRun``: its rows, watermarks and statuses reach the operator as rows and
control rows. The log has the order of Flink's output: a change to the active status, rejected rows, output rows, then
the watermark that caused them, then any other change of the status. (Flink: ``KeyedTwoInputStreamOperatorTestHarness``,
``ProcessFunctionTestHarnesses``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from cojoin.engine.display import Display, Shown, format_time
from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag, check_tags
from cojoin.engine.keyed_process import KeyedCoProcess, KeyedCoProcessOperator
from cojoin.engine.local.kept_tables import WAITING, opened, waiting_table
from cojoin.engine.local.key_group import ConservationError, Rejected
from cojoin.engine.local.local_run import LocalRun, decode_states, encode_states
from cojoin.engine.operator import OUTPUT
from cojoin.engine.plan import Plan, describe_operation
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE, AllIdle, Status
from cojoin.engine.values.arguments import check_flag, check_word
from cojoin.engine.values.rows import Row, decode_rows
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.testing.events import (
    NOT_GIVEN,
    Element,
    Event,
    HarnessError,
    Record,
    SideRecord,
    StatusChange,
    Time,
    Timer,
    Watermark,
)
from cojoin.testing.harness_inputs import (
    HarnessInput,
    Partition,
    bind_inputs,
    epoch_millis,
    input_number,
    key_values,
    known_partition,
    partition_name,
    refuse_finished,
    unfinished,
)
from cojoin.testing.harness_tables import parse_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.functions import Order
    from cojoin.engine.local.local_run import BatchOutput
    from cojoin.engine.operator import Operator, Sides
    from cojoin.engine.plan import Operation

RegressingWatermarks: TypeAlias = Literal["error", "ignore"]
"""The treatment of a watermark below the partition's current one.

- *error*: it raises a ``HarnessError``, because such a watermark is usually a mistake of the test.
- *ignore*: the watermark changes nothing, as in a job, and as in Flink.
"""


class Harness(Shown):
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
        regressing_watermarks: The treatment of a watermark below the current one: ``"error"`` or ``"ignore"``.

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
        self._sides = bind_inputs(input1, input2)
        self._inputs = (self._sides[0].spec, self._sides[1].spec)
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
            if isinstance(function, type):
                msg = (
                    f"operation: expected an instance such as {function.__name__}(), got the class {function.__name__}"
                )
                raise ConfigurationError(msg)
            if output_type is not None or order != "event_time" or side_outputs or processing_time_timers is not None:
                msg = (
                    "output_type, order, side_outputs, processing_time_timers: an operation has its own; leave them out"
                )
                raise ConfigurationError(msg)
            self._operation = function
        plan = Plan(self._operation, *self._inputs, key_groups, TimePolicy(when_all_idle, hold_left_until))
        self._schema = plan.output
        self._now = epoch_millis(processing_time, "processing_time", clock=True)
        self._suppresses = regressing_watermarks == "ignore"
        self._run = LocalRun(plan, key_groups, keeps_operators=not fresh_calls, notes_rows=True)
        self._ended, self._calls, self._taken = False, 0, 0
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
            elements1: Rows of the first input: values that contain their event time, or ``Element`` objects.
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

    def _elements(self, *elements: Iterable[Any]) -> tuple[list[Element], list[Element]]:
        first, second = ([each if isinstance(each, Element) else Element(each) for each in side] for side in elements)
        return first, second

    def _parsed(self, side: int, text: str) -> Sequence[dict[str, Any]]:
        spec = self._inputs[side]
        # Columns that a table leaves out are null; leaving out the event time is an error.
        nulls = dict.fromkeys(name for name in spec.schema.names if name != spec.event_time)
        return [nulls | row.as_dict() for row in parse_table(text, spec.schema)]

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

    def _watermark(self, side: int, timestamp: int, partition: Partition) -> Control:
        timestamp = epoch_millis(timestamp, f"{self._sides[side].label}: watermark")
        self._check_ready()
        watermark = self._run.watermark.inputs[side]
        known = watermark.partitions()
        names = [partition_name(partition)] if partition is not None else unfinished(watermark) or [ONE_PARTITION]
        refuse_finished(watermark, self._sides[side].label, names[0])
        for name in names:
            current = known.get(name, NONE)
            if timestamp < current and not self._suppresses:
                msg = (
                    f"{self._sides[side].label}, partition {name!r}: its watermark is {current} "
                    f"({format_time(current)}) and can't go back to {timestamp} ({format_time(timestamp)}); in a job "
                    f"this would change nothing: allow it with regressing_watermarks='ignore'"
                )
                raise HarnessError(msg)
        return Control(self._sides[side].number, processing_time=self._now, watermarks=dict.fromkeys(names, timestamp))

    def _declare(self, number: Literal[1, 2], partition: Partition, status: Status) -> None:
        self._check_ready()
        number = input_number(number)
        name = None if partition is None else partition_name(partition)
        if status != "finished":
            refuse_finished(self._run.watermark.inputs[number - 1], self._sides[number - 1].label, name)
        self._call(controls=[Control(number, processing_time=self._now, statuses={name: status})])

    def _check_ready(self) -> None:
        if self._ended:
            msg = "the inputs have ended, and nothing can follow; make a new harness"
            raise HarnessError(msg)
        if self._run.failed:
            msg = "the call before failed half way (fresh_calls=False); restore a snapshot, or make a new harness"
            raise HarnessError(msg)

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
        now, before = self._now if now is None else now, self._run.watermark
        was, time = before.status(), before.current()
        rows, heard = self._prepared((elements1, elements2), now)
        try:
            output = self._run.process(rows, [*heard, *controls], processing_time=now, end_of_input=end)
        except ConservationError as error:
            raise HarnessError(str(error)) from None
        self._now, self._calls = now, self._calls + 1
        after, delay = self._run.watermark, self._run.output_delay_ms
        moved = _output_watermark(after.current(), delay)
        changes: list[Event] = [StatusChange(after.status())] if after.status() != was else []
        wakes = changes if after.status() == "active" else []
        watermarks: list[Event] = [Watermark(moved)] if moved > _output_watermark(time, delay) else []
        self.log += [*wakes, *_events(output), *watermarks, *(changes if not wakes else [])]

    def _prepared(self, elements: tuple[Sequence[Element], Sequence[Element]], now: int) -> tuple[Sides, list[Control]]:
        """Return the checked rows of a call, and the control rows that map tasks would send after them."""
        tables, heard = [], []
        for side, elements_of_side, known in zip(self._sides, elements, self._run.watermark.inputs, strict=True):
            if elements_of_side:
                refuse_finished(known, side.label)
            table = side.table(elements_of_side)
            tables.append(table)
            if elements_of_side:
                control = side.control(elements_of_side, table, unfinished(known), now)
                for name in control.partitions:
                    refuse_finished(known, side.label, name)
                heard.append(control)
        return (tables[0], tables[1]), heard

    def take(self) -> list[Event]:
        """Return the events of the log since the last ``take``."""
        taken, self._taken = self.log[self._taken :], len(self.log)
        return taken

    @property
    def output(self) -> list[Row]:
        """All rows of the main output, in order."""
        return [event.value for event in self.log if isinstance(event, Record)]

    def side_output(self, tag: OutputTag | str) -> list[Row]:
        """Return all rows of a side output, in order.

        Args:
            tag: Its ``OutputTag``, or the tag's id.

        Raises:
            ConfigurationError: The tag is not declared.
        """
        name = self._declared(tag).tag_id
        return [event.value for event in self.log if isinstance(event, SideRecord) and event.tag == name]

    def schema_of(self, tag: OutputTag | str | None = None) -> pa.Schema:
        """Return the columns of the main output, or of a side output.

        Raises:
            ConfigurationError: The tag is not declared.
        """
        return self._schema if tag is None else self._declared(tag).schema

    def _declared(self, tag: OutputTag | str) -> OutputTag:
        name = tag.tag_id if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            msg = f"side output: expected an OutputTag or its id, got {tag!r}"
            raise ConfigurationError(msg)
        declared: dict[str, OutputTag] = {each.tag_id: each for each in getattr(self._operation, "side_outputs", ())}
        if name not in declared:
            msg = f"side output: {name!r} was not declared{did_you_mean(name, declared)}"
            raise ConfigurationError(msg)
        return declared[name]

    @property
    def rejected(self) -> list[Rejected]:
        """All rejected rows, in order."""
        return [event for event in self.log if isinstance(event, Rejected)]

    def report(self) -> BatchReport:
        """Return the counts, watermarks and sizes after the last call, as in a query's progress.

        ``print(harness.report().table())`` shows them.
        """
        return self._run.report(self._calls - 1)

    def _display(self) -> Display:
        # The size of the state is left out: it takes a snapshot.
        report = self._run.report(self._calls - 1, with_sizes=False)
        left, right = self._inputs
        head = f"Harness: {describe_operation(self._operation)} of {left.name!r} with {right.name!r}"
        calls = "before the first call" if self._calls == 0 else f"call{'s' * (self._calls != 1)}: {self._calls:,}"
        note = f"{calls}; watermark {format_time(report.watermark)}; rows out {report.rows_out:,}"
        return Display(head, report.table_rows(), [note])

    def state(self, key: Any) -> dict[str, Any]:
        """Return the state of a key.

        Args:
            key: The value of the key column; a tuple if there are several key columns.

        Returns:
            For a function, the content of each keyed state by its name; a state that is empty or has expired is
            absent. For a join, the key's rows by the name of the state table, such as ``versions``.

        Raises:
            HarnessError: The key's value does not fit its column.
        """
        wanted = key_values(key, self._inputs[0])
        states: dict[str, Any] = {}
        for operator in self._run.operators:
            if isinstance(operator, KeyedCoProcessOperator):
                with opened(self._to_look_at(operator)) as backend:
                    states.update(backend.state_of(key))
            else:
                states.update(self._rows_of(operator, wanted))
        return states

    def _to_look_at(self, operator: KeyedCoProcessOperator) -> KeyedCoProcessOperator:
        """Return the operator, or a copy if its function was not opened yet and inspecting would declare states."""
        if operator._opened:  # noqa: SLF001
            return operator
        copied = self._run.plan.create_operator()
        copied.restore(operator.snapshot())
        return cast("KeyedCoProcessOperator", copied)

    def _rows_of(self, operator: Operator, wanted: tuple[Any, ...]) -> dict[str, list[Row]]:
        states = {}
        for name, table in operator.state_tables().items():
            spec = self._inputs[name not in WAITING[0]]
            rows = decode_rows(table.select(spec.schema.names))
            keys = decode_rows(spec.keys(table))
            if mine := [row for row, each in zip(rows, keys, strict=True) if tuple(each) == wanted]:
                states[name] = mine
        return states

    def state_entries(self) -> dict[str, int]:
        """Return the number of entries of each state over all keys, including expired entries not yet removed.

        For a function it counts the keys in each keyed state, by the state's name; for a join the rows in each state
        table, by the table's name.
        """
        counts: dict[str, int] = {}
        for operator in self._run.operators:
            if isinstance(operator, KeyedCoProcessOperator):
                sizes = operator.state_backend.sizes()
                rows = {n.removeprefix("state:"): size["rows"] for n, size in sizes.items() if n.startswith("state:")}
            else:
                rows = {name: table.num_rows for name, table in operator.state_tables().items()}
            for name, count in rows.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def timers(self, key: Any = None) -> list[Timer]:
        """Return the registered timers of a key or of all keys, sorted by domain, timestamp and key; a join has none.

        Args:
            key: The value of the key column; a tuple if there are several key columns; None is all keys.

        Raises:
            HarnessError: The key's value does not fit its column.
        """
        if key is not None:
            key_values(key, self._inputs[0])
        registered = [
            Timer(*timer)
            for operator in self._run.operators
            if isinstance(operator, KeyedCoProcessOperator)
            for timer in operator.state_backend.timers_of(key)
        ]
        return sorted(registered, key=lambda timer: (timer.time_domain, timer.timestamp, repr(timer.key)))

    def buffered(self, number: Literal[1, 2]) -> list[Row]:
        """Return the rows of an input that wait for the watermark or for matching rows, in total order."""
        return decode_rows(waiting_table(self._run.operators, input_number(number) - 1))

    def current_watermark(self) -> int:
        """Return the operator's watermark in epoch milliseconds; ``-2**63`` until every input has one."""
        return self._run.watermark.current()

    def input_watermark(self, number: Literal[1, 2], *, partition: str | tuple[Any, ...] | None = None) -> int:
        """Return the watermark of an input, or of one of its source partitions, in epoch milliseconds.

        Raises:
            HarnessError: The input or the partition does not exist.
        """
        watermark = self._run.watermark.inputs[input_number(number) - 1]
        known = watermark.partitions()
        return watermark.current() if partition is None else known[known_partition(partition, known, number)]

    def status(self, number: Literal[1, 2] | None = None, *, partition: str | tuple[Any, ...] | None = None) -> Status:
        """Return the status of an input, of one of its source partitions, or of both inputs together.

        Args:
            number: 1 or 2; None is both inputs together.
            partition: A source partition of the input.

        Returns:
            ``"active"``, ``"idle"`` or ``"finished"``.

        Raises:
            HarnessError: The input or the partition does not exist.
        """
        if number is None and partition is None:
            return self._run.watermark.status()
        watermark = self._run.watermark.inputs[input_number(number) - 1]
        known = watermark.statuses()
        return watermark.status() if partition is None else known[known_partition(partition, known, number or 0)]

    def processing_time_wakeup(self) -> int | None:
        """Return the time of the earliest processing-time timer of all keys in epoch milliseconds, or None."""
        stores = [each.state_backend for each in self._run.operators if isinstance(each, KeyedCoProcessOperator)]
        return min((timer for store in stores if (timer := store.earliest_timers()[1]) is not None), default=None)

    def snapshot(self) -> bytes:
        """Return the state of all key groups as bytes without pickle: states, timers, buffers, watermarks, counters."""
        return encode_states(self._run.states(), self._now)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot of this harness or of another one.

        The number of key groups may differ, the function may have changed, and inputs may have more columns.

        Args:
            data: The bytes that ``snapshot`` returned.

        Raises:
            CodecError: The bytes are not a snapshot of a harness.
            CheckpointError: The snapshot is of another operation, or its columns can't become those of this harness.
        """
        states, now, _ = decode_states(data)
        self._run.restore(states)
        self._now, self._ended = now, self._run.watermark.status() == "finished"

    def close(self) -> None:
        """Close the function (``fresh_calls=False``); the end of a ``with`` block calls this."""
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _output_watermark(watermark: int, delay: int) -> int:
    """Return the output's watermark: the operator's minus the output delay, in milliseconds.

    The delay is the most by which the watermark is past a record's timestamp when it is emitted.
    """
    if watermark in (NONE, END_OF_TIME):
        return watermark
    return NONE if delay == END_OF_TIME else max(NONE, watermark - delay)


def _events(output: BatchOutput) -> list[Event]:
    events: list[Event] = []
    for group in output.groups:
        events += group.rejected()
        for row in group.rows():
            is_main = row.output == OUTPUT
            events.append(
                Record(row.value, row.timestamp) if is_main else SideRecord(row.output, row.value, row.timestamp)
            )
    return events
