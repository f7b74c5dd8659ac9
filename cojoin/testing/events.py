"""The input and output of a harness, as plain values that compare by ``==``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from cojoin.engine.local.key_group import Rejected
from cojoin.errors import CojoinError

if TYPE_CHECKING:
    from cojoin.engine.time.watermarks import Status


class HarnessError(CojoinError, AssertionError):
    """A test that does what can't happen in a job, or an operator that lost a row or counted one twice."""


class NotGiven(Enum):
    """The default of a timestamp argument, different from None, which is a row without event time."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return self.name


NOT_GIVEN: Final = NotGiven.NOT_GIVEN

Time: TypeAlias = int | datetime | Literal[NotGiven.NOT_GIVEN] | None
"""A row's event time in epoch milliseconds or as an aware datetime; None is a row without event time."""


@dataclass(frozen=True)
class Element:
    """A row for an input.

    Attributes:
        value: A tuple, a dict or a ``Row``. It may contain the event time or leave it out.
        timestamp: The event time in epoch milliseconds or as an aware datetime. Leave it out if the value contains
            it. None is a row without event time, which is rejected.
        partition: The source partition that the row comes from. None takes it from the input's partition columns. If
            the input declares none, it is the first known partition that is not finished, else the only one.
    """

    value: Any
    timestamp: Time = NOT_GIVEN
    partition: str | tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Record:
    """A row of the main output.

    Attributes:
        value: The row.
        timestamp: The event time of the output row in epoch milliseconds. In a function it is the time of the input
            row or event-time timer whose callback yielded it; it is None if that row has no event time, and for rows
            of a processing-time timer. In an as-of or temporal join it is the left row's time, in an interval join
            the later of both rows' times.
    """

    value: Any
    timestamp: int | None = None


@dataclass(frozen=True)
class SideRecord:
    """A row of a side output.

    Attributes:
        tag: The id of its ``OutputTag``.
        value: The row.
        timestamp: The event time, as in ``Record``. Rows of a processing-time timer have none in any output. (In Flink
            they have none in the main output, but the timer's time in side outputs.)
    """

    tag: str
    value: Any
    timestamp: int | None = None


@dataclass(frozen=True)
class Watermark:
    """A watermark of the output: no record with a timestamp at or below it follows, unless its input row was late.

    Attributes:
        timestamp: The operator's watermark in epoch milliseconds, minus the output delay of a join that emits rows
            after the watermark has passed their own timestamp; ``2**63 - 1`` at the end of time.
    """

    timestamp: int


@dataclass(frozen=True)
class StatusChange:
    """A change of the combined status of both inputs.

    Attributes:
        status: The new status: ``"active"``, ``"idle"`` or ``"finished"``.
    """

    status: Status


Event: TypeAlias = Record | SideRecord | Rejected | Watermark | StatusChange
"""Any entry of a harness's log."""


class Timer(NamedTuple):
    """A registered timer: its key, its domain (``"event_time"`` or ``"processing_time"``), and epoch milliseconds."""

    key: Any
    time_domain: str
    timestamp: int
