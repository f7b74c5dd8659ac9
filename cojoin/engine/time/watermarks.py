"""Watermarks, and how several are merged into one.

A watermark W promises that no more rows with timestamp <= W will come. ``WatermarkMerge`` makes the watermark of its
channels: source partitions make an input's watermark, two inputs make the operator's. It keeps each channel's watermark
and status. It returns the minimum over the active channels, which only ever advances; an idle channel is left out until
it returns, a finished one for ever. There are no ties: the order in which channels are updated changes nothing. (Flink:
``CombinedWatermarkStatus``, and with ``returning="skip"`` its ``StatusWatermarkValve``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["END_OF_TIME", "NONE", "AllIdle", "Returning", "Status", "WatermarkMerge"]

NONE = -(1 << 63)
"""The watermark while an input has none yet; shown to people as ``none``."""

END_OF_TIME = (1 << 63) - 1
"""The watermark when all inputs are finished."""

Status: TypeAlias = Literal["active", "idle", "finished"]
"""A channel's status: *active* holds the watermark back, *idle* is left out until it returns, *finished* for ever."""

AllIdle: TypeAlias = Literal["hold", "max"]
"""What the watermark does when every channel that is not finished is idle.

- *hold*: it does not advance.
- *max*: it advances to the largest of their watermarks, whichever went idle last. (Flink, since FLINK-38454.)
"""

Returning: TypeAlias = Literal["hold", "skip"]
"""What happens to a channel that returns from idleness behind the merged watermark.

- *hold*: it takes part at once, so the merged watermark does not advance until it has caught up. A watermark of its own
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

    Args:
        all_idle: What the watermark does when all are idle.
        returning: What happens to a channel that returns behind the others.

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
        found = {channel.status for channel in self._channels.values()} - {"finished"}
        if not self._channels:
            return "idle" if self._emptied else "active"
        if "active" in found:
            return "active"
        return "idle" if found else "finished"

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
            (each.watermark, name)
            for name, each in self._channels.items()
            if each.status == "active" and each.caught_up
        ]
        return min(heard)[1] if heard else None

    def snapshot(self) -> dict[str, Any]:
        """Return what survives a restart, as JSON values."""
        channels = {
            name: [each.watermark, each.status, each.caught_up] for name, each in sorted(self._channels.items())
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
