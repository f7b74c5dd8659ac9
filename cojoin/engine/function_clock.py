"""The clock of a state's time-to-live: processing time, or event time according to the function's order.

In event-time order, expiry is judged at the row's or timer's own time, so it does not depend on how rows were batched.
In arrival order it is judged at the watermark. An access counts at the element's own time, but not before the
watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.engine.time.timers import TimeDomain

if TYPE_CHECKING:
    from cojoin.engine.functions import Context
    from cojoin.engine.time.timers import TimerService

__all__ = ["FunctionClock"]


class FunctionClock:
    """The clock by which the entries of a state expire, in epoch milliseconds."""

    def __init__(self, context: Context, service: TimerService, *, by_time: bool) -> None:
        self._context, self._service, self._by_time = context, service, by_time

    def now(self, time_domain: str) -> int:
        """Return the time at which expiry is judged: in event-time order the row's or timer's own."""
        if time_domain == "processing_time":
            return self._service.processing_time
        return self._event_time() if self._by_time else self._service.watermark

    def access_time(self, time_domain: str) -> int:
        """Return the time of an access."""
        if time_domain == "processing_time":
            return self._service.processing_time
        return self._event_time()

    def _event_time(self) -> int:
        timestamp, watermark = self._context.timestamp(), self._service.watermark
        # A processing-time timer's timestamp is no event time.
        is_of_clock = self._context._domain is TimeDomain.PROCESSING_TIME  # noqa: SLF001 - a row has no time domain
        return watermark if timestamp is None or is_of_clock else max(timestamp, watermark)
