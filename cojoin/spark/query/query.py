"""A running query: its phases, its progress, and how it ends.

A bounded run ends by itself. A last batch without rows applies the inputs' complete reading (``input_progress``) and
the processing time, where the query depends on one of them; with ``drain``, a last batch finishes all inputs instead
(``checkpoints.control``). With ``then``, the query continues without an end. The phases follow each other in a thread,
so a query ends even if no caller waits for it. ``await_termination`` raises the error that stopped it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyspark.errors import AnalysisException

from cojoin.checkpoints.control import drain_is_promised, plan_clock_message, plan_drain, plan_readings
from cojoin.checkpoints.savepoint import take_savepoint
from cojoin.engine.display import Shown
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.session.session_adapter import FILE_MANAGER, changed_settings
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_checkpoint import (
    await_sources,
    committed_batches,
    compact_interval,
    plan_look_at_the_clock,
    stream_settings,
)
from cojoin.session.spark_errors import (
    JAVA_ERRORS,
    BatchInterruptedError,
    explain,
    has_own_class,
    names_other_run,
)
from cojoin.spark.query.progress import ProgressLine, query_display
from cojoin.spark.query.triggers import with_trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
    from cojoin.checkpoints.manifest import Manifest, Manifests
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.display import Display
    from cojoin.engine.plan import Plan
    from cojoin.spark.query.input_progress import RunEnd
    from cojoin.spark.query.observers import Observers
    from cojoin.spark.query.triggers import Trigger

_Phase: TypeAlias = "Callable[[], bool]"
"""Starts a phase of a query; returns False where it has nothing to do."""

_LOG = logging.getLogger(__name__)

_COMMIT_SECONDS = 10.0
_POLL_SECONDS = 1
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Threads share a session, and two starts must not see each other's setting.
_STARTING = threading.Lock()


@dataclass(frozen=True)
class Streams:
    """The streams of a query's phases, without triggers.

    ``without_inputs`` is for a planned batch that reads nothing of the inputs, and may be the same as ``main``;
    ``live`` is for the phase without an end that follows a bounded one, and None if there is none. ``have_logs`` is
    whether Spark writes a log for an input's source, as for files.
    """

    main: DataStreamWriter
    without_inputs: DataStreamWriter
    live: DataStreamWriter | None
    have_logs: bool


class Query(Shown):
    """A query that was started, as ``Joined.start`` returns it."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        trigger: Trigger,
        checkpoint: ClaimedCheckpoint,
        *,
        span: tuple[int, int] | None = None,
        observers: Observers,
        resumes_clock: bool = False,
    ) -> None:
        self._spark, self._plan, self._trigger = spark, plan, trigger
        self._files, self._progress_table = checkpoint.files, checkpoint.progress
        # With Spark Connect, another process writes the batches, and this one reads their manifests.
        self._manifests = None if adapter_of(spark).runs_batches else checkpoint.manifests
        self._report = self._before = checkpoint.last_report
        self._lease = checkpoint.lease
        self._span, self._observers = span, observers
        # By its timeouts Spark calls key groups without rows; calls that need no clock have dropped them.
        self._has_timeouts = plan.has_timeouts and not resumes_clock
        self._end: RunEnd | None = None
        self._have_logs = False
        self._batches = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._stream: StreamingQuery | None = None
        self._ended, self._has_history = threading.Event(), threading.Event()
        self._history: BatchReport | None = None
        self._lock = threading.Lock()

    def _display(self) -> Display:
        return query_display(self, self._plan, self._files.root)

    @property
    def progress(self) -> BatchReport | None:
        """The newest batch's counts, watermarks and sizes; None before the checkpoint's first batch."""
        return self._report

    @property
    def progress_before(self) -> BatchReport | None:
        """The report of the last batch before this run; None in a new checkpoint that was not restored."""
        return self._before

    @property
    def history(self) -> BatchReport | None:
        """With ``Trigger.available_now(then=...)`` the last report of the history; None until all of it is read."""
        return self._history

    @property
    def span(self) -> tuple[int, int] | None:
        """The range of event time in the sources at the start, in epoch milliseconds; None if unknown or unbounded."""
        return self._span

    @property
    def batches(self) -> int:
        """The number of batches that this run has finished."""
        return self._batches

    @property
    def is_active(self) -> bool:
        """Whether the query is still running."""
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        """Return the error that stopped the query, or None."""
        return self._error

    def await_termination(self, timeout: float | None = None, *, progress: bool | None = None) -> bool:
        """Wait until the query ends.

        Args:
            timeout: The longest time to wait, in seconds; None waits for the end.
            progress: Whether to show a progress line; None shows it where the output is a terminal or a notebook.

        Returns:
            Whether the query has ended.

        Raises:
            ConfigurationError: The timeout is invalid.
            QueryFailedError: An error stopped the query; the message is that of the cause.
        """
        return self._await(self._ended, "await_termination", timeout, progress)

    def await_history(self, timeout: float | None = None, *, progress: bool | None = None) -> bool:
        """Wait until the run over what was available at the start has ended, before the query continues live.

        The arguments and errors are those of ``await_termination``. A query that does not continue has ended by then;
        one without an end has no history, and is not waited for.

        Returns:
            Whether the history is read, or the query has ended.
        """
        return self._await(self._has_history, "await_history", timeout, progress)

    def _await(self, event: threading.Event, label: str, timeout: float | None, progress: bool | None) -> bool:
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            msg = f"{label}: timeout: expected seconds as a number of zero or more, or None, got {timeout!r}"
            raise ConfigurationError(msg)
        with ProgressLine(self, enabled=progress, span=lambda: self._span) as line:
            is_over = line.wait(event, timeout)
        if self._error is not None:
            raise self._error
        return is_over

    def stop(self, *, savepoint: bool = False) -> Snapshot | None:
        """Stop the query, which can be started again from its checkpoint.

        An error that has stopped the query before is not raised here. A bounded run must be stopped by this method:
        Spark does not report that a stream was stopped by Spark's own handle of it, so the run would be taken for one
        that has read all rows. Where that interrupts a batch, the run fails or goes no further.

        Args:
            savepoint: Whether to take a savepoint of the last finished batch, once the query has stopped.

        Returns:
            The savepoint, or None if none was requested.

        Raises:
            CheckpointError: A savepoint was requested, and no batch is finished yet, or the query was drained.
        """
        self._stopping = True
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.stop()
        if not self._observers.is_calling:
            # The end waits for ``on_progress``, which may be who stops the query.
            self._ended.wait()
        return self.savepoint() if savepoint else None

    def savepoint(self) -> Snapshot:
        """Take a savepoint, as Flink has them: a snapshot of the state after the last finished batch.

        The query may be running or have ended. A savepoint is kept until a user removes it.

        Returns:
            The savepoint, for ``start(restore_from=...)`` and ``read_state``.

        Raises:
            CheckpointError: No batch is finished yet, or the query was drained.
        """
        self._await_commit()
        return take_savepoint(self._spark, self._files)

    def _await_commit(self) -> None:
        """Wait until Spark has committed the batch that ``progress`` shows, which it does right after the report."""
        shown, deadline = self._report, time.monotonic() + _COMMIT_SECONDS
        while shown is not None and self.is_active and time.monotonic() < deadline:
            if shown.batch_id <= max(committed_batches(self._files), default=-1):
                return
            time.sleep(0.05)

    def _take_batch(self, manifest: Manifest) -> None:
        """Record a batch, once it counts."""
        self._report = manifest.report
        self._batches += 1
        self._observers.count(manifest)

    def _run(self, streams: Streams, end: RunEnd | None, at_end: Sequence[Callable[[], None]]) -> None:
        """Start the first phase, and a thread for the following ones.

        ``end`` is that of a bounded run, and None where nothing depends on it. The functions ``at_end`` are called at
        the end, such as one that waits for work in other threads.
        """
        self._end, self._have_logs = end, streams.have_logs
        if drain_is_promised(self._files) and self._plan_drain():
            # A crash interrupted a drain: the drain is finished first, and reads nothing newer.
            self._begin(streams.without_inputs.trigger(once=True))
            phases: list[_Phase] = []
        elif not self._trigger.is_bounded:
            self._begin_live(self._trigger, streams.main)
            phases = []
        else:
            # If the query needs the clock, Spark's empty batches would never end: one is planned at the end instead.
            self._begin(with_trigger(streams.main, self._trigger), empty_batches=False)
            phases = [partial(self._begin_last_batch, streams.without_inputs)]
            if self._trigger.then is not None:
                assert streams.live is not None
                phases.append(partial(self._begin_live, self._trigger.then, streams.live))
        threading.Thread(target=self._follow, args=(phases, at_end), name="cojoin-query", daemon=True).start()

    def _plan_drain(self) -> bool:
        return plan_drain(self._files, self._lease.epoch, self._lease.check, compact_interval(self._spark))

    def _plan_last_batch(self) -> bool:
        if self._trigger.drain:
            return self._plan_drain()
        readings = {} if self._end is None else self._end.readings(self._spark, self._files)
        now, check, epoch = int(1000 * time.time()), self._lease.check, self._lease.epoch
        if readings:
            return plan_readings(self._files, epoch, readings, now, check, compact_interval(self._spark))
        if not self._plan.needs_clock:
            return False
        return plan_look_at_the_clock(self._files, now) if self._has_timeouts else self._plan_clock_message(now)

    def _plan_clock_message(self, now: int) -> bool:
        """Plan a batch that calls all key groups, where Spark has no timeouts by which to call them."""
        lease = self._lease
        return plan_clock_message(self._files, now, lease.epoch, lease.check, compact_interval(self._spark))

    def _begin_last_batch(self, without_inputs: DataStreamWriter) -> bool:
        """Start the last batch of a bounded run, if one is planned."""
        if not self._plan_last_batch():
            return False
        self._begin(without_inputs.trigger(once=True))
        # The last batch runs meanwhile. An error in this flush happens again at the end, where it is reported.
        with contextlib.suppress(Exception):
            self._flush_progress(early=True)
        return True

    def _begin_live(self, trigger: Trigger, stream: DataStreamWriter) -> bool:
        """Start a phase that has no end; the history before it, if there is one, is read."""
        self._span = None
        if trigger is self._trigger.then:
            self._flush_progress()
            self._history = self._report
        self._has_history.set()
        if self._plan.needs_clock and not self._has_timeouts:
            self._plan_clock_message(int(1000 * time.time()))
        # Without need of the clock, a state with timeouts is that of an earlier run of the query.
        self._begin(with_trigger(stream, trigger), empty_batches=self._plan.needs_clock)
        return True

    def _begin(self, stream: DataStreamWriter, *, empty_batches: bool | None = None) -> None:
        """Start Spark's query; ``empty_batches`` is whether batches without rows run, or None as in the session."""
        settings = stream_settings(self._spark, self._files)
        if empty_batches is not None:
            settings[_EMPTY_BATCHES] = str(empty_batches).lower()
        try:
            try:
                with _STARTING, changed_settings(self._spark, settings):
                    with self._lock:
                        if not self._stopping:
                            self._stream = stream.start()
                    if self._have_logs and FILE_MANAGER in settings and self._stream is not None:
                        await_sources(self._stream)
            except BaseException:
                # The caller gets no query that could stop it.
                if self._stream is not None:
                    with contextlib.suppress(Exception):
                        self._stream.stop()
                raise
        except JAVA_ERRORS as error:
            # Spark writes to the checkpoint before the query runs; a store may refuse that. With Spark Connect, PySpark
            # has a class for each error of the server's.
            if has_own_class(error) and (self._manifests is None or isinstance(error, AnalysisException)):
                raise
            raise QueryFailedError(explain(error)) from error

    def _stoppable(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return the function that writes a batch, with a short error where it fails while ``stop`` interrupts it.

        Such a batch has no manifest, so the next start runs it again.
        """

        def written(emitted: DataFrame, batch_id: int) -> None:
            try:
                write(emitted, batch_id)
            except Exception:
                if not self._stopping:
                    raise
                _LOG.debug("batch %d failed while the query was being stopped", batch_id, exc_info=True)
                raise BatchInterruptedError from None

        return written

    def _follow(self, phases: list[_Phase], at_end: Sequence[Callable[[], None]]) -> None:
        try:
            self._wait()
            while phases and not self._stopping:
                if phases.pop(0)():
                    self._wait()
        except BaseException as error:  # noqa: BLE001 - ``await_termination`` raises it
            self._error = self._as_query_failed(error)
        finally:
            try:
                with contextlib.ExitStack() as calls:
                    for call in reversed(at_end):
                        calls.callback(call)
                self._flush_progress()
            except Exception as error:  # noqa: BLE001 - the manifests still hold the rows
                self._error = self._error or self._as_query_failed(error)
            # In any case, waiting callers must learn of the end; a lease that could not be released is taken over.
            with contextlib.suppress(Exception):
                self._lease.release()
            with contextlib.suppress(Exception):
                self._observers.finish()
            phases.clear()
            self._release()
            self._has_history.set()
            self._ended.set()

    def _release(self) -> None:
        """Release Spark's query, which the JVM would otherwise keep as long as the process lives.

        Spark's query refers to the function that writes its batches, which is in this process and refers to this
        object, and neither of the two garbage collectors sees the other's half of that circle.
        """
        with self._lock:
            self._stream = None
        error = self._error
        while error is not None:
            # The frames of an error hold Spark's query, too.
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__

    def _as_query_failed(self, error: BaseException) -> BaseException:
        """Return the error that stopped the query as a QueryFailedError with the message of the cause."""
        failed = QueryFailedError(explain(error))
        if names_other_run(error):
            # Spark's error is about another run's write to its log; the lease's error names that run.
            try:
                self._lease.check()
            except QueryFailedError as fenced:
                failed = fenced
        failed.__cause__ = error
        return failed

    def _wait(self) -> None:
        stream = self._stream
        assert stream is not None
        if self._manifests is None:
            stream.awaitTermination()
            return
        try:
            while not stream.awaitTermination(_POLL_SECONDS):
                self._take_reports(self._manifests)
        finally:
            self._take_reports(self._manifests)

    def _take_reports(self, manifests: Manifests) -> None:
        """Record the reports of the batches that the server's process has counted since."""
        newest = -1 if self._report is None else self._report.batch_id
        for batch_id in manifests.batch_ids():
            manifest = manifests.read(batch_id) if batch_id > newest else None
            if manifest is not None:
                self._take_batch(manifest)
                if manifest.epoch == self._lease.epoch:
                    self._lease.note_counted(batch_id)

    def _flush_progress(self, *, early: bool = False) -> None:
        if self._manifests is not None:
            # The server's process has written some of the batches, and left the others to this one.
            self._progress_table.recover()
        if early:
            self._progress_table.flush_early()
        else:
            self._progress_table.flush()
