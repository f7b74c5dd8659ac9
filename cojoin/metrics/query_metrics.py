"""The metrics of one run of a query, computed from its batch reports, and the OpenTelemetry instruments for them.

A counter begins at 0 in each process. A batch adds its output rows, and for inputs the difference between its report
and the previous one, at first the checkpoint's last. A batch that is run again after its manifest was written adds
nothing. The first batch of a restored query adds no rows: its report has the counts of another query's state. Gauges
have the values of the newest report. A batch costs some microseconds.

There is one set of instruments for each meter, since a second instrument of the same name would be refused. Without the
package ``opentelemetry-api`` it does not exist, and until the program configures an SDK, nothing is measured. An
exporter reads gauges by a callback, which returns each query's newest values. The newest query of a name is shown after
its end, too, so that the values of a short run are exported. Of the ended queries, the 20 that started last are kept.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.metrics.metric_names import (
    EXPECTED_REASONS,
    INPUT,
    METRICS,
    OUTPUT,
    PART,
    QUERY,
    REASON,
    SECONDS_BOUNDARIES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.batch_report import BatchReport, InputReport


class QueryMetrics:
    """The metrics of one run of a query, shown under the name ``query``.

    ``before`` is the report of the checkpoint's last batch when the run began, None before the first one; ``epoch`` is
    the number of the query's starts. ``begins_restored`` is whether batch 0 reads the state of another query.
    ``is_asked`` is set once an exporter has read a gauge; before that, no source is queried for its newest offsets.
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
        """Count a batch by its report and by the milliseconds that its parts took, as in its manifest."""
        before, self._report = self._report, report
        if before is not None and report.batch_id <= before.batch_id:
            return
        self._add("cojoin.query.batches", 1)
        for part, millis in _parts(durations_ms).items():
            attributes = {QUERY: self._query, PART: part}
            self._instruments.record("cojoin.query.batch.duration", millis / 1000, attributes)
        if before is None and self._begins_restored and report.batch_id == 0:
            return
        for output, rows in report.emitted.items():
            self._add("cojoin.output.rows", rows, (OUTPUT, output))
        for position, one in enumerate(report.inputs):
            self._count_input(one, None if before is None else before.inputs[position])

    def _count_input(self, now: InputReport, before: InputReport | None) -> None:
        of_input = (INPUT, now.name)
        self._add("cojoin.input.rows", now.rows_in - (before.rows_in if before else 0), of_input)
        late = now.late_applied - (before.late_applied if before else 0)
        self._add("cojoin.input.late_applied", late, of_input)
        for reason, rows in now.rejected.items():
            more = rows - (before.rejected.get(reason, 0) if before else 0)
            self._add("cojoin.input.rejected", more, of_input, (REASON, reason))

    def count_group_failure(self, name: str, amount: int = 1) -> None:
        """Count failed commits of an input's offsets to its consumer group."""
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
        for one in () if self._report is None else self._report.inputs:
            value = self._of_input(of_what, one)
            if value is not None:
                yield value, {QUERY: self._query, INPUT: one.name}

    def _of_query(self, figure: str) -> float | None:
        if figure in {"active", "epoch"}:
            return self._epoch if figure == "epoch" else int(self._is_active)
        if self._report is None:
            return None
        return self._report.state_bytes if figure == "state.size" else self._time(figure, self._report.watermark)

    def _of_input(self, figure: str, report: InputReport) -> float | None:
        if figure == "buffered":
            return report.buffered
        if figure == "offset.lag":
            return self._offset_lags.get(report.name) if self._is_active else None
        return self._time(figure, report.watermark)

    def _time(self, figure: str, watermark: int) -> float | None:
        """Return a watermark, or its lag behind the clock, in seconds; None before the first and after the last one."""
        if watermark in {NONE, END_OF_TIME}:
            return None
        if figure == "watermark":
            return watermark / 1000
        return time.time() - watermark / 1000 if self._is_active else None

    def _add(self, name: str, amount: int, *attributes: tuple[str, str]) -> None:
        self._instruments.add(name, max(0, amount), {QUERY: self._query, **dict(attributes)})


def _parts(durations_ms: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of a batch's consecutive parts, without ``calls``, which is a part of ``execute``."""
    parts = {part: durations_ms[part] for part in ("execute", "snapshot") if part in durations_ms}
    parts["write"] = sum(millis for name, millis in durations_ms.items() if name not in {*parts, "calls"})
    return parts


_LOG = logging.getLogger(__name__)
_ENDED = 20


class Instruments:
    """The instruments of one meter of ``opentelemetry.metrics``."""

    def __init__(self, meter: Any) -> None:
        self._shown: dict[str, QueryMetrics] = {}
        self._lock = threading.Lock()
        self._has_warned = False
        self._counters: dict[str, Any] = {}
        self._histograms: dict[str, Any] = {}
        for metric in METRICS:
            if metric.kind == "counter":
                self._counters[metric.name] = meter.create_counter(metric.name, metric.unit, metric.text)
            elif metric.kind == "histogram":
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name, metric.unit, metric.text, explicit_bucket_boundaries_advisory=SECONDS_BOUNDARIES
                )
            else:
                ask = partial(self._observe, metric.name)
                meter.create_observable_gauge(metric.name, [ask], metric.unit, metric.text)

    def show(self, gauges: QueryMetrics) -> None:
        """Show a query's gauges from now on, instead of those of an earlier query of the same name."""
        with self._lock:
            self._shown.pop(gauges.query, None)
            self._shown[gauges.query] = gauges
            ended = [name for name, each in self._shown.items() if not each.is_active]
            for name in ended[:-_ENDED]:
                del self._shown[name]

    def add(self, name: str, amount: int, attributes: Mapping[str, str]) -> None:
        """Add to a counter."""
        self._counters[name].add(amount, attributes)

    def record(self, name: str, value: float, attributes: Mapping[str, str]) -> None:
        """Record a value in a histogram."""
        self._histograms[name].record(value, attributes)

    def _observe(self, name: str, options: object) -> Iterator[Any]:
        del options
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - an optional dependency

        with self._lock:
            shown = list(self._shown.values())
        for gauges in shown:
            try:
                observed = list(gauges.values(name))
            except Exception as error:  # noqa: BLE001 - one query must not keep the others from being shown
                if not self._has_warned:
                    self._has_warned = True
                    _LOG.warning("query %s: its metric %s has no value: %r", gauges.query, name, error)
                continue
            for value, attributes in observed:
                yield Observation(value, attributes)


@cache
def process_instruments() -> Instruments | None:
    """Return the instruments of the process's own meter, ``cojoin``; None where opentelemetry-api is not installed."""
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return Instruments(metrics.get_meter("cojoin"))
