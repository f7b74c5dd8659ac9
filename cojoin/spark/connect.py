"""Two inputs, connected: the checks that need both, and the doors to the joins and to functions."""

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
"""What a call of a key group costs at least and mostly, whatever it holds."""

_LONG_SECONDS = 5
"""From how long on a user is told."""


def connect(
    left: Input,
    right: Input,
    *,
    key_groups: int = 32,
    when_all_idle: AllIdle = "hold",
    hold_left_until: datetime | None = None,
) -> ConnectedInputs:
    """Connect two inputs by their keys.

    Args:
        left: The first input; in joins each of its rows gets a result.
        right: The second input; in joins its rows are the versions.
        key_groups: Into how many parts the keys are hashed: the unit of parallel work and of state. A call of one
            costs some milliseconds whatever it holds, so a few for each core are right. It can't change while a
            checkpoint is in use.
        when_all_idle: What time does when every input is idle: ``"hold"`` stands still, ``"max"`` goes to the larger of
            their watermarks, as in Flink, so that the tail comes out.
        hold_left_until: A datetime with a time zone: time stands still until the right input's watermark has reached
            it, or the right is idle or finished; so left rows wait for the right's first load.

    Raises:
        ConfigurationError: The inputs don't go together, or a value that can't be right.

    Warns:
        UserWarning: So many key groups that empty calls alone take seconds; a column whose collation is not kept.
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
    """Let each source know what its input believes, and the other: some are read at one pace."""
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
    """Two inputs that share a key, made by ``connect``."""

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
        """Join each left row with the right row nearest to its event time: by default the newest that is not later.

        Args:
            how: ``"left"`` emits left rows without a match with nulls, ``"inner"`` does not emit them.
            direction: ``"backward"`` looks for the last right row that is not later, ``"forward"`` for the first that
                is not earlier, ``"nearest"`` for the nearer of both; forward rows wait until theirs is certain.
            tolerance: How far away the right row may be, itself included, such as ``"1 hour"``; it also bounds how long
                right rows are kept.
            allow_exact_matches: Whether a right row of the same microsecond matches.
            suffixes: What tells equal names apart, such as ``("", "_customer")``.

        Returns:
            The join; its columns are the left's, then the right's without its key. The right's event time, where its
            name is taken, becomes ``<right's name>_event_time``.

        Raises:
            ConfigurationError: An unknown value, or names that collide.
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
        """Join each left row with the version of its key in force at its event time; versions may be deleted.

        Args:
            how: ``"left"`` emits left rows without a version with nulls, ``"inner"`` does not emit them.
            deletes: A boolean column of the right that is true where a row deletes its key; it is not in the result.
            null_payload_deletes: Whether a right row whose payload is all null deletes its key, as a compacted Kafka
                topic's tombstones do.
            retention: How long after its event time a version is kept and may match; None is for ever.
            suffixes: What tells equal names apart, such as ``("", "_customer")``.

        Returns:
            The join, with the columns of ``asof_join``.

        Raises:
            ConfigurationError: An unknown value, a column that is none, or names that collide.
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
        """Join each left row with every right row of its key whose event time lies in an interval around its own.

        Args:
            lower: The least that the right row's time may be after the left row's, such as ``"-5 minutes"``.
            upper: The most, such as ``"1 hour"``.
            how: ``"inner"``, or ``"left"``, ``"right"``, ``"full"``: which side's rows also come out without a match,
                once, as soon as none can come any more.
            lower_inclusive: Whether the lower bound itself matches.
            upper_inclusive: Whether the upper bound itself matches.
            suffixes: What tells equal names apart, such as ``("", "_customer")``.

        Returns:
            The join, with the columns of ``asof_join``; its rows' own times may be behind the watermark by the larger
            of the bounds.

        Raises:
            ConfigurationError: An unknown value, bounds in the wrong order, or names that collide.
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
        """Run a function over both inputs, key by key.

        Args:
            function: An instance of a ``KeyedCoProcessFunction``.
            output_type: The columns of what it yields, as DDL, a ``StructType`` or an Arrow schema.
            order: ``"event_time"`` (rows wait for the watermark; deterministic) or ``"arrival"`` (Flink's).
            side_outputs: The tags that it may yield to.
            processing_time_timers: Whether it sets timers of processing time, so that micro-batches run without rows,
                too. None finds out by looking for the call in its methods.

        Raises:
            ConfigurationError: An output type that does not parse, something that is no function, or a function that
                can't be sent to the workers.
        """
        # Spark's own conversion knows the nullability of nested fields, too.
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
    """Warn of columns that do not come out as they are."""
    for each in inputs:
        for name, collation in each.collated.items():
            yield (
                f"input {each.spec.name!r}: column {name!r} has the collation {collation}, which results and state do "
                f"not keep: its texts stay as they are, and come out as UTF8_BINARY; collate the result anew where it "
                f"matters"
            )


def _cost(key_groups: int, left: BoundInput) -> Iterator[str]:
    """Warn of how long calls will take that may have no row: each key group has one."""
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
    """Say which column to cast: to the wider type, or to string, so that no value is lost."""
    wider = [*("tinyint", "smallint", "int", "bigint"), "string"]
    if not set(types) <= set(wider):
        return "cast one to the other's type"
    column, target = (first, types[1]) if wider.index(types[0]) < wider.index(types[1]) else (second, types[0])
    return f"cast one: col({column!r}).cast({target!r})"
