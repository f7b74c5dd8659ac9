"""The metrics of one run of a query, taken from the reports of its batches.

Counters add what a report has more than the one before, beginning with what the checkpoint has: they begin at 0 in each
process, and a batch that is run again after it has counted adds nothing. The first batch of a restored query, which
reads another query's state with its counts, adds none of these. Gauges are those of the newest report. It costs some
microseconds a batch.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.metrics.metric_names import EXPECTED_REASONS, INPUT, OUTPUT, PART, QUERY, REASON

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.batch_report import BatchReport, InputReport
    from cojoin.metrics.instruments import Instruments

__all__ = ["QueryMetrics"]


class QueryMetrics:
    """The metrics of one run of a query.

    Args:
        instruments: The instruments.
        query: The name under which the query is shown.
        inputs: The names of both inputs.
        outputs: The names of its outputs.
        before: The report of the checkpoint's last batch when the run began; None before the first batch.
        epoch: How often the query was started.
        begins_restored: Whether batch 0 reads the state of another query.

    Attributes:
        is_asked: Set once an exporter has asked for a gauge, so that what costs a request is only asked for then.
    """

    def __init__(
        self,
        instruments: Instruments,
        query: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        before: BatchReport | None,
        epoch: int,
        *,
        begins_restored: bool = False,
    ) -> None:
        self.is_asked = threading.Event()
        self._instruments, self._query, self._epoch = instruments, query, epoch
        self._report, self._begins_restored = before, begins_restored
        self._is_active = True
        self._offset_lags: Mapping[str, int] = {}
        self._add("cojoin.query.batches", 0)
        for output in outputs:
            self._add("cojoin.output.rows", 0, (OUTPUT, output))
        for name in inputs:
            self._add("cojoin.input.rows", 0, (INPUT, name))
            self._add("cojoin.input.late_applied", 0, (INPUT, name))
            for reason in EXPECTED_REASONS:
                self._add("cojoin.input.rejected", 0, (INPUT, name), (REASON, reason))
        instruments.show(self)

    @property
    def query(self) -> str:
        """The name under which the query is shown."""
        return self._query

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        return self._is_active

    def count(self, report: BatchReport, durations_ms: Mapping[str, float]) -> None:
        """Count a batch.

        Args:
            report: The report of the batch.
            durations_ms: How long its parts took, in milliseconds, as its manifest has them.
        """
        before, self._report = self._report, report
        if before is not None and report.batch_id <= before.batch_id:
            return
        self._add("cojoin.query.batches", 1)
        for part, millis in _parts(report, durations_ms).items():
            attributes = {QUERY: self._query, PART: part}
            self._instruments.record("cojoin.query.batch.duration", millis / 1000, attributes)
        if before is None and self._begins_restored and report.batch_id == 0:
            return
        for output, rows in report.emitted.items():
            self._add("cojoin.output.rows", rows, (OUTPUT, output))
        for position, each in enumerate(report.inputs):
            self._count_input(each, None if before is None else before.inputs[position])

    def _count_input(self, now: InputReport, before: InputReport | None) -> None:
        of_input = (INPUT, now.name)
        self._add("cojoin.input.rows", now.rows_in - (before.rows_in if before else 0), of_input)
        late = now.late_applied - (before.late_applied if before else 0)
        self._add("cojoin.input.late_applied", late, of_input)
        for reason, rows in now.rejected.items():
            more = rows - (before.rejected.get(reason, 0) if before else 0)
            self._add("cojoin.input.rejected", more, of_input, (REASON, reason))

    def count_group_failure(self, name: str, amount: int = 1) -> None:
        """Count commits of an input's offsets to its consumer group that failed."""
        self._add("cojoin.input.group.failures", amount, (INPUT, name))

    def set_offset_lags(self, lags: Mapping[str, int]) -> None:
        """Set how many offsets of each input are not read yet, as far as that is known."""
        self._offset_lags = dict(lags)

    def end(self) -> None:
        """Note that the query has ended."""
        self._is_active = False

    def values(self, name: str) -> Iterator[tuple[float, Mapping[str, str]]]:
        """Yield the values of a gauge with their attributes."""
        self.is_asked.set()
        kind, _, of_what = name.removeprefix("cojoin.").partition(".")
        if kind == "query":
            value = self._of_query(of_what)
            if value is not None:
                yield value, {QUERY: self._query}
            return
        for each in () if self._report is None else self._report.inputs:
            value = self._of_input(of_what, each)
            if value is not None:
                yield value, {QUERY: self._query, INPUT: each.name}

    def _of_query(self, what: str) -> float | None:
        if what in {"active", "epoch"}:
            return self._epoch if what == "epoch" else int(self._is_active)
        if self._report is None:
            return None
        return self._report.state_bytes if what == "state.size" else self._time(what, self._report.watermark)

    def _of_input(self, what: str, each: InputReport) -> float | None:
        if what == "buffered":
            return each.buffered
        if what == "offset.lag":
            return self._offset_lags.get(each.name) if self._is_active else None
        return self._time(what, each.watermark)

    def _time(self, what: str, watermark: int) -> float | None:
        """Return a watermark, or how far it is behind the clock, in seconds; none where time has not begun or ended."""
        if watermark in {NONE, END_OF_TIME}:
            return None
        if what == "watermark":
            return watermark / 1000
        return time.time() - watermark / 1000 if self._is_active else None

    def _add(self, name: str, amount: int, *attributes: tuple[str, str]) -> None:
        self._instruments.add(name, max(0, amount), {QUERY: self._query, **dict(attributes)})


def _parts(report: BatchReport, durations_ms: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a batch, one after the other; ``calls`` lies within ``execute`` and is left out."""
    parts = {part: durations_ms[part] for part in ("execute", "snapshot") if part in durations_ms}
    own = {*parts, "calls"}
    parts["write"] = sum(millis for name, millis in durations_ms.items() if name in report.emitted and name not in own)
    return parts
