"""Watermarks, how several are merged into one, and idleness, which leaves one out.

A watermark W promises that no more rows with timestamp <= W will come. ``WatermarkMerge`` makes the watermark of its
channels: source partitions make an input's watermark, two inputs make the operator's. It keeps each channel's watermark
and status. It returns the minimum over the active channels, which only ever advances; an idle channel is left out until
it returns, a finished one forever. The order in which channels are updated changes nothing. (Flink:
``CombinedWatermarkStatus``, and with ``returning="skip"`` its ``StatusWatermarkValve``.)

A source partition, or a whole input, that sends nothing for as long as its ``Idleness`` says becomes idle. An
``IdlenessTimer`` keeps since when it has been silent: by the micro-batches' processing time while the query runs, and
from one complete reading to the next over runs that end (``control_rows``). (Flink: ``WatermarksWithIdleness``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from cojoin.engine.values.arguments import check_flag, check_word
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE = -(1 << 63)
"""The watermark while an input has none yet; shown to people as ``none``."""

END_OF_TIME = (1 << 63) - 1
"""The watermark when all inputs are finished."""

Status: TypeAlias = Literal["active", "idle", "finished"]
"""A channel's status: *active* holds the watermark back, *idle* is left out until it returns, *finished* forever."""

AllIdle: TypeAlias = Literal["hold", "max"]
"""What the watermark does when every channel that is not finished is idle.

- *hold*: it does not advance.
- *max*: it advances to the largest of their watermarks, whichever went idle last. (Flink, since FLINK-38454.)
"""

Returning: TypeAlias = Literal["hold", "skip"]
"""What happens to a channel that returns from idleness behind the merged watermark.

- *hold*: it takes part at once, so the merged watermark does not advance until it has caught up. Its own watermark
  wakes it.
- *skip*: it is left out until it has caught up. Only its status wakes it; until then its watermarks are ignored.
"""


@dataclass
class _Channel:
    watermark: int = NONE
    status: Status = "active"
    caught_up: bool = True


class WatermarkMerge:
    """The merged watermark of several channels.

    >>> merge = WatermarkMerge()
    >>> merge.update("left", 100)
    >>> merge.update("right", 90)
    >>> merge.current()
    90
    >>> merge.set_status("right", "idle")
    >>> merge.current()
    100
    """

    def __init__(self, *, all_idle: AllIdle = "hold", returning: Returning = "hold") -> None:
        self._all_idle, self._returning = all_idle, returning
        self._channels: dict[str, _Channel] = {}
        self._emptied = False
        self._current = NONE

    def register(self, name: str) -> None:
        """Add an active channel without a watermark, which holds the merged one back until it has one."""
        self._emptied = False
        self._channels.setdefault(name, _Channel())

    def remove(self, name: str) -> None:
        """Forget a channel; an unknown one is ignored. Without its last channel the merge is idle."""
        if self._channels.pop(name, None) is not None:
            self._emptied = not self._channels

    def update(self, name: str, watermark: int) -> None:
        """Apply a channel's watermark, in epoch milliseconds; one lower than before changes nothing."""
        self.register(name)
        channel = self._channels[name]
        if channel.status == "idle":
            if self._returning == "skip":
                return
            channel.status = "active"
        channel.watermark = max(channel.watermark, watermark)

    def raise_watermark(self, name: str, watermark: int) -> None:
        """Apply a channel's watermark without a sign of life: one that is idle stays so, an unknown one is ignored."""
        channel = self._channels.get(name)
        if channel is not None:
            channel.watermark = max(channel.watermark, watermark)

    def set_status(self, name: str, status: Status) -> None:
        """Make a channel active, idle or finished."""
        self.register(name)
        channel = self._channels[name]
        if channel.status == "idle" and status == "active" and self._returning == "skip":
            channel.caught_up = False
        channel.status = status

    def current(self) -> int:
        """Return the merged watermark: ``NONE`` before all have one, ``END_OF_TIME`` when all are finished."""
        waiting = [channel for channel in self._channels.values() if channel.status != "finished"]
        active = [channel for channel in waiting if channel.status == "active"]
        for channel in active:
            channel.caught_up = channel.caught_up or channel.watermark >= self._current
        aligned = [channel.watermark for channel in active if channel.caught_up]
        if aligned:
            self._current = max(self._current, min(aligned))
        elif self._channels and not waiting:
            self._current = END_OF_TIME
        elif waiting and not active and self._all_idle == "max":
            self._current = max(self._current, *(channel.watermark for channel in waiting))
        return self._current

    def status(self) -> Status:
        """Return the merged status: idle or finished only when every channel is; idle when all were removed."""
        statuses = {channel.status for channel in self._channels.values()} - {"finished"}
        if not self._channels:
            return "idle" if self._emptied else "active"
        if "active" in statuses:
            return "active"
        return "idle" if statuses else "finished"

    def status_of(self, name: str) -> Status | None:
        """Return a channel's status; None where the channel is unknown."""
        channel = self._channels.get(name)
        return None if channel is None else channel.status

    def watermarks(self) -> dict[str, int]:
        """Return each channel's own watermark, by name."""
        return {name: self._channels[name].watermark for name in sorted(self._channels)}

    def statuses(self) -> dict[str, Status]:
        """Return each channel's status, by name."""
        return {name: self._channels[name].status for name in sorted(self._channels)}

    def holding(self) -> str | None:
        """Return the channel that holds the watermark back, or None: of those that count, the one furthest behind."""
        self.current()
        heard = [
            (channel.watermark, name)
            for name, channel in self._channels.items()
            if channel.status == "active" and channel.caught_up
        ]
        return min(heard)[1] if heard else None

    def snapshot(self) -> dict[str, Any]:
        """Return what survives a restart, as JSON values."""
        channels = {
            name: [channel.watermark, channel.status, channel.caught_up]
            for name, channel in sorted(self._channels.items())
        }
        return {"current": self.current(), "channels": channels, "emptied": self._emptied}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore what ``snapshot`` returned."""
        self._current, self._emptied = int(snapshot["current"]), bool(snapshot.get("emptied", False))
        self._channels = {name: _Channel(*saved) for name, saved in snapshot["channels"].items()}
        if self._returning == "hold":
            # Those that another strategy has left out take part.
            for channel in self._channels.values():
                channel.caught_up = True


@dataclass(frozen=True)
class Idleness:
    """The silence after which a partition, or a whole input, no longer holds the watermark back.

    With ``even_if_silent`` an input that has never sent anything may go idle, too.
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
        """Return whether the channel has been quiet for the timeout at a complete reading; moments never go back."""
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
