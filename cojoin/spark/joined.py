"""Two inputs with an operation: the tagged union, the single call, and the ways out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from cojoin.errors import ConfigurationError
from cojoin.inputs import REJECTED_SCHEMA
from cojoin.spark.call import EMITTED_DDL, OUTPUT, REJECTED, STATE_DDL, Plan, StaticCall, StreamingCall
from cojoin.spark.query import Query, start_query
from cojoin.spark.unpacking import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cojoin.spark.input import BoundInput
    from cojoin.spark.sinks import SinkLike
    from cojoin.spark.triggers import Trigger

__all__ = ["Joined"]


class Joined:
    """A join or a function's run, not yet started."""

    def __init__(self, plan: Plan, left: BoundInput, right: BoundInput) -> None:
        self._plan, self._left, self._right = plan, left, right

    @property
    def plan(self) -> Plan:
        """What is done, with which inputs: what the workers are told."""
        return self._plan

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._left.is_streaming

    def to_dataframe(self, output: Literal["main", "rejected"] = "main") -> DataFrame:
        """Give one output as a plain DataFrame.

        From streams it is a streaming DataFrame for any sink and trigger of Spark's, in append mode; rows that wait
        for the watermark at its end stay in its state. From static inputs it is a static one: the operator runs once,
        to the end of time.

        Args:
            output: ``"main"``, or ``"rejected"`` for the rows that were not admitted, with their reasons. Each
                DataFrame runs the operator by itself; ``start`` gives both from one run.
        """
        if output not in ("main", "rejected"):
            msg = f"output: expected 'main' or 'rejected', got {output!r}"
            raise ConfigurationError(msg)
        emitted = self._emitted() if self.is_streaming else self._emitted_once()
        if output == "rejected":
            return unpack(emitted, REJECTED, REJECTED_SCHEMA)
        return unpack(emitted, OUTPUT, self._plan.output)

    def start(
        self,
        *,
        output: SinkLike,
        checkpoint: str,
        trigger: Trigger,
        rejected: SinkLike | None = None,
        name: str | None = None,
    ) -> Query:
        """Start a query that writes the output, the rejected rows and its progress, exactly once into Delta.

        Args:
            output: ``cojoin.sinks.delta(...)``, ``cojoin.sinks.parquet(...)``, or a callable that takes ``(DataFrame,
                batch_id)``.
            checkpoint: The directory of the query's checkpoint: one for each query, kept between its runs.
            trigger: ``Trigger.available_now()``, ``Trigger.available_now(drain=True)`` or
                ``Trigger.processing_time("10 seconds")``.
            rejected: Where rejected rows go; by default a Delta table ``rejected`` in the checkpoint directory.
            name: The query's name in Spark's UI.

        Raises:
            ConfigurationError: Inputs that are not streams, a sink or trigger that is none.
            CheckpointError: A checkpoint of another query, of another shape of this one, or of a drained one.
        """
        if not self.is_streaming:
            msg = (
                f"inputs {self._plan.left.name!r} and {self._plan.right.name!r} are static, start() runs streams; "
                f"use to_dataframe(), or read them with spark.readStream"
            )
            raise ConfigurationError(msg)
        return start_query(
            self._left.frame.sparkSession,
            self._plan,
            self._emitted,
            output=output,
            rejected=rejected,
            checkpoint=checkpoint,
            trigger=trigger,
            name=name,
        )

    def _emitted(self, control: DataFrame | None = None) -> DataFrame:
        """Give what the calls emit: a stream of ``(kind, payload)``. ``control`` is a further input of control rows."""
        call = StreamingCall(self._plan)

        def run(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
            return call(key, frames, state)

        packed = self._packed() if control is None else self._packed().unionByName(control)
        return packed.groupBy("key_group").applyInPandasWithState(
            run, EMITTED_DDL, STATE_DDL, "append", GroupStateTimeout.NoTimeout
        )

    def _emitted_once(self) -> DataFrame:
        call = StaticCall(self._plan)

        def run(packed: pa.Table) -> pa.Table:
            return call(packed)

        return self._packed().groupBy("key_group").applyInArrow(run, EMITTED_DDL)

    def _packed(self) -> DataFrame:
        left, right = (each.packed(self._plan.key_groups) for each in (self._left, self._right))
        return left.union(right).select("key_group", F.col("tag"), "payload")
