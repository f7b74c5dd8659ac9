"""The time of a harness: watermarks, idle, active and finished inputs, the clock, and the end of the inputs."""

from __future__ import annotations

from typing import Literal

from cojoin.engine.formats import format_time
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermarks import NONE, Status
from cojoin.testing.checks import Partition, epoch_millis, input_number, partition_name, refuse_finished, unfinished
from cojoin.testing.events import HarnessError
from cojoin.testing.harness_calls import HarnessCalls

__all__ = ["HarnessTime"]


class HarnessTime(HarnessCalls):
    """The part of a harness that moves time."""

    _suppresses: bool

    def process_watermark1(self, timestamp: int, *, partition: Partition = None) -> None:
        """Advance the first input's watermark: no more rows with a timestamp at or below it are expected.

        Args:
            timestamp: The watermark in epoch milliseconds.
            partition: The source partition whose watermark it is; None means all known partitions that are not
                finished.

        Raises:
            HarnessError: It is not a whole number, it is below the current watermark (``regressing_watermarks``), or
                the input or partition is finished.
        """
        self._call(controls=[self._watermark(0, timestamp, partition)])

    def process_watermark2(self, timestamp: int, *, partition: Partition = None) -> None:
        """Advance the second input's watermark; see ``process_watermark1``."""
        self._call(controls=[self._watermark(1, timestamp, partition)])

    def process_watermark(self, timestamp: int) -> None:
        """Advance both inputs' watermarks in one call; see ``process_watermark1``."""
        self._call(controls=[self._watermark(side, timestamp, None) for side in (0, 1)])

    def set_processing_time(self, timestamp: int) -> None:
        """Set the clock and fire the processing-time timers that are due. The clock does not move between calls.

        Args:
            timestamp: The processing time in epoch milliseconds, not negative.

        Raises:
            HarnessError: It is not such a number.
        """
        self._call(now=epoch_millis(timestamp, "processing time", clock=True))

    def set_idle(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as idle: it no longer holds back the watermark."""
        self._declare(number, partition, "idle")

    def set_active(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as active.

        A source partition that was not known holds back the watermark until its first row or watermark.

        Raises:
            HarnessError: The input or partition is finished; this status is final.
        """
        self._declare(number, partition, "active")

    def set_finished(self, number: Literal[1, 2], *, partition: Partition = None) -> None:
        """Mark an input, or one of its source partitions, as finished: no rows follow from it."""
        self._declare(number, partition, "finished")

    def end_input(self) -> None:
        """Drain: finish both inputs, advance the watermark to the end of time, and fire the timers set before.

        No further call is possible, except ``restore``.
        """
        self._call(end=True)
        self._ended = True

    def _watermark(self, side: int, timestamp: int, partition: Partition) -> Control:
        timestamp = epoch_millis(timestamp, f"{self._sides[side].what}: watermark")
        self._check_ready()
        watermark = self._operators[0].watermark.inputs[side]
        known = watermark.partitions()
        names = [partition_name(partition)] if partition is not None else unfinished(watermark) or [ONE_PARTITION]
        refuse_finished(watermark, self._sides[side].what, names[0])
        for name in names:
            current = known.get(name, NONE)
            if timestamp < current and not self._suppresses:
                msg = (
                    f"{self._sides[side].what}, partition {name!r}: its watermark is {current} "
                    f"({format_time(current)}) and can't go back to {timestamp} ({format_time(timestamp)}); in a job "
                    f"this would change nothing: say so with regressing_watermarks='ignore'"
                )
                raise HarnessError(msg)
        return Control(self._sides[side].number, processing_time=self._now, watermarks=dict.fromkeys(names, timestamp))

    def _declare(self, number: Literal[1, 2], partition: Partition, status: Status) -> None:
        self._check_ready()
        number = input_number(number)
        name = None if partition is None else partition_name(partition)
        if status != "finished":
            refuse_finished(self._operators[0].watermark.inputs[number - 1], self._sides[number - 1].what, name)
        self._call(controls=[Control(number, processing_time=self._now, statuses={name: status})])
