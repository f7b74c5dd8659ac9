"""A running query: its phases, its progress, and how it ends.

A bounded run ends by itself. Where the clock matters, a last batch without rows looks at it; with ``drain`` a last
batch finishes all inputs instead (``checkpoints.control``). The phases follow each other in a thread, so a query that
nobody waits for ends as well; ``await_termination`` raises what stopped it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.checkpoints.control import (
    drain_is_promised,
    open_control,
    plan_drain,
    plan_look_at_the_clock,
    resumed_batches,
)
from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.identity import claim_checkpoint, describe_query
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress import ProgressTable
from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError, did_you_mean
from cojoin.operator import OUTPUT, REJECTED
from cojoin.side_outputs import OutputTag
from cojoin.spark.batches import BatchWriter
from cojoin.spark.failures import explain
from cojoin.spark.key_groups import group_labels
from cojoin.spark.packing import CONTROL_TAG
from cojoin.spark.progress_line import ProgressLine
from cojoin.spark.sinks import Sink, as_sink, delta
from cojoin.spark.triggers import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from cojoin.report import BatchReport
    from cojoin.spark.call import Plan

__all__ = ["Query", "start_query"]

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Sessions are shared by threads: two starts must not see each other's setting.
_STARTING = threading.Lock()


def start_query(
    spark: SparkSession,
    plan: Plan,
    emit: Callable[[DataFrame, frozenset[int]], DataFrame],
    *,
    output: Any,
    rejected: Any,
    side_outputs: Mapping[OutputTag, Any],
    checkpoint: str,
    trigger: Trigger,
    name: str | None,
) -> Query:
    """Check everything, claim the checkpoint, and start; see ``Joined.start``.

    Args:
        spark: The session of the inputs.
        plan: What the workers are told.
        emit: Gives what the calls emit, of a control input and the batches before which the query stood still.
        output: Where the output goes.
        rejected: Where rejected rows go, or None.
        side_outputs: Where side outputs go, by tag; those that are left out go beside the checkpoint.
        checkpoint: The query's directory.
        trigger: When it runs.
        name: Its name, or None.
    """
    if not isinstance(trigger, Trigger):
        msg = f"trigger: expected Trigger.available_now() or Trigger.processing_time('10 seconds'), got {trigger!r}"
        raise ConfigurationError(msg)
    if not isinstance(checkpoint, str) or not checkpoint:
        msg = f"checkpoint: expected the path of a directory, got {checkpoint!r}"
        raise ConfigurationError(msg)
    if name is not None and (not isinstance(name, str) or not name):
        msg = f"name: expected a text or None, got {name!r}"
        raise ConfigurationError(msg)
    main = as_sink(output, "output")
    files = CheckpointFiles(spark, checkpoint)
    sinks = {
        OUTPUT: main,
        REJECTED: delta(files.path("rejected")) if rejected is None else as_sink(rejected, "rejected"),
        **_side_sinks(plan, side_outputs, files),
    }
    query_id = claim_checkpoint(
        files,
        describe_query(
            plan.operation.describe(), plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock
        ),
    )
    manifests = Manifests(files)
    last = manifests.last()
    progress = ProgressTable(spark, files, manifests)
    progress.recover()
    if last is not None and last.report.drained:
        progress.flush()
        msg = (
            f"checkpoint {files.root}: its query was drained after batch {last.batch_id}: "
            f"all inputs are finished, so it is over; "
            f"start a new query with a checkpoint of its own"
        )
        raise CheckpointError(msg)
    query = Query(spark, plan, trigger, files, progress, None if last is None else last.report)
    writer = BatchWriter(plan, query_id, sinks, files, manifests, progress, query.take_report, last)
    resumed = resumed_batches(files) if plan.follows_clock else frozenset()
    stream = (
        emit(open_control(spark, files, group_labels(plan.key_groups), CONTROL_TAG), resumed)
        .writeStream.foreachBatch(writer)
        .option("checkpointLocation", files.path("spark"))
    )
    try:
        writer.prepare(spark)
        query.run(stream.queryName(name) if name else stream)
    except PySparkException as error:
        raise ConfigurationError(explain(error)) from error
    return query


def _side_sinks(plan: Plan, declared: Mapping[OutputTag, Any], files: CheckpointFiles) -> dict[str, Sink]:
    known = [tag.tag_id for tag in plan.side_outputs]
    if not isinstance(declared, dict):
        msg = f"side_outputs: expected a dict from OutputTag to sink, got {declared!r}"
        raise ConfigurationError(msg)
    for tag in declared:
        if tag not in plan.side_outputs:
            spelled = tag.tag_id if isinstance(tag, OutputTag) else str(tag)
            near = did_you_mean(spelled, known) if known else "; declare it with process(..., side_outputs=[tag])"
            msg = f"side_outputs: the query has no side output {spelled!r} with these columns{near}"
            raise ConfigurationError(msg)
    return {
        tag.tag_id: as_sink(declared[tag], f"side output {tag.tag_id!r}")
        if tag in declared
        else delta(files.path(f"side_outputs/{tag.tag_id}"))
        for tag in plan.side_outputs
    }


class Query:
    """A query that was started; ``Joined.start`` gives it."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        trigger: Trigger,
        files: CheckpointFiles,
        progress: ProgressTable,
        last: BatchReport | None,
    ) -> None:
        self._spark, self._plan = spark, plan
        self._trigger, self._files, self._progress_table = trigger, files, progress
        self._report = last
        self._batches = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._stream: StreamingQuery | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    @property
    def progress(self) -> BatchReport | None:
        """The newest batch's counts, watermarks and sizes; None before a checkpoint's first batch."""
        return self._report

    @property
    def batches(self) -> int:
        """How many batches this run has finished."""
        return self._batches

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        """Give what stopped it, or None."""
        return self._error

    def await_termination(self, timeout: float | None = None, *, progress: bool | None = None) -> bool:
        """Wait until the query ends.

        Args:
            timeout: Seconds to wait at the most; None waits for the end.
            progress: Whether to show a line of progress; by default where the output is a terminal or a notebook.

        Returns:
            Whether it has ended.

        Raises:
            QueryFailedError: An error stopped it; the message is the cause's own.
        """
        with ProgressLine(self, enabled=progress) as line:
            ended = line.wait(self._ended, timeout)
        if self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Stop it; it can be started again from its checkpoint. An error is not raised here."""
        self._stopping = True
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.stop()
        self._ended.wait()

    def take_report(self, report: BatchReport) -> None:
        """Take a batch's report once the batch counts."""
        self._report = report
        self._batches += 1

    def run(self, stream: DataStreamWriter) -> None:
        """Start the first phase, and a thread for what follows it."""
        if drain_is_promised(self._files) and plan_drain(self._files):
            # A crash came between planning the drain and its end: it is finished first, and reads nothing newer.
            self._begin(stream.trigger(once=True))
            last_batch = None
        elif not self._trigger.is_bounded:
            with _empty_batches(self._spark, run=True):
                self._begin(self._trigger.apply(stream))
            last_batch = None
        else:
            # Where the clock matters, batches without rows would go on for ever: one is planned by hand at the end.
            with _empty_batches(self._spark, run=False):
                self._begin(self._trigger.apply(stream))
            last_batch = self._plan_last_batch
        threading.Thread(target=self._follow, args=(stream, last_batch), name="cojoin-query", daemon=True).start()

    def _plan_last_batch(self) -> bool:
        if self._trigger.drain:
            return plan_drain(self._files)
        return self._plan.needs_clock and plan_look_at_the_clock(self._files, int(1000 * time.time()))

    def _begin(self, stream: DataStreamWriter) -> None:
        with self._lock:
            self._stream = stream.start()

    def _follow(self, stream: DataStreamWriter, plan_last_batch: Callable[[], bool] | None) -> None:
        try:
            self._wait()
            if plan_last_batch is not None and not self._stopping and plan_last_batch():
                self._begin(stream.trigger(once=True))
                # Beside the last batch; what goes wrong here goes wrong again, and is told, at the end.
                with contextlib.suppress(Exception):
                    self._progress_table.flush()
                self._wait()
        except BaseException as error:  # noqa: BLE001 - it is raised where the user waits
            self._error = _own_words(error)
        finally:
            try:
                self._progress_table.flush()
            except Exception as error:  # noqa: BLE001 - the manifests still hold the rows
                self._error = self._error or _own_words(error)
            self._ended.set()

    def _wait(self) -> None:
        stream = self._stream
        assert stream is not None
        stream.awaitTermination()


@contextlib.contextmanager
def _empty_batches(spark: SparkSession, *, run: bool) -> Iterator[None]:
    """Have a query that is started meanwhile run batches without rows, or none: it takes its settings along."""
    with _STARTING:
        before = spark.conf.get(_EMPTY_BATCHES)
        spark.conf.set(_EMPTY_BATCHES, str(run).lower())
        try:
            yield
        finally:
            spark.conf.set(_EMPTY_BATCHES, before)


def _own_words(error: BaseException) -> BaseException:
    failed = QueryFailedError(explain(error))
    failed.__cause__ = error
    return failed
