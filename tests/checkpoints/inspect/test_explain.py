"""What became of a row and what a key waits for, told in sentences that can be read aloud."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.checkpoints.inspect.findings import Since, Wait, state_findings, wait_for_watermark
from cojoin.checkpoints.inspect.key_state import MatchingRows
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.display import format_span
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.errors import ConfigurationError
from cojoin.session.sessions import open_store
from tests.spark.data import MORNING

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.inspect.findings import Explanation, Finding
    from tests.checkpoints.lakes import Lake

on_spark = pytest.mark.spark


def told(finding: Finding) -> str:
    return " ".join(finding.text.split())


@on_spark
def test_a_row_that_waits_names_what_holds_it(spark: SparkSession, lake: Lake) -> None:
    explanation = cj.explain(spark, lake.checkpoint, input="trades", row={"trade_id": 6})
    (finding,) = explanation.findings
    assert told(finding) == (
        "The row trade_id=6, customer_id=1, event_time=2024-03-01 07:01:30, amount=1.0, position=6 of 'trades' "
        "is buffered since batch 1: it is emitted when the watermark reaches 2024-03-01 07:01:30.000; "
        "it is at 2024-03-01 07:01:19.999, held by 'customers', 10.001 s behind."
    )
    until = (MORNING + 90_000_000) // 1000
    assert (finding.kind, finding.batch_id, finding.wait) == (
        "buffered",
        1,
        Wait("watermark", until, until - 10_001, "customers"),
    )
    assert str(explanation).startswith(
        "row trade_id=6 of 'trades', after batch 1 (watermark 2024-03-01 07:01:19.999)\n  The row trade_id=6,"
    )
    assert json.loads(json.dumps(explanation.as_dict(), default=str))["findings"][0]["wait"]["behind_ms"] == 10_001


@pytest.mark.slow
@on_spark
def test_a_row_that_came_out_has_its_batch_and_version(spark: SparkSession, lake: Lake) -> None:
    (finding,) = cj.explain(spark, lake.checkpoint, input="trades", row={"trade_id": 3}).findings
    assert (finding.kind, finding.output, finding.batch_id, finding.watermark) == (
        "emitted",
        "output",
        1,
        (MORNING + 79_999_000) // 1000,
    )
    assert finding.matched is not None
    assert (finding.matched["version"], finding.matched["position"]) == (3, 3)
    assert " was emitted in batch 1, in which the watermark came to 2024-03-01 07:01:19.999, with " in told(finding)


@pytest.mark.slow
@on_spark
def test_as_of_an_earlier_batch_it_still_waits(spark: SparkSession, lake: Lake) -> None:
    explanation = cj.explain(spark, lake.checkpoint, input="trades", row={"trade_id": 3}, at=0)
    assert [finding.kind for finding in explanation.findings] == ["buffered", "emitted"]
    assert (explanation.batch_id, explanation.findings[0].batch_id) == (0, 0)


@on_spark
@pytest.mark.parametrize(
    ("trade", "reason", "said"),
    [
        (4, "late", "in batch 1 as late: the watermark was at 2024-03-01 07:00:54.999 already before its batch."),
        pytest.param(5, "null_key", "in batch 1 as null_key: a column of its key is null.", marks=pytest.mark.slow),
    ],
)
def test_a_rejected_row_has_its_reason(spark: SparkSession, lake: Lake, trade: int, reason: str, said: str) -> None:
    (finding,) = cj.explain(spark, lake.checkpoint, input="trades", row={"trade_id": trade}).findings
    assert (finding.kind, finding.reason, finding.batch_id) == ("rejected", reason, 1)
    assert said in told(finding)


@pytest.mark.slow
@on_spark
def test_a_version_is_in_force_and_names_what_it_matched(spark: SparkSession, lake: Lake) -> None:
    version, matched = cj.explain(spark, lake.checkpoint, input="customers", row={"version": 2}).findings
    assert version.kind == "version"
    assert "is in force from 2024-03-01 07:00:05 on" in told(version)
    assert matched.matched is not None
    assert matched.matched["trade_id"] == 2
    assert "was matched in batch 0" in told(matched)


@pytest.mark.slow
@on_spark
def test_a_row_that_is_nowhere_says_why_that_may_be(spark: SparkSession, lake: Lake) -> None:
    (finding,) = cj.explain(spark, lake.checkpoint, input="trades", row={"trade_id": 999}).findings
    assert finding.kind == "unknown"
    assert "it was not read yet (the latest event time read so far is 2024-03-01 07:01:30.000)" in told(finding)


@on_spark
def test_a_key_has_all_of_these(spark: SparkSession, lake: Lake) -> None:
    explanation = cj.explain(spark, lake.checkpoint, key=1)
    kinds = [finding.kind for finding in explanation.findings]
    assert kinds == ["buffered", "buffered", "version", "emitted", "emitted", "rejected"]
    assert "<p>The row trade_id=6" in explanation._repr_html_()


@pytest.mark.slow
@on_spark
def test_a_functions_key_has_states_and_timers(spark: SparkSession, watched: Lake) -> None:
    explanation = cj.explain(spark, watched.checkpoint, key=2)
    assert [told(finding) for finding in explanation.of("state")] == [
        "State 'count' is 1.",
        "State 'seen' is [2].",
        "State 'sums' is {'all': 1.0}.",
        "State 'tier' is gold.",
    ]
    first, far, clock = explanation.of("timer")
    assert "An event-time timer fires when the watermark reaches 2024-03-01 08:00:12.000; it is at" in told(first)
    assert "held by 'customers', 59 min 17 s behind" in told(first)
    assert far.wait is not None
    assert "A processing-time timer fires in the first batch from" in told(clock)
    assert explanation.notes == ["output, since it has none of the columns customer_id"]
    (emitted,) = cj.explain(spark, watched.checkpoint, input="trades", row={"trade_id": 1}).findings
    assert told(emitted).startswith("The row trade_id=1, tier=gold was emitted in batch 0")
    (held,) = cj.explain(spark, watched.checkpoint, input="trades", row={"trade_id": 3}).findings
    assert ": the function gets it when the watermark reaches" in told(held)


@on_spark
@pytest.mark.slow
def test_what_can_not_be_looked_up_is_said(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    # The same checkpoint, whose output's log was cleaned, or whose output is gone or elsewhere.
    copy = tmp_path / "copy"
    shutil.copytree(lake.checkpoint, copy)
    manifests = Manifests(open_store(spark, str(copy)))
    manifest = manifests.read(1)
    assert manifest is not None
    place = manifest.outputs["output"]
    moved = tmp_path / "moved"
    shutil.copytree(lake.output, moved)
    spark.read.format("delta").load(str(moved)).repartition(1).write.format("delta").mode("overwrite").save(str(moved))
    # Spark Connect creates a table in a version of its own.
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{moved}`").first().version

    def written_to(value: dict[str, Any]) -> None:
        manifests.write(replace(manifest, outputs={**manifest.outputs, "output": value}))

    def ask() -> Explanation:
        return cj.explain(spark, str(copy), input="trades", row={"trade_id": 3})

    written_to({**place, "delta": str(moved)})
    (finding,) = ask().findings
    assert (finding.kind, finding.batch_id) == ("emitted", None)
    rewritten = f"in version {newest} of the table"
    assert f"(in which batch is not known: its file was rewritten since, {rewritten})" in told(finding)
    written_to({**place, "delta": str(tmp_path / "gone")})
    assert ask().notes == [f"the table {tmp_path / 'gone'} of output no longer exists"]
    written_to({"parquet": "/lake/out/batch_id=1", "batch_id": 1})
    assert ask().notes == ["output, since it goes to parquet /lake/out/batch_id=1"]


@pytest.mark.slow
@on_spark
def test_questions_that_make_no_sense_are_refused(spark: SparkSession, lake: Lake) -> None:
    for asked, said in (
        ({}, "expected a key, such as key=17, or a row"),
        ({"row": {"trade_id": 1}}, "expected input= with row=, so that it is known whose row: 'trades' or 'customers'"),
        ({"input": "trade", "key": 1}, "no input 'trade'; did you mean 'trades'?"),
        ({"input": "trades", "row": {"trade": 1}}, "input 'trades' has no column 'trade'; did you mean 'trade_id'?"),
        ({"input": "trades", "row": {}}, "row: expected a dict of column values"),
    ):
        with pytest.raises(ConfigurationError, match=r"explain|input|row") as refused:
            cj.explain(spark, lake.checkpoint, **asked)  # type: ignore[arg-type]
        assert said in str(refused.value)


SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
INPUTS = tuple(InputSpec(name, SCHEMA, ("k",), "t") for name in ("orders", "payments"))
ROW = pa.table([[1], pa.array([10_000_500], SCHEMA.field("t").type)], schema=SCHEMA)


def findings(query: dict[str, Any], table: str, rows: pa.Table, since: Since | None = None) -> list[str]:
    """Tell rows of a state whose watermark is at 5 s, held by the second of the payments' partitions."""
    payments = SimpleNamespace(name="payments", holding_partition='["payments",1]')
    report = SimpleNamespace(holding_input="payments", inputs=(SimpleNamespace(name="orders"), payments))
    state = SimpleNamespace(query=query, inputs=INPUTS, report=report, watermark=5_000, taken_at=None)
    found = {table: MatchingRows(rows, rows.num_rows)}
    return [finding.text for finding in state_findings(state, found, since, 20)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "flag", "said"),
    [
        ("left", True, "is kept for rows of 'payments' until the watermark reaches 1970-01-01 00:00:12.000;"),
        ("right", False, "is kept for rows of 'orders' until the watermark reaches 1970-01-01 00:00:11.000;"),
    ],
)
def test_rows_of_an_interval_join_are_kept_for_others(table: str, flag: bool, said: str) -> None:
    query = {"operator": "interval_join", "how": "inner", "lower_us": -1_000_000, "upper_us": 2_000_000}
    (text,) = findings(query, table, ROW.append_column("matched", pa.array([flag])))
    assert said in text
    assert text.endswith("It has been paired already." if flag else "It has no pair yet.")
    assert "held by 'payments' partition [\"payments\",1]" in text


def test_what_a_held_row_waits_for_depends_on_the_join() -> None:
    backward = {"operator": "asof_join", "how": "left", "direction": "backward", "tolerance_us": None}
    (text,) = findings(backward, "held1", ROW, Since(3, exact=False))
    assert " is buffered since batch 3 or longer: it is emitted when the watermark reaches" in text
    (text,) = findings(backward, "held2", ROW)
    assert ": it takes effect when the watermark reaches 1970-01-01 00:00:10.000;" in text
    forward = {**backward, "direction": "forward"}
    assert "its match is looked for when" in findings(forward, "held1", ROW)[0]
    (text,) = findings(forward, "waiting", ROW)
    assert "its match is open until a later row of 'payments' comes and the watermark passes that row;" in text
    (text,) = findings({**forward, "tolerance_us": 3_000_000}, "waiting", ROW)
    assert "at most until the watermark reaches 1970-01-01 00:00:13.000;" in text


def test_without_a_report_the_input_that_holds_the_watermark_is_not_known() -> None:
    state = SimpleNamespace(report=None, watermark=5_000)
    wait = wait_for_watermark(state, 9_000)  # type: ignore[arg-type]
    assert (wait.input, wait.is_holder_known) == (None, False)


def test_waits_in_words() -> None:
    assert str(Wait("watermark", 10, NONE, "customers")) == ("no watermark yet: input 'customers' has none")
    assert str(Wait("watermark", 10, 4)) == (
        "it is at 1970-01-01 00:00:00.004, no active input holds it back, 0.006 s behind"
    )
    assert Wait("watermark", END_OF_TIME, 4, "customers").behind_ms is None
    assert "so this happens in the next batch" in str(Wait("watermark", 10, 12, "customers"))
    assert str(Wait("watermark", 10, 4, is_holder_known=False)) == (
        "it is at 1970-01-01 00:00:00.004, it is not known which input holds it back, 0.006 s behind"
    )
    assert str(Wait("processing_time", 10, 4)) == "the last batch was at 1970-01-01 00:00:00.004, 0.006 s behind"
    assert str(Wait("processing_time", 4, 4)) == (
        "the last batch was at 1970-01-01 00:00:00.004, so this happens in the next batch"
    )
    assert str(Wait("processing_time", 4, NONE)) == "the processing time of the last batch is not known"
    assert [format_span(millis) for millis in (5, 60_000, 3_600_000, 86_400_000)] == [
        "0.005 s",
        "1 min 0 s",
        "1 h 0 min",
        "1 d 0 h",
    ]
