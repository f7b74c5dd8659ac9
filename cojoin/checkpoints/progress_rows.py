"""The rows of the ``progress`` table: their columns, a batch's row, and all rows read without Spark.

Batches that are not in the table yet are in the manifests, and both together are the progress.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cojoin.checkpoints.manifest import Manifests
from cojoin.delta.table_rows import TableRows
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import parse_schema

if TYPE_CHECKING:
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.store import Store

__all__ = ["PROGRESS_DDL", "PROGRESS_SCHEMA", "has_progress_table", "progress_row", "read_progress_rows"]

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

PROGRESS_SCHEMA = parse_schema(PROGRESS_DDL, what="progress")
"""The table's columns."""


def has_progress_table(files: Store) -> bool:
    """Return whether a checkpoint's progress table has its first commit."""
    return any(name.endswith(".json") for name in files.names("progress/_delta_log"))


def read_progress_rows(files: Store) -> pa.Table | None:
    """Return the progress of a checkpoint's query, one row for each batch, the newest last.

    Args:
        files: The checkpoint's directory.

    Returns:
        The rows; None where only Spark reads the table.

    Raises:
        UnreadableLogError: The table is damaged.
        CheckpointError: A manifest is damaged, or the store can't be reached.
    """
    # The table is opened before the manifests are listed, so a batch that is moved meanwhile is read from these.
    table = TableRows(files, "progress")
    if table.why_not is not None:
        return None
    rows = table.read(PROGRESS_SCHEMA)
    written, manifests = pc.max(rows["batch_id"]).as_py(), Manifests(files)
    waiting = manifests.read_all(each for each in manifests.batch_ids() if written is None or each > written)
    more = encode_rows([progress_row(each) for each in waiting], PROGRESS_SCHEMA, "progress")
    return pa.concat_tables([rows, more]).sort_by("batch_id")


def progress_row(manifest: Manifest) -> dict[str, Any]:
    """Return a batch's row."""
    report = manifest.report
    inputs = [
        {
            "name": each.name,
            "rows_in": each.rows_in,
            "done": each.done,
            "buffered": each.buffered,
            "rejected": dict(each.rejected),
            "late_applied": each.late_applied,
            "watermark": _timestamp(each.watermark),
            "max_timestamp": _timestamp(each.max_timestamp),
            "lag_ms": each.lag,
            "status": each.status,
            "holding_partition": each.holding_partition,
            "partitions": {name: _timestamp(watermark) for name, watermark in each.partitions.items()},
            "idle_partitions": list(each.idle_partitions),
        }
        for each in report.inputs
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
