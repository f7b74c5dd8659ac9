"""What a state's time-to-live goes by: the clock, or event time as the function's order has it.

In event-time order time is logical: expiry is judged at the row's or timer's own time, whatever the batches were. In
the order of arrival it is judged by the watermark, and an access happens at the element's own time, but not before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.engine.time.timers import TimeDomain

if TYPE_CHECKING:
    from cojoin.engine.functions import Context
    from cojoin.engine.time.timers import TimerService

__all__ = ["FunctionClock"]


class FunctionClock:
    """What a state's time-to-live goes by."""

    def __init__(self, context: Context, service: TimerService, *, by_time: bool) -> None:
        self._context, self._service, self._by_time = context, service, by_time

    def now(self, time_domain: str) -> int:
        """Return the time that expiry is judged by: in event-time order the row's or timer's own."""
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
        # The time of a processing-time timer is the clock's.
        is_of_clock = self._context._domain is TimeDomain.PROCESSING_TIME  # noqa: SLF001 - a row has no domain to ask for
        return watermark if timestamp is None or is_of_clock else max(timestamp, watermark)
