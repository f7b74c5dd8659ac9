"""The settings of a plan that may change from run to run, as JSON values: how time follows the rows, and what is late.

A checkpoint keeps them with its query, so that a batch that was planned with them is run again with them, whatever the
next run has: watermark strategies with their bounds and idleness, ``max_ahead``, ``late``, ``null_key``, and how the
inputs' watermarks become the operator's.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.strategy_descriptions import (
    StrategyIsCodeError,
    as_written,
    describe_strategy,
    described_strategy,
)
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.plan import Plan

__all__ = ["clock_needs", "plan_settings", "with_settings"]


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan that may change from run to run."""
    inputs = [
        {
            "watermark": describe_strategy(spec.watermark),
            "max_ahead_ms": spec.max_ahead_ms,
            "late": spec.late,
            "null_key": spec.null_key,
        }
        for spec in plan.inputs
    ]
    # Later runs read from it which runs look at the clock.
    return {"inputs": inputs, "time": asdict(plan.time), "needs_clock": plan.needs_clock}


def with_settings(plan: Plan, settings: Mapping[str, Any]) -> Plan:
    """Return a plan with the settings that ``plan_settings`` returned of an earlier one.

    Raises:
        CheckpointError: A strategy has a user's own generator, which the plan no longer has.
    """
    left, right = (_with(spec, values) for spec, values in zip(plan.inputs, settings["inputs"], strict=True))
    return replace(plan, left=left, right=right, time=TimePolicy(**settings["time"]))


def _with(spec: InputSpec, values: Mapping[str, Any]) -> InputSpec:
    try:
        watermark = described_strategy(values["watermark"], spec.watermark)
    except StrategyIsCodeError as error:
        msg = (
            f"input {spec.name!r}: a batch was planned with the watermark strategy {error}, whose code a checkpoint "
            f"does not keep, and the query has {as_written(spec.watermark)}: start it once as it was, with "
            f"Trigger.available_now(), and then with the new one"
        )
        raise CheckpointError(msg) from None
    return replace(
        spec,
        watermark=watermark,
        max_ahead_ms=values["max_ahead_ms"],
        late=values["late"],
        null_key=values["null_key"],
    )


def clock_needs(plan: Plan) -> list[str]:
    """Return what of a plan needs batches without rows, as a user wrote it; nothing where it needs none."""
    found = [
        f"input {spec.name!r}: watermark={as_written(spec.watermark)}"
        for spec in plan.inputs
        if spec.watermark.needs_clock
    ]
    if plan.needs_clock and not found:
        found = ["the function's processing-time timers (processing_time_timers=False of process() where it sets none)"]
    return found
