"""The same rows whatever the way: static or streaming, any key groups and partitions, join, function or pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import cojoin as cj
from tests.spark.data import (
    DISORDER,
    ENRICHED_DDL,
    FAR_FUTURE,
    MORNING,
    Folders,
    asof,
    customers,
    enriched_rows,
    rows,
    table,
    trades,
)
from tests.spark.functions import EnrichTrades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.spark.data import Streams

pytestmark = pytest.mark.spark

DRAIN = cj.Trigger.available_now(drain=True)
PAUSE = cj.Trigger.available_now()


def collected(frame: DataFrame, name: str, folder: Path) -> DataFrame:
    """Run a streaming DataFrame over what is there, into Spark's memory sink; it must end by itself."""
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), "an available_now query must end by itself"
    return frame.sparkSession.table(name)


def run(joined: cj.Joined, folder: Path, trigger: cj.Trigger = DRAIN) -> DataFrame:
    query = joined.start(output=cj.sinks.delta(f"{folder}/out"), checkpoint=f"{folder}/checkpoint", trigger=trigger)
    query.await_termination()
    assert query.progress is not None
    assert query.progress.is_conserved
    return table(SparkSession.active(), folder / "out")


@pytest.mark.parametrize("key_groups", [1, 3, 16])
def test_a_static_join_equals_pandas(spark: SparkSession, streams: Streams, folders: Folders, key_groups: int) -> None:
    pair = folders.connect(spark, streaming=False, key_groups=key_groups)
    assert enriched_rows(asof(pair).to_dataframe()) == streams.enriched()


@pytest.mark.parametrize(
    ("key_groups", "partitions"),
    [(3, 5), pytest.param(1, 2, marks=pytest.mark.slow), pytest.param(16, 1, marks=pytest.mark.slow)],
)
def test_a_stream_equals_pandas(
    spark: SparkSession,
    streams: Streams,
    folders: Folders,
    tmp_path: Path,
    shuffle_partitions: Callable[[int], None],
    key_groups: int,
    partitions: int,
) -> None:
    shuffle_partitions(partitions)
    result = run(asof(folders.connect(spark, key_groups=key_groups)), tmp_path)
    assert enriched_rows(result) == streams.enriched()


@pytest.mark.slow
def test_a_function_in_event_time_order_equals_the_join(
    spark: SparkSession, streams: Streams, folders: Folders, tmp_path: Path
) -> None:
    static = folders.connect(spark, streaming=False, key_groups=2).process(EnrichTrades(), ENRICHED_DDL)
    assert enriched_rows(static.to_dataframe()) == streams.enriched()
    streaming = folders.connect(spark, key_groups=3).process(EnrichTrades(), ENRICHED_DDL)
    assert enriched_rows(run(streaming, tmp_path)) == streams.enriched()


def test_an_inner_join_leaves_out_what_has_no_version(spark: SparkSession, streams: Streams, folders: Folders) -> None:
    joined = asof(folders.connect(spark, streaming=False), how="inner").to_dataframe()
    matched = [row for row in streams.enriched() if row[3] is not None]
    assert 0 < len(matched) < len(streams.enriched())
    assert enriched_rows(joined) == matched


@pytest.mark.slow
def test_keys_of_several_columns_of_other_names_and_of_text(
    spark: SparkSession, streams: Streams, folders: Folders, tmp_path: Path
) -> None:
    def pair(*, streaming: bool) -> cj.ConnectedInputs:
        left, right = folders.frames(spark, streaming=streaming)
        left = left.selectExpr("*", "'customer ' || customer_id account", "date'2024-03-01' day").drop("customer_id")
        right = right.selectExpr("*", "'customer ' || customer_id id", "date'2024-03-01' valid_on").drop("customer_id")
        bound = {"event_time": "event_time", "watermark": FIVE, "sequence": "position"}
        return cj.connect(
            cj.Input(left, key=["day", "account"], name="trades", **bound),
            cj.Input(right, key=["valid_on", "id"], name="customers", **bound),
            key_groups=3,
        )

    static = asof(pair(streaming=False)).to_dataframe()
    assert static.columns[5:] == ["day", "customers_event_time", "version", "tier", "position_customer"]
    assert enriched_rows(static) == streams.enriched()
    assert enriched_rows(run(asof(pair(streaming=True)), tmp_path)) == streams.enriched()


FIVE = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")


def test_one_frame_may_be_both_inputs(spark: SparkSession, folders: Folders, tmp_path: Path) -> None:
    frame = folders.frames(spark)[1]
    shared = {"key": "customer_id", "event_time": "event_time", "watermark": FIVE, "sequence": "position"}
    pair = cj.connect(cj.Input(frame, **shared), cj.Input(frame, **shared), key_groups=2)
    result = run(pair.asof_join(suffixes=("", "_right")), tmp_path)
    # A version of the same instant is in force: each row finds the last one of its own microsecond.
    assert result.count() == 150
    assert result.where("event_time <> right_event_time or right_event_time is null").count() == 0


def test_a_plain_stream_gives_what_the_watermark_passed_and_ends_by_itself(
    spark: SparkSession, streams: Streams, folders: Folders, tmp_path: Path
) -> None:
    result = enriched_rows(collected(asof(folders.connect(spark)).to_dataframe(), "plain_stream", tmp_path))
    reached = min(streams.trades.event_time.max() // 1000, streams.customers.event_time.max() // 1000)
    watermark = reached - DISORDER // 1000 - 1
    assert result == [row for row in streams.enriched() if row[1] // 1000 <= watermark]
    assert 0 < len(result) < 600


@pytest.fixture(scope="module")
def rejected_folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Batches that hold one row of each kind that is rejected, and late rows on both sides."""
    folders = Folders(tmp_path_factory.mktemp("rejected"))
    folders.add_trades(trades([(1, 1, 10), (2, None, 11), (3, 1, None), (4, None, None), (5, 1, FAR_FUTURE)]))
    folders.add_customers(customers([(1, 1, 0), (2, None, 1), (3, 1, None), (4, None, FAR_FUTURE)]))
    folders.add_trades(trades([(6, 1, 40)]))
    folders.add_customers(customers([(5, 1, 40)]))
    folders.add_trades(trades([(7, 1, 20), (8, 1, 50)]))
    folders.add_customers(customers([(6, 1, 20), (7, 1, 50)]))
    return folders


REASONS = [
    ("customers", "null_event_time", None, None, 3),
    ("customers", "null_key", None, MORNING + 1_000_000, 2),
    ("customers", "too_far_ahead", None, FAR_FUTURE, 4),
    ("trades", "late", MORNING // 1000 + 40_000 - 5_001, MORNING + 20_000_000, 7),
    ("trades", "null_event_time", None, None, 3),
    ("trades", "null_event_time", None, None, 4),
    ("trades", "null_key", None, MORNING + 11_000_000, 2),
    ("trades", "too_far_ahead", None, FAR_FUTURE, 5),
]
"""Input, reason, watermark before the batch, event time, and the number of each row that must be rejected."""


def reasons(frame: DataFrame) -> list[tuple[Any, ...]]:
    number = "coalesce(get_json_object(row, '$.trade_id'), get_json_object(row, '$.version'))"
    return rows(frame.selectExpr("input", "reason", "watermark", "event_time", f"int({number}) number"))


def test_rejected_rows_come_out_with_their_reasons(
    spark: SparkSession, rejected_folders: Folders, tmp_path: Path
) -> None:
    stream = asof(rejected_folders.connect(spark)).to_dataframe("rejected")
    assert stream.columns == ["input", "reason", "watermark", "event_time", "row"]
    result = collected(stream, "rejected_stream", tmp_path)
    assert reasons(result) == REASONS
    late = result.where("reason = 'late'").first()
    assert late is not None
    assert late.row == (
        '{"trade_id": 7, "customer_id": 1, "event_time": "2024-03-01T07:00:20+00:00", "amount": 1.0, "position": 7}'
    )


def test_a_query_keeps_rejected_rows_beside_its_checkpoint_and_counts_all(
    spark: SparkSession, rejected_folders: Folders, tmp_path: Path
) -> None:
    query = asof(rejected_folders.connect(spark)).start(
        output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN
    )
    query.await_termination()
    rejected = table(spark, tmp_path / "checkpoint" / "rejected")
    assert reasons(rejected) == REASONS
    # Each row has its batch, and the time that Spark has logged for it.
    assert rejected.columns == ["input", "reason", "watermark", "event_time", "row", "batch_id", "processing_time"]
    logged = rows(cj.read_progress(spark, f"{tmp_path}/checkpoint"), "batch_id", "processing_time")
    assert set(rows(rejected, "batch_id", "processing_time")) <= set(logged)
    assert {row[0] for row in rows(rejected, "batch_id")} == {0, 2}
    report = query.progress
    assert report is not None
    assert report.is_conserved
    left, right = report.inputs
    assert (left.rows_in, left.done, left.buffered) == (8, 3, 0)
    assert left.rejected == {"null_key": 1, "null_event_time": 2, "too_far_ahead": 1, "late": 1}
    assert (right.rows_in, right.done, right.late_applied) == (7, 4, 1)
    assert right.rejected == {"null_key": 1, "null_event_time": 1, "too_far_ahead": 1}
    # The late version of second 20 is in force for no trade here, but it is not lost: it is older than what is.
    assert rows(table(spark, tmp_path / "out"), "trade_id", "version") == [(1, 1), (6, 5), (8, 7)]


def test_a_time_that_python_can_not_show_to_a_function_is_rejected_and_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of both inputs, in the year 33658; the rest of the query's rows go on."""
    folders, beyond = Folders(tmp_path), 10**18
    folders.add_trades(trades([(1, 1, 10), (2, 1, beyond)]))
    folders.add_customers(customers([(1, 1, 5), (2, 1, beyond)]))
    query = (
        folders.connect(spark, max_ahead=None)
        .process(EnrichTrades(), ENRICHED_DDL)
        .start(output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN)
    )
    query.await_termination()
    assert rows(table(spark, tmp_path / "out"), "trade_id", "version") == [(1, 1)]
    report = query.progress
    assert report is not None
    assert [(each.rows_in, dict(each.rejected)) for each in report.inputs] == [(2, {"time_beyond_python": 1})] * 2
    rejected = table(spark, tmp_path / "checkpoint" / "rejected")
    assert [each[:2] + each[3:] for each in reasons(rejected)] == [
        ("customers", "time_beyond_python", beyond, 2),
        ("trades", "time_beyond_python", beyond, 2),
    ]


def test_static_inputs_reject_too_but_know_no_clock_and_no_lateness(
    spark: SparkSession, rejected_folders: Folders
) -> None:
    static = asof(rejected_folders.connect(spark, streaming=False)).to_dataframe("rejected")
    assert reasons(static) == [
        ("customers", "null_event_time", None, None, 3),
        ("customers", "null_key", None, MORNING + 1_000_000, 2),
        ("customers", "null_key", None, FAR_FUTURE, 4),
        ("trades", "null_event_time", None, None, 3),
        ("trades", "null_event_time", None, None, 4),
        ("trades", "null_key", None, MORNING + 11_000_000, 2),
    ]


def test_an_unknown_output_and_a_static_start_are_refused(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    joined = asof(folders.connect(spark, streaming=False))
    with refused("output: expected 'output' or 'rejected', got 'late'"):
        joined.to_dataframe("late")  # type: ignore[arg-type]
    with refused("inputs 'trades' and 'customers' are static, start() runs streams; use to_dataframe(), or read them"):
        joined.start(output=print, checkpoint=f"{tmp_path}/checkpoint", trigger=PAUSE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_of_many_sizes_up_to_megabytes_are_joined(spark: SparkSession, tmp_path: Path, streaming: bool) -> None:
    # By number of their batch, so that a query's second batch goes by rows and has far larger ones than its first.
    sizes = [(1, 0, 10), (2, 0, 1_000), (3, 1, 90_000), (4, 1, 200_000), (5, 1, 3_000_000), (6, 1, 1)]
    for at, (number, batch, size) in enumerate(sizes):
        columns = f"{number} AS id, {at % 2} AS key, timestamp_seconds({100 + number}) AS time"
        for side in ("left", "right"):
            spark.sql(f"SELECT {columns}, repeat('{at}', {size}) AS text").coalesce(1).write.mode("append").parquet(
                f"{tmp_path}/{side}/{batch}"
            )
    opened = [
        spark.readStream.schema("id int, key int, time timestamp, text string")
        .option("maxFilesPerTrigger", 2)
        .option("recursiveFileLookup", True)
        .parquet(f"{tmp_path}/{side}")
        if streaming
        else spark.read.option("recursiveFileLookup", True).parquet(f"{tmp_path}/{side}")
        for side in ("left", "right")
    ]
    inputs = [
        cj.Input(
            frame, key="key", event_time="time", name=name, watermark=cj.WatermarkStrategy.for_monotonous_timestamps()
        )
        for name, frame in zip(("left", "right"), opened, strict=True)
    ]
    joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_right"))
    found = run(joined, tmp_path) if streaming else joined.to_dataframe()
    lengths = found.selectExpr("id", "id_right", "length(text)", "text = text_right AS same").collect()
    assert sorted(tuple(row) for row in lengths) == [(number, number, size, True) for number, _, size in sizes]


def test_an_input_may_be_empty(spark: SparkSession, folders: Folders) -> None:
    left, right = folders.frames(spark, streaming=False)
    shared = {"key": "customer_id", "event_time": "event_time"}
    for one, two, count in ((left, right.limit(0), 600), (left.limit(0), right, 0)):
        pair = cj.connect(
            cj.Input(one, name="trades", **shared), cj.Input(two, name="customers", **shared), key_groups=2
        )
        assert asof(pair).to_dataframe().where("tier is null and version is null").count() == count
