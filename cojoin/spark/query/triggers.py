"""Triggers: when a query runs a micro-batch, and what happens to the rows that are still buffered at its end."""

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
    """When a query runs its micro-batches; ``available_now`` and ``processing_time`` make one.

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
        """Return a trigger that processes what the sources contain now, and ends.

        It takes several batches if the sources' options limit the size of a batch.

        Args:
            drain: False pauses: rows that wait for a watermark stay in the state, and the next run continues. True
                finishes all inputs: the watermark becomes the end of time, all waiting rows are emitted, and the query
                can't be started again.
        """
        return cls(None, drain)

    @classmethod
    def processing_time(cls, interval: Duration = "0 seconds") -> Trigger:
        """Return a trigger that runs until the query is stopped, with at most one batch per interval.

        Args:
            interval: A duration such as ``"10 seconds"``; zero starts the next batch as soon as there are rows.
        """
        return cls(milliseconds(interval, "processing_time interval"))

    @property
    def is_bounded(self) -> bool:
        """Whether a query with this trigger ends by itself."""
        return self.interval_ms is None

    def apply(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Set the trigger on a stream's writer, and return the writer."""
        if self.interval_ms is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self.interval_ms} milliseconds")
