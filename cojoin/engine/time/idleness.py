"""Idleness: when a source partition, or a whole input, that sends nothing no longer holds the watermark back.

It keeps since when each has been silent: by the micro-batches' processing time while the query runs, and from one
complete reading to the next over runs that end (``complete_reading``). (Flink: ``WatermarksWithIdleness``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from cojoin.engine.time.watermarks import Returning
from cojoin.engine.values.arguments import check_flag, check_word
from cojoin.errors import ConfigurationError

__all__ = ["Idleness", "IdlenessTimer"]


@dataclass(frozen=True)
class Idleness:
    """When a silent partition, or a whole silent input, no longer holds the watermark back.

    Attributes:
        timeout_ms: How long it must have been silent, in milliseconds.
        returning: What happens to a partition that returns behind the others (``Returning``).
        even_if_silent: Whether an input that has never sent anything may go idle, too.

    Raises:
        ConfigurationError: The timeout is not above zero, or another value is unknown.
    """

    timeout_ms: int
    returning: Returning = "hold"
    even_if_silent: bool = False

    def __post_init__(self) -> None:
        if type(self.timeout_ms) is not int or self.timeout_ms <= 0:
            msg = f"idle timeout: expected milliseconds above zero, got {self.timeout_ms!r}"
            raise ConfigurationError(msg)
        check_word("returning", self.returning, get_args(Returning))
        check_flag("even_if_silent", self.even_if_silent)


class IdlenessTimer:
    """Decides when a channel that is checked from time to time has been silent for too long.

    The countdown starts at the first check that finds the channel silent. The channel is idle from the first check that
    is more than the timeout later; the silence between two checks is not measured. (Flink:
    ``WatermarksWithIdleness.IdlenessTimer``.)

    Apart from that, the silence between complete readings is measured by their moments, and a pause of the query does
    not end it: what came in the pause is read before the next complete reading.

    Args:
        timeout_ms: How long the silence must last, in milliseconds.

    >>> timer = IdlenessTimer(10)
    >>> timer.is_idle(0), timer.is_idle(10), timer.is_idle(11)
    (False, False, True)
    >>> timer.is_idle_at_reading(100), timer.is_idle_at_reading(109), timer.is_idle_at_reading(110)
    (False, False, True)
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = timeout_ms
        self._spoke = False
        self._silent_since: int | None = None
        self.quiet_since: int | None = None
        """The moment of the first complete reading since the channel's last row; None before one."""

    def activity(self) -> None:
        """Note that the channel sent something."""
        self._spoke, self.quiet_since = True, None

    def is_idle(self, now: int) -> bool:
        """Return whether the channel is idle, at a processing time in milliseconds that never goes back."""
        if self._spoke:
            self.restart()
        elif self._silent_since is None:
            self._silent_since = now
        else:
            return now - self._silent_since > self._timeout
        return False

    def is_idle_at_reading(self, moment: int) -> bool:
        """Return whether the channel has been quiet for the timeout at a complete reading.

        Args:
            moment: The moment of the reading in epoch milliseconds, which is not before that of an earlier one.
        """
        if self.quiet_since is None:
            self.quiet_since = moment
        return moment - self.quiet_since >= self._timeout

    def restart(self) -> None:
        """Forget the silence so far, for example after a pause in which nothing could be received."""
        self._spoke, self._silent_since = False, None

    def snapshot(self) -> int | None:
        """Return since when the channel has been silent, in epoch milliseconds; None where no silence was found."""
        return self._silent_since

    def restore(self, silent_since: Any, quiet_since: Any = None) -> None:
        """Restore what ``snapshot`` returned, and ``quiet_since``."""
        self._spoke, self._silent_since, self.quiet_since = False, silent_since, quiet_since
