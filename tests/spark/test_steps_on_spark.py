"""``Joined.steps`` beside Spark streams with the same cuts: the same rows and counts in each micro-batch."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from tests.embedded.stepped import CASES, CUSTOMERS_DDL, JOINS, TRADES_DDL, Case, draw_case, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.embedded.steps import Step

pytestmark = pytest.mark.spark

FAST = "function"
"""Each case costs some five seconds of two cores, so all others are slow tests; each join comes there once."""

PARAMETERS = [
    pytest.param(
        name,
        seed,
        marks=[] if number == 1 and name == FAST else [pytest.mark.slow, *([pytest.mark.more] if number > 1 else [])],
        id=f"{name}-{number}",
    )
    for name, number, seed in CASES
]


@pytest.fixture(autouse=True)
def one_partition(shuffle_partitions: Callable[[int], None]) -> None:
    shuffle_partitions(1)


class Stream:
    """A Spark stream over a case: each batch is a file of either input."""

    def __init__(self, spark: SparkSession, case: Case, join: Any, folder: Path) -> None:
        for number, batch in enumerate(case.batches()):
            for name, rows in zip(("trades", "customers"), batch, strict=True):
                (folder / name).mkdir(exist_ok=True, parents=True)
                path = folder / name / f"{number}.parquet"
                pq.write_table(rows, path)
                # Spark takes files by their time of modification.
                os.utime(path, (1_700_000_000 + number,) * 2)
        trades, customers = (
            spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
            for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        )
        self.tables: dict[tuple[int, str], list[pa.Table]] = defaultdict(list)
        joined = join(case.connect(trades, customers, key_groups=2))
        query = joined.start(
            output=self._keep("output"),
            rejected=self._keep("rejected"),
            side_outputs={tag: self._keep(tag.tag_id) for tag in joined.plan.side_outputs},
            checkpoint=folder / "checkpoint",
            checkpoint_interval=None,
            trigger=cj.Trigger.available_now(drain=True),
        )
        query.await_termination(progress=False)
        self.progress = cj.read_progress(spark, folder / "checkpoint").orderBy("batch_id").collect()

    def _keep(self, name: str) -> Callable[[DataFrame, int], None]:
        def keep(frame: DataFrame, batch_id: int) -> None:
            self.tables[batch_id, name].append(frame.toArrow())

        return keep

    def rows(self, batch_id: int, name: str) -> list[str]:
        return sorted(row for table in self.tables[batch_id, name] for row in rows_of(table))

    def times(self) -> list[int]:
        """Return each batch's processing time in epoch milliseconds, without the drain's."""
        return [_millis(row.processing_time) for row in self.progress[:-1]]


def _millis(moment: Any) -> Any:
    # PySpark gives timestamps in the local zone of this process.
    return None if moment is None else round(moment.timestamp() * 1000)


def told(step: Step) -> dict[str, Any]:
    """Return what a step reports, as the progress table has it."""

    def time(millis: int) -> int | None:
        return None if abs(millis) >= (1 << 63) - 1 else millis

    report = step.report
    return {
        "batch_id": report.batch_id,
        "processing_time": report.processing_time,
        "watermark": time(report.watermark),
        "holding_input": report.holding_input,
        "drained": report.drained,
        "rows_out": report.rows_out,
        "emitted": {name: count for name, count in report.emitted.items() if count},
        "details": dict(report.details),
        "inputs": [
            (
                each.name,
                each.rows_in,
                each.done,
                each.buffered,
                dict(each.rejected),
                each.late_applied,
                time(each.watermark),
                time(each.max_timestamp),
                each.status,
                {name: time(watermark) for name, watermark in each.partitions.items()},
            )
            for each in report.inputs
        ],
    }


def shown(row: Any) -> dict[str, Any]:
    return {
        "batch_id": row.batch_id,
        "processing_time": _millis(row.processing_time),
        "watermark": _millis(row.watermark),
        "holding_input": row.holding_input,
        "drained": row.drained,
        "rows_out": row.rows_out,
        "emitted": {name: count for name, count in row.emitted.items() if count},
        "details": dict(row.details),
        "inputs": [
            (
                each.name,
                each.rows_in,
                each.done,
                each.buffered,
                dict(each.rejected),
                each.late_applied,
                _millis(each.watermark),
                _millis(each.max_timestamp),
                each.status,
                {name: _millis(watermark) for name, watermark in each.partitions.items()},
            )
            for each in row.inputs
        ],
    }


@pytest.mark.parametrize(("name", "seed"), PARAMETERS)
def test_each_step_is_the_micro_batch_that_spark_runs(
    spark: SparkSession, tmp_path: Path, name: str, seed: int
) -> None:
    case = draw_case(seed, name)
    stream = Stream(spark, case, JOINS[name], tmp_path)
    joined = JOINS[name](case.connect(case.trades, case.customers))
    steps = list(joined.steps(case.cuts, processing_time=stream.times()))
    assert [told(step) for step in steps] == [shown(row) for row in stream.progress]
    for step in steps:
        for output, table in step.tables.items():
            assert rows_of(table) == stream.rows(step.batch_id, output), (step, output)
