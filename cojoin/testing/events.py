"""What goes into a harness and what comes out of it, as plain values that compare by ``==``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from cojoin.errors import CojoinError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from cojoin.engine.time.watermarks import Status

__all__ = [
    "NOT_GIVEN",
    "Element",
    "Event",
    "HarnessError",
    "Record",
    "Rejected",
    "SideRecord",
    "StatusChange",
    "Time",
    "Timer",
    "Watermark",
]


class HarnessError(CojoinError, AssertionError):
    """A test that asks for what can't happen in a job, or an operator that broke one of its laws."""


class NotGiven(Enum):
    """Tells a timestamp that was left out from None, which is a row without time."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return self.name


NOT_GIVEN: Final = NotGiven.NOT_GIVEN

Time: TypeAlias = "int | datetime | Literal[NotGiven.NOT_GIVEN] | None"
"""A row's event time in epoch milliseconds, or as an aware datetime; None is a row without time."""


@dataclass(frozen=True)
class Element:
    """A row for an input.

    Attributes:
        value: A tuple, a dict or a ``Row``, with the event time among its values or without.
        timestamp: Its event time in epoch milliseconds, or as an aware datetime. Left out where the value has it;
            None where it has none, so that the row is rejected.
        partition: The source partition that it came from; None is the first known one, else the only one.
    """

    value: Any
    timestamp: Time = NOT_GIVEN
    partition: str | tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Record:
    """A row of the main output.

    Attributes:
        value: The row.
        timestamp: Its event time in epoch milliseconds: the row's that made it, or the event-time timer's; None where
            that row has none, and for what a processing-time timer gave. Of an as-of or temporal join the left row's,
            of an interval join the later of both rows'.
    """

    value: Any
    timestamp: int | None = None


@dataclass(frozen=True)
class SideRecord:
    """A row of a side output.

    Attributes:
        tag: The id of its tag.
        value: The row.
        timestamp: As ``Record``'s. (Flink gives a processing-time timer's rows no time in the main output, but its own
            time in side outputs; here neither has any.)
    """

    tag: str
    value: Any
    timestamp: int | None = None


@dataclass(frozen=True)
class Rejected:
    """A row that was not admitted.

    Attributes:
        input: Its input's name.
        reason: ``"late"``, ``"null_key"``, ``"null_event_time"`` or ``"too_far_ahead"``.
        row: Its columns, as JSON values.
        timestamp: Its event time in epoch milliseconds, or None.
        watermark: The operator's watermark before its batch in epoch milliseconds; None before there was one.
    """

    input: str
    reason: str
    row: Mapping[str, Any]
    timestamp: int | None = None
    watermark: int | None = None


@dataclass(frozen=True)
class Watermark:
    """Time moved: no record with a timestamp at or below it comes out any more, unless it was late.

    Attributes:
        timestamp: The operator's watermark in epoch milliseconds, less the delay of a join that emits rows later than
            their own time; ``2**63 - 1`` at the end of time.
    """

    timestamp: int


@dataclass(frozen=True)
class StatusChange:
    """The status of both inputs together changed.

    Attributes:
        status: ``"active"``, ``"idle"`` or ``"finished"``.
    """

    status: Status


Event: TypeAlias = Record | SideRecord | Rejected | Watermark | StatusChange
"""What comes out of a harness."""


class Timer(NamedTuple):
    """A timer that waits: its key, ``"event_time"`` or ``"processing_time"``, and its epoch milliseconds."""

    key: Any
    time_domain: str
    timestamp: int
