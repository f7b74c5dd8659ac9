"""The rows of the ``progress`` table: written of the batches' manifests, and read as the times after each batch.

Times are timestamps. A watermark is null before the first one, and after the end of all inputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.time.watermarks import Status

PROGRESS_DDL = """
    batch_id bigint, query_id string, processing_time timestamp, watermark timestamp, holding_input string, drained
    boolean, inputs array<struct<name: string, rows_in: bigint, done: bigint, buffered: bigint, rejected: map<string,
    bigint>,
        late_applied: bigint, watermark: timestamp, max_timestamp: timestamp, lag_ms: bigint, status: string,
        holding_partition: string, partitions: map<string, timestamp>, idle_partitions: array<string>>>,
    rows_out bigint, emitted map<string, bigint>, state_bytes bigint,
    state_bytes_by_key_group map<string, bigint>, output_delay_ms bigint, details map<string, bigint>,
    durations_ms map<string, double>, offsets array<string>, outputs string
"""

PROGRESS_SCHEMA = parse_schema(PROGRESS_DDL, label="progress")
"""The table's columns."""


def progress_rows(manifests: Iterable[Manifest]) -> pa.Table:
    """Return the rows of batches."""
    return encode_rows([_row_of(each) for each in manifests], PROGRESS_SCHEMA, "progress")


def _row_of(manifest: Manifest) -> dict[str, Any]:
    report = manifest.report
    inputs = [
        {
            "name": progress.name,
            "rows_in": progress.rows_in,
            "done": progress.done,
            "buffered": progress.buffered,
            "rejected": dict(progress.rejected),
            "late_applied": progress.late_applied,
            "watermark": _timestamp(progress.watermark),
            "max_timestamp": _timestamp(progress.max_timestamp),
            "lag_ms": progress.lag,
            "status": progress.status,
            "holding_partition": progress.holding_partition,
            "partitions": {name: _timestamp(watermark) for name, watermark in progress.partitions.items()},
            "idle_partitions": list(progress.idle_partitions),
        }
        for progress in report.inputs
    ]
    return {
        "batch_id": report.batch_id,
        "query_id": manifest.query_id,
        "processing_time": _timestamp(report.processing_time) if report.processing_time else None,
        "watermark": _timestamp(report.watermark),
        "holding_input": report.holding_input,
        "drained": report.drained,
        "inputs": inputs,
        "rows_out": report.rows_out,
        "emitted": dict(report.emitted),
        "state_bytes": report.state_bytes,
        "state_bytes_by_key_group": dict(report.state_bytes_by_key_group),
        "output_delay_ms": report.output_delay_ms,
        "details": dict(report.details),
        "durations_ms": {name: float(value) for name, value in manifest.durations_ms.items()},
        "offsets": list(manifest.offsets),
        "outputs": json.dumps(manifest.outputs),
    }


def _timestamp(millis: int) -> datetime | None:
    """Return a time as a datetime; None where a timestamp can't represent it."""
    if millis in (NONE, END_OF_TIME):
        return None
    try:
        whole = datetime.fromtimestamp(millis // 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return whole.replace(microsecond=millis % 1000 * 1000)


@dataclass(frozen=True)
class RecordedInput:
    """An input after a batch: its times in epoch milliseconds, its status, and how many of its rows wait."""

    name: str
    watermark: int
    max_timestamp: int
    status: Status
    buffered: int


@dataclass(frozen=True)
class RecordedBatch:
    """A batch as its checkpoint recorded it, with both inputs after it, read from a report or from a row of the table.

    Times are epoch milliseconds, ``-2**63`` before there is one; the processing time is 0 if it is unknown. The offsets
    are each source's end, as lines of Spark's offset log; the control input's is the last.
    """

    batch_id: int
    processing_time: int
    watermark: int
    holding_input: str | None
    inputs: tuple[RecordedInput, RecordedInput]
    drained: bool
    offsets: Sequence[str] = ()

    @classmethod
    def of_report(cls, report: BatchReport, offsets: Sequence[str] = ()) -> RecordedBatch:
        """Return the batch of a report, with the offsets of its manifest where it has one."""
        left, right = (
            RecordedInput(side.name, side.watermark, side.max_timestamp, side.status, side.buffered)  # type: ignore[arg-type]
            for side in report.inputs
        )
        return cls(
            report.batch_id,
            report.processing_time,
            report.watermark,
            report.holding_input,
            (left, right),
            report.drained,
            offsets,
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> RecordedBatch:
        """Return the batch of a row as Arrow, pandas or Spark have it; it may lack ``drained`` and ``offsets``."""
        left, right = (
            RecordedInput(
                str(side["name"]),
                END_OF_TIME if side["status"] == "finished" else _millis(side["watermark"]),
                _millis(side["max_timestamp"]),
                side["status"],
                int(side["buffered"]),
            )
            for side in row["inputs"]
        )
        return cls(
            int(row["batch_id"]),
            max(0, _millis(row["processing_time"])),
            END_OF_TIME if left.status == right.status == "finished" else _millis(row["watermark"]),
            # A missing text is NaN in pandas.
            row["holding_input"] if isinstance(row["holding_input"], str) else None,
            (left, right),
            bool(row.get("drained")),
            row.get("offsets", ()),
        )


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _millis(value: Any) -> int:
    """Return a time of a row in epoch milliseconds; pandas and Spark have times without a zone as well."""
    if value is None or value != value:  # noqa: PLR0124 - pandas' NaT is unequal to itself
        return NONE
    if isinstance(value, np.datetime64):
        return int(value.astype("datetime64[ms]").astype(np.int64))
    # A pandas Timestamp is a datetime, too.
    moment = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return int((moment - _EPOCH) // timedelta(milliseconds=1))
