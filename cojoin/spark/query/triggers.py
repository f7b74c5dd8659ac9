"""Triggers: when a query runs a micro-batch, and what happens to the rows that are still buffered at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from cojoin.engine.values.arguments import Duration, check_flag, milliseconds
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

Phase: TypeAlias = Literal["main", "planned", "live"]
"""The purpose of a query's stream.

- *main*: its first phase, or its only one.
- *planned*: a planned batch, which reads nothing of the inputs.
- *live*: the phase without an end that follows a run over what is available.
"""


@dataclass(frozen=True)
class Trigger:
    """The times at which a query runs its micro-batches; ``available_now`` and ``processing_time`` make one.

    Attributes:
        interval_ms: Milliseconds between batches; None runs over what is available and ends.
        drain: Whether all inputs are finished at the end.
        then: How the query continues after its run over what is available; None ends it.
    """

    interval_ms: int | None = None
    drain: bool = False
    then: Trigger | None = None

    def __post_init__(self) -> None:
        is_interval = isinstance(self.interval_ms, int) and not isinstance(self.interval_ms, bool)
        if self.interval_ms is not None and not (is_interval and self.interval_ms >= 0):
            msg = (
                f"Trigger: make one with Trigger.available_now() or Trigger.processing_time('10 seconds'), got {self!r}"
            )
            raise ConfigurationError(msg)
        check_flag("drain", self.drain)
        if self.then is None:
            return
        if not isinstance(self.then, Trigger) or self.then.interval_ms is None:
            msg = (
                f"Trigger: then: expected Trigger.processing_time('10 seconds') or another one without an end, got "
                f"{self.then!r}"
            )
            raise ConfigurationError(msg)
        if self.drain or self.interval_ms is not None:
            why = "drain=True finishes all inputs" if self.drain else "processing_time has no end"
            msg = f"Trigger: then: {why}, so nothing can follow; leave one of them out"
            raise ConfigurationError(msg)

    @classmethod
    def available_now(cls, *, drain: bool = False, then: Trigger | None = None) -> Trigger:
        """Return a trigger that processes what the sources contain now, and ends, or continues live.

        It takes several batches if the sources' options limit the size of a batch.

        Args:
            drain: False pauses: rows that wait for a watermark stay in the state, and the next run continues. True
                finishes all inputs: the watermark becomes the end of time, all waiting rows are emitted, and the query
                can't be started again.
            then: History, then live: how the query continues with new rows, such as
                ``Trigger.processing_time("10 seconds")``. It is one query with one checkpoint: the history is read in
                large batches in step with the other input, without looking for newer rows; then it runs until it is
                stopped. An end of the history (``to=`` of a topic) no longer holds then. A start after a stop first
                reads what has come in between.

        Raises:
            ConfigurationError: ``then`` has an end, or follows a drain.

        >>> Trigger.available_now(then=Trigger.processing_time("10 seconds")).then.interval_ms
        10000
        """
        return cls(None, drain, then)

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


def with_trigger(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    """Set a trigger on a stream's writer, and return the writer."""
    if trigger.interval_ms is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{trigger.interval_ms} milliseconds")
