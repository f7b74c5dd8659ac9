"""The batches that followed a snapshot, as the checkpoint recorded them: where they ended, and what time it was.

The newest batches have manifests, the older ones rows in the progress table. A batch without content has neither, and
the next one that has begins where the one before it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.read import read_progress
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.time.watermarks import Status
    from cojoin.storage.store import Store

__all__ = ["RecordedBatch", "RecordedInput", "batches_after"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class RecordedInput:
    """The time of one input after a batch, in epoch milliseconds.

    Attributes:
        watermark: The input's watermark; ``-2**63`` before it had one.
        max_timestamp: The largest timestamp seen; ``-2**63`` before the first row.
        status: Whether the input was active, idle or finished.
    """

    watermark: int
    max_timestamp: int
    status: Status


@dataclass(frozen=True)
class RecordedBatch:
    """A batch as the checkpoint recorded it.

    Attributes:
        batch_id: Its number.
        processing_time: Its processing time, in epoch milliseconds.
        inputs: The left and the right input after it.
        drained: Whether the inputs ended with it.
        offsets: Each source's end offset, as a line of Spark's offset log; the control input is the last.
    """

    batch_id: int
    processing_time: int
    inputs: tuple[RecordedInput, RecordedInput]
    drained: bool
    offsets: Sequence[str]

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> RecordedBatch:
        """Return the batch of a manifest."""
        report = manifest.report
        left, right = (
            RecordedInput(each.watermark, each.max_timestamp, each.status)  # type: ignore[arg-type]
            for each in report.inputs
        )
        return cls(report.batch_id, report.processing_time, (left, right), report.drained, manifest.offsets)

    @classmethod
    def of_progress(cls, row: Mapping[str, Any]) -> RecordedBatch:
        """Return the batch of a row of the progress table, with its times as datetimes."""
        left, right = (
            RecordedInput(
                END_OF_TIME if each["status"] == "finished" else _millis(each["watermark"]),
                _millis(each["max_timestamp"]),
                each["status"],
            )
            for each in row["inputs"]
        )
        clock = max(0, _millis(row["processing_time"]))
        return cls(row["batch_id"], clock, (left, right), bool(row["drained"]), row["offsets"])


def batches_after(spark: SparkSession, files: Store, batch_id: int) -> list[RecordedBatch]:
    """Return the batches with content that followed a batch, oldest first.

    Raises:
        CheckpointError: A manifest is damaged.
    """
    manifests = Manifests(files)
    known = manifests.batch_ids()
    later = [each for each in known if each > batch_id]
    found = [RecordedBatch.of_manifest(each) for number in later if (each := manifests.read(number)) is not None]
    # Manifests are deleted from the oldest on, so if this batch has one, those after it have theirs.
    if batch_id not in known:
        first = min(later, default=None)
        rows = read_progress(spark, files.root).where(F.col("batch_id") > batch_id)
        rows = rows if first is None else rows.where(F.col("batch_id") < first)
        wanted = rows.select("batch_id", "processing_time", "inputs", "drained", "offsets").toArrow().to_pylist()
        found = [*sorted(map(RecordedBatch.of_progress, wanted), key=lambda each: each.batch_id), *found]
    return found


def _millis(moment: datetime | None) -> int:
    return NONE if moment is None else (moment - _EPOCH) // (datetime.resolution * 1000)
