"""The positions of counted batches, told to the sources' own worlds in a thread beside the query: the newest wins.

A position is committed once its batch counts, never before: what a consumer group says is never ahead of what the
query has. A start commits the checkpoint's last position first, which a killed run may have left out. What fails is
logged once, with the reason, counted, and tried again; the query goes on. It costs a thread and a request a commit;
how much is unread is only asked for once an exporter has asked for the metric.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.session.failures import explain
from cojoin.session.offset_log import NOTHING_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.metrics.query_metrics import QueryMetrics
    from cojoin.spark.sources.source_monitor import SourceMonitor

__all__ = ["MonitoredInput", "Monitoring"]

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 10.0
_END_SECONDS = 25.0
# Kafka forgets the offsets of a group that was silent for long, a week by default.
_REPEAT_SECONDS = 3600.0
_NO_POSITIONS = ("", NOTHING_READ, "null")


@dataclass
class MonitoredInput:
    """An input whose source has a monitor.

    Attributes:
        name: The input's name.
        monitor: The monitor of its source.
        line: Which line of the offset log is its own.
        position: Its position after the last batch that counts; None before the first.
        committed: The position that was committed last.
        committed_at: When that was, by the monotonic clock.
        is_failing: Whether the last commit failed.
    """

    name: str
    monitor: SourceMonitor
    line: int
    position: str | None = None
    committed: str | None = None
    committed_at: float = 0.0
    is_failing: bool = False


class Monitoring:
    """Commits positions, and asks how much is unread, in a thread.

    Args:
        inputs: The inputs whose sources have a monitor.
        lines: How many lines the offset log has, without that of the control input.
        metrics: Where failures are counted and lags are shown; None for nowhere.
        query: The query, for messages.
        check: Raises an error once another run has taken over, whose positions must not be written over.
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
        """Take the positions after a batch that counts: a line for each source, and the control input's last."""
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
        """Wait until the newest positions are committed, or one more try has failed."""
        if self._thread is None:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        is_ending = False
        try:
            while not is_ending:
                with self._changed:
                    if self._newest is None and not self._is_ending:
                        self._changed.wait(_AGAIN_SECONDS)
                    newest, self._newest, is_ending = self._newest, None, self._is_ending
                for each in self._inputs:
                    if newest is not None and newest[each.line].strip() not in _NO_POSITIONS:
                        each.position = newest[each.line]
                    self._commit(each)
                if not is_ending:
                    self._ask()
        finally:
            for each in self._inputs:
                each.monitor.close()

    def _commit(self, each: MonitoredInput) -> None:
        is_told = each.committed == each.position and time.monotonic() - each.committed_at < _REPEAT_SECONDS
        if each.position is None or is_told or not each.monitor.commits:
            return
        try:
            self._check()
            each.monitor.commit(each.position)
        except Exception as error:  # noqa: BLE001 - nothing here may stop the query
            if self._metrics is not None:
                with contextlib.suppress(Exception):
                    self._metrics.count_group_failure(each.name)
            if not each.is_failing:
                _LOG.warning(
                    "query %s: the offsets that input %r has read could not be committed, the query goes on: %s",
                    self._query,
                    each.name,
                    explain(error),
                )
            each.is_failing = True
            return
        each.committed, each.committed_at, each.is_failing = each.position, time.monotonic(), False

    def _ask(self) -> None:
        """Ask how much is unread; an input that gives no answer has no lag until the next time."""
        metrics = self._metrics
        if metrics is None or not metrics.is_asked.is_set():
            return
        lags = {each.name: self._unread(each) for each in self._inputs}
        metrics.set_offset_lags({name: lag for name, lag in lags.items() if lag is not None})

    def _unread(self, each: MonitoredInput) -> int | None:
        try:
            return None if each.position is None else each.monitor.unread(each.position)
        except Exception as error:  # noqa: BLE001 - the query's own reader tells what is wrong
            _LOG.debug("query %s: the lag of input %r is not known: %s", self._query, each.name, explain(error))
            return None
