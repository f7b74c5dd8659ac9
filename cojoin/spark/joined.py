"""Two inputs with an operation: the tagged union, the single call, and the ways out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from cojoin.engine.operator import OUTPUT
from cojoin.engine.side_outputs import OutputTag
from cojoin.errors import ConfigurationError
from cojoin.spark.batch.call import EMITTED_DDL, STATE_DDL, Plan, StaticCall, StreamingCall
from cojoin.spark.batch.unpacking import unpack
from cojoin.spark.query.start import QueryOptions, start_query
from cojoin.spark.restore.restore import RestoreOptions

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

    def to_dataframe(self, output: Literal["main", "rejected"] | OutputTag = "main") -> DataFrame:
        """Return one output as a plain DataFrame.

        From streams it is a streaming DataFrame for any sink and trigger of Spark's, in append mode; rows that wait
        for the watermark at its end stay in its state. From static inputs it is a static one: the operator runs once,
        to the end of time. Where the clock matters (processing-time timers, idleness, a watermark that follows the
        clock), a stream runs batches without rows and so never ends by itself: use a ``processingTime`` trigger.
        Without a checkpoint of cojoin's nobody knows when it stood still, so the time between two runs counts as
        silence; nor how much of a Delta table's history is still unread, so a history of more files than one batch
        takes must be in the order of event time, which ``start`` does not ask for.

        Args:
            output: ``"main"``, ``"rejected"`` for the rows that were not admitted, with their reasons, or the tag of a
                side output. Each DataFrame runs the operator by itself; ``start`` gives all from one run.

        Raises:
            ConfigurationError: There is no such output.
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
        """Start a query that writes the output, the rejected rows and its progress, exactly once into Delta.

        Args:
            output: ``cojoin.sinks.delta(...)``, ``cojoin.sinks.parquet(...)``, or a callable that takes ``(DataFrame,
                batch_id)``.
            checkpoint: The directory of the query's checkpoint, a text or a ``pathlib.Path``: one for each query, kept
                between its runs. No output may be or lie in it, but for ``rejected`` and side outputs in the places
                that they have by default; nor may an output be another one, or what an input reads. From run to run
                the outputs stay where they are (of callables nobody can tell); a query that is to write elsewhere
                begins with ``restore_from``.
            trigger: ``Trigger.available_now()``, ``Trigger.available_now(drain=True)`` or
                ``Trigger.processing_time("10 seconds")``.
            rejected: Where rejected rows go; by default a Delta table ``rejected`` in the checkpoint directory.
            side_outputs: Where a function's side outputs go, by tag; by default Delta tables ``side_outputs/<tag id>``
                in the checkpoint directory.
            name: The query's name in Spark's UI.
            checkpoint_interval: How often a snapshot of the state is taken, by the batches' own processing time such as
                ``"10 minutes"``, or every so many batches; None takes only savepoints. Ordinary restarts need none.
            retained_checkpoints: How many snapshots are kept, the newest; savepoints are kept besides.
            restore_from: Begin with the state of another query's snapshot, its sources going on where they stood then.
                ``checkpoint`` is a new directory; the number of key groups and shuffle partitions may be another, and
                the query may have evolved: a state, a nullable column or a side output more, a wider type. Started
                again with the same ``restore_from``, the query goes on.
            cut_back_output: With ``restore_from``: an output that goes to the old query's own Delta table may take back
                what was written there after the snapshot.
            allow_data_loss: With ``restore_from``: records that the sources no longer have may be passed over.

        Raises:
            ConfigurationError: Inputs that are not streams, a sink or trigger that is none, an output in a place that
                is not its own.
            CheckpointError: A checkpoint that another query holds or runs on, of another shape of this one, or of a
                drained one; an output that went elsewhere before; a snapshot that can't be restored by this query.
            QueryFailedError: The restored state could not be loaded by the workers.
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
        """Return what the calls emit: a stream of ``(kind, payload)``.

        Args:
            control: A further input, of control rows.
            resumed_at: The ids of the micro-batches before which the query stood still.
            cadence: When a snapshot is due.
            segments: Where rows that leave Spark's own state lie.
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
