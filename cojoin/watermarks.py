"""Watermarks: how far event time has come, for each source partition, input and operator.

A watermark W promises that no more rows with timestamp <= W will come. A partition's is its largest timestamp -
out-of-orderness - 1 ms; an input's is the minimum over its partitions that have spoken; the operator's is the minimum
over its inputs. Each only ever advances. Before every input has spoken the operator's is ``NONE``. A finished input is
left out; when both are finished time ends. Keeps: the largest timestamp of every partition. All times are epoch
milliseconds. (Flink: ``WatermarkOutputMultiplexer``, FLIP-27.)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from cojoin.durations import Duration, milliseconds
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["END_OF_TIME", "NONE", "Control", "InputWatermark", "OperatorWatermark", "WatermarkStrategy", "format_time"]

NONE = -(1 << 63)
"""The watermark before every input has spoken; shown to people as ``none``."""

END_OF_TIME = (1 << 63) - 1
"""The watermark when all inputs are finished."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """How an input's watermark follows its rows.

    Attributes:
        out_of_orderness_ms: How many milliseconds a row may come after a later one.

    Raises:
        ConfigurationError: It is negative, or no whole number.

    >>> WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").out_of_orderness_ms
    5000
    """

    out_of_orderness_ms: int = 0

    def __post_init__(self) -> None:
        if type(self.out_of_orderness_ms) is not int or self.out_of_orderness_ms < 0:
            msg = f"out_of_orderness_ms: expected whole milliseconds, zero or more, got {self.out_of_orderness_ms!r}"
            raise ConfigurationError(msg)

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Let rows come out of order by up to a bound, within each source partition.

        Args:
            max_out_of_orderness: ``"5 seconds"`` or a ``timedelta``, in whole milliseconds.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        return cls(milliseconds(max_out_of_orderness, "max_out_of_orderness"))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Expect ascending timestamps within each source partition."""
        return cls(0)


@dataclass(frozen=True)
class Control:
    """What one map task saw of one input: it travels in band with the rows.

    Attributes:
        input: 1 (left) or 2 (right).
        partitions: Each source partition's largest timestamp in milliseconds.
        rows: How many rows the task sent to the receiving key group.
        processing_time: The micro-batch's processing time in epoch milliseconds.
    """

    input: Literal[1, 2]
    partitions: Mapping[str, int]
    rows: int = 0
    processing_time: int = 0


class InputWatermark:
    """The watermark of one input, folded from its source partitions."""

    def __init__(self, out_of_orderness_ms: int = 0) -> None:
        self._delay = out_of_orderness_ms
        self._partitions: dict[str, int] = {}
        self._current = NONE
        self.finished = False

    def observe(self, partition: str, max_timestamp: int) -> None:
        """Take the largest timestamp that was seen in a partition."""
        self._partitions[partition] = max(self._partitions.get(partition, NONE), max_timestamp)

    def current(self) -> int:
        """Give the watermark: ``NONE`` before the input has spoken, ``END_OF_TIME`` once it is finished."""
        if self.finished:
            return END_OF_TIME
        if self._partitions:
            self._current = max(self._current, min(map(self._of_partition, self._partitions)))
        return self._current

    def max_timestamp(self) -> int:
        """Give the largest timestamp seen, or ``NONE``."""
        return max(self._partitions.values(), default=NONE)

    def holding_partition(self) -> str | None:
        """Name the partition that holds the input back: the one that has come least far."""
        return min(self._partitions, key=lambda name: (self._partitions[name], name), default=None)

    def partitions(self) -> dict[str, int]:
        """Give each partition's watermark."""
        return {name: self._of_partition(name) for name in sorted(self._partitions)}

    def _of_partition(self, name: str) -> int:
        return max(NONE, self._partitions[name] - self._delay - 1)

    def snapshot(self) -> dict[str, Any]:
        """Give what survives a restart, as JSON values."""
        return {"partitions": dict(self._partitions), "watermark": self.current(), "finished": self.finished}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take what ``snapshot`` gave."""
        self._partitions = dict(snapshot["partitions"])
        self.finished = bool(snapshot["finished"])
        self._current = NONE if self.finished else int(snapshot["watermark"])


class OperatorWatermark:
    """The operator's watermark: the minimum over its two inputs, which never goes back."""

    def __init__(self, strategies: Sequence[WatermarkStrategy]) -> None:
        self.inputs = tuple(InputWatermark(strategy.out_of_orderness_ms) for strategy in strategies)
        self._current = NONE

    def fold(self, control: Control) -> None:
        """Take what a map task saw."""
        for partition, timestamp in control.partitions.items():
            self.inputs[control.input - 1].observe(partition, timestamp)

    def finish(self) -> None:
        """Finish all inputs: time ends."""
        for each in self.inputs:
            each.finished = True

    def current(self) -> int:
        """Give the operator's watermark."""
        active = [each.current() for each in self.inputs if not each.finished]
        self._current = max(self._current, min(active) if active else END_OF_TIME)
        return self._current

    def max_timestamp(self) -> int:
        """Give the largest timestamp seen in any input, or ``NONE``."""
        return max(each.max_timestamp() for each in self.inputs)

    def holding_input(self) -> int | None:
        """Number the input that holds time back: 1 or 2, the first where both do; None once all are finished."""
        active = [(each.current(), number) for number, each in enumerate(self.inputs, start=1) if not each.finished]
        return min(active)[1] if active else None

    def snapshot(self) -> dict[str, Any]:
        """Give what survives a restart, as JSON values."""
        return {"current": self.current(), "inputs": [each.snapshot() for each in self.inputs]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take what ``snapshot`` gave."""
        self._current = int(snapshot["current"])
        for each, state in zip(self.inputs, snapshot["inputs"], strict=True):
            each.restore(state)


def format_time(timestamp: int) -> str:
    """Show a watermark to people: UTC, ``none`` or ``end of time``.

    >>> format_time(1_500)
    '1970-01-01 00:00:01.500'
    """
    if timestamp <= NONE:
        return "none"
    if timestamp == END_OF_TIME:
        return "end of time"
    try:
        moment = datetime.fromtimestamp(timestamp // 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp % 1000:03d}"
