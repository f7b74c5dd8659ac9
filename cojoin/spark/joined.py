"""A join or a function over two inputs: ``to_dataframe`` and ``start``.

Both inputs are packed into one DataFrame of tagged messages, which is grouped by key group and passed to one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from cojoin.engine.operator import OUTPUT
from cojoin.engine.side_outputs import OutputTag
from cojoin.errors import ConfigurationError
from cojoin.spark.batch.call import EMITTED_DDL, STATE_DDL, Plan, StaticCall, StreamingCall
from cojoin.spark.batch.unpacking import unpack
from cojoin.spark.query.query_options import QueryOptions
from cojoin.spark.query.start import start_query
from cojoin.spark.restore.restoration import RestoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.checkpoints.segment_files import SegmentFolder
    from cojoin.checkpoints.snapshot_row import SnapshotCadence
    from cojoin.engine.time.durations import Duration
    from cojoin.spark.input import BoundInput
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.triggers import Trigger
    from cojoin.spark.sinks.sinks import SinkLike
    from cojoin.storage.locations import Location

__all__ = ["Joined"]


class Joined:
    """A join or a function over two inputs, not yet started.

    ``start`` runs it as a query with outputs, progress and snapshots; ``to_dataframe`` returns a plain DataFrame.
    """

    def __init__(self, plan: Plan, left: BoundInput, right: BoundInput) -> None:
        self._plan, self._left, self._right = plan, left, right

    @property
    def plan(self) -> Plan:
        """The operation and its inputs, as the workers receive them."""
        return self._plan

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._left.is_streaming

    def to_dataframe(self, output: Literal["main", "rejected"] | OutputTag = "main") -> DataFrame:
        """Return one output as a plain DataFrame.

        From static inputs the DataFrame is static: the operator runs once, to the end of time. From streams it is
        streaming and takes any of Spark's sinks and triggers, in append mode. Rows that still wait for the watermark
        when the stream stops remain in its state.

        A streaming DataFrame has no checkpoint of cojoin's, which has these consequences:

        - If processing time matters (processing-time timers, idleness, a watermark that follows the clock), it runs
          micro-batches without rows and never ends by itself. Use a ``processingTime`` trigger.
        - The time between two runs counts as idle time of the inputs.
        - A Delta table whose initial snapshot has more files than one micro-batch reads must be in the order of event
          time, or rows are late. ``start`` does not need this order.

        Args:
            output: ``"main"``; ``"rejected"`` for the rejected rows with their reasons; or the ``OutputTag`` of a side
                output. Each DataFrame runs the operator by itself, whereas ``start`` writes all outputs of one run.

        Returns:
            The rows of the output.

        Raises:
            ConfigurationError: The output does not exist.
        """
        name = output.tag_id if isinstance(output, OutputTag) else OUTPUT if output == "main" else str(output)
        outputs = self._plan.outputs
        if name not in outputs or (isinstance(output, OutputTag) and output not in self._plan.side_outputs):
            tags = "".join(f", or the tag {tag.tag_id!r}" for tag in self._plan.side_outputs)
            msg = f"output: expected 'main' or 'rejected'{tags}, got {output!r}"
            raise ConfigurationError(msg)
        return unpack(self._emitted() if self.is_streaming else self._emitted_once(), *outputs[name])

    def start(
        self,
        *,
        output: SinkLike,
        checkpoint: Location,
        trigger: Trigger,
        rejected: SinkLike | None = None,
        side_outputs: Mapping[OutputTag, SinkLike] | None = None,
        name: str | None = None,
        checkpoint_interval: Duration | int | None = "10 minutes",
        retained_checkpoints: int = 3,
        restore_from: Checkpoint | None = None,
        cut_back_output: bool = False,
        allow_data_loss: bool = False,
    ) -> Query:
        """Start a streaming query that writes the output, the side outputs, the rejected rows and the progress.

        Delta outputs are exactly once (``cojoin.sinks``). Start a stopped query again with the same ``checkpoint``; it
        resumes after its last micro-batch.

        Args:
            output: The sink of the main output: ``cojoin.sinks.delta(...)``, ``cojoin.sinks.parquet(...)``, or a
                callable that takes ``(DataFrame, batch_id)``.
            checkpoint: The directory of the query's checkpoint, as a text or a ``pathlib.Path``. Each query has its own
                and keeps it between runs. An output must not be in this directory, except for ``rejected`` and side
                outputs in their default places; nor may it be another output or a table that an input reads. Outputs
                must not move between runs, which can't be checked for callables. To write elsewhere, start a new
                query with ``restore_from``.
            trigger: ``Trigger.available_now()``, ``Trigger.available_now(drain=True)`` or
                ``Trigger.processing_time("10 seconds")``.
            rejected: The sink of the rejected rows; by default a Delta table ``rejected`` in the checkpoint directory.
            side_outputs: The sinks of a function's side outputs, by tag; by default Delta tables
                ``side_outputs/<tag id>`` in the checkpoint directory.
            name: The query's name in Spark's UI.
            checkpoint_interval: How often a snapshot of the state is taken: after an interval of processing time, such
                as ``"10 minutes"``, or after a number of micro-batches. None takes only savepoints. Snapshots are for
                ``restore_from`` and inspection; ordinary restarts do not need them.
            retained_checkpoints: How many of the newest snapshots are kept, in addition to savepoints.
            restore_from: The snapshot of another query to start from: its state, and its sources' positions at that
                time. ``checkpoint`` must then be a new directory. The number of key groups and of shuffle partitions
                may differ. The query may have an additional keyed state, nullable column or side output, or a wider
                type. To continue after a stop, start the query again with the same ``restore_from``.
            cut_back_output: With ``restore_from``, whether an output that continues in the old query's Delta table may
                remove what was written there after the snapshot.
            allow_data_loss: With ``restore_from``, whether records that the sources no longer have may be skipped.

        Returns:
            The running query.

        Raises:
            ConfigurationError: The inputs are not streams, a sink or trigger is invalid, or the place of an output is
                not allowed.
            CheckpointError: The checkpoint is in use by another run, or was written by another query, by an
                incompatible version of this one, or by one that was drained; an output has moved; or the snapshot
                can't be restored by this query.
            QueryFailedError: The workers could not load the restored state.
        """
        if not self.is_streaming:
            msg = (
                f"inputs {self._plan.left.name!r} and {self._plan.right.name!r} are static, start() runs streams; "
                f"use to_dataframe(), or read them with spark.readStream"
            )
            raise ConfigurationError(msg)
        options = QueryOptions(
            output=output,
            checkpoint=checkpoint,
            trigger=trigger,
            rejected=rejected,
            side_outputs={} if side_outputs is None else side_outputs,
            name=name,
            checkpoint_interval=checkpoint_interval,
            retained_checkpoints=retained_checkpoints,
            restore_from=restore_from,
            restore=RestoreOptions(cut_back_output, allow_data_loss),
        )
        return start_query(self._plan, (self._left, self._right), self._emitted, options)

    def _emitted(
        self,
        control: DataFrame | None = None,
        resumed_at: frozenset[int] = frozenset(),
        cadence: SnapshotCadence | None = None,
        segments: SegmentFolder | None = None,
    ) -> DataFrame:
        """Return the stream of ``(kind, payload)`` that the calls emit.

        Args:
            control: A further input, of control rows.
            resumed_at: The ids of the micro-batches before which the query was stopped.
            cadence: When a snapshot is due.
            segments: The store of flushed segments; None keeps all rows in Spark's state.
        """
        call = StreamingCall(self._plan, resumed_at, cadence, segments)

        def run(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
            return call(key, frames, state)

        timeout = GroupStateTimeout.ProcessingTimeTimeout if self._plan.needs_clock else GroupStateTimeout.NoTimeout
        packed = self._packed() if control is None else self._packed().unionByName(control)
        return packed.groupBy("key_group").applyInPandasWithState(run, EMITTED_DDL, STATE_DDL, "append", timeout)

    def _emitted_once(self) -> DataFrame:
        call = StaticCall(self._plan)

        def run(packed: pa.Table) -> pa.Table:
            return call(packed)

        return self._packed().groupBy("key_group").applyInArrow(run, EMITTED_DDL)

    def _packed(self) -> DataFrame:
        left, right = (each.packed(self._plan.key_groups) for each in (self._left, self._right))
        return left.union(right).select("key_group", F.col("tag"), "payload")
