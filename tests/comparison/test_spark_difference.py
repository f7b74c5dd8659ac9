"""Two versions on Spark: the same difference as in memory, from one reading, and what has no common history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.comparison import spark_difference
from tests.comparison.test_diff import BESIDE, SCORES, Scores, customers, trades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {"key": "customer_id", "event_time": "event_time"}


def many() -> tuple[pa.Table, pa.Table]:
    """Return rows of 50 customers, of which each has the ties of the few rows of the other tests."""
    left, right = (pa.Table.from_pandas(each, preserve_index=False) for each in (trades(), customers()))
    sides = []
    for table in (left, right):
        keys = table.column("customer_id").to_numpy()
        copies = [
            table.set_column(1 if table is left else 0, "customer_id", pa.array(keys + 10 * n)) for n in range(50)
        ]
        sides.append(pa.concat_tables(copies))
    return sides[0], sides[1]


def connected(left: Any, right: Any, key_groups: int | None = None, **of_customers: Any) -> cj.ConnectedInputs:
    inputs = (cj.Input(left, **COLUMNS, name="trades"), cj.Input(right, **COLUMNS, name="customers", **of_customers))
    return cj.connect(*inputs, key_groups=key_groups)


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left, right = (spark.createDataFrame(each) for each in many())
    return left, right


def as_arrow(rows: Any) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else rows.toArrow()


def same_rows(one: Any, other: Any) -> None:
    tables = [as_arrow(each) for each in (one, other)]
    assert tables[0].schema.names == tables[1].schema.names
    spelled = [sorted(map(repr, (tuple(row.values()) for row in table.to_pylist()))) for table in tables]
    assert spelled[0] == spelled[1]


def same_difference(on_spark: Any, in_memory: Any) -> None:
    assert {name: each.counts for name, each in on_spark.outputs.items()} == {
        name: each.counts for name, each in in_memory.outputs.items()
    }
    assert on_spark.settings == in_memory.settings
    for name, output in on_spark.outputs.items():
        for kind in ("changed", "only_in_a", "only_in_b"):
            same_rows(getattr(output, kind), getattr(in_memory.outputs[name], kind))
    texts = [{each.explanation for each in found.examples} for found in (on_spark, in_memory)]
    assert texts[0] == texts[1]


def test_a_changed_tie_rule_and_watermark(frames: tuple[DataFrame, DataFrame]) -> None:
    found = []
    for left, right in (frames, many()):
        late = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
        versions = (
            connected(left, right, 4).asof_join(),
            connected(left, right, sequence="seq", watermark=late).asof_join(),
        )
        found.append(cj.diff(*versions, examples=50))
    same_difference(*found)
    assert found[0].counts.changed == 50
    assert len(found[0].examples) == 50


@pytest.mark.slow
def test_functions_with_maps_and_side_outputs(frames: tuple[DataFrame, DataFrame]) -> None:
    found = []
    for left, right in (frames, many()):
        pair = connected(left, right, 3)
        a, b = (pair.process(Scores(factor), SCORES, side_outputs=BESIDE) for factor in (1, 2))
        found.append(cj.diff(a, b, keys=["trade_id", "customer_id"], examples=200))
    same_difference(*found)
    assert found[0].counts.changed == 100


@pytest.mark.slow
def test_an_unchanged_version_reads_its_inputs_once(frames: tuple[DataFrame, DataFrame], spark: SparkSession) -> None:
    read = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    left = frames[0].mapInArrow(counted, frames[0].schema)
    found = cj.diff(*(connected(left, frames[1], 4).asof_join() for _ in "ab"))
    assert found.equal
    assert read.value == frames[0].count()
    assert found.changed.count() == 0
    assert read.value == frames[0].count()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_any_kind_keeps_no_rows(
    frames: tuple[DataFrame, DataFrame], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    seen: list[DataFrame] = []

    def fail(_: Any, emitted: DataFrame) -> None:
        assert emitted.storageLevel.useDisk
        seen.append(emitted)
        raise error

    monkeypatch.setattr(spark_difference, "_difference", fail)
    with pytest.raises(error):
        cj.diff(*(connected(*frames).asof_join() for _ in "ab"))
    assert not seen[0].storageLevel.useDisk


@pytest.mark.slow
def test_the_same_rows_in_other_dataframes(frames: tuple[DataFrame, DataFrame], spark: SparkSession) -> None:
    left, right = (spark.createDataFrame(each) for each in many())
    assert cj.diff(connected(*frames).asof_join(), connected(left.orderBy(F.rand(1)), right).asof_join()).equal
    with pytest.raises(cj.ConfigurationError, match="input 'trades' has 200 rows in a and 150 in b"):
        cj.diff(connected(*frames).asof_join(), connected(left.where("trade_id < 4"), right).asof_join())
    changed = right.withColumn("tier", F.upper("tier"))
    with pytest.raises(cj.ConfigurationError, match="input 'customers' has other rows in b than in a"):
        cj.diff(connected(*frames).asof_join(), connected(left, changed).asof_join())


@pytest.mark.slow
def test_sources_are_read_as_they_are_now(frames: tuple[DataFrame, DataFrame], tmp_path: Path) -> None:
    places = []
    for name, frame in zip(("trades", "customers"), frames, strict=True):
        places.append(str(tmp_path / name))
        frame.write.format("delta").save(places[-1])
    streaming = [connected(*map(cj.sources.delta, places), **each) for each in ({}, {"sequence": "seq"})]
    found = cj.diff(*(pair.asof_join() for pair in streaming))
    assert (found.counts.a, found.counts.b, found.counts.changed) == (200, 200, 50)
    begins = cj.sources.delta(places[0], options={"startingVersion": "0"})
    late = connected(begins, cj.sources.delta(places[1])).asof_join()
    with pytest.raises(cj.ConfigurationError, match=r"'trades' has no end, .* startingVersion is an option of streams"):
        cj.diff(late, late)


def test_what_has_no_common_history(spark: SparkSession, frames: tuple[DataFrame, DataFrame]) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("value AS customer_id", "timestamp AS event_time")
    pair = connected(rate, rate.selectExpr("customer_id", "event_time", "1 AS tier"))
    with pytest.raises(cj.ConfigurationError, match="input 'trades' is a stream, which has no end"):
        cj.diff(pair.asof_join(), pair.asof_join())
    with pytest.raises(cj.ConfigurationError, match="the inputs of b are in memory, those of a are Spark's"):
        cj.diff(connected(*frames).asof_join(), connected(*many()).asof_join())


def test_the_error_of_a_function_names_its_version(frames: tuple[DataFrame, DataFrame]) -> None:
    pair = connected(*frames)
    a, b = (pair.process(Scores(1, limit), SCORES, side_outputs=BESIDE) for limit in (99, 3))
    with pytest.raises(cj.QueryFailedError, match=r"^version b: Scores.process_element1 raised ValueError: no more"):
        cj.diff(a, b)


@pytest.mark.skipif(not pyspark.__version__.startswith("4.2."), reason="cojoin.kafka needs Spark 4.2")
def test_a_kafka_source_needs_an_end() -> None:
    source = cj.kafka.source("localhost:9", "trades", schema="customer_id long, event_time timestamp")
    assert "has no to=" in str(source.why_endless())
    bounded = cj.kafka.source("localhost:9", "trades", schema="customer_id long, event_time timestamp", to="latest")
    assert bounded.why_endless() is None
    assert replace(bounded, limit=1).why_endless() is None
