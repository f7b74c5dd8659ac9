"""What a query shows while it runs, when it has ended, and when it failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.spark.query.progress import query_display
from tests.spark.query.runs import HOUR, NOON, report

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.display import Display


@dataclass
class Run:
    """A run as a query tells of it."""

    progress: BatchReport | None = None
    progress_before: BatchReport | None = None
    batches: int = 0
    is_active: bool = True
    span: tuple[int, int] | None = None
    error: BaseException | None = None

    def exception(self) -> BaseException | None:
        return self.error


def shown(run: Run) -> Display:
    rows = pa.table({"id": [1], "event_time": pa.array([0], pa.timestamp("us", "UTC"))})
    left, right = (cj.Input(rows, key="id", event_time="event_time", name=name) for name in ("trades", "customers"))
    query: Any = run
    return query_display(query, cj.connect(left, right).asof_join().plan, "s3a://me:opensesame@lake/_cojoin/enriched")


def test_a_query_that_begins() -> None:
    assert shown(Run()).text().splitlines() == [
        "Query: asof_join() of 'trades' with 'customers', running, before the first batch",
        "0 batches in this run; checkpoint s3a://***@lake/_cojoin/enriched",
    ]


def test_a_query_that_runs_shows_how_far_it_is() -> None:
    display = shown(Run(report(5, 3, NOON, buffered=10), 2, span=(NOON - HOUR, NOON + 3 * HOUR)))
    assert display.head == "Query: asof_join() of 'trades' with 'customers', running"
    assert display.share == 0.25
    assert [row[:5] for row in display.table[1:]] == [
        ("trades", "5", "5", "10", "0"),
        ("customers", "3", "3", "1", "0"),
    ]
    assert display.notes[0].endswith("watermark 2026-01-15 12:00:00.000, held back by 'trades'; 0 rows out.")
    assert '<progress value="0.2500">' in display.html()


def test_a_query_that_ended_says_how() -> None:
    display = shown(Run(report(5, 3), 2, is_active=False, span=(NOON - HOUR, NOON)))
    assert display.head.endswith(", ended")
    assert display.share is None
    assert display.notes[0].startswith("paused: no row waits")


def test_a_query_that_failed_says_why() -> None:
    display = shown(Run(report(5), 1, is_active=False, error=cj.QueryFailedError("no s3a://me:opensesame@lake")))
    assert display.head.endswith(", failed")
    assert display.notes[0] == "QueryFailedError: no s3a://***@lake"


@pytest.mark.spark
@pytest.mark.slow
def test_a_real_query_and_its_inputs_show_themselves(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    rows = "select 1L id, timestamp'2026-01-15 12:00:00Z' event_time"
    spark.sql(rows).write.format("delta").save(path)
    columns = {"key": "id", "event_time": "event_time"}
    static = cj.Input(spark.sql(rows), **columns, name="static")
    spark.conf.set("spark.sql.repl.eagerEval.enabled", "true")
    try:
        assert "static Spark DataFrame: id bigint, event_time timestamp" in repr(static)
    finally:
        spark.conf.unset("spark.sql.repl.eagerEval.enabled")
    pair = cj.connect(*(cj.Input(cj.sources.delta(path), **columns, name=name) for name in ("left", "right")))
    assert repr(pair) == f"Connected inputs: 'left' (delta {path}) with 'right' (delta {path})"
    joined = pair.asof_join()
    assert "start(...) or to_dataframe() runs it." in joined._repr_html_()
    trigger = cj.Trigger.available_now(drain=True)
    query = joined.start(output=cj.sinks.delta(str(tmp_path / "out")), checkpoint=str(tmp_path / "c"), trigger=trigger)
    assert repr(query).startswith("Query: asof_join() of 'left' with 'right', ")
    query.await_termination(progress=False)
    assert "drained: all inputs are finished" in repr(query)
    assert "2 batches in this run" in query._repr_html_()
    axes = cj.plots.plot_watermarks(cj.read_progress(spark, tmp_path / "c"))
    assert axes.get_legend() is not None
