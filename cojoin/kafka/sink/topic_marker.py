"""The marker of an output in Kafka: which batch the topic has last, of which execution, and by which run.

It is an offset of a consumer group of cojoin's own, for partition 0 of the topic: the offset is the next batch, and its
metadata has the batch's identity (``batch_marker``) and the epoch of the run's lease. A transaction that writes a
batch's rows writes its marker too, so the topic has both or neither.

A run that begins writes its epoch into the marker, before its first batch. A run that finds a higher epoch than its own
was taken over: it writes nothing any more, even if Kafka would let it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from cojoin.spark.sinks.batch_marker import BatchMarker

__all__ = ["NO_BATCH", "RETIRED", "TopicMarker"]

NO_BATCH = -1
RETIRED = 1 << 53
"""The epoch of an output in which another query goes on: higher than that of any run."""

_MOST_CHARACTERS = 3_000
"""Brokers take 4,096 bytes (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True)
class TopicMarker:
    """The marker that a topic has of an output.

    Attributes:
        newest: The last batch whose rows the topic has; ``NO_BATCH`` before the first.
        epoch: The epoch of the run that wrote the marker.
        tasks: In how many parts the rows are written, each with a marker of its own; in a marker of a former number of
            parts, with how many the query went on.
        batch: The identity of the last batch; None before the first.
        successor: The checkpoint of the query that goes on in the topic; None if there is none.
    """

    newest: int
    epoch: int
    tasks: int
    batch: BatchMarker | None = None
    successor: str | None = None

    @property
    def offset(self) -> int:
        """The offset that stands for it: the next batch."""
        return self.newest + 1

    def of_batch(self, batch: BatchMarker) -> TopicMarker:
        """Return the marker once a batch is written."""
        return replace(self, newest=batch.batch_id, batch=batch)

    def to_metadata(self) -> str:
        """Return the offset's metadata. Settings, which only serve messages, are left out where they are long.

        >>> marker = TopicMarker(7, 2, 1, BatchMarker(7, 3, 255, "ab"))
        >>> TopicMarker.read(marker.offset, marker.to_metadata()) == marker
        True
        """
        document: dict[str, object] = {"epoch": self.epoch, "tasks": self.tasks}
        document |= {} if self.successor is None else {"successor": self.successor}
        if self.batch is None:
            return json.dumps(document)
        full = json.dumps(json.loads(self.batch.to_json()) | document)
        if len(full) <= _MOST_CHARACTERS:
            return full
        return json.dumps(json.loads(replace(self.batch, settings={}).to_json()) | document)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> TopicMarker | None:
        """Return the marker of an offset; None where there is none.

        Raises:
            ValueError: There is an offset that is no marker, or one of a later version.

        >>> TopicMarker.read(0, '{"epoch": 1, "tasks": 1}')
        TopicMarker(newest=-1, epoch=1, tasks=1, batch=None, successor=None)
        >>> TopicMarker.read(-1001, None) is None
        True
        """
        if offset < 0:
            return None
        batch = BatchMarker.from_json(metadata)
        try:
            document = json.loads(metadata or "")
            successor = document.get("successor")
            found = cls(offset - 1, int(document["epoch"]), int(document["tasks"]), batch, successor)
        except (AttributeError, TypeError, KeyError) as error:
            raise ValueError(str(error)) from error
        if found.newest != (NO_BATCH if batch is None else batch.batch_id):
            msg = f"an offset of batch {found.newest} with the metadata of another"
            raise ValueError(msg)
        return found
