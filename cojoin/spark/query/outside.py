"""What others see of a running query: its metrics, the user's ``on_progress``, and the positions of its sources.

All of it follows the batches that count, and none of it can stop the query: an error is logged once. It runs in the
process that started the query; with Spark Connect that is the client, which reads the batches' manifests.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from cojoin.metrics.query_metrics import QueryMetrics, process_instruments
from cojoin.spark.progress.progress_hook import ProgressHook
from cojoin.spark.query.monitoring import MonitoredInput, Monitoring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cojoin.checkpoints.claimed import ClaimedCheckpoint
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan
    from cojoin.metrics.query_metrics import Instruments
    from cojoin.spark.sources.sources import Source

__all__ = ["Outside"]

_LOG = logging.getLogger(__name__)
_END_SECONDS = 10.0


class Outside:
    """What others see of one run of a query.

    Args:
        name: The name under which the query is shown.
        plan: What it runs.
        checkpoint: Its checkpoint.
        sources: The source of each input, None where that is a DataFrame.
        lines: How many lines of the offset log belong to each input.
        on_progress: The user's function; None for none.
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
        self._name, self._told = name, False
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
        """Take a batch that counts."""
        if self._metrics is not None:
            try:
                self._metrics.count(manifest.report, manifest.durations_ms)
            except Exception as error:  # noqa: BLE001 - what counts it may be anybody's, and must not stop the query
                if not self._told:
                    self._told = True
                    _LOG.warning("query %s: its metrics can't be counted, the query goes on: %r", self._name, error)
        if self._monitoring is not None:
            self._monitoring.note(manifest.offsets)
        if self._hook is not None:
            self._hook.put(manifest.report)

    @contextlib.contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """Finish where the start of the query fails."""
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
        """Wait, not for long, until all of it has followed the last batch."""
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
