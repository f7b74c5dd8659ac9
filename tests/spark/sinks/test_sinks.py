"""Sinks that are not a Delta path, beside Delta tables by name."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.values.types import schema_to_ddl
from cojoin.session.sessions import open_store
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId
from cojoin.spark.sinks.sinks import as_sink
from tests.spark.data import Folders, asof, connect, customers, rows, table, trades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ALL, DRAIN = cj.Trigger.available_now(), cj.Trigger.available_now(drain=True)
SLOW = pytest.mark.slow


@pytest.fixture
def two_batches(tmp_path: Path) -> Folders:
    """The first batch emits trade 1 and rejects trade 2, the second emits trade 3, the drain trade 4."""
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10), (9, 1, 20)]))
    folders.add_customers(customers([(1, 1, 5), (2, 1, 20)]))
    folders.add_trades(trades([(3, 1, 20), (4, 1, 40)]))
    folders.add_customers(customers([(3, 1, 40)]))
    return folders


def test_parquet_has_a_folder_for_each_batch_and_overwrites_it_when_the_batch_runs_again(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    calls = []

    def fail_once(frame: DataFrame, batch_id: int) -> None:
        calls.append((batch_id, rows(frame, "input", "reason")))
        if len(calls) == 1:
            msg = "once"
            raise KeyError(msg)

    def start() -> cj.Query:
        return asof(two_batches.connect(spark)).start(
            output=cj.sinks.parquet(f"{tmp_path}/out/"),
            rejected=fail_once,
            checkpoint=f"{tmp_path}/checkpoint",
            trigger=DRAIN,
        )

    with refused("batch 0: rejected to ", "fail_once: KeyError: 'once'", kind=cj.QueryFailedError):
        start().await_termination()
    folder = tmp_path / "out" / "batch_id=0"
    before = {path.name for path in folder.glob("*.parquet")}
    start().await_termination()
    assert before
    assert not before & {path.name for path in folder.glob("*.parquet")}
    assert rows(spark.read.parquet(f"{tmp_path}/out"), "batch_id", "trade_id", "version") == [
        (0, 1, 1),
        (1, 3, 2),
        (1, 9, 2),
        (2, 4, 3),
    ]
    # A callable may get a batch twice, and is told its id.
    assert calls == [(0, [("trades", "null_key")])] * 2


@pytest.mark.parametrize(
    ("how", "at", "message", "later"),
    [
        ("gone", 0, "the table has none of the query's batches, and had them up to 0", "the table does not exist"),
        pytest.param(
            "put back", 1, "the table has the query's batches up to 0, and had them up to 1", "up to 0", marks=SLOW
        ),
        pytest.param("replaced", 0, "it was replaced while the query ran", "another table of that name", marks=SLOW),
    ],
)
def test_a_table_that_is_gone_put_back_or_replaced_while_the_query_runs_ends_it(
    spark: SparkSession, tmp_path: Path, how: str, at: int, message: str, later: str
) -> None:
    # Each batch rejects a trade, so that the sink of these is called.
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10), (9, 1, 20)]))
    folders.add_customers(customers([(1, 1, 5), (2, 1, 20)]))
    folders.add_trades(trades([(3, 1, 20), (5, None, 20), (4, 1, 40)]))
    folders.add_customers(customers([(3, 1, 40)]))
    out, copies = tmp_path / "out", [tmp_path / f"copy_{number}" for number in range(2)]
    has_happened: list[bool] = []

    def harm(_: DataFrame, batch_id: int) -> None:
        """Change the table, once it has the batch's rows."""
        if has_happened or batch_id > at:
            return
        shutil.copytree(out, copies[batch_id])
        if batch_id == at and how == "replaced":
            none = f"select * from delta.`{copies[0]}` where false"
            spark.sql(f"create or replace table delta.`{out}` using delta as {none}")
        elif batch_id == at:
            shutil.rmtree(out)
            if at:
                shutil.copytree(copies[0], out)
        if batch_id == at:
            has_happened.append(True)

    def start() -> cj.Query:
        joined = asof(connect(*folders.sources()))
        options = {"output": cj.sinks.delta(str(out)), "rejected": harm, "checkpoint": f"{tmp_path}/check"}
        return joined.start(trigger=DRAIN, **options)

    with refused(message, kind=cj.QueryFailedError):
        start().await_termination()
    # Nor does a later start write on.
    with refused(f"the checkpoint records that batch {at} was written to it", later, kind=cj.CheckpointError):
        start()
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(copies[at], out)
    start().await_termination()
    assert [row[0] for row in rows(table(spark, out), "trade_id")] == [1, 3, 4, 9]


MAPPED = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["ADD CONSTRAINT positive CHECK (trade_id > 0)"], "its CHECK constraint 'positive'"),
        (["SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"], "its feature 'inCommitTimestamp'"),
        ([MAPPED], "its column mapping (delta.columnMapping.mode = name)"),
    ],
)
def test_a_table_that_gets_a_feature_between_two_batches_is_written_by_spark_from_then_on(
    spark: SparkSession, two_batches: Folders, tmp_path: Path, changes: list[str], why: str
) -> None:
    def change(_: DataFrame, batch_id: int) -> None:
        if not batch_id:
            for each in changes:
                spark.sql(f"ALTER TABLE delta.`{tmp_path}/out` {each}")

    query = asof(connect(*two_batches.sources())).start(
        output=cj.sinks.delta(f"{tmp_path}/out"), rejected=change, checkpoint=f"{tmp_path}/check", trigger=DRAIN
    )
    query.await_termination()
    manifests = Manifests(open_store(spark, f"{tmp_path}/check"))
    seen = [each.report.written_by_spark for each in manifests.read_all(manifests.batch_ids())]
    assert seen[0] == {}
    assert len(seen) == 3
    assert why in seen[1]["output"]
    assert why in seen[2]["output"]
    assert [row[0] for row in rows(table(spark, tmp_path / "out"), "trade_id")] == [1, 3, 4, 9]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message", "cure"),
    [
        (["ADD CONSTRAINT few CHECK (trade_id < 3)"], "[DELTA_VIOLATE_CONSTRAINT", "DROP CONSTRAINT few"),
        (
            [MAPPED, "RENAME COLUMN version TO edition"],
            "the table has no column 'version'",
            "RENAME COLUMN edition TO version",
        ),
    ],
)
def test_a_table_that_takes_the_rows_no_more_ends_the_query_which_goes_on_after_the_cure(
    spark: SparkSession, two_batches: Folders, tmp_path: Path, changes: list[str], message: str, cure: str
) -> None:
    def change(_: DataFrame, batch_id: int) -> None:
        if not batch_id:
            for each in changes:
                spark.sql(f"ALTER TABLE delta.`{tmp_path}/out` {each}")

    def start() -> cj.Query:
        return asof(connect(*two_batches.sources())).start(
            output=cj.sinks.delta(f"{tmp_path}/out"), rejected=change, checkpoint=f"{tmp_path}/check", trigger=DRAIN
        )

    with refused(f"batch 1: output to Delta {tmp_path}/out: ", message, kind=cj.QueryFailedError):
        start().await_termination()
    assert [row[0] for row in rows(table(spark, tmp_path / "out"), "trade_id")] == [1]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/out` {cure}")
    start().await_termination()
    assert [row[0] for row in rows(table(spark, tmp_path / "out"), "trade_id")] == [1, 3, 4, 9]


@pytest.mark.slow
def test_a_table_that_has_forgotten_the_querys_batches_is_refused_and_a_start_warns_before(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    kept, out = "delta.setTransactionRetentionDuration", f"delta.`{tmp_path}/out`"

    def start() -> cj.Query:
        return asof(connect(*two_batches.sources())).start(
            output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/check", trigger=ALL
        )

    start().await_termination()
    spark.sql(f"ALTER TABLE {out} SET TBLPROPERTIES ('{kept}' = 'interval 1 second')")
    with pytest.warns(UserWarning, match=r"Delta may forget the query's batches.* UNSET TBLPROPERTIES") as caught:
        start().await_termination()
    assert any("= interval 1 second, Delta may forget" in str(each.message) for each in caught)
    time.sleep(1.5)
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    log.forTable(spark._jsparkSession, f"{tmp_path}/out").checkpoint()
    with refused(
        "it has none of the query's batches (its property", "lets Delta forget them)", kind=cj.CheckpointError
    ):
        start()
    assert [row[0] for row in rows(table(spark, tmp_path / "out"), "trade_id")] == [1, 3, 9]


def test_a_parquet_folder_that_is_deleted_ends_the_query_and_stops_the_next_start(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"

    def move(_: DataFrame, batch_id: int) -> None:
        if not kept.exists():
            assert batch_id == 0
            out.rename(kept)

    def start() -> cj.Query:
        joined = asof(connect(*two_batches.sources()))
        checkpoint = f"{tmp_path}/checkpoint"
        return joined.start(output=cj.sinks.parquet(str(out)), rejected=move, checkpoint=checkpoint, trigger=ALL)

    # The first batch has a rejected row, which comes once its folder is written.
    gone = f"parquet folder {out}: it has none of the query's batches, nor the file _cojoin.json: it was deleted"
    with refused(gone, "Batch 1 was not written", kind=cj.QueryFailedError):
        start().await_termination()
    with refused("that batch 0 was written to it, and it has none of the query's batches", kind=cj.CheckpointError):
        start()
    kept.rename(out)
    start().await_termination()
    assert [row[0] for row in rows(spark.read.parquet(f"{out}"), "trade_id")] == [1, 3, 9]
    shutil.rmtree(out / "batch_id=1")
    with pytest.warns(UserWarning, match="it has batch_id=0 and not batch_id=1: where it was put back"):
        start().await_termination()
    # Readers may have moved them all away.
    shutil.rmtree(out / "batch_id=0")
    start().await_termination()


@pytest.mark.slow
def test_a_copy_of_a_table_that_was_written_since_is_not_taken_for_it(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    def start(name: str, trigger: cj.Trigger = DRAIN) -> cj.Query:
        joined = asof(connect(*two_batches.sources()))
        checkpoint = f"{tmp_path}/check"
        return joined.start(output=cj.sinks.delta(f"{tmp_path}/{name}"), checkpoint=checkpoint, trigger=trigger)

    late = two_batches.files[2:]
    hidden = [file.rename(file.with_name(f".{file.name}")) for file in late]
    start("out", cj.Trigger.available_now()).await_termination()
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    for file, path in zip(hidden, late, strict=True):
        file.rename(path)
    start("out", cj.Trigger.available_now()).await_termination()
    with refused("it has the query's batches up to 0", kind=cj.CheckpointError):
        start("copy")
    start("out").await_termination()
    assert [row[0] for row in rows(table(spark, tmp_path / "out"), "trade_id")] == [1, 3, 4, 9]


def test_a_callable_gets_the_rows_of_each_batch_and_its_id(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    seen: dict[int, Any] = {}
    query = asof(two_batches.connect(spark)).start(
        output=lambda frame, batch_id: seen.update({batch_id: rows(frame, "trade_id")}),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=DRAIN,
    )
    query.await_termination()
    assert seen == {0: [(1,)], 1: [(3,), (9,)], 2: [(4,)]}
    assert query.batches == 3


@pytest.mark.slow
def test_delta_by_name_partitioned(spark: SparkSession, two_batches: Folders, tmp_path: Path) -> None:
    query = asof(two_batches.connect(spark)).start(
        output=cj.sinks.delta("enriched_by_name", partition_by="tier"),
        rejected=cj.sinks.delta(f"{tmp_path}/rejected", options={"mergeSchema": True}),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=DRAIN,
    )
    query.await_termination()
    assert rows(spark.table("enriched_by_name"), "trade_id") == [(1,), (3,), (4,), (9,)]
    detail = spark.sql("describe detail enriched_by_name").first()
    assert detail is not None
    assert detail.partitionColumns == ["tier"]
    progress = table(spark, tmp_path / "checkpoint" / "progress").orderBy("batch_id")
    assert [row[0] for row in progress.selectExpr("get_json_object(outputs, '$.output.version')").collect()] == [
        "0",
        "1",
        "2",
    ]
    spark.sql("drop table enriched_by_name")


def test_a_write_that_is_repeated_takes_no_effect(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out")
    for batch_id, number in ((0, 1), (1, 2), (1, 2)):
        writer = sink.open(spark, OutputId("a query", "output"))
        writer.write(spark.range(number, number + 1), BatchMarker(batch_id, 1, number, "offsets"))
    another = sink.open(spark, OutputId("another query", "output"))
    another.write(spark.range(3, 4), BatchMarker(0, 1, 3, "offsets"))
    assert rows(table(spark, tmp_path / "out")) == [(1,), (2,), (3,)]


def test_an_error_of_delta_names_the_sink_and_the_batch(
    spark: SparkSession, two_batches: Folders, tmp_path: Path
) -> None:
    joined = asof(two_batches.connect(spark))
    spark.createDataFrame([], schema_to_ddl(joined.plan.output)).write.format("delta").save(f"{tmp_path}/taken")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/taken` ADD CONSTRAINT none CHECK (trade_id < 0)")
    query = joined.start(output=cj.sinks.delta(f"{tmp_path}/taken"), checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN)
    with pytest.raises(cj.QueryFailedError) as caught:
        query.await_termination()
    message = str(caught.value)
    assert message.startswith(f"batch 0: output to Delta {tmp_path}/taken: "), message
    assert "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES]" in message.splitlines()[0], message
    assert "\tat " not in message
    assert "Traceback" not in message


def test_a_place_that_is_none_is_refused() -> None:
    with refused("sinks.delta: expected a path or a table's name as a text or a pathlib.Path, got ''"):
        cj.sinks.delta("")
    with refused("sinks.parquet: expected a path as a text or a pathlib.Path, got None"):
        cj.sinks.parquet(None)  # type: ignore[arg-type]
    with refused("rejected: expected cojoin.sinks.delta(...)", "; call it with a location"):
        as_sink(cj.sinks.parquet, "rejected")


class Writes:
    """Takes what a callable takes, so that each batch would make an object and write nothing."""

    def __init__(self, frame: DataFrame, batch_id: int) -> None:
        self.call = frame, batch_id


@pytest.mark.parametrize("declared", [cj.sinks.DeltaSink, cj.sinks.ParquetSink, Writes])
def test_a_class_is_refused_as_a_sink(declared: type) -> None:
    with refused(
        "output: expected cojoin.sinks.delta(...)",
        f"; a class writes nothing, make an instance: {declared.__name__}(...)",
    ):
        as_sink(declared, "output")
