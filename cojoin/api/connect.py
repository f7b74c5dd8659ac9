"""``connect``: two inputs with a common key, on Spark or in this process, and the joins and functions over them.

The inputs are checked before anything runs; ``ConnectedInputs`` has the same methods on Spark and in memory.
"""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta, timezone
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from cojoin.api.joined import Joined
from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.embedded.frames import is_frame
from cojoin.engine.display import Display, Shown, display_of
from cojoin.engine.functions import OutputTag, check_tags
from cojoin.engine.input import Input
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import Plan, describe_inputs
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import AllIdle
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cojoin.api.joined import Execution
    from cojoin.engine.functions import KeyedCoProcessFunction, Order
    from cojoin.engine.joins.asof import AsofHow, Direction
    from cojoin.engine.joins.interval import IntervalHow
    from cojoin.engine.joins.output_columns import Suffixes
    from cojoin.engine.joins.temporal import TemporalHow
    from cojoin.engine.plan import Operation
    from cojoin.engine.values.arguments import Duration


_MOST_KEY_GROUPS = 32_768


def connect(
    left: Input,
    right: Input,
    *,
    key_groups: int | None = None,
    when_all_idle: AllIdle = "hold",
    hold_left_until: datetime | None = None,
) -> ConnectedInputs:
    """Connect two inputs by their keys; joins and functions are methods of the result.

    Both inputs must be of one kind: streaming or static, both on Spark, or both in memory. Their key columns must have
    the same types in the same order.

    Args:
        left: The first input. As-of and temporal joins look up a right row for each of its rows.
        right: The second input. As-of and temporal joins treat its rows as the versions of their keys.
        key_groups: The number of key groups into which keys are hashed, from 1 to 32,768. A key group is the unit of
            parallelism and of state. Each costs some milliseconds per micro-batch even without rows, so use a few
            per core. Results do not depend on the number. For streams None is 32, and the number can't change while a
            checkpoint is in use, except with ``restore_from``. For static inputs it is a hint: fewer are used if the
            inputs are small, and more if a key group of so many rows would take much memory.
        when_all_idle: The operator's watermark when every input that is not finished is idle. ``"hold"`` keeps it;
            ``"max"`` advances it to the larger of the inputs' watermarks, as in Flink, which releases the last rows.
        hold_left_until: A datetime with a time zone. The operator's watermark does not advance until the right input's
            watermark has reached this time, or the right input is idle or finished. So left rows wait for the initial
            load of the right. None does not hold it.

    Returns:
        The connected inputs.

    Raises:
        ConfigurationError: The inputs do not fit together, or an argument is invalid.
        SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
        EnvironmentSetupError: A package that the inputs need is missing or too old.

    Warns:
        UserWarning: Key groups without rows would take seconds per micro-batch, or the collation of a column would be
            lost.
    """
    if key_groups is not None and (type(key_groups) is not int or not 1 <= key_groups <= _MOST_KEY_GROUPS):
        msg = f"key_groups: expected a whole number from 1 to {_MOST_KEY_GROUPS}, got {key_groups!r}"
        raise ConfigurationError(msg)
    check_word("when_all_idle", when_all_idle, get_args(AllIdle))
    time = TimePolicy(when_all_idle, _epoch_millis(hold_left_until))
    for side, declared in (("left", left), ("right", right)):
        if not isinstance(declared, Input):
            msg = (
                f"{side} input: expected a cojoin.Input, got {type(declared).__name__}; write cojoin.Input(..., "
                f"key=..., event_time=...); of two frames cojoin.asof_join(left, right, on=..., by=...) is one line"
            )
            raise ConfigurationError(msg)
    if _in_memory(left, right):
        return ConnectedInputs(EmbeddedExecution.of(left, right), 1, time)
    check_packages("connect()", "spark")
    from cojoin.spark.spark_execution import bind_inputs  # noqa: PLC0415 - rows in memory are joined without Spark

    execution, groups, sentences = bind_inputs(left, right, key_groups)
    for warning in sentences:
        warnings.warn(warning, stacklevel=2)
    return ConnectedInputs(execution, groups, time)


def _in_memory(left: Input, right: Input) -> bool:
    """Return whether both inputs are in memory; an error if only one is, or if one is neither that nor of Spark."""
    kinds = {}
    for side, declared in (("left", left), ("right", right)):
        name = declared.name or side
        kinds[name] = is_frame(declared.source)
        if not kinds[name] and not is_of_spark(declared.source):
            raise ConfigurationError(not_an_input(declared.source, f"input {name!r}"))
    if len(set(kinds.values())) > 1:
        frame, other = sorted(kinds, key=lambda name: not kinds[name])
        msg = (
            f"input {frame!r} is in memory, input {other!r} is Spark's; both must be of one kind: "
            f"make {frame!r} one of Spark's with spark.createDataFrame(...), or take {other!r} into memory with "
            f"df.toArrow() if it fits"
        )
        raise ConfigurationError(msg)
    return all(kinds.values())


def is_of_spark(source: Any) -> bool:
    """Return whether a value is a DataFrame of Spark or a source of cojoin, without importing Spark."""
    return any(each.__module__.split(".")[0] in ("pyspark", "cojoin") for each in type(source).__mro__)


def not_an_input(source: Any, argument: str, *, may_be_source: bool = True) -> str:
    """Return the message for a value of an argument, such as ``"input 'trades'"``, that can't be an input's rows.

    ``may_be_source`` is whether one of ``cojoin.sources`` could be.
    """
    kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}".removeprefix("builtins.")
    hint = ""
    if isinstance(source, (str, PathLike)):
        hint = f"; did you mean cojoin.sources.delta({source!r})?" if may_be_source else "; read its rows first"
    elif kind == "polars.LazyFrame":
        hint = "; run it with .collect()"
    elif isinstance(source, (list, dict)):
        hint = "; make a table of it: pyarrow.Table.from_pylist(rows), or pandas.DataFrame(rows)"
    elif hasattr(source, "to_table"):
        hint = "; read it with .to_table()"
    return (
        f"{argument}: expected a DataFrame of Spark's, {'one of cojoin.sources, ' if may_be_source else ''}or rows in "
        f"memory (pandas, pyarrow, or anything with __arrow_c_stream__), got {kind}{hint}"
    )


def _epoch_millis(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        example = "datetime(2026, 1, 31, tzinfo=timezone.utc)"
        msg = f"hold_left_until: expected a datetime with a time zone, such as {example}, got {moment!r}"
        raise ConfigurationError(msg)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


class ConnectedInputs(Shown):
    """Two inputs with a common key, made by ``connect``. Its methods apply a join or a function to them."""

    def __init__(self, execution: Execution, key_groups: int, time: TimePolicy) -> None:
        self._execution, self._key_groups, self._time = execution, key_groups, time

    def __getattr__(self, name: str) -> NoReturn:
        hint = "; make a join of it first, such as .asof_join()" if hasattr(Joined, name) else ""
        msg = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
        raise AttributeError(msg)

    def __repr__(self) -> str:
        return display_of(lambda: Display(self._line()), "ConnectedInputs").text()

    def _line(self) -> str:
        described = zip(self._execution.inputs, self._execution.sources, strict=True)
        left, right = (f"{spec.name!r} ({source})" for spec, source in described)
        return f"Connected inputs: {left} with {right}"

    def _display(self) -> Display:
        notes = ["asof_join, temporal_join, interval_join and process make a join of them."]
        left, right = self._execution.inputs
        table = describe_inputs((left, right), self._execution.sources)
        return Display(f"Connected inputs: {left.name!r} with {right.name!r}", table, notes)

    def asof_join(
        self,
        how: AsofHow = "left",
        *,
        direction: Direction = "backward",
        tolerance: Duration | None = None,
        allow_exact_matches: bool = True,
        suffixes: Suffixes | None = None,
    ) -> Joined:
        """Join each left row with the right row of its key that is nearest in event time.

        By default this is the newest right row that is not later than the left row, as in pandas' ``merge_asof`` and
        DuckDB's ``ASOF JOIN``. Event times are compared in microseconds. Of several right rows with the same event
        time the last in the total order matches: by ``partition`` and ``sequence``, where the input names such columns,
        then by the content of the columns from left to right, nulls first (looking forward, pandas takes the first).
        Each left row is emitted once, when its match is final.

        Args:
            how: ``"left"`` emits left rows without a match with nulls; ``"inner"`` does not emit them.
            direction: ``"backward"`` matches the last right row that is not later, ``"forward"`` the first that is not
                earlier, ``"nearest"`` the nearer of the two and at equal distance the earlier. Looking forward, left
                rows wait until their match is certain.
            tolerance: The largest distance in event time at which a right row matches, inclusive, such as ``"1 hour"``
                or a ``timedelta``; None sets no limit. It also bounds how long right rows are kept.
            allow_exact_matches: Whether a right row with the same event time matches.
            suffixes: The texts that are appended to column names that both inputs have, left and right, such as
                ``("", "_customer")``. None refuses such names.

        Returns:
            The join. Its columns are the left's, then the right's without its key columns. If the name of the right's
            event-time column is taken, the column is called ``<right input's name>_event_time``.

        Raises:
            ConfigurationError: An argument is invalid.
            SchemaError: Column names collide, or an input has no event time.
        """
        return self._apply(AsofJoin(how, tolerance, allow_exact_matches, suffixes, direction))

    def temporal_join(
        self,
        how: TemporalHow = "left",
        *,
        deletes: str | None = None,
        null_payload_deletes: bool = False,
        retention: Duration | None = None,
        suffixes: Suffixes | None = None,
    ) -> Joined:
        """Join each left row with the version of its key that is valid at its event time; versions may be deleted.

        A right row is a version of its key. It is valid from its event time until the next version or tombstone of the
        key, as in Flink's event-time temporal table join (``FOR SYSTEM_TIME AS OF``). Of several versions with the
        same event time, in microseconds, the last in the total order is valid; where neither the sequence nor a commit
        orders them, a tombstone comes last. Each left row is emitted once, when the watermark reaches its timestamp.

        Args:
            how: ``"left"`` emits left rows without a valid version with nulls; ``"inner"`` does not emit them.
            deletes: A boolean column of the right input that is true in tombstones, which delete their key. It is not
                in the result. None if the input has no such column. Leave it out for a table with ``changes=True`` and
                for rows with ``valid_from``, which contain their deletes.
            null_payload_deletes: Whether a right row is a tombstone if all its columns are null except for its key,
                event time, partition, sequence and ``deletes``, as in a compacted Kafka topic.
            retention: The time after its event time until which a version is valid and kept, inclusive, such as
                ``"90 days"``. None keeps it until the next version or tombstone.
            suffixes: As in ``asof_join``.

        Returns:
            The join, with the columns of ``asof_join``.

        Raises:
            ConfigurationError: An argument is invalid.
            SchemaError: ``deletes`` is not a boolean column, column names collide, or an input has no event time.
        """
        deletes = self._execution.inputs[1].deletes if deletes is None else deletes
        return self._apply(TemporalJoin(how, deletes, null_payload_deletes, retention, suffixes))

    def interval_join(
        self,
        lower: Duration,
        upper: Duration,
        how: IntervalHow = "inner",
        *,
        lower_inclusive: bool = True,
        upper_inclusive: bool = True,
        suffixes: Suffixes | None = None,
    ) -> Joined:
        """Join each left row with every right row of its key whose event time is within an interval around its own.

        A pair matches if the right row's event time minus the left row's is between ``lower`` and ``upper``, compared
        in microseconds. Unlike in Flink's ``IntervalJoin``, a pair is emitted when the watermark reaches the later of
        its two timestamps, so a key's results are in the order of event time.

        Args:
            lower: The smallest difference, such as ``"-5 minutes"`` or a ``timedelta``. It is negative if the right
                row may be earlier than the left row.
            upper: The largest difference, such as ``"1 hour"``.
            how: ``"inner"`` emits pairs only. ``"left"``, ``"right"`` and ``"full"`` also emit the rows of that side,
                or of both, that have no match, with nulls for the other side: once, when no match can follow.
            lower_inclusive: Whether a difference equal to ``lower`` matches.
            upper_inclusive: Whether a difference equal to ``upper`` matches.
            suffixes: As in ``asof_join``.

        Returns:
            The join, with the columns of ``asof_join``. When a row is emitted, the watermark may be past the row's
            event times by as much as the larger absolute value of the two bounds.

        Raises:
            ConfigurationError: An argument is invalid, or no pair can be within the bounds.
            SchemaError: Column names collide, or an input has no event time.
        """
        return self._apply(IntervalJoin(lower, upper, how, lower_inclusive, upper_inclusive, suffixes))

    def process(
        self,
        function: KeyedCoProcessFunction,
        output_type: str | StructType | pa.Schema,
        *,
        order: Order = "event_time",
        side_outputs: OutputTag | Sequence[OutputTag] = (),
        processing_time_timers: bool | None = None,
    ) -> Joined:
        """Run a ``KeyedCoProcessFunction`` over both inputs, key by key.

        The function has PyFlink's interface: keyed states, timers and side outputs.

        Args:
            function: An instance of a ``KeyedCoProcessFunction``. On Spark it is pickled and sent to the workers.
            output_type: The columns of the rows that it yields, as DDL, a ``StructType`` or an Arrow schema.
            order: ``"event_time"``: rows wait for the watermark, and a key's rows and timers come in the order of event
                time, which is deterministic. ``"arrival"``: a micro-batch's rows come at once and the timers after
                them, as in Flink.
            side_outputs: The ``OutputTag``, or tags, of the function's side outputs.
            processing_time_timers: Whether the function sets processing-time timers; then micro-batches also run
                without rows. None looks for the call in its methods.

        Returns:
            The function's run, with the columns of ``output_type``.

        Raises:
            ConfigurationError: ``function`` is not such an instance or can't be pickled, an argument is invalid, or
                ``order="event_time"`` does not fit an input.
            SchemaError: ``output_type`` does not parse, or a key column has a reserved name.
        """
        tags = check_tags(side_outputs, type(function).__name__)
        schema = as_schema(self._execution.output_type(output_type), "output_type")
        process = KeyedCoProcess(function, schema, order, tags, processing_time_timers)
        self._execution.check_function(function)
        return self._apply(process)

    def _apply(self, operation: Operation) -> Joined:
        plan = Plan(operation, *self._execution.inputs, self._key_groups, self._time)
        plan.operation.output_schema(plan.left, plan.right)
        return Joined(plan, self._execution)
