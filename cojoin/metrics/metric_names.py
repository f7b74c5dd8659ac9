"""The metrics of a query: their names, units and attributes, which stay from release to release.

Names and units follow OpenTelemetry's conventions: seconds, bytes, and counts of things in braces. Each attribute has
few values: a query, its inputs and outputs, the reasons of rejections, the parts of a batch. None has a value of a row,
a key, a partition or a path. Prometheus' exporter spells the names in its own way (``Metric.prometheus``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QUERY, INPUT, OUTPUT = "cojoin.query", "cojoin.input", "cojoin.output"
REASON, PART = "cojoin.reason", "cojoin.part"

EXPECTED_REASONS = ("null_key", "null_event_time", "late", "too_far_ahead")
"""The reasons whose counters exist before the first such row, so that its increase is seen."""

SECONDS_BOUNDARIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The upper bounds of the buckets in which durations are counted, in seconds."""

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True)
class Metric:
    """A metric of a query; the unit is UCUM's.

    A *counter* adds up from the start of the process, a *gauge* is the value when it is read, and a *histogram* counts
    durations by their size.

    >>> METRICS[0].prometheus
    'cojoin_query_active'
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    attributes: tuple[str, ...]
    text: str

    @property
    def prometheus(self) -> str:
        """The name that OpenTelemetry's exporter for Prometheus makes of it, without a histogram's further suffix."""
        suffix = _SUFFIXES.get(self.unit, "")
        return self.name.replace(".", "_") + suffix + ("_total" if self.kind == "counter" else "")


_OF_INPUT = (QUERY, INPUT)

METRICS = (
    Metric("cojoin.query.active", "gauge", "{query}", (QUERY,), "1 while the query runs, 0 after it has ended"),
    Metric("cojoin.query.epoch", "gauge", "{start}", (QUERY,), "how often the query was started, restarts included"),
    Metric("cojoin.query.batches", "counter", "{batch}", (QUERY,), "batches that count"),
    Metric(
        "cojoin.query.batch.duration",
        "histogram",
        "s",
        (QUERY, PART),
        "how long a part of a batch took: execute, write (all outputs), snapshot",
    ),
    Metric("cojoin.query.watermark", "gauge", "s", (QUERY,), "the operator's watermark, in seconds since 1970"),
    Metric(
        "cojoin.query.event_time.lag",
        "gauge",
        "s",
        (QUERY,),
        "how far the operator's watermark is behind the clock, while the query runs",
    ),
    Metric("cojoin.query.state.size", "gauge", "By", (QUERY,), "the size of the state, segments included"),
    Metric("cojoin.input.rows", "counter", "{row}", _OF_INPUT, "rows that came in"),
    Metric("cojoin.input.buffered", "gauge", "{row}", _OF_INPUT, "rows that still wait"),
    Metric("cojoin.input.rejected", "counter", "{row}", (*_OF_INPUT, REASON), "rows that were rejected, by reason"),
    Metric("cojoin.input.late_applied", "counter", "{row}", _OF_INPUT, "late rows that were applied nevertheless"),
    Metric("cojoin.input.watermark", "gauge", "s", _OF_INPUT, "the input's watermark, in seconds since 1970"),
    Metric(
        "cojoin.input.event_time.lag",
        "gauge",
        "s",
        _OF_INPUT,
        "how far the input's watermark is behind the clock, while the query runs",
    ),
    Metric(
        "cojoin.input.offset.lag",
        "gauge",
        "{record}",
        _OF_INPUT,
        "of Kafka: offsets between the last counted batch and the ends of the topics, while the query runs",
    ),
    Metric(
        "cojoin.input.group.failures",
        "counter",
        "{commit}",
        _OF_INPUT,
        "of Kafka with group=: commits to the consumer group that failed",
    ),
    Metric("cojoin.output.rows", "counter", "{row}", (QUERY, OUTPUT), "rows that went to an output"),
)
"""All metrics of a query."""
