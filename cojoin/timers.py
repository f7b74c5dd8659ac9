"""Event-time timers: at most one per key and timestamp, fired in timestamp order.

Keeps: the timestamps of every key's timers, as one Arrow table (key columns, timestamp); like states, only touched keys
are decoded. Fires: a timer t when the watermark reaches t. One set for the past fires at the next advance, one set
inside ``on_timer`` in the same sweep. Forgets: a timer when it fires or is deleted; deleting one that is not there does
nothing. (Flink: ``InternalTimerServiceImpl``.)
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from cojoin.state import Cursor

__all__ = ["MAX_TIMERS_PER_SWEEP", "TimerService", "Timers"]

MAX_TIMERS_PER_SWEEP = 10_000
"""How many timers one key may set at or below the watermark within a sweep before it counts as an endless loop."""

_MIN_TIMESTAMP, _MAX_TIMESTAMP = -(1 << 63), (1 << 63) - 1


class Timers:
    """The timers of the touched keys, by key code."""

    def __init__(self, cursor: Cursor, owner: str) -> None:
        self._cursor = cursor
        self._owner = owner
        # A deleted timer leaves its set at once and its heap when it comes to the top.
        self._live: dict[int, set[int]] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sweeping_to: int | None = None
        self._set_in_sweep = 0
        self._last_event: int | None = None
        # What a drain did not take, by key code and timestamp, and how many there were in the batches before.
        self._refused: set[tuple[int, int]] = set()
        self._refused_before = 0

    @property
    def not_fired(self) -> int:
        """How many timers a drain left: set by ``on_timer`` beyond the largest event time, and not deleted since."""
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
        if self._sweeping_to is not None and not self._admit_in_sweep(code, timestamp):
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

    def is_due(self, code: int, watermark: int) -> bool:
        """Tell whether the key may have a timer at or below the watermark (a deleted one may still say yes)."""
        heap = self._heaps.get(code)
        return bool(heap) and heap[0] <= watermark  # type: ignore[index]

    def begin_sweep(self, watermark: int, last_event: int | None = None) -> None:
        """Begin to fire the current key's timers up to a watermark, with those that are set on the way.

        Args:
            watermark: The milliseconds up to which timers are due, themselves included.
            last_event: In a drain, the largest event time seen: timers set by the sweep beyond it are counted, not
                fired.
        """
        self._sweeping_to, self._last_event, self._set_in_sweep = watermark, last_event, 0

    def pop(self) -> int | None:
        """Take the current key's next timer of the sweep; None ends the sweep."""
        code, watermark = self._cursor.code, self._sweeping_to
        heap, live = self._heaps[code], self._live[code]
        while heap and heap[0] <= watermark:  # type: ignore[operator]
            timestamp = heappop(heap)
            if timestamp in live:
                live.remove(timestamp)
                return timestamp
        self._sweeping_to = None
        return None

    def _admit_in_sweep(self, code: int, timestamp: int) -> bool:
        if self._last_event is not None and timestamp > self._last_event:
            self._refused.add((code, timestamp))
            return False
        if timestamp > self._sweeping_to:  # type: ignore[operator]
            return True
        self._set_in_sweep += 1
        if self._set_in_sweep >= MAX_TIMERS_PER_SWEEP:
            msg = (
                f"{self._owner}: on_timer set {self._set_in_sweep:,} timers at or below the watermark within one sweep "
                f"of one key, the last at {timestamp}: it would go on for ever; set the next timer above the watermark"
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

    In event-time order time is logical: at a row of time t the watermark is t - 1, in a timer t it is t.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.watermark = _MIN_TIMESTAMP
        self.processing_time = 0

    def current_watermark(self) -> int:
        """Give the operator's watermark; ``-2**63`` before every input has spoken."""
        return self.watermark

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
