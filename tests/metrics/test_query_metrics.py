"""What a query's metrics are after its batches, read through OpenTelemetry's own SDK and Prometheus' own exporter."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, generate_latest

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.metrics.metric_names import EXPECTED_REASONS, METRICS
from cojoin.metrics.query_metrics import Instruments, QueryMetrics
from tests.spark.query.runs import NOON, report

if TYPE_CHECKING:
    from cojoin.engine.batch_report import BatchReport

NAMES = ("trades", "ä `b`.c")
DURATIONS = {"execute": 2000.0, "calls": 3000.0, "output": 300.0, "rejected": 200.0}


class Measured:
    """Instruments of an SDK of their own, whose values are read."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])
        self.instruments = Instruments(self.provider.get_meter("cojoin"))

    def metrics(self, query: str = "enrich", before: BatchReport | None = None, **options: Any) -> QueryMetrics:
        return QueryMetrics(self.instruments, query, NAMES, ["output", "rejected"], before, 3, **options)

    def points(self) -> dict[tuple[Any, ...], Any]:
        """Return each value by its name and the values of its attributes."""
        data = self.reader.get_metrics_data()
        return {
            (metric.name, *point.attributes.values()): getattr(point, "value", None) or getattr(point, "sum", 0)
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def measured() -> Measured:
    return Measured()


def batch(number: int, trades: int, customers: int = 0, **values: Any) -> BatchReport:
    found = report(trades, customers, values.pop("watermark", NOON), buffered=30, names=NAMES)
    left, right = found.inputs
    left = replace(left, rejected=values.pop("rejected", {}), late_applied=values.pop("late_applied", 0))
    return replace(found, batch_id=number, inputs=(left, right), state_bytes=4096, **values)


def test_counters_add_what_a_batch_brought_and_nothing_twice(measured: Measured) -> None:
    metrics = measured.metrics()
    first = batch(0, 100, 10, emitted={"output": 70, "rejected": 2}, rejected={"late": 2}, late_applied=1)
    second = batch(1, 160, 12, emitted={"output": 50, "rejected": 3}, rejected={"late": 4, "gone": 1}, late_applied=1)
    for each in (first, second, second, first):
        metrics.count(each, DURATIONS)
    found = measured.points()
    assert found["cojoin.query.batches", "enrich"] == 2
    assert [found["cojoin.input.rows", "enrich", name] for name in NAMES] == [160, 12]
    assert found["cojoin.input.rejected", "enrich", "trades", "late"] == 4
    assert found["cojoin.input.rejected", "enrich", "trades", "gone"] == 1
    assert found["cojoin.input.late_applied", "enrich", "trades"] == 1
    assert [found["cojoin.output.rows", "enrich", name] for name in ("output", "rejected")] == [120, 5]
    parts = {part: found["cojoin.query.batch.duration", "enrich", part] for part in ("execute", "write")}
    assert parts == {"execute": 4.0, "write": 1.0}
    assert ("cojoin.query.batch.duration", "enrich", "calls") not in found


def test_the_output_named_snapshot_is_a_part_of_what_is_written(measured: Measured) -> None:
    metrics = measured.metrics()
    metrics.count(batch(0, 100, emitted={"snapshot": 7}), {"execute": 2000.0, "_snapshot": 300.0, "snapshot": 500.0})
    found = measured.points()
    parts = {part: found["cojoin.query.batch.duration", "enrich", part] for part in ("execute", "write", "snapshot")}
    assert parts == {"execute": 2.0, "write": 0.3, "snapshot": 0.5}


def test_another_run_goes_on_with_the_counters_of_this_process(measured: Measured) -> None:
    last = batch(4, 500, 50)
    measured.metrics().end()
    metrics = measured.metrics(before=last)
    assert measured.points()["cojoin.input.rows", "enrich", "trades"] == 0
    # It counted before the crash: the batch is run again, and says the same.
    metrics.count(last, DURATIONS)
    metrics.count(batch(5, 520, 50, emitted={"output": 20}), DURATIONS)
    found = measured.points()
    assert found["cojoin.input.rows", "enrich", "trades"] == 20
    assert (found["cojoin.query.batches", "enrich"], found["cojoin.query.epoch", "enrich"]) == (1, 3)


def test_the_rows_of_the_query_that_was_restored_are_not_counted(measured: Measured) -> None:
    metrics = measured.metrics(begins_restored=True)
    metrics.count(batch(0, 500, 50), DURATIONS)
    metrics.count(batch(1, 507, 50), DURATIONS)
    assert measured.points()["cojoin.input.rows", "enrich", "trades"] == 7


def test_gauges_are_those_of_the_newest_batch(measured: Measured) -> None:
    metrics = measured.metrics(before=batch(0, 1))
    assert measured.points()["cojoin.input.buffered", "enrich", "trades"] == 30
    metrics.count(batch(1, 100, watermark=NOON + 1500), DURATIONS)
    metrics.set_offset_lags({"trades": 17})
    found = measured.points()
    assert found["cojoin.query.active", "enrich"] == 1
    assert found["cojoin.query.state.size", "enrich"] == 4096
    assert found["cojoin.input.buffered", "enrich", NAMES[1]] == 3
    assert found["cojoin.query.watermark", "enrich"] == NOON / 1000 + 1.5
    assert abs(found["cojoin.input.event_time.lag", "enrich", "trades"] - (time.time() - NOON / 1000)) < 60
    assert found["cojoin.input.offset.lag", "enrich", "trades"] == 17
    assert ("cojoin.input.offset.lag", "enrich", NAMES[1]) not in found
    assert metrics.is_asked.is_set()


@pytest.mark.parametrize("watermark", [NONE, END_OF_TIME])
def test_a_time_that_is_none_has_no_value(measured: Measured, watermark: int) -> None:
    measured.metrics().count(batch(0, 1, watermark=watermark), DURATIONS)
    assert not [each for each in measured.points() if "watermark" in each[0] or "event_time" in each[0]]


def test_what_an_ended_query_left_is_shown_until_the_next_of_its_name(measured: Measured) -> None:
    metrics = measured.metrics()
    metrics.count(batch(0, 100), DURATIONS)
    metrics.set_offset_lags({"trades": 17})
    metrics.end()
    found = measured.points()
    assert found["cojoin.input.buffered", "enrich", "trades"] == 30
    assert found["cojoin.query.active", "enrich"] == 0
    assert ("cojoin.query.watermark", "enrich") in found
    assert not [each for each in found if each[0].endswith(".lag")]
    measured.metrics("other")
    measured.metrics()
    found = measured.points()
    assert ("cojoin.input.buffered", "enrich", "trades") not in found
    assert [found["cojoin.query.active", name] for name in ("enrich", "other")] == [1, 1]


def test_many_ended_queries_are_forgotten(measured: Measured) -> None:
    for number in range(60):
        measured.metrics(f"query-{number}").end()
    shown = [each[1] for each in measured.points() if each[0] == "cojoin.query.active"]
    assert shown == [f"query-{number}" for number in range(39, 60)]


def test_a_query_whose_gauges_fail_hides_no_other(measured: Measured, caplog: pytest.LogCaptureFixture) -> None:
    measured.metrics("broken", "no report")  # type: ignore[arg-type]
    measured.metrics("whole")
    for _ in range(2):
        assert measured.points()["cojoin.query.active", "whole"] == 1
    assert len([each for each in caplog.records if "query broken" in each.getMessage()]) == 1


def test_names_units_and_attributes_follow_the_conventions() -> None:
    names = [each.name for each in METRICS]
    assert len({*names}) == len(names)
    for each in METRICS:
        assert re.fullmatch(r"cojoin(\.[a-z]+(_[a-z]+)*)+", each.name), each.name
        assert not [other for other in names if other.startswith(f"{each.name}.")]
        assert each.unit in {"s", "By"} or re.fullmatch(r"\{[a-z]+\}", each.unit)
        assert all(re.fullmatch(r"cojoin\.[a-z]+", name) for name in each.attributes)
        assert each.attributes[0] == "cojoin.query"


def test_prometheus_gives_the_names_that_are_documented() -> None:
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    try:
        metrics = QueryMetrics(Instruments(provider.get_meter("cojoin")), "named", NAMES, ["output"], None, 1)
        metrics.count(batch(0, 10, emitted={"output": 1}), {"execute": 1.0, "snapshot": 2.0})
        metrics.count_group_failure("trades")
        metrics.set_offset_lags({"trades": 1})
        scraped = generate_latest(REGISTRY).decode()
    finally:
        provider.shutdown()
    kinds = dict(re.findall(r"^# TYPE (cojoin_\S+) (\S+)$", scraped, re.MULTILINE))
    assert kinds == {each.prometheus: each.kind for each in METRICS}
    for each in METRICS:
        labels = {name.replace(".", "_") for name in each.attributes}
        lines = re.findall(rf"^{each.prometheus}(?:_sum)?\{{(.*)\}} ", scraped, re.MULTILINE)
        assert lines
        assert all(labels <= {*re.findall(r'(\w+)="', line)} for line in lines)
    # Other queries of the process may be in the registry, too.
    own = [line for line in scraped.splitlines() if "_input_rejected_total{" in line and '"named"' in line]
    reasons = {*re.findall(r'cojoin_reason="(\w+)"', "\n".join(own))}
    assert reasons == {*EXPECTED_REASONS}


def test_without_the_package_there_are_no_metrics() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from cojoin.metrics.query_metrics import process_instruments\n"
        "print(process_instruments())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
