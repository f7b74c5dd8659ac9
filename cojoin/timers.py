"""Timers: at most one per key, time domain and timestamp, fired in timestamp order.

Keeps: the timestamps of every key's timers, as one Arrow table a domain (key columns, timestamp); like states, only
touched keys are decoded. Fires: a timer t of event time when the watermark reaches t, one of processing time when the
micro-batch's clock does. One set for the past fires at the next advance, one set inside ``on_timer`` in the same
sweep. Forgets: a timer when it fires or is deleted; deleting one that is not there does nothing. Practice: a timer
rounded up to a coarser step, ``t - t % 60_000 + 60_000``, is one timer a minute instead of one an element. (Flink:
``InternalTimerServiceImpl``, and its documentation's "timer coalescing".)
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from cojoin.state import Cursor

__all__ = ["MAX_TIMERS_PER_SWEEP", "TimeDomain", "TimerService", "Timers"]

MAX_TIMERS_PER_SWEEP = 10_000
"""How many timers one key may set at or below a sweep's time within it before it counts as an endless loop."""

_MIN_TIMESTAMP, _MAX_TIMESTAMP = -(1 << 63), (1 << 63) - 1


class TimeDomain(Enum):
    """Which clock a timer goes by; PyFlink's ``pyflink.datastream.TimeDomain``."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class Timers:
    """The timers of one domain, of the touched keys, by key code."""

    def __init__(self, cursor: Cursor, owner: str) -> None:
        self._cursor = cursor
        self._owner = owner
        # A deleted timer leaves its set at once and its heap when it comes to the top.
        self._live: dict[int, set[int]] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sweeping_to: int | None = None
        self._set_in_sweep: dict[int, int] = {}
        self._limit: int | None = None
        # What a drain did not take, by key code and timestamp, and how many there were in the batches before.
        self._refused: set[tuple[int, int]] = set()
        self._refused_before = 0

    @property
    def not_fired(self) -> int:
        """How many timers a drain left: set by ``on_timer`` beyond what it allows, and not deleted since."""
        return self._refused_before + len(self._refused)

    def load(self, codes: Iterable[int], timestamps: Iterable[int]) -> None:
        """Take the stored timers of the keys that this micro-batch touches."""
        self._live = {}
        for code, timestamp in zip(codes, timestamps, strict=True):
            self._live.setdefault(code, set()).add(timestamp)
        self._heaps = {code: list(live) for code, live in self._live.items()}
        for heap in self._heaps.values():
            heapify(heap)

    def dump(self) -> tuple[NDArray[np.int64], pa.Array]:
        """Give the touched keys' timers: their codes and timestamps.

        Raises:
            FunctionError: A timestamp has more than 64 bits.
        """
        codes = [code for code, live in self._live.items() for _ in live]
        timestamps = [timestamp for live in self._live.values() for timestamp in sorted(live)]
        for extreme in (min(timestamps, default=0), max(timestamps, default=0)):
            self._checked(extreme)
        return np.array(codes, dtype=np.int64), pa.array(timestamps, pa.int64())

    def unload(self) -> None:
        """Let go of the touched keys; their timers were dumped."""
        self._live, self._heaps = {}, {}
        self._refused_before += len(self._refused)
        self._refused.clear()

    def register(self, timestamp: Any) -> None:
        """Set a timer of the current key."""
        if type(timestamp) is not int:
            timestamp = self._checked(timestamp)
        code = self._cursor.code
        live = self._live.get(code)
        if live is None:
            live = self._live[code] = set()
            self._heaps[code] = []
        if timestamp in live:
            return
        if (self._sweeping_to is not None or self._limit is not None) and not self._admit(code, timestamp):
            return
        if self._refused:
            self._refused.discard((code, timestamp))
        live.add(timestamp)
        heappush(self._heaps[code], timestamp)

    def delete(self, timestamp: Any) -> None:
        """Delete a timer of the current key."""
        code, timestamp = self._cursor.code, self._checked(timestamp)
        self._refused.discard((code, timestamp))
        live = self._live.get(code)
        if live is not None:
            live.discard(timestamp)

    def of_key(self, code: int) -> tuple[list[int], set[int]]:
        """Give a key's timers as a heap, which may hold deleted ones, and as the set of those that are not."""
        heap = self._heaps.get(code)
        if heap is None:
            heap = self._heaps[code] = []
            self._live[code] = set()
        return heap, self._live[code]

    def due(self, now: int) -> list[tuple[int, int]]:
        """Give the earliest timer of each key that may have one at or below a time, as a heap of (time, key code)."""
        earliest = [(heap[0], code) for code, heap in self._heaps.items() if heap and heap[0] <= now]
        heapify(earliest)
        return earliest

    def limit(self, last: int | None) -> None:
        """In a drain, count the timers that ``on_timer`` sets beyond a time instead of keeping them; None ends that."""
        self._limit = last

    def begin_sweep(self, now: int) -> None:
        """Begin to fire timers up to a time, itself included, with those that are set on the way."""
        self._sweeping_to = now
        if self._set_in_sweep:
            self._set_in_sweep.clear()

    def pop(self, code: int) -> int | None:
        """Take a key's next timer of the sweep; None where it has no more."""
        now, heap, live = self._sweeping_to, self._heaps[code], self._live[code]
        while heap and heap[0] <= now:  # type: ignore[operator]
            timestamp = heappop(heap)
            if timestamp in live:
                live.remove(timestamp)
                return timestamp
        return None

    def next_due(self, code: int) -> int | None:
        """Give a key's next timer of the sweep without taking it; it may be a deleted one."""
        heap = self._heaps[code]
        return heap[0] if heap and heap[0] <= self._sweeping_to else None  # type: ignore[operator]

    def end_sweep(self) -> None:
        """End the sweep."""
        self._sweeping_to = None

    def _admit(self, code: int, timestamp: int) -> bool:
        if self._limit is not None and timestamp > self._limit:
            self._refused.add((code, timestamp))
            return False
        if self._sweeping_to is None or timestamp > self._sweeping_to:
            return True
        count = self._set_in_sweep[code] = self._set_in_sweep.get(code, 0) + 1
        if count >= MAX_TIMERS_PER_SWEEP:
            msg = (
                f"{self._owner}: on_timer set {count:,} timers at or below the watermark (or the clock) within one "
                f"sweep of one key, the last at {timestamp}: it would go on for ever; set the next timer above it"
            )
            raise FunctionError(msg)
        return True

    def _checked(self, timestamp: Any) -> int:
        index = getattr(timestamp, "__index__", None)
        if index is None or isinstance(timestamp, bool) or not _MIN_TIMESTAMP <= index() <= _MAX_TIMESTAMP:
            kind = type(timestamp).__name__
            msg = f"{self._owner}: a timer needs a whole number of epoch milliseconds, got {timestamp!r} ({kind})"
            raise FunctionError(msg)
        return int(index())


class TimerService:
    """What a function sees of time; its names are PyFlink's. All times are epoch milliseconds.

    In event-time order time is logical: at a row of time t the watermark is t - 1, in a timer t it is t. The inputs'
    own watermarks are those after the micro-batch, so a function that reads them depends on how the batches were cut.
    """

    def __init__(self, timers: Timers, processing_timers: Timers) -> None:
        self._timers = timers
        self._processing_timers = processing_timers
        self.watermark = _MIN_TIMESTAMP
        self.processing_time = 0
        self.input_watermarks = (_MIN_TIMESTAMP, _MIN_TIMESTAMP)
        self.refusal: str | None = None

    def current_watermark(self) -> int:
        """Give the operator's watermark; ``-2**63`` before every input has spoken."""
        return self.watermark

    def current_watermark1(self) -> int:
        """Give the first input's own watermark; ``-2**63`` before it has spoken, ``2**63 - 1`` once it is finished."""
        return self.input_watermarks[0]

    def current_watermark2(self) -> int:
        """Give the second input's own watermark; ``-2**63`` before it has spoken, ``2**63 - 1`` once it is finished."""
        return self.input_watermarks[1]

    def current_processing_time(self) -> int:
        """Give the micro-batch's own processing time, the same when the batch is run again."""
        return self.processing_time

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``timestamp``; twice is once.

        Raises:
            FunctionError: The timestamp is no whole number of milliseconds.
        """
        self._timers.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key; one that is not there is passed over."""
        self._timers.delete(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when a micro-batch's clock reaches ``timestamp``; twice is once.

        One that is overdue after a restart fires in the first micro-batch. A drain, and the end of a static run, fires
        every one that waits.

        Raises:
            FunctionError: The timestamp is no whole number of milliseconds, or the query expects no such timers.
        """
        if self.refusal is not None:
            raise FunctionError(self.refusal)
        self._processing_timers.register(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key; one that is not there is passed over."""
        self._processing_timers.delete(timestamp)
