"""What a row or a timer waits for: which time, how far it is, and which input and partition hold it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cojoin.engine.display import format_span, format_time
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from cojoin.checkpoints.inspect.query_state import QueryState

__all__ = ["Wait", "wait_for_clock", "wait_for_watermark"]


@dataclass(frozen=True)
class Wait:
    """What a row or a timer waits for; all times are in epoch milliseconds.

    Attributes:
        clock: ``"watermark"``, or ``"processing_time"`` for the batches' processing time.
        until: The time that must be reached; ``2**63 - 1`` for the end of all inputs.
        reached: The current watermark or processing time; ``-2**63`` where there is none yet.
        input: The input that holds the watermark back; None where no input does, or it is not known.
        partition: The source partition of that input that holds it back, where the input has several.

    >>> print(Wait("watermark", 5_000, -1_001, "customers", '["customers",3]'))
    it is at 1969-12-31 23:59:58.999, held by 'customers' partition ["customers",3], 6.001 s behind
    """

    clock: Literal["watermark", "processing_time"]
    until: int
    reached: int
    input: str | None = None
    partition: str | None = None

    @property
    def behind_ms(self) -> int | None:
        """How far ``reached`` is behind ``until``, in milliseconds.

        0 where it is reached; None where there is no time yet, or the wait is for the end of all inputs.
        """
        if self.reached == NONE or self.until == END_OF_TIME:
            return None
        return max(0, self.until - self.reached)

    @property
    def is_due(self) -> bool:
        """Whether the time has been reached, so that the wait ends with the next batch."""
        return self.reached >= self.until

    def as_dict(self) -> dict[str, Any]:
        """Return the wait as JSON values."""
        return {
            "clock": self.clock,
            "until": self.until,
            "reached": self.reached,
            "behind_ms": self.behind_ms,
            "input": self.input,
            "partition": self.partition,
        }

    def __str__(self) -> str:
        behind = "" if self.behind_ms is None else f", {format_span(self.behind_ms)} behind"
        if self.clock == "processing_time":
            return f"the last batch was at {format_time(self.reached)}{behind}"
        if self.is_due:
            return f"it is there, at {format_time(self.reached)}, so the next batch does it"
        holder = "all inputs that are not finished being idle" if self.input is None else f"held by {self.input!r}"
        holder += f" partition {self.partition}" if self.partition else ""
        if self.reached == NONE:
            return "there is none yet" + (f", {holder}, which has not spoken" if self.input else "")
        return f"it is at {format_time(self.reached)}, {holder}{behind}"


def wait_for_watermark(state: QueryState, until: int) -> Wait:
    """Return the wait until the watermark reaches a time in epoch milliseconds."""
    report = state.report
    holding = None if report is None else report.holding_input
    partition = None
    if report is not None:
        partition = next((each.holding_partition for each in report.inputs if each.name == holding), None)
    return Wait("watermark", until, state.watermark, holding, None if partition == ONE_PARTITION else partition)


def wait_for_clock(state: QueryState, until: int) -> Wait:
    """Return the wait until the batches' processing time reaches a time in epoch milliseconds."""
    taken_at = state.taken_at
    return Wait("processing_time", until, NONE if taken_at is None else int(1000 * taken_at.timestamp()))
