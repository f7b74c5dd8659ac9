"""A plan on Spark: as a DataFrame, and as a query.

Both inputs are packed into one DataFrame of tagged messages, which is grouped by key group and passed to one call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from cojoin.engine.operator import REJECTED
from cojoin.errors import ConfigurationError
from cojoin.session.arrow_types import arrow_schema
from cojoin.session.pickling import check_picklable
from cojoin.session.sealed import for_workers
from cojoin.session.session_settings import is_left_to_spark, pipeline_refusals
from cojoin.spark.batch.call import EMITTED_DDL, STATE_DDL, StaticCall, StreamingCall
from cojoin.spark.batch.unpacking import unpack
from cojoin.spark.batch.written_files import OUTPUT_SETTING
from cojoin.spark.observed_rejections import with_rejections_told
from cojoin.spark.query.present_validity import check_present_validity
from cojoin.spark.query.start import start_query
from cojoin.spark.sinks.delta_sink import DeltaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cojoin.checkpoints.segment_files import SegmentFolder
    from cojoin.checkpoints.snapshot_row import SnapshotCadence
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.query_options import QueryOptions
    from cojoin.spark.query.triggers import Phase

__all__ = ["SparkExecution"]


class SparkExecution:
    """Executes a plan over inputs of Spark.

    Args:
        left: The left input.
        right: The right input.
    """

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
        """Where each input's rows are, in words."""
        return self._left.title, self._right.title

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._left.is_streaming

    def output_type(self, declared: Any) -> Any:
        """Return an output type; Spark's own conversion keeps the nullability of nested fields."""
        return arrow_schema(declared) if isinstance(declared, StructType) else declared

    def check_function(self, function: KeyedCoProcessFunction) -> None:
        """Check that a function can be sent to the workers.

        Raises:
            ConfigurationError: It can't be pickled.
        """
        check_picklable(function)

    def to_dataframe(self, plan: Plan, name: str) -> DataFrame:
        """Return one output of a plan as a DataFrame; ``name`` is a key of its ``outputs``.

        Raises:
            ConfigurationError: A static side is beside a stream.
        """
        if self._is_beside:
            msg = (
                f"to_dataframe(): input {plan.right.name!r} is a static side, whose version a checkpoint of cojoin's "
                f"pins, and a plain DataFrame has none; use start()"
            )
            raise ConfigurationError(msg)
        for each in self.bound:
            if each.source is not None and each.source.begins_with_snapshot:
                msg = (
                    f"input {each.spec.name!r}: the rows of its table must be in the state before other rows are "
                    f"joined, which only a query with a checkpoint sees to; use start(...)"
                )
                raise ConfigurationError(msg)
        with pipeline_refusals("to_dataframe()"):
            check_present_validity(self.bound)
            emitted = self.emitted(plan) if self.is_streaming else self._emitted_once(plan)
            if not self.is_streaming and name != REJECTED:
                emitted = with_rejections_told(emitted, [spec.name for spec in plan.inputs], depth=2)
            return unpack(emitted, *plan.outputs[name])

    def start(self, plan: Plan, options: QueryOptions) -> Query:
        """Start a plan as a query; see ``Joined.start``."""
        spark = self._left.frame.sparkSession
        # Other sinks record the batch elsewhere: in a folder's name, an argument or a marker.
        plan = replace(plan, stamps_rejected=options.rejected is None or isinstance(options.rejected, DeltaSink))
        # A value that it can't have is an error now, and not in the first batch.
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
        told_by: str | None = None,
        phase: Phase = "main",
    ) -> DataFrame:
        """Return the stream of ``(kind, payload)`` that the calls emit.

        Args:
            plan: What the calls execute.
            control: A further input, of control rows.
            resumed_at: The ids of the micro-batches before which the query was stopped.
            cadence: When a snapshot is due.
            segments: The store of flushed segments; None keeps all rows in Spark's state.
            told_by: The setting by which the calls learn of their micro-batch; None where local properties say it.
            phase: For what the stream is made.
        """
        run = for_workers(StreamingCall(plan, resumed_at, cadence, segments, told_by), _function_of(plan))

        timeout = GroupStateTimeout.ProcessingTimeTimeout if plan.has_timeouts else GroupStateTimeout.NoTimeout
        execution = self._without_end() if phase == "live" else self
        inputs = execution._packed(plan, is_planned=phase == "at rest")  # noqa: SLF001 - its own class
        packed = inputs if control is None else inputs.unionByName(control)
        return packed.groupBy("key_group").applyInPandasWithState(run, EMITTED_DDL, STATE_DDL, "append", timeout)

    def _emitted_once(self, plan: Plan) -> DataFrame:
        run = for_workers(StaticCall(plan), _function_of(plan))
        return self._packed(plan).groupBy("key_group").applyInArrow(run, EMITTED_DDL)

    def _without_end(self) -> SparkExecution:
        """Return the execution over the same inputs as a run without an end reads them."""
        sources = [None if each.source is None else each.source.without_end() for each in self.bound]
        if all(source is each.source for source, each in zip(sources, self.bound, strict=True)):
            return self
        one, two = sources
        if one is not None and two is not None:
            one, two = one.together_with(two), two.together_with(one)
        return SparkExecution(self._left.read_from(one), self._right.read_from(two))

    @property
    def _is_beside(self) -> bool:
        """Whether the right input is a table beside a stream, whose rows come through the control input."""
        return self._left.is_streaming and self._right.spec.static

    def _packed(self, plan: Plan, *, is_planned: bool = False) -> DataFrame:
        sides, groups = (self._left,) if self._is_beside else (self._left, self._right), plan.key_groups
        frames = (each.packed_at_rest(groups) if is_planned else each.packed(groups) for each in sides)
        packed = reduce(lambda one, two: one.union(two), frames)
        return packed.select("key_group", F.col("tag"), "payload")


def _function_of(plan: Plan) -> object:
    """Return the user's function that a plan runs, whose module workers import; None for a ready join."""
    return getattr(plan.operation, "function", None)
