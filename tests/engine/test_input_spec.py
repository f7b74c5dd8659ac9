from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.input_spec import (
    REJECTED_SCHEMA,
    InputSpec,
    reject_reasons,
    rejected_table,
    split_admitted,
    watermark_marks,
)
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.tables import event_micros, event_millis
from cojoin.engine.values.types import parse_schema
from tests.streams import CUSTOMERS, specs, table

LEFT, RIGHT = specs(composite=True, max_ahead_ms=10)
POISON = 10**18

ROWS = [
    ("a", 1, 5_000, 0, 0, "gold"),
    (None, 1, 5_000, 0, 0, "null key"),
    ("a", None, 5_000, 0, 0, "null key"),
    ("a", 1, None, 0, 0, "null event time"),
    (None, 1, None, 0, 0, "null event time"),
    ("a", 1, 40_999, 0, 0, "gold"),
    ("a", 1, 41_000, 0, 0, "too far ahead"),
    (None, 1, POISON, 0, 0, "too far ahead"),
]


def test_a_mark_too_far_ahead_of_the_clock_says_nothing() -> None:
    table = pa.table({"w": pa.array([5, 10**18, None], pa.int64())})
    strategy = WatermarkStrategy.for_punctuated("w")
    spec = InputSpec("trades", table.schema, ("w",), None, watermark=strategy, max_ahead_ms=10)
    times = spec.timestamps(table)
    assert watermark_marks(table, spec, times, 100).tolist() == [5, NONE, NONE]
    assert watermark_marks(table, replace(spec, max_ahead_ms=None), times, 100).tolist() == [5, 10**18, NONE]


def test_a_row_is_rejected_for_its_time_before_its_key() -> None:
    """Else a null key would let a poisoned timestamp move the watermark."""
    assert reject_reasons(table(ROWS, CUSTOMERS), RIGHT, 30).tolist() == [0, 1, 1, 2, 2, 0, 3, 3]


def test_admitted_and_rejected_rows_are_all_rows() -> None:
    admitted, rejected = split_admitted(table(ROWS, CUSTOMERS), RIGHT, 30)
    assert admitted.column("tier").to_pylist() == ["gold", "gold"]
    told = {reason: set(rows.column("tier").to_pylist()) for reason, rows in rejected.items()}
    assert told == {reason: {reason.replace("_", " ")} for reason in ("null_key", "null_event_time", "too_far_ahead")}


def test_without_a_limit_no_row_is_too_far_ahead() -> None:
    assert not reject_reasons(table(ROWS[5:7], CUSTOMERS), specs()[1], 0).any()


@given(st.integers(-(10**15), 10**15))
def test_a_timestamp_is_floored_before_1970_too(micros: int) -> None:
    assert event_millis(np.array([micros])).tolist() == [micros // 1_000]


def test_event_time_is_read_of_any_chunks() -> None:
    rows = table(ROWS[:4], CUSTOMERS)
    cut = pa.concat_tables([rows.slice(3), rows.slice(0, 2).slice(1)])
    assert event_micros(cut, "since").tolist() == [0, 5_000]


def test_the_sources_order_names_each_column_once() -> None:
    spec = InputSpec("x", CUSTOMERS, ("id",), "since", partition=("part",), sequence=("part", "offset"))
    assert spec.source_order == ("part", "offset")


SCHEMA = parse_schema(
    "at timestamp, id string, price double, paid decimal(5,2), raw binary, place struct<x:int, tags:array<string>>, "
    "days map<date,int>, names map<string,float>, wait interval second"
)
SPEC = InputSpec("odd", SCHEMA, ("id",), "at")
MOMENT = datetime(2020, 1, 1, tzinfo=timezone.utc)


def test_a_rejected_row_is_told_whole_as_json() -> None:
    row = (
        MOMENT,
        "ß",
        float("nan"),
        Decimal("1.50"),
        b"\x01\xff",
        (1, ["a", None]),
        {MOMENT.date(): 1},
        {"a": float("inf")},
        timedelta(seconds=1),
    )
    rejected = rejected_table(encode_rows([row], SCHEMA, "test"), SPEC, "late", 7)
    assert rejected.schema == REJECTED_SCHEMA
    (told,) = rejected.to_pylist()
    assert (told["input"], told["reason"], told["watermark"], told["event_time"]) == ("odd", "late", 7, MOMENT)
    assert json.loads(told["row"], parse_constant=pytest.fail) == {
        "at": "2020-01-01T00:00:00+00:00",
        "id": "ß",
        "price": "NaN",
        "paid": "1.50",
        "raw": "01ff",
        "place": {"x": 1, "tags": ["a", None]},
        "days": {"2020-01-01": 1},
        "names": {"a": "Infinity"},
        "wait": "0:00:01",
    }


def test_a_poisoned_timestamp_can_be_told() -> None:
    rejected = rejected_table(table(ROWS[7:], CUSTOMERS), RIGHT, "too_far_ahead", NONE)
    assert json.loads(rejected.column("row")[0].as_py())["since"] == "11574074 days and 6400 seconds since 1970"
    assert rejected.column("watermark").to_pylist() == [None]
