"""A plan on Spark: its two inputs checked together, and executed as a DataFrame and as a query.

Both inputs are packed into one DataFrame of tagged messages, which is grouped by key group and passed to one call.

A static DataFrame is lazy, so the number of rows that it rejects is known only after an action on it. Spark counts them
in the same action (``observe``), from the statistics of the calls, so nothing runs a second time. A listener of the
session's actions gets the counts of the first one, and warns as if at the line that made the DataFrame. The counts are
those of that action: one that needs a few rows, such as ``show()``, may process only a part. The JVM calls the listener
after each action, for a fraction of a millisecond and not in the user's thread. cojoin keeps a line of text for each of
the last ``_MOST_WAITING`` DataFrames that had no action yet.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import uuid
import warnings
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from cojoin.engine.batch_report import rejections
from cojoin.engine.input import check_pair
from cojoin.engine.input_spec import Reason
from cojoin.engine.operator import REJECTED
from cojoin.engine.values.rows import free_name
from cojoin.errors import ConfigurationError, MissingRowsWarning, SchemaError
from cojoin.session.arrow_types import arrow_schema, spark_schema
from cojoin.session.sealed import check_picklable, for_workers
from cojoin.session.sessions import active_session, adapter_of, is_left_to_spark, pipeline_refusals
from cojoin.session.workers import warm_up, warm_up_planning
from cojoin.spark.batch.call import EMITTED_DDL, STATE_DDL, STATISTICS, StaticCall, StaticRows, StreamingCall
from cojoin.spark.batch.packing import unpack
from cojoin.spark.batch.written_files import OUTPUT_SETTING
from cojoin.spark.bound_input import BoundInput, SparkAdvice
from cojoin.spark.query.input_checks import check_present_validity
from cojoin.spark.query.start import start_query
from cojoin.spark.sinks.delta_sink import DeltaSink
from cojoin.spark.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.segment_files import SegmentFolder
    from cojoin.checkpoints.snapshot_row import SnapshotCadence
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input import Input
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.query_options import QueryOptions
    from cojoin.spark.query.triggers import Phase

_MOST_WAITING = 32
_AT_EXIT_MS = 500
"""The milliseconds for which the end of the process waits for the counts of an action that has just ended."""


class _Waiting(NamedTuple):
    """A DataFrame that had no action yet: its inputs' names, and the user's line as ``warn_explicit`` takes it."""

    names: Sequence[str]
    line: Mapping[str, Any]


_WAITING: WeakKeyDictionary[SparkSession, dict[str, _Waiting]] = WeakKeyDictionary()
"""Each session's DataFrames that had no action yet, by the names of their counts."""


def _with_rejection_warnings(emitted: DataFrame, text: Column, names: Sequence[str], depth: int) -> DataFrame:
    """Return the emitted rows such that the first action on them warns of the rows that it has rejected.

    ``text`` has the statistics of calls, and is otherwise null. ``depth`` is the number of calls between this one and
    the user's line. With Spark Connect it does not warn: its ``toPandas`` attaches what is observed to the user's
    DataFrame.
    """
    session = emitted.sparkSession
    if not adapter_of(session).has_listeners:
        return emitted
    frame = sys._getframe(depth + 1)  # noqa: SLF001 - as warnings finds the user's line
    line = {
        "filename": frame.f_code.co_filename,
        "lineno": frame.f_lineno,
        "registry": frame.f_globals.setdefault("__warningregistry__", {}),
        "module": frame.f_globals.get("__name__"),
    }
    waiting = _waiting_of(session)
    name = f"cojoin-{uuid.uuid4().hex}"
    waiting[name] = _Waiting(tuple(names), line)
    for oldest in list(waiting)[:-_MOST_WAITING]:
        waiting.pop(oldest, None)
    return emitted.observe(name, *_sums(text))


def _waiting_of(session: SparkSession) -> dict[str, _Waiting]:
    if session not in _WAITING:
        waiting: dict[str, _Waiting] = {}
        adapter_of(session).add_listener(lambda: list(waiting), partial(_warn, waiting))
        _WAITING[session] = waiting
    return _WAITING[session]


def _sums(text: Column) -> list[Column]:
    """Return the sums that Spark computes from the calls' statistics."""
    names = ["rows_in", *(f"rejected.{reason}" for reason in get_args(Reason))]
    places = [f"inputs[{side}].{name}" for side in (0, 1) for name in names]
    return [F.sum(F.get_json_object(text, f"$.{place}").cast("bigint")).alias(place) for place in places]


def _warn(waiting: dict[str, _Waiting], name: str, metrics: Mapping[str, int | None]) -> None:
    """Warn of the rows that an action has rejected, in the thread in which the JVM calls a listener."""
    waited = waiting.pop(name, None)
    if waited is None:
        return
    inputs = []
    for side, input_name in enumerate(waited.names):
        counts = {reason: metrics.get(f"inputs[{side}].rejected.{reason}") for reason in get_args(Reason)}
        rejected = {reason: count for reason, count in counts.items() if count}
        inputs.append((input_name, metrics.get(f"inputs[{side}].rows_in") or 0, rejected))
    warning = rejections(inputs, 'to_dataframe("rejected")')
    if warning is not None:
        warnings.warn_explicit(warning, MissingRowsWarning, **waited.line)


@atexit.register
def _await_warnings() -> None:
    for session, waiting in list(_WAITING.items()):
        # The session may have been stopped.
        with contextlib.suppress(Exception):
            if waiting:
                adapter_of(session).await_listeners(_AT_EXIT_MS)


class SparkExecution:
    """Executes a plan over two inputs of Spark."""

    def __init__(self, left: BoundInput, right: BoundInput) -> None:
        self._left, self._right = left, right

    @property
    def inputs(self) -> tuple[InputSpec, InputSpec]:
        """The specifications of both inputs, left first."""
        return self._left.spec, self._right.spec

    @property
    def bound(self) -> tuple[BoundInput, BoundInput]:
        """Both inputs with their sources, left first."""
        return self._left, self._right

    @property
    def sources(self) -> tuple[str, str]:
        """The place of each input's rows, in words."""
        return self._left.title, self._right.title

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._left.is_streaming

    def output_type(self, declared: Any) -> Any:
        """Return an output type; Spark's own conversion keeps the nullability of nested fields."""
        return arrow_schema(declared) if isinstance(declared, StructType) else declared

    def check_function(self, function: KeyedCoProcessFunction) -> None:
        """Raise a ConfigurationError if a function can't be pickled, to be sent to the workers."""
        check_picklable(function)

    def to_dataframe(self, plan: Plan, name: str, depth: int = 2) -> DataFrame:
        """Return one output of a plan as a DataFrame; ``name`` is a key of its ``outputs``.

        ``depth`` is the number of calls from the user's line to this one, included; a warning of rows names that line.
        """
        if self._has_static_side:
            msg = (
                f"to_dataframe(): input {plan.right.name!r} is a static side: its version is pinned in a "
                f"checkpoint of cojoin's, and a plain DataFrame has none; use start()"
            )
            raise ConfigurationError(msg)
        for bound in self.bound:
            if bound.source is not None and bound.source.begins_with_snapshot:
                msg = (
                    f"input {bound.spec.name!r}: the rows of its table must be in the state before other rows are "
                    f"joined, which only a query with a checkpoint ensures; use start(...)"
                )
                raise ConfigurationError(msg)
        with pipeline_refusals("to_dataframe()"):
            check_present_validity(self.bound)
            if not self.is_streaming:
                return self._rows_once(plan, name, depth)
            return unpack(self.emitted(plan), *plan.outputs[name])

    def start(self, plan: Plan, options: QueryOptions) -> Query:
        """Start a plan as a query; see ``Joined.start``."""
        spark = self._left.frame.sparkSession
        # Other sinks record the batch elsewhere: in a folder's name, an argument or a marker.
        plan = replace(plan, stamps_rejected=options.rejected is None or isinstance(options.rejected, DeltaSink))
        # This raises for an invalid value of the setting, which would otherwise fail the first batch.
        is_left_to_spark(spark, OUTPUT_SETTING)

        def emit(plan: Plan, inputs: tuple[BoundInput, BoundInput], *arguments: Any) -> DataFrame:
            return SparkExecution(*inputs).emitted(plan, *arguments)

        return start_query(plan, (self._left, self._right), emit, options)

    def emitted(
        self,
        plan: Plan,
        control: DataFrame | None = None,
        resumed_at: frozenset[int] = frozenset(),
        cadence: SnapshotCadence | None = None,
        segments: SegmentFolder | None = None,
        facts_setting: str | None = None,
        phase: Phase = "main",
    ) -> DataFrame:
        """Return the stream of ``(kind, payload)`` that the calls emit.

        ``control`` is a further input, of control rows. ``resumed_at`` are the ids of the micro-batches before which
        the query was stopped. Without ``segments``, all rows stay in Spark's state; without ``facts_setting``, local
        properties carry the facts of a micro-batch.
        """
        run = for_workers(StreamingCall(plan, resumed_at, cadence, segments, facts_setting), _function_of(plan))
        timeout = GroupStateTimeout.ProcessingTimeTimeout if plan.has_timeouts else GroupStateTimeout.NoTimeout
        execution = self._without_end() if phase == "live" else self
        # The jobs of a query have the time of their batch as a local property.
        has_clock = control is None or facts_setting is not None
        inputs = execution._packed(plan, is_planned=phase == "planned", has_clock=has_clock)  # noqa: SLF001 - its own class
        packed = inputs if control is None else inputs.unionByName(control)
        return packed.groupBy("key_group").applyInPandasWithState(run, EMITTED_DDL, STATE_DDL, "append", timeout)

    def _rows_once(self, plan: Plan, name: str, depth: int) -> DataFrame:
        """Return an output of static inputs; the calls return its rows unpacked where Spark keeps its types."""
        schema = plan.outputs[name][1]
        declared = spark_schema(schema)
        is_direct = schema.types == arrow_schema(declared).types and all(field.nullable for field in schema)
        column = free_name("statistics", schema.names)
        if is_direct:
            call: StaticCall = StaticRows(plan, name, column)
            columns, text = declared.add(column, "string"), F.col(f"`{column}`")
        else:
            call, columns = StaticCall(plan), EMITTED_DDL
            text = F.when(F.col("kind") == F.lit(STATISTICS), F.col("payload").cast("string"))
        run = for_workers(call, _function_of(plan))
        packed, tasks = self._packed(plan), min(plan.key_groups, _bytes_of_files(self.bound) // _BYTES_OF_TASK)
        if tasks > adapter_of(packed.sparkSession).parallel_tasks():
            # Spark would make one task for each core, and a core that ends early would wait for the last one.
            packed = packed.repartition(tasks, "key_group")
        emitted = packed.groupBy("key_group").applyInArrow(run, columns)
        if name != REJECTED:
            emitted = _with_rejection_warnings(emitted, text, [spec.name for spec in plan.inputs], depth + 1)
        if is_direct:
            return emitted.where(text.isNull()).drop(column)
        return unpack(emitted, *plan.outputs[name])

    def _without_end(self) -> SparkExecution:
        """Return the execution over the same inputs, with their sources as a run without an end reads them."""
        sources = [None if each.source is None else each.source.without_end() for each in self.bound]
        if all(source is each.source for source, each in zip(sources, self.bound, strict=True)):
            return self
        one, two = sources
        if one is not None and two is not None:
            one, two = one.together_with(two), two.together_with(one)
        return SparkExecution(self._left.read_from(one), self._right.read_from(two))

    @property
    def _has_static_side(self) -> bool:
        """Whether the right input is a static side of a stream, whose rows the control input brings."""
        return self._left.is_streaming and self._right.spec.static

    def _packed(self, plan: Plan, *, is_planned: bool = False, has_clock: bool = True) -> DataFrame:
        sides = (self._left,) if self._has_static_side else self.bound
        packs = (each.packed_empty if is_planned else each.packed for each in sides)
        frames = (pack(plan.key_groups, has_clock=has_clock) for pack in packs)
        packed = reduce(lambda one, two: one.union(two), frames)
        return packed.select("key_group", F.col("tag"), "payload")


def _function_of(plan: Plan) -> object:
    """Return the user's function that a plan runs, whose module workers import; None for a ready join."""
    return getattr(plan.operation, "function", None)


_KEY_GROUPS = 32
"""The number of key groups if the user names none."""

_LEAST_GROUP_BYTES = 256 << 10
"""The bytes of static inputs that make a key group worth its cost; with fewer, one call is quicker than two."""

_MOST_GROUP_BYTES, _MOST_STATIC_GROUPS = 4 << 20, 512
"""The bytes of files above which static inputs get another key group, and the most key groups that they get by size.

A call has all rows of its key group in memory, where they are many times as large as in a file.
"""

_BYTES_OF_TASK = 80 << 20
"""The bytes of files of static inputs for which there is another task that joins them."""

_CALL_MS = 1.5, 4.0
"""The lower and the usual upper bound of what a key group costs per micro-batch, in milliseconds, even without rows."""

_LONG_SECONDS = 5
"""The estimated seconds per micro-batch from which the user is warned."""


def bind_inputs(left: Input, right: Input, key_groups: int | None) -> tuple[SparkExecution, int, list[str]]:
    """Return the execution of two inputs of Spark, the number of key groups, and warnings for the user.

    Without ``key_groups``, the number is chosen, by the size of static inputs. A ConfigurationError or SchemaError
    means that an input can't be opened, or that the inputs do not fit together.
    """
    session = active_session()
    if session is not None:
        warm_up(session)
    left, right = _together(left, right)
    with pipeline_refusals("connect()"):
        first, second = BoundInput(left, "left", 1), BoundInput(right, "right", 2)
    _check(first, second)
    if session is not None and (first.reads_by_python or second.reads_by_python):
        warm_up_planning(session)
    if not first.spec.key and key_groups not in (None, 1):
        msg = (
            f"key_groups: expected None or 1 with key=(), got {key_groups}: all rows have one key, so one key group "
            f"has them all, and one task joins them"
        )
        raise ConfigurationError(msg)
    groups = (_KEY_GROUPS if first.spec.key else 1) if key_groups is None else key_groups
    if not first.is_streaming:
        groups = _static_groups(groups, (first, second))
    padded = [f"key: {message.format('only texts that fill it match')}" for message, _ in _padded(first, second)]
    return SparkExecution(first, second), groups, [*_changed_columns(first, second), *padded, *_cost(groups, first)]


def _static_groups(groups: int, inputs: Sequence[BoundInput]) -> int:
    """Return the number of key groups of static inputs; for streams it would be ``groups``.

    Spark only estimates a plan's size, for a join as the product of its sides. So the number is greater than ``groups``
    only by the size of files.
    """
    needed = min(_bytes_of_files(inputs) // _MOST_GROUP_BYTES, _MOST_STATIC_GROUPS) if inputs[0].spec.key else 1
    return max(min(groups, 1 + sum(map(_size, inputs)) // _LEAST_GROUP_BYTES), needed)


def _bytes_of_files(inputs: Sequence[BoundInput]) -> int:
    """Return the size in bytes of the static inputs whose files the workers read."""
    return sum(_size(each) for each in inputs if each.reads_files)


def _size(bound: BoundInput) -> int:
    """Return the size of a static input in bytes, as Spark estimates it: the largest number if it is unknown."""
    return adapter_of(bound.frame.sparkSession).plan_bytes(bound.frame)


def _check(left: BoundInput, right: BoundInput) -> None:
    one, two = left.spec, right.spec
    if one.static and not left.is_streaming and right.is_streaming:
        msg = (
            f"input {one.name!r} is a static side, and it is on the left: its rows would be looked up in the stream "
            f"{two.name!r}, which never ends; make the stream the left input, and the table the right one"
        )
        raise ConfigurationError(msg)
    is_static_side = left.is_streaming and two.static
    if left.is_streaming != right.is_streaming and one.name != two.name and not is_static_side:
        stream, static = (one.name, two.name) if left.is_streaming else (two.name, one.name)
        msg = (
            f"input {stream!r} is a stream, input {static!r} is static; both must be of one kind: "
            f"read {static!r} with spark.readStream, or {stream!r} with spark.read; or have the stream on the left, "
            f"and on the right a Delta table of which one version is pinned: cojoin.sources.delta(..., static=True)"
        )
        raise ConfigurationError(msg)
    for spec in (one, two):
        if spec.refreshes and not is_static_side:
            msg = f"refresh: input {spec.name!r} is not joined with a stream, so it is read once; leave refresh= out"
            raise ConfigurationError(msg)
    for message, never in _padded(left, right):
        if never:
            msg = f"the key types differ: {message.format('no two keys would be equal')}"
            raise SchemaError(msg)
    check_pair(one, two, (SparkAdvice(), SparkAdvice()))


def _padded(left: BoundInput, right: BoundInput) -> Iterator[tuple[str, bool]]:
    """Yield a message for each key column whose two sides pad texts differently, and whether no two keys can be equal.

    The message has ``{}`` for the consequence. Spark's own joins pad the shorter of two ``char`` columns; they compare
    a ``char`` with other texts as it is.
    """
    for one, two in zip(left.spec.key, right.spec.key, strict=False):
        types = left.length_type(one), right.length_type(two)
        if types[0] == types[1] or not any(each.startswith("char") for each in types):
            continue
        padded = [int(each[5:-1]) for each in types if each.startswith("char")]
        limit = next((int(each[8:-1]) for each in types if each.startswith("varchar")), padded[0])
        cures = dict.fromkeys((_trimmed(left, one), _trimmed(right, two)))
        yield (
            (
                f"{one!r} of input {left.spec.name!r} is {types[0]}, {two!r} of input {right.spec.name!r} is "
                f"{types[1]}, and a char(n) is padded with blanks to n characters: {{}}; leave the blanks out on both "
                f"sides: {' and '.join(cures)}"
            ),
            len(padded) > 1 or limit < padded[0],
        )


def _trimmed(bound: BoundInput, column: str) -> str:
    if bound.source is None:
        return f"df.withColumn({column!r}, F.rtrim({column!r}))"
    return f"ALTER TABLE ... ALTER COLUMN {column} TYPE string"


def _together(left: Input, right: Input) -> tuple[Input, Input]:
    """Return both inputs with their settings in their sources, which also get each other: Kafka's are read in step."""
    left, right = _with_settings(left, "left"), _with_settings(right, "right")
    one, two = getattr(left, "source", None), getattr(right, "source", None)
    if not (isinstance(one, Source) and isinstance(two, Source)):
        return left, right
    return replace(left, source=one.together_with(two)), replace(right, source=two.together_with(one))


def _with_settings(declared: Input, default_name: str) -> Input:
    """Return an input whose source has its name and its settings."""
    source = getattr(declared, "source", None)
    if not isinstance(source, Source):
        return declared
    return replace(declared, source=source.of_input(declared.name or default_name, declared))


def _changed_columns(*inputs: BoundInput) -> Iterator[str]:
    """Yield a warning for each column whose collation is lost."""
    for bound in inputs:
        for name, collation in bound.collated.items():
            yield (
                f"input {bound.spec.name!r}: column {name!r} has the collation {collation}, which results and state do "
                f"not keep: its texts stay as they are, and are UTF8_BINARY in the result; collate the result again "
                f"where it matters"
            )


def _cost(key_groups: int, left: BoundInput) -> Iterator[str]:
    """Yield a warning if the calls of all key groups, with or without rows, take long."""
    if key_groups * max(_CALL_MS) < 1000 * _LONG_SECONDS:
        return
    cores = adapter_of(left.frame.sparkSession).parallel_tasks()
    low, high = (key_groups * each / cores / 1000 for each in _CALL_MS)
    if high >= _LONG_SECONDS:
        yield (
            f"key_groups={key_groups}: {'each micro-batch' if left.is_streaming else 'a run'} will take {low:,.0f} to "
            f"{high:,.0f} seconds on {cores} cores however few its rows are, since a key group costs some "
            f"milliseconds; results do not depend on their number, and a few for each core are right, such as "
            f"key_groups={min(key_groups, max(32, 4 * cores))}"
        )
