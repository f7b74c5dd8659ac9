"""``connect``: two inputs with a common key, the checks that need both, and the joins and functions over them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, get_args

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.side_outputs import OutputTag, check_tags
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import AllIdle
from cojoin.engine.values.choices import check_word
from cojoin.engine.values.types import as_schema, type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.spark.batch.call import Operation, Plan
from cojoin.spark.input import BoundInput, Input
from cojoin.spark.joined import Joined
from cojoin.spark.pickling import check_picklable
from cojoin.spark.session.warming import warm_up
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from cojoin.engine.functions import KeyedCoProcessFunction, Order
    from cojoin.engine.joins.asof import AsofHow, Direction
    from cojoin.engine.joins.interval import IntervalHow
    from cojoin.engine.joins.output_columns import Suffixes
    from cojoin.engine.joins.temporal import TemporalHow
    from cojoin.engine.time.durations import Duration

__all__ = ["ConnectedInputs", "connect"]

_CALL_MS = 1.5, 4.0
"""The lower and the usual upper bound of what a key group costs per micro-batch, in milliseconds, even without rows."""

_LONG_SECONDS = 5
"""The estimated seconds per micro-batch from which the user is warned."""


def connect(
    left: Input,
    right: Input,
    *,
    key_groups: int = 32,
    when_all_idle: AllIdle = "hold",
    hold_left_until: datetime | None = None,
) -> ConnectedInputs:
    """Connect two inputs by their keys; joins and functions are methods of the result.

    Both inputs must be streaming or both static, and their key columns must have the same types in the same order.

    Args:
        left: The first input. As-of and temporal joins look up a right row for each of its rows.
        right: The second input. As-of and temporal joins treat its rows as the versions of their keys.
        key_groups: The number of key groups into which keys are hashed, from 1 to 32,768. A key group is the unit of
            parallelism and of state. Each costs some milliseconds per micro-batch even without rows, so use a few
            per core. The number can't change while a checkpoint is in use, except with ``restore_from``. Results do
            not depend on it.
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

    Warns:
        UserWarning: Key groups without rows would take seconds per micro-batch, or the collation of a column would be
            lost.
    """
    if isinstance(key_groups, bool) or not isinstance(key_groups, int) or not 1 <= key_groups <= 32_768:
        msg = f"key_groups: expected a whole number from 1 to 32768, got {key_groups!r}"
        raise ConfigurationError(msg)
    check_word("when_all_idle", when_all_idle, get_args(AllIdle))
    time = TimePolicy(when_all_idle, _epoch_millis(hold_left_until, "hold_left_until"))
    session = SparkSession.getActiveSession()
    if session is not None:
        warm_up(session)
    left, right = _together(left, right)
    first, second = BoundInput(left, "left", 1), BoundInput(right, "right", 2)
    _check(first, second)
    for told in (*_changed_columns(first, second), *_cost(key_groups, first)):
        warnings.warn(told, stacklevel=2)
    return ConnectedInputs(first, second, key_groups, time)


def _together(left: Input, right: Input) -> tuple[Input, Input]:
    """Return both inputs with sources that know ``max_ahead`` and each other, since Kafka's are read in step."""
    left, right = _with_max_ahead(left), _with_max_ahead(right)
    one, two = getattr(left, "source", None), getattr(right, "source", None)
    if not (isinstance(one, Source) and isinstance(two, Source)):
        return left, right
    return replace(left, source=one.together_with(two)), replace(right, source=two.together_with(one))


def _with_max_ahead(declared: Input) -> Input:
    source = getattr(declared, "source", None)
    if not isinstance(source, Source) or declared.max_ahead is None:
        return declared
    return replace(declared, source=source.with_max_ahead(milliseconds(declared.max_ahead, "max_ahead")))


class ConnectedInputs:
    """Two inputs with a common key, made by ``connect``. Its methods apply a join or a function to them."""

    def __init__(self, left: BoundInput, right: BoundInput, key_groups: int, time: TimePolicy) -> None:
        self._left, self._right, self._key_groups, self._time = left, right, key_groups, time

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
        time the last in the total order matches (looking forward, pandas takes the first). Each left row is emitted
        once, when its match is final.

        Args:
            how: ``"left"`` emits left rows without a match with nulls; ``"inner"`` does not emit them.
            direction: ``"backward"`` matches the last right row that is not later, ``"forward"`` the first that is not
                earlier, ``"nearest"`` the nearer of the two and at equal distance the earlier. Looking forward, left
                rows wait until their match is certain.
            tolerance: The largest distance in event time at which a right row matches, inclusive, such as ``"1 hour"``
                or a ``timedelta``; None is no limit. It also bounds how long right rows are kept.
            allow_exact_matches: Whether a right row with the same event time matches.
            suffixes: What is appended to column names that both inputs have, left and right, such as
                ``("", "_customer")``. None refuses such names.

        Returns:
            The join. Its columns are the left's, then the right's without its key columns. If the name of the right's
            event-time column is taken, the column is called ``<right input's name>_event_time``.

        Raises:
            ConfigurationError: An argument is invalid.
            SchemaError: Column names collide, or an input has no event time.
        """
        return self._apply(
            AsofJoin(
                how=how,
                direction=direction,
                tolerance=tolerance,
                allow_exact_matches=allow_exact_matches,
                suffixes=suffixes,
            )
        )

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
        same event time, in microseconds, the last in the total order is valid. Each left row is emitted once, when
        the watermark reaches its timestamp.

        Args:
            how: ``"left"`` emits left rows without a valid version with nulls; ``"inner"`` does not emit them.
            deletes: A boolean column of the right input that is true in tombstones, which delete their key. It is not
                in the result. None if there is no such column.
            null_payload_deletes: Whether a right row is a tombstone if all its columns are null except for its key,
                event time, partition, sequence and ``deletes``, as in a compacted Kafka topic.
            retention: How long after its event time a version remains valid and is kept, inclusive, such as
                ``"90 days"``. None keeps it until the next version or tombstone.
            suffixes: As in ``asof_join``.

        Returns:
            The join, with the columns of ``asof_join``.

        Raises:
            ConfigurationError: An argument is invalid.
            SchemaError: ``deletes`` is not a boolean column, column names collide, or an input has no event time.
        """
        return self._apply(
            TemporalJoin(
                how=how,
                deletes=deletes,
                null_payload_deletes=null_payload_deletes,
                retention=retention,
                suffixes=suffixes,
            )
        )

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
        return self._apply(
            IntervalJoin(
                lower=lower,
                upper=upper,
                how=how,
                lower_inclusive=lower_inclusive,
                upper_inclusive=upper_inclusive,
                suffixes=suffixes,
            )
        )

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
            function: An instance of a ``KeyedCoProcessFunction``. It is pickled and sent to the workers.
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
        # Spark's own conversion keeps the nullability of nested fields.
        declared = to_arrow_schema(output_type, timezone="UTC") if isinstance(output_type, StructType) else output_type
        schema = as_schema(declared, "output_type")
        process = KeyedCoProcess(
            function, schema, order, check_tags(side_outputs, type(function).__name__), processing_time_timers
        )
        check_picklable(function)
        return self._apply(process)

    def _apply(self, operation: Operation) -> Joined:
        plan = Plan(operation, self._left.spec, self._right.spec, self._key_groups, self._time)
        plan.operation.output_schema(plan.left, plan.right)
        return Joined(plan, self._left, self._right)


def _changed_columns(*inputs: BoundInput) -> Iterator[str]:
    """Yield a warning for each column whose collation is lost."""
    for each in inputs:
        for name, collation in each.collated.items():
            yield (
                f"input {each.spec.name!r}: column {name!r} has the collation {collation}, which results and state do "
                f"not keep: its texts stay as they are, and come out as UTF8_BINARY; collate the result anew where it "
                f"matters"
            )


def _cost(key_groups: int, left: BoundInput) -> Iterator[str]:
    """Yield a warning if the calls of all key groups, with or without rows, take long."""
    cores = max(1, left.frame.sparkSession.sparkContext.defaultParallelism)
    low, high = (key_groups * each / cores / 1000 for each in _CALL_MS)
    if high >= _LONG_SECONDS:
        yield (
            f"key_groups={key_groups}: {'each micro-batch' if left.is_streaming else 'a run'} will take {low:,.0f} to "
            f"{high:,.0f} seconds on {cores} cores however few its rows are, since a key group costs some "
            f"milliseconds; results do not depend on their number, and a few for each core are right, such as "
            f"key_groups={min(key_groups, max(32, 4 * cores))}"
        )


def _epoch_millis(moment: datetime | None, what: str) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        example = "datetime(2026, 1, 31, tzinfo=timezone.utc)"
        msg = f"{what}: expected a datetime with a time zone, such as {example}, got {moment!r}"
        raise ConfigurationError(msg)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def _check(left: BoundInput, right: BoundInput) -> None:
    one, two = left.spec, right.spec
    if one.name == two.name:
        msg = f"both inputs are named {one.name!r}; give each a name= of its own"
        raise ConfigurationError(msg)
    if left.is_streaming != right.is_streaming:
        stream, static = (one.name, two.name) if left.is_streaming else (two.name, one.name)
        msg = (
            f"input {stream!r} is a stream, input {static!r} is static; both must be of one kind: "
            f"read {static!r} with spark.readStream, or {stream!r} with spark.read"
        )
        raise ConfigurationError(msg)
    if len(one.key) != len(two.key):
        msg = (
            f"input {one.name!r} has {len(one.key)} key columns ({', '.join(one.key)}), "
            f"input {two.name!r} has {len(two.key)} ({', '.join(two.key)}); "
            f"give both the same number, in the same order"
        )
        raise SchemaError(msg)
    for first, second in zip(one.key, two.key, strict=True):
        types = one.schema.field(first).type, two.schema.field(second).type
        if types[0] != types[1]:
            spelled = [type_to_ddl(dtype) for dtype in types]
            msg = (
                f"the key types differ: {first!r} of input {one.name!r} is {spelled[0]}, "
                f"{second!r} of input {two.name!r} is {spelled[1]}; "
                f"{_cure(first, second, spelled)}"
            )
            raise SchemaError(msg)


def _cure(first: str, second: str, types: list[str]) -> str:
    """Return which column to cast to the wider type, or to string, so that no value is lost."""
    wider = [*("tinyint", "smallint", "int", "bigint"), "string"]
    if not set(types) <= set(wider):
        return "cast one to the other's type"
    column, target = (first, types[1]) if wider.index(types[0]) < wider.index(types[1]) else (second, types[0])
    return f"cast one: col({column!r}).cast({target!r})"
