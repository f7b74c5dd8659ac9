"""When a query runs a micro-batch, and what becomes of the rows that still wait at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.engine.time.durations import Duration, milliseconds
from cojoin.engine.values.choices import check_flag
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

__all__ = ["Trigger"]


@dataclass(frozen=True)
class Trigger:
    """Made by ``available_now`` or ``processing_time``.

    Attributes:
        interval_ms: Milliseconds between batches; None runs over what is available and ends.
        drain: Whether all inputs are finished at the end.
    """

    interval_ms: int | None = None
    drain: bool = False

    def __post_init__(self) -> None:
        is_interval = isinstance(self.interval_ms, int) and not isinstance(self.interval_ms, bool)
        if self.interval_ms is not None and not (is_interval and self.interval_ms >= 0):
            msg = (
                f"Trigger: make one with Trigger.available_now() or Trigger.processing_time('10 seconds'), got {self!r}"
            )
            raise ConfigurationError(msg)
        check_flag("drain", self.drain)

    @classmethod
    def available_now(cls, *, drain: bool = False) -> Trigger:
        """Take what the sources hold now, in several batches where their options say so, and end.

        Args:
            drain: False pauses: what waits for a watermark stays, and the next run goes on. True finishes all inputs:
                time goes to its end, everything waiting comes out, and the query is over.
        """
        return cls(None, drain)

    @classmethod
    def processing_time(cls, interval: Duration = "0 seconds") -> Trigger:
        """Run until stopped, a batch each interval at the most.

        Args:
            interval: Such as ``"10 seconds"``; zero starts the next batch as soon as there are rows.
        """
        return cls(milliseconds(interval, "processing_time interval"))

    @property
    def is_bounded(self) -> bool:
        """Whether it ends by itself."""
        return self.interval_ms is None

    def apply(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Set it on a stream's writer."""
        if self.interval_ms is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self.interval_ms} milliseconds")
