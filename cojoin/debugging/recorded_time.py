"""Time as it was in the real run, for an operator that gets the rows of only one key.

The rows of one key do not say how far time had come, since other keys' rows moved it, and other source partitions held
it back. So the operator's inputs get, in place of their watermark strategies, the watermark, the largest timestamp and
the status that were recorded after each batch. The operator merges them by its own rules. What is late, which timers
fire and what is emitted is then as in the real run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.operator_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.debugging.recorded_batches import RecordedBatch, RecordedInput
    from cojoin.engine.plan import Plan

__all__ = ["controls_until", "header_at", "recorded_controls", "with_recorded_time"]


def with_recorded_time(plan: Plan) -> Plan:
    """Return a plan whose watermarks only follow what ``recorded_controls`` says."""
    return replace(plan.with_inputs(watermark=WatermarkStrategy()), key_groups=1)


def header_at(header: Mapping[str, Any], batch: RecordedBatch) -> dict[str, Any]:
    """Return a state's header with the time of each input as it was recorded after the state's batch.

    Args:
        header: The merged header of the state (``rescaling.merged_header``).
        batch: The state's batch.
    """
    inputs = [_restored(each) for each in batch.inputs]
    return {**header, "watermark": {**header["watermark"], "inputs": inputs}}


def recorded_controls(batch: RecordedBatch) -> list[Control]:
    """Return what the operator gets to know of time in a batch; a drain ends the inputs by itself."""
    return [
        Control(
            number,  # type: ignore[arg-type]
            partitions=_times(each.max_timestamp),
            # Without a mark, since the watermark is known.
            marks=dict.fromkeys(_times(each.max_timestamp), NONE),
            watermarks=_times(each.watermark),
            statuses={None: each.status} if each.status != "finished" else {},
            processing_time=batch.processing_time,
        )
        for number, each in enumerate(batch.inputs, start=1)
    ]


def controls_until(batch: RecordedBatch, until: int) -> list[Control]:
    """Return what the operator gets to know where time comes on its way through a batch only to a moment.

    Args:
        batch: The batch.
        until: The moment, in epoch milliseconds.
    """
    return [
        replace(
            control,
            partitions={},
            marks=None,
            watermarks={name: min(time, until) for name, time in control.watermarks.items()},
        )
        for control in recorded_controls(batch)
    ]


def _times(time: int) -> dict[str, int]:
    return {ONE_PARTITION: time} if NONE < time < END_OF_TIME else {}


def _restored(recorded: RecordedInput) -> dict[str, Any]:
    watermark = InputWatermark()
    for partition, timestamp in _times(recorded.max_timestamp).items():
        watermark.observe(partition, timestamp, NONE)
    for partition, reached in _times(recorded.watermark).items():
        watermark.apply_watermark(partition, reached)
    if recorded.status != "active":
        watermark.set_status(None, recorded.status)
    return watermark.snapshot()
