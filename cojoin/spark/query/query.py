"""A running query: its phases, its progress, and how it ends.

A bounded run ends by itself. Where the clock matters, a last batch without rows looks at it; with ``drain`` a last
batch finishes all inputs instead (``checkpoints.control``). The phases follow each other in a thread, so a query that
nobody waits for ends as well; ``await_termination`` raises what stopped it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from cojoin.checkpoints.control import drain_is_promised, plan_drain, plan_look_at_the_clock
from cojoin.checkpoints.savepoint import take_savepoint
from cojoin.checkpoints.spark_state_store import committed_batches
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.spark.progress.line import ProgressLine
from cojoin.spark.query.failures import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.checkpoints.claimed import ClaimedCheckpoint
    from cojoin.engine.batch_report import BatchReport
    from cojoin.spark.batch.call import Plan
    from cojoin.spark.query.triggers import Trigger

__all__ = ["Query"]

_COMMIT_SECONDS = 10.0
_ANOTHER_RUN = "CONCURRENT_STREAM_LOG_UPDATE"
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Sessions are shared by threads: two starts must not see each other's setting.
_STARTING = threading.Lock()


class Query:
    """A query that was started; ``Joined.start`` gives it."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        trigger: Trigger,
        checkpoint: ClaimedCheckpoint,
        *,
        span: tuple[int, int] | None = None,
    ) -> None:
        self._spark, self._plan, self._trigger = spark, plan, trigger
        self._files, self._progress_table = checkpoint.files, checkpoint.progress
        self._report, self._lease = checkpoint.last_report, checkpoint.lease
        self._span = span
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
    def span(self) -> tuple[int, int] | None:
        """The event times of what its sources held at the start, in epoch milliseconds; None where they can't tell."""
        return self._span

    @property
    def batches(self) -> int:
        """How many batches this run has finished."""
        return self._batches

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        """Return what stopped it, or None."""
        return self._error

    def await_termination(self, timeout: float | None = None, *, progress: bool | None = None) -> bool:
        """Wait until the query ends.

        Args:
            timeout: Seconds to wait at the most; None waits for the end.
            progress: Whether to show how far it has come; by default where the output is a terminal or a notebook.

        Returns:
            Whether it has ended.

        Raises:
            ConfigurationError: A timeout that is none.
            QueryFailedError: An error stopped it; the message is the cause's own.
        """
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            msg = f"await_termination: timeout: expected seconds as a number of zero or more, or None, got {timeout!r}"
            raise ConfigurationError(msg)
        with ProgressLine(self, enabled=progress, span=lambda: self._span) as line:
            ended = line.wait(self._ended, timeout)
        if self._error is not None:
            raise self._error
        return ended

    def stop(self, *, savepoint: bool = False) -> Checkpoint | None:
        """Stop it; it can be started again from its checkpoint. An error that stopped it is not raised here.

        Args:
            savepoint: Whether to take a savepoint of the last finished batch, once it has stopped.

        Returns:
            The savepoint, where one was asked for.

        Raises:
            CheckpointError: No batch is finished yet, so there is nothing to save.
        """
        self._stopping = True
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.stop()
        self._ended.wait()
        return self.savepoint() if savepoint else None

    def savepoint(self) -> Checkpoint:
        """Keep the state after the last finished batch until somebody removes it; the query runs on, or has ended.

        Returns:
            What ``start(restore_from=...)`` and ``read_state`` take. It is Flink's savepoint.

        Raises:
            CheckpointError: No batch is finished yet, or the query was drained.
        """
        self._await_commit()
        return take_savepoint(self._spark, self._files)

    def _await_commit(self) -> None:
        """Wait for Spark's own commit of the batch that ``progress`` shows, which follows it at once."""
        shown, deadline = self._report, time.monotonic() + _COMMIT_SECONDS
        while shown is not None and self.is_active and time.monotonic() < deadline:
            if shown.batch_id <= max(committed_batches(self._files), default=-1):
                return
            time.sleep(0.05)

    def take_report(self, report: BatchReport) -> None:
        """Take a batch's report once the batch counts."""
        self._report = report
        self._batches += 1

    def run(self, stream: DataStreamWriter, at_end: Callable[[], None]) -> None:
        """Start the first phase, and a thread for what follows it.

        Args:
            stream: The stream, without a trigger.
            at_end: Waits for what goes on beside the batches.
        """
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
        threading.Thread(
            target=self._follow, args=(stream, last_batch, at_end), name="cojoin-query", daemon=True
        ).start()

    def _plan_last_batch(self) -> bool:
        if self._trigger.drain:
            return plan_drain(self._files)
        return self._plan.needs_clock and plan_look_at_the_clock(self._files, int(1000 * time.time()))

    def _begin(self, stream: DataStreamWriter) -> None:
        with self._lock:
            self._stream = stream.start()

    def _follow(
        self, stream: DataStreamWriter, plan_last_batch: Callable[[], bool] | None, at_end: Callable[[], None]
    ) -> None:
        try:
            self._wait()
            if plan_last_batch is not None and not self._stopping and plan_last_batch():
                self._begin(stream.trigger(once=True))
                # Beside the last batch; what goes wrong here goes wrong again, and is told, at the end.
                with contextlib.suppress(Exception):
                    self._progress_table.flush()
                self._wait()
        except BaseException as error:  # noqa: BLE001 - it is raised where the user waits
            self._error = self._own_words(error)
        finally:
            try:
                at_end()
                self._progress_table.flush()
            except Exception as error:  # noqa: BLE001 - the manifests still hold the rows
                self._error = self._error or self._own_words(error)
            # Whatever fails, whoever waits must hear of the end; a lease that stays is taken over.
            with contextlib.suppress(Exception):
                self._lease.release()
            self._ended.set()

    def _own_words(self, error: BaseException) -> BaseException:
        """Return what stopped the query as an error of ours, in the cause's own words."""
        failed = QueryFailedError(explain(error))
        if _ANOTHER_RUN in str(error):
            # Spark knows only that its log was written by somebody else; the lease knows by whom.
            try:
                self._lease.check()
            except QueryFailedError as fenced:
                failed = fenced
        failed.__cause__ = error
        return failed

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
