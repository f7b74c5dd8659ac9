"""OpenTelemetry's instruments of all queries of this process.

There is one set for each meter, since a second instrument of the same name would be refused. Without the package
``opentelemetry-api`` there is none; with it, but without an SDK that the program has configured, nothing is measured.
Gauges are asked for: an exporter calls back, and gets each query's newest values. The newest query of a name is shown
after its end, too, so that what a short run leaves behind is exported; the oldest of many ended queries are forgotten.
"""

from __future__ import annotations

import logging
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from cojoin.metrics.metric_names import METRICS, SECONDS_BOUNDARIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Gauges", "Instruments", "process_instruments"]

_LOG = logging.getLogger(__name__)
_ENDED = 20


class Gauges(Protocol):
    """The gauges of a query."""

    @property
    def query(self) -> str:
        """The name under which the query is shown."""

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""

    def values(self, name: str) -> Iterable[tuple[float, Mapping[str, str]]]:
        """Return the values of a gauge with their attributes; none where it has no value now."""


class Instruments:
    """The instruments of one meter.

    Args:
        meter: A meter of ``opentelemetry.metrics``.
    """

    def __init__(self, meter: Any) -> None:
        self._shown: dict[str, Gauges] = {}
        self._lock = threading.Lock()
        self._told = False
        self._counters: dict[str, Any] = {}
        self._histograms: dict[str, Any] = {}
        for each in METRICS:
            if each.kind == "counter":
                self._counters[each.name] = meter.create_counter(each.name, each.unit, each.text)
            elif each.kind == "histogram":
                self._histograms[each.name] = meter.create_histogram(
                    each.name, each.unit, each.text, explicit_bucket_boundaries_advisory=SECONDS_BOUNDARIES
                )
            else:
                ask = partial(self._observe, each.name)
                meter.create_observable_gauge(each.name, [ask], each.unit, each.text)

    def show(self, gauges: Gauges) -> None:
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
                found = list(gauges.values(name))
            except Exception as error:  # noqa: BLE001 - one query must not keep the others from being shown
                if not self._told:
                    self._told = True
                    _LOG.warning("query %s: its metric %s has no value: %r", gauges.query, name, error)
                continue
            for value, attributes in found:
                yield Observation(value, attributes)


@cache
def process_instruments() -> Instruments | None:
    """Return the instruments of the process's own meter, ``cojoin``; None where opentelemetry-api is not installed."""
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return Instruments(metrics.get_meter("cojoin"))
