"""The harness: drives the operator and the watermarks of a query without Spark, one call at a time.

This module has its settings, its snapshots and its end. ``harness_elements`` processes rows, ``harness_time`` moves
time, and ``harness_calls`` runs each call as a micro-batch of its own. ``outcome`` returns the output, and
``inspection`` the states, timers, buffers and watermarks.
(Flink: ``KeyedTwoInputStreamOperatorTestHarness``, ``ProcessFunctionTestHarnesses``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.side_outputs import check_tags
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import AllIdle
from cojoin.engine.values.choices import check_flag, check_word
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError
from cojoin.testing.checks import check_inputs, check_instance, epoch_millis
from cojoin.testing.harness_elements import HarnessElements
from cojoin.testing.harness_inputs import BoundInput, HarnessInput
from cojoin.testing.harness_key_groups import decode_states, encode_states, restore_states
from cojoin.testing.harness_time import HarnessTime
from cojoin.testing.inspection import Inspection
from cojoin.testing.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from cojoin.engine.functions import Order
    from cojoin.engine.operator import Operator
    from cojoin.engine.plan import Operation
    from cojoin.engine.side_outputs import OutputTag
    from cojoin.testing.events import Event

__all__ = ["Harness", "RegressingWatermarks"]

RegressingWatermarks: TypeAlias = Literal["error", "ignore"]
"""How a harness treats a watermark below the partition's current one.

- *error*: it raises a ``HarnessError``, because such a watermark is usually a mistake of the test.
- *ignore*: the watermark changes nothing, as in a job, and as in Flink.
"""


class Harness(Outcome, Inspection, HarnessElements, HarnessTime):
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
        states, now, _ = decode_states(data)
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
