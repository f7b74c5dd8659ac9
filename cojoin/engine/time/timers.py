"""Timers: at most one per key, time domain and timestamp, fired in timestamp order.

It keeps the timestamps of every key's timers, as one Arrow table for each domain (key columns, timestamp). As with
states, only touched keys are decoded.

It fires an event-time timer t when the watermark reaches t, and a processing-time timer t when the micro-batch's clock
does. A timer set for the past fires at the next advance. A timer set inside ``on_timer`` fires in the same sweep if it
is due. A chain of ascending timers ends by itself; one that does not ascend is stopped with an error
(``MAX_STALLED_TIMERS``).

It forgets a timer when it fires or is deleted; deleting one that does not exist does nothing.

A timer rounded up to a coarser step, ``t - t % 60_000 + 60_000``, is one timer a minute instead of one an element.
(Flink: ``InternalTimerServiceImpl``, and its documentation's "timer coalescing".)
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from cojoin.errors import FunctionError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from cojoin.engine.values.keys import KeyContext

MAX_STALLED_TIMERS = 10_000
"""How many timers one key's ``on_timer`` may set at or below the timer that fires, without a later one firing in
between, before this counts as an endless loop."""

_MIN_TIMESTAMP, _MAX_TIMESTAMP = -(1 << 63), (1 << 63) - 1


class TimeDomain(Enum):
    """The clock that a timer follows, as PyFlink's ``pyflink.datastream.TimeDomain``."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class Timers:
    """The timers of one domain and of the touched keys, by key code."""

    def __init__(self, key_context: KeyContext, owner: str) -> None:
        self._key_context = key_context
        self._owner = owner
        # A deleted timer leaves its set at once and its heap when it comes to the top.
        self._live: dict[int, set[int]] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sweeping_to: int | None = None
        # By key in this sweep: the latest timer that set one at or below itself, and how many were set so since.
        self._stalls: dict[int, tuple[int, int]] = {}
        self.firing = _MIN_TIMESTAMP
        """The timer that fires, or fired last; code that pops timers from a key's heap itself must set it."""
        self._farthest: dict[int, int] = {}
        self._advanced = False
        self._limit: int | None = None
        # The timers that a drain refused, by key code and timestamp, and how many it refused in earlier batches.
        self._refused: set[tuple[int, int]] = set()
        self._refused_before = 0

    @property
    def not_fired(self) -> int:
        """The timers that a drain left: the number set by ``on_timer`` beyond its limit, and not deleted since."""
        return self._refused_before + len(self._refused)

    def load(self, codes: Iterable[int], timestamps: Iterable[int]) -> None:
        """Load the stored timers of the keys that this micro-batch touches."""
        self._live, self._farthest = {}, {}
        for code, timestamp in zip(codes, timestamps, strict=True):
            self._live.setdefault(code, set()).add(timestamp)
        self._heaps = {code: list(live) for code, live in self._live.items()}
        for heap in self._heaps.values():
            heapify(heap)

    def dump(self) -> tuple[NDArray[np.int64], pa.Array]:
        """Return the touched keys' timers: their codes, and their timestamps in epoch milliseconds."""
        codes = [code for code, live in self._live.items() for _ in live]
        timestamps = [timestamp for live in self._live.values() for timestamp in sorted(live)]
        for extreme in (min(timestamps, default=0), max(timestamps, default=0)):
            self._checked(extreme)
        return np.array(codes, dtype=np.int64), pa.array(timestamps, pa.int64())

    def unload(self) -> None:
        """Drop the touched keys' timers, after they were dumped."""
        self._live, self._heaps = {}, {}
        self._refused_before += len(self._refused)
        self._refused.clear()

    def register(self, timestamp: Any) -> None:
        """Set a timer for the current key."""
        if type(timestamp) is not int:
            timestamp = self._checked(timestamp)
        code = self._key_context.code
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
        code, timestamp = self._key_context.code, self._checked(timestamp)
        self._refused.discard((code, timestamp))
        live = self._live.get(code)
        if live is not None:
            live.discard(timestamp)

    def of_key(self, code: int) -> tuple[list[int], set[int]]:
        """Return a key's timers as a heap, which may still hold deleted ones, and as the set of those not deleted."""
        heap = self._heaps.get(code)
        if heap is None:
            heap = self._heaps[code] = []
            self._live[code] = set()
        return heap, self._live[code]

    def due(self, now: int) -> list[tuple[int, int]]:
        """Return a heap of (timestamp, key code) with each key's first timer, perhaps deleted, up to a time."""
        earliest = [(heap[0], code) for code, heap in self._heaps.items() if heap and heap[0] <= now]
        heapify(earliest)
        return earliest

    def limit(self, last: int | None) -> None:
        """In a drain, count the timers that ``on_timer`` sets beyond a time, but do not keep them; None ends that."""
        self._limit = last

    def begin_sweep(self, now: int) -> None:
        """Begin to fire timers up to and including a time, among them those that are set meanwhile."""
        self._sweeping_to = now
        if self._stalls:
            self._stalls.clear()

    def pop(self, code: int) -> int | None:
        """Remove and return a key's next timer of the sweep; None where there is none."""
        now, heap, live = self._sweeping_to, self._heaps[code], self._live[code]
        while heap and heap[0] <= now:  # type: ignore[operator]
            timestamp = heappop(heap)
            if timestamp in live:
                live.remove(timestamp)
                self.firing = timestamp
                if self._limit is not None and timestamp > self._farthest.get(code, _MIN_TIMESTAMP):
                    self._farthest[code], self._advanced = timestamp, True
                return timestamp
        return None

    def has_advanced(self) -> bool:
        """Return whether, since the last call, a drain has fired a timer later than the key's earlier ones."""
        advanced, self._advanced = self._advanced, False
        return advanced

    def next_due(self, code: int) -> int | None:
        """Return a key's next timer of the sweep without removing it, or None; it may be a deleted one."""
        heap = self._heaps[code]
        return heap[0] if heap and heap[0] <= self._sweeping_to else None  # type: ignore[operator]

    def end_sweep(self) -> None:
        """End the sweep."""
        self._sweeping_to = None

    def _admit(self, code: int, timestamp: int) -> bool:
        if self._limit is not None and timestamp > self._limit:
            self._refused.add((code, timestamp))
            return False
        if self._sweeping_to is None or timestamp > self.firing:
            return True
        farthest, count = self._stalls.get(code, (self.firing, 0))
        count = count + 1 if self.firing <= farthest else 1
        self._stalls[code] = max(farthest, self.firing), count
        if count >= MAX_STALLED_TIMERS:
            msg = (
                f"{self._owner}: on_timer set {count:,} timers at or below the one that fires within one sweep of one "
                f"key, the last at {timestamp} in the timer {self.firing}, without advancing time (endless loop); set "
                f"the next timer above the one that fires"
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
    """The time as a function sees it, with PyFlink's names; all times are epoch milliseconds.

    In event-time order time is logical and does not depend on how micro-batches were cut. At a row of time t the
    watermark is t - 1, and in an event-time timer t it is t. Each input's own watermark is the same, as if both inputs
    were read in step. In arrival order a row sees the watermarks before its micro-batch, and a timer those after it. In
    both orders a processing-time timer sees the watermarks after its micro-batch.

    >>> from cojoin.engine.values.keys import KeyContext
    >>> service = TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F"))
    >>> service.current_watermark() == service.current_watermark1() == -2**63
    True
    """

    def __init__(self, timers: Timers, processing_timers: Timers) -> None:
        self._timers = timers
        self._processing_timers = processing_timers
        self.watermark = _MIN_TIMESTAMP
        self.processing_time = 0
        self.input_watermarks: tuple[int, int] | None = None
        """Each input's own watermark; None where time is logical."""
        self.refusal: str | None = None

    def __getattr__(self, name: str) -> NoReturn:
        # Reached only where no attribute has this name.
        known = [each for each in vars(TimerService) if not each.startswith("_")]
        msg = f"the timer service has no {name!r}{did_you_mean(name, known)}"
        raise AttributeError(msg)

    def current_watermark(self) -> int:
        """Return the operator's watermark in epoch milliseconds; ``-2**63`` while an input has none yet."""
        return self.watermark

    def current_watermark1(self) -> int:
        """Return the first input's own watermark, in epoch milliseconds.

        In arrival order it is ``-2**63`` before the input has one, and ``2**63 - 1`` once the input is finished. In
        event-time order it is ``current_watermark()``, because how far an input was read depends on how batches were
        cut.
        """
        return self.watermark if self.input_watermarks is None else self.input_watermarks[0]

    def current_watermark2(self) -> int:
        """Return the second input's own watermark, in epoch milliseconds.

        In arrival order it is ``-2**63`` before the input has one, and ``2**63 - 1`` once the input is finished. In
        event-time order it is ``current_watermark()``, because how far an input was read depends on how batches were
        cut.
        """
        return self.watermark if self.input_watermarks is None else self.input_watermarks[1]

    def current_processing_time(self) -> int:
        """Return the micro-batch's own processing time in epoch milliseconds, the same when the batch is run again."""
        return self.processing_time

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer: ``on_timer`` is called for the current key when the watermark reaches ``timestamp``.

        Registering it twice has the same effect as once. A timer for the past fires when the watermark next advances;
        if it is registered inside ``on_timer``, it fires in the same sweep.

        Args:
            timestamp: Epoch milliseconds.

        Raises:
            FunctionError: The timestamp is not a whole number of milliseconds.
        """
        self._timers.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key; one that does not exist is ignored."""
        self._timers.delete(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer: ``on_timer`` is called for the current key when the batch's clock reaches ``timestamp``.

        Registering it twice has the same effect as once. A timer that is overdue after a restart fires in the first
        micro-batch. A drain, and the end of a static run, fire every timer that waits.

        Args:
            timestamp: Epoch milliseconds.

        Raises:
            FunctionError: The timestamp is not a whole number of milliseconds, or the query expects no such timers.
        """
        if self.refusal is not None:
            raise FunctionError(self.refusal)
        self._processing_timers.register(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key; one that does not exist is ignored."""
        self._processing_timers.delete(timestamp)
