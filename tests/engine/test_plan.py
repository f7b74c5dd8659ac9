"""Plans are described without secrets, and keep the settings that a batch was planned with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import (
    Plan,
    clock_needs,
    describe_columns,
    describe_operation,
    describe_source,
    describe_watermark,
    plan_settings,
    with_settings,
)
from cojoin.engine.time.operator_watermark import TimePolicy
from tests.engine.time.test_watermark_strategies import Halved, Plain

FRAME = pd.DataFrame({"id": [1, 2], "event_time": pd.to_datetime(["2026-01-15", "2026-01-16"], utc=True)})


class Nothing(cj.KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: cj.Context) -> None: ...

    def process_element2(self, value: Any, ctx: cj.Context) -> None: ...


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (AsofJoin(), "asof_join()"),
        (AsofJoin("inner", direction="nearest"), "asof_join(how='inner', direction='nearest')"),
        (TemporalJoin(deletes="closed"), "temporal_join(deletes='closed')"),
        (IntervalJoin("-5 seconds", timedelta(minutes=1)), "interval_join(lower='-5 seconds', upper=datetime"),
        (KeyedCoProcess(Nothing(), pa.schema([])), "process(Nothing())"),
        (KeyedCoProcess(Nothing(), pa.schema([]), "arrival"), "process(Nothing(), order='arrival')"),
    ],
)
def test_an_operation_names_what_is_not_the_default(operation: Any, text: str) -> None:
    assert describe_operation(operation).startswith(text)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (cj.WatermarkStrategy(), "in the order of event time"),
        (cj.WatermarkStrategy.for_clock_lag("30 seconds"), "30 s behind the clock"),
        (cj.WatermarkStrategy.for_punctuated("mark"), "column 'mark'"),
        (cj.WatermarkStrategy.no_watermarks(), "none"),
    ],
)
def test_a_watermark_strategy_in_words(strategy: cj.WatermarkStrategy, text: str) -> None:
    assert describe_watermark(strategy) == text


def test_many_columns_are_cut() -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(14)])
    assert describe_columns(schema).endswith("c11 bigint, and 2 more")


def test_a_source_says_what_it_is_without_being_run() -> None:
    assert describe_source(FRAME) == "pandas DataFrame, 2 x 2"
    assert describe_source(pa.table({"id": [1]})) == "pyarrow Table, 1 x 1"
    with duckdb.connect() as database:
        # Its size would take the query, which fails.
        assert describe_source(database.sql("select error('it ran') as id")).endswith(" DuckDBPyRelation")
    reader = pa.table({"id": [1]}).to_reader()
    assert describe_source(reader) == "pyarrow RecordBatchReader"
    assert reader.read_all().num_rows == 1


def test_an_input_shows_itself_in_text_and_html() -> None:
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
    declared = cj.Input(FRAME, "id", "event_time", "trades", watermark=watermark, late="apply")
    assert repr(declared) == (
        "Input 'trades': pandas DataFrame, 2 x 2; key id; event time event_time; watermark up to 5 s out of order; "
        "late apply"
    )
    page = declared._repr_html_()
    assert all(text in page for text in ("Input &#x27;trades&#x27;", "2 x 2", "event_time", "apply"))
    assert repr(cj.Input(None, key=3, event_time=None)).startswith("Input")  # type: ignore[arg-type]


@pytest.mark.push
def test_an_input_shows_no_secret_of_its_source() -> None:
    options = {"maxFilesPerTrigger": 1, "fs.s3a.secret.key": "opensesame"}
    delta = cj.sources.delta("s3a://me:opensesame@lake/trades", options=options)
    login = {"sasl.username": "me", "sasl.password": "opensesame"}
    topic = cj.kafka.source("localhost:9092", "trades", schema="id long", from_="earliest", options=login)
    for source, text in ((delta, "delta s3a://***@lake/trades"), (topic, "kafka trades at localhost:9092")):
        declared = cj.Input(source, key="id", event_time="event_time")
        assert text in repr(declared)
        assert text in declared._repr_html_()
        for shown in (repr(declared), declared._repr_html_(), repr(source)):
            assert "opensesame" not in shown


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
