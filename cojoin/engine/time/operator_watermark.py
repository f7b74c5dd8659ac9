"""The watermark of an operator: the minimum over its active inputs, computed by ``input_watermark``.

It keeps the watermarks of both inputs, and whether the wait for the right input's first load is over. It emits the
operator's watermark, which only ever advances. All of it is state and survives a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.input_watermark import InputWatermark
from cojoin.engine.time.watermarks import NONE, AllIdle, Status, WatermarkMerge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.watermark_strategies import WatermarkStrategy

__all__ = ["OperatorWatermark", "TimePolicy"]


@dataclass(frozen=True)
class TimePolicy:
    """How the operator combines its inputs' watermarks, beyond their minimum.

    Attributes:
        when_all_idle: What the watermark does when every input that is not finished is idle, and what an input's own
            watermark does when all its partitions are idle.
        hold_left_until: The operator's watermark does not advance until the right input's watermark has reached this
            time, in epoch milliseconds, or the right input is idle or finished, so left rows wait for the right input's
            first load. None does not wait. Once the watermark has advanced, the checkpoint records it, and a later
            value has no effect.
    """

    when_all_idle: AllIdle = "hold"
    hold_left_until: int | None = None


class OperatorWatermark:
    """The operator's watermark: the minimum over its two inputs, which never goes back."""

    def __init__(self, strategies: Sequence[WatermarkStrategy], policy: TimePolicy | None = None) -> None:
        self._policy = policy or TimePolicy()
        self.inputs = tuple(InputWatermark(strategy, self._policy.when_all_idle) for strategy in strategies)
        self._merge = WatermarkMerge(all_idle=self._policy.when_all_idle)
        self._released = self._policy.hold_left_until is None

    def fold(self, controls: Sequence[Control]) -> None:
        """Apply all controls of a micro-batch: what its map tasks saw, and what is known from outside.

        Neither the order of the controls nor the number of tasks over which the rows were spread matters.
        """
        for number, each in enumerate(self.inputs, start=1):
            each.fold([control for control in controls if control.input == number])

    def hold(self, holds: Mapping[int, int]) -> None:
        """Limit the watermark of each input in this micro-batch, before anything is folded.

        Args:
            holds: The limits in epoch milliseconds, by the input's number; an input without one is not limited.
        """
        for number, each in enumerate(self.inputs, start=1):
            each.hold(holds.get(number))

    def begin(self, processing_time: int) -> None:
        """Set a micro-batch's processing time, in epoch milliseconds, before anything is folded."""
        for each in self.inputs:
            each.begin(processing_time)

    def tick(self, processing_time: int) -> None:
        """Advance the clock, once a micro-batch, after ``fold`` and before rows are admitted."""
        for each in self.inputs:
            each.tick(processing_time)

    def resume(self) -> None:
        """Restart all idleness timers, because the query did not run."""
        for each in self.inputs:
            each.resume()

    def finish(self) -> None:
        """Finish all inputs, so that the watermark becomes ``END_OF_TIME``."""
        for each in self.inputs:
            each.set_status(None, "finished")

    def current(self) -> int:
        """Return the operator's watermark in epoch milliseconds; ``NONE`` while an input has none or is waited for."""
        for name, each in zip("12", self.inputs, strict=True):
            self._merge.update(name, each.current())
            self._merge.set_status(name, each.status())
        if not self._released:
            right, until = self.inputs[1], self._policy.hold_left_until
            self._released = right.status() != "active" or right.current() >= until  # type: ignore[operator]
        return self._merge.current() if self._released else NONE

    def status(self) -> Status:
        """Return the status of both inputs together: idle or finished only when both are."""
        self.current()
        return self._merge.status()

    def max_timestamp(self) -> int:
        """Return the largest timestamp seen in any input, in epoch milliseconds, or ``NONE``."""
        return max(each.max_timestamp() for each in self.inputs)

    def holding_input(self) -> int | None:
        """Return which input holds the watermark back: 1 or 2, the first if both do; None where none is active."""
        self.current()
        if not self._released:
            return 2
        holding = self._merge.holding()
        return None if holding is None else int(holding)

    def snapshot(self) -> dict[str, Any]:
        """Return what survives a restart, as JSON values."""
        self.current()
        return {
            "merge": self._merge.snapshot(),
            "released": self._released,
            "inputs": [each.snapshot() for each in self.inputs],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore what ``snapshot`` returned."""
        self._merge.restore(snapshot["merge"])
        # Removing the option ends the wait; once released, the watermark is not held again.
        self._released = self._policy.hold_left_until is None or bool(snapshot["released"])
        for each, state in zip(self.inputs, snapshot["inputs"], strict=True):
            each.restore(state)
