"""The settings of a plan, kept as data, and the plan that they make again."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.inputs import InputSpec
from cojoin.engine.joins import AsofJoin
from cojoin.engine.plan import Plan
from cojoin.engine.plan_settings import clock_needs, plan_settings, with_settings
from cojoin.engine.time.operator_watermark import TimePolicy
from tests.engine.time.test_changed_strategies import Halved, Plain

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
LEFT, RIGHT = (InputSpec(name, SCHEMA, ("id",), "at") for name in ("trades", "customers"))
PLAN = Plan(AsofJoin(suffixes=("", "_c")), LEFT, RIGHT, 4)
OF = cj.WatermarkStrategy


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, left=replace(LEFT, max_ahead_ms=5, late="apply", watermark=OF.for_clock_lag("1 s"))),
        replace(PLAN, right=replace(RIGHT, null_key="unmatched", watermark=OF.no_watermarks().with_idleness("1 h"))),
        replace(PLAN, time=TimePolicy("max", 12)),
    ],
)
def test_a_plan_gets_the_settings_of_an_earlier_one(plan: Plan) -> None:
    settings = json.loads(json.dumps(plan_settings(plan)))
    for now in (PLAN, replace(PLAN, left=replace(LEFT, watermark=OF.for_generator(Plain())))):
        assert with_settings(now, settings) == plan
    assert plan_settings(with_settings(PLAN, settings)) == settings


def test_a_users_own_generator_is_the_querys_or_is_named() -> None:
    own = replace(PLAN, right=replace(RIGHT, watermark=OF.for_generator(Halved(3)).with_idleness("1 s")))
    other = replace(own, right=replace(RIGHT, watermark=OF.for_generator(Halved(3))))
    assert with_settings(other, plan_settings(own)) == own
    for watermark in (OF.no_watermarks(), OF.for_generator(Halved(4))):
        with pytest.raises(cj.CheckpointError) as caught:
            with_settings(replace(own, right=replace(RIGHT, watermark=watermark)), plan_settings(own))
        assert (
            "input 'customers': a batch was planned with the watermark strategy for_generator(Halved(less=3))"
            in str(caught.value)
        )


def test_what_needs_the_clock_is_named_as_it_was_written() -> None:
    assert clock_needs(PLAN) == []
    idle = replace(PLAN, left=replace(LEFT, watermark=OF.for_monotonous_timestamps().with_idleness("90 s")))
    assert clock_needs(idle) == ["input 'trades': watermark=for_monotonous_timestamps().with_idleness('90 seconds')"]
