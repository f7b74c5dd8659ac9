"""Inputs, joins and watermarks in words: without secrets, without running anything, whatever the source is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.descriptions import describe_columns, describe_operation, describe_source, describe_watermark
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess

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
