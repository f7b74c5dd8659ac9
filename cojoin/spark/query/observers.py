"""Observers of a running query: its metrics, the user's ``on_progress``, and the offset commits of its sources.

They follow the batches whose manifests are written, in the process that started the query; with Spark Connect that is
the client, which reads the manifests. Observers' errors do not stop the query; repeated ones are not logged.

``on_progress`` is called once for each batch, in order, in a thread. While it runs, reports wait, at most
``_MOST_WAITING`` of them; beyond that the oldest are dropped, with a warning.

A position is committed to a source, e.g. to a Kafka consumer group, after its batch's manifest is written. This is done
in another thread; if several positions wait, only the newest is committed. A start first commits the checkpoint's last
position, since a killed run may not have done so. A failed commit is counted and tried again. A commit costs one
request. The number of unread offsets is only read once an exporter has read a gauge.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.engine.callbacks import user_line
from cojoin.metrics.query_metrics import QueryMetrics, process_instruments
from cojoin.session.spark_checkpoint import has_read
from cojoin.session.spark_errors import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan
    from cojoin.metrics.query_metrics import Instruments
    from cojoin.spark.sources.source import Source, SourceMonitor

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 1_000


class ProgressHook:
    """Calls the user's function with the report of each batch; messages name the query."""

    def __init__(self, call: Callable[[BatchReport], Any], query: str) -> None:
        self._call, self._query = call, query
        self._waiting: deque[BatchReport] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = self._logged_error = self._logged_slow = False

    def put(self, report: BatchReport) -> None:
        """Queue a report for the function."""
        with self._changed:
            self._waiting.append(report)
            is_slow = len(self._waiting) > _MOST_WAITING
            if is_slow:
                self._waiting.popleft()
            self._changed.notify()
        if is_slow and not self._logged_slow:
            self._logged_slow = True
            _LOG.warning(
                "query %s: on_progress takes longer than the batches: %s reports wait for it, and older ones are "
                "left out",
                self._query,
                f"{_MOST_WAITING:,}",
            )
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cojoin-on-progress", daemon=True)
            self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller runs in the function's thread."""
        return threading.current_thread() is self._thread

    def finish(self, seconds: float) -> None:
        """Wait until the function was called with every report, for at most ``seconds``."""
        if self._thread is None:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._waiting)
                self._waiting.clear()
            _LOG.warning(
                "query %s: on_progress still runs %.0f s after the query's end; it is left alone, and %d reports were "
                "not passed to it",
                self._query,
                seconds,
                left,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                report = self._waiting.popleft()
            try:
                self._call(report)
            except BaseException as error:  # noqa: BLE001 - even SystemExit must not end the thread unnoticed
                self._tell(error, report)

    def _tell(self, error: BaseException, report: BatchReport) -> None:
        if self._logged_error:
            return
        self._logged_error = True
        last = traceback.format_exception_only(error)[-1].strip()
        _LOG.warning(
            "query %s: on_progress failed at batch %d: %s%s; the query continues, its further errors are not logged",
            self._query,
            report.batch_id,
            last,
            user_line(error),
        )


_AGAIN_SECONDS = 10.0
_COMMIT_SECONDS = 25.0
# Kafka forgets the offsets of a group that was silent for long, a week by default.
_REPEAT_SECONDS = 3600.0


@dataclass
class MonitoredInput:
    """An input whose source has a monitor; ``line`` is the number of its line in the offset log.

    ``position`` is that after the last batch that counts, None before the first; ``committed`` is the last one that was
    committed, at ``committed_at`` by the monotonic clock.
    """

    name: str
    monitor: SourceMonitor
    line: int
    position: str | None = None
    committed: str | None = None
    committed_at: float = 0.0
    is_failing: bool = False


class Monitoring:
    """Commits positions, and reads the number of unread offsets, in a thread.

    ``lines`` is the number of lines of the offset log without that of the control input. ``metrics``, unless None,
    counts failures and shows lags. ``check`` raises an error once another run has taken over, so that the positions of
    that run are not overwritten.
    """

    def __init__(
        self,
        inputs: Sequence[MonitoredInput],
        lines: int,
        metrics: QueryMetrics | None,
        query: str,
        check: Callable[[], None],
    ) -> None:
        self._inputs, self._lines, self._metrics, self._query = inputs, lines, metrics, query
        self._check = check
        self._changed = threading.Condition()
        self._newest: Sequence[str] | None = None
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def note(self, offsets: Sequence[str]) -> None:
        """Take the offsets after a batch whose manifest is written: a line per source, then the control input's."""
        if len(offsets) != self._lines + 1:
            # It is not known which line belongs to which input.
            return
        with self._changed:
            self._newest = offsets
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cojoin-monitoring", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until the newest positions are committed or one more try has failed, for at most ``_COMMIT_SECONDS``."""
        if self._thread is None:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_COMMIT_SECONDS)

    def _run(self) -> None:
        is_ending = False
        try:
            while not is_ending:
                with self._changed:
                    if self._newest is None and not self._is_ending:
                        self._changed.wait(_AGAIN_SECONDS)
                    newest, self._newest, is_ending = self._newest, None, self._is_ending
                for monitored in self._inputs:
                    if newest is not None and has_read(newest[monitored.line]):
                        monitored.position = newest[monitored.line]
                    self._commit(monitored)
                if not is_ending:
                    self._ask()
        finally:
            for monitored in self._inputs:
                monitored.monitor.close()

    def _commit(self, own: MonitoredInput) -> None:
        is_recent = own.committed == own.position and time.monotonic() - own.committed_at < _REPEAT_SECONDS
        if own.position is None or is_recent or not own.monitor.commits:
            return
        try:
            self._check()
            own.monitor.commit(own.position)
        except Exception as error:  # noqa: BLE001 - an observer must not stop the query
            if self._metrics is not None:
                with contextlib.suppress(Exception):
                    self._metrics.count_group_failure(own.name)
            if not own.is_failing:
                _LOG.warning(
                    "query %s: could not commit the offsets that input %r has read; the query continues: %s",
                    self._query,
                    own.name,
                    explain(error),
                )
            own.is_failing = True
            return
        own.committed, own.committed_at, own.is_failing = own.position, time.monotonic(), False

    def _ask(self) -> None:
        """Read the number of unread offsets; if that fails, an input has no lag until the next attempt."""
        metrics = self._metrics
        if metrics is None or not metrics.is_asked.is_set():
            return
        lags = {each.name: self._unread(each) for each in self._inputs}
        metrics.set_offset_lags({name: lag for name, lag in lags.items() if lag is not None})

    def _unread(self, own: MonitoredInput) -> int | None:
        try:
            return None if own.position is None else own.monitor.unread(own.position)
        except Exception as error:  # noqa: BLE001 - the query's own reader raises the error
            _LOG.debug("query %s: the lag of input %r is not known: %s", self._query, own.name, explain(error))
            return None


_END_SECONDS = 10.0


class Observers:
    """The observers of one run of a query; metrics and messages show its ``name``.

    ``sources`` has None for a DataFrame, and ``lines`` the number of lines of the offset log that belong to each input.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        checkpoint: ClaimedCheckpoint,
        sources: Sequence[Source | None],
        lines: Sequence[int],
        on_progress: Callable[[BatchReport], Any] | None,
    ) -> None:
        self._name, self._has_warned = name, False
        self._hook = None if on_progress is None else ProgressHook(on_progress, name)
        instruments = process_instruments()
        self._metrics = None if instruments is None else _metrics(instruments, name, plan, checkpoint)
        inputs = []
        for at, (spec, source) in enumerate(zip(plan.inputs, sources, strict=True)):
            monitor = None if source is None or lines[at] != 1 else source.monitor(f"input {spec.name!r}")
            if monitor is not None:
                inputs.append(MonitoredInput(spec.name, monitor, sum(lines[:at])))
                if self._metrics is not None and monitor.commits:
                    with contextlib.suppress(Exception):
                        # It begins at 0, so that the first failure is an increase.
                        self._metrics.count_group_failure(spec.name, 0)
        check = checkpoint.lease.check
        self._monitoring = Monitoring(inputs, sum(lines), self._metrics, name, check) if inputs else None
        if self._monitoring is not None and checkpoint.last is not None:
            self._monitoring.note(checkpoint.last.offsets)

    def count(self, manifest: Manifest) -> None:
        """Pass a batch to all observers, after its manifest is written."""
        if self._metrics is not None:
            try:
                self._metrics.count(manifest.report, manifest.durations_ms)
            except Exception as error:  # noqa: BLE001 - an exporter of any kind must not stop the query
                if not self._has_warned:
                    self._has_warned = True
                    _LOG.warning("query %s: its metrics can't be counted, the query continues: %r", self._name, error)
        if self._monitoring is not None:
            self._monitoring.note(manifest.offsets)
        if self._hook is not None:
            self._hook.put(manifest.report)

    @contextlib.contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """Finish the observers if the block, which starts the query, raises an error."""
        try:
            yield
        except BaseException:
            self.finish()
            raise

    @property
    def is_calling(self) -> bool:
        """Whether the caller is the user's ``on_progress``."""
        return self._hook is not None and self._hook.is_this_thread

    def finish(self) -> None:
        """Wait until all observers have followed the last batch, for at most 35 seconds."""
        if self._monitoring is not None:
            self._monitoring.finish()
        if self._hook is not None:
            self._hook.finish(_END_SECONDS)
        if self._metrics is not None:
            self._metrics.end()


def _metrics(instruments: Instruments, name: str, plan: Plan, checkpoint: ClaimedCheckpoint) -> QueryMetrics | None:
    try:
        return QueryMetrics(
            instruments,
            name,
            [spec.name for spec in plan.inputs],
            list(plan.outputs),
            checkpoint.last_report,
            checkpoint.lease.epoch,
            begins_restored=checkpoint.begins_at is not None,
        )
    except Exception as error:  # noqa: BLE001 - as above
        _LOG.warning("query %s: it has no metrics: %r", name, error)
        return None
