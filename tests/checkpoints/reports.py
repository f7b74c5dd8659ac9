"""Manifests to write and read back."""

from __future__ import annotations

from cojoin.checkpoints.manifest import Manifest
from cojoin.engine.batch_report import BatchReport, InputReport
from cojoin.engine.time.watermarks import END_OF_TIME, NONE

MOMENT = 1_709_276_400_123


def manifest(batch_id: int, *, rows: int = 3, drained: bool = False) -> Manifest:
    watermark = END_OF_TIME if drained else MOMENT
    left = InputReport(
        name="trades",
        rows_in=rows + 1,
        done=rows,
        buffered=0,
        rejected={"late": 1},
        late_applied=0,
        watermark=watermark,
        max_timestamp=MOMENT + 5_001,
        status="finished" if drained else "active",
        holding_partition='["trades", 0]',
        partitions={'["trades", 0]': MOMENT, '["trades", 1]': MOMENT + 1},
    )
    right = InputReport("customers", 0, 0, 0, {}, 0, NONE, NONE, "active", None)
    report = BatchReport(
        batch_id=batch_id,
        processing_time=MOMENT + 10_000,
        watermark=NONE,
        holding_input="customers",
        inputs=(left, right),
        rows_out=rows,
        emitted={"output": rows, "rejected": 1},
        state_bytes=1_000,
        details={"versions_in_force": 2},
        drained=drained,
    )
    return Manifest(
        "a query", report, ('{"logOffset":1}', "-"), {"output": {"delta": "/x", "version": 4}}, {"execute": 1.5}
    )
