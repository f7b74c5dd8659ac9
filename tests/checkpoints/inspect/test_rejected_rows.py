"""Rejected rows in the columns of their input: every type comes back as it was, and ids are a set."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.checkpoints.inspect.rejected_rows import RejectedColumns
from cojoin.engine.input_spec import InputSpec, rejected_table
from tests.spark.data import Folders, asof, customers, rows, table, trades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

UTC = dt.timezone.utc
MOMENT = dt.datetime(2026, 1, 15, 9, 30, 5, 123_456)  # noqa: DTZ001 - also a time without a zone
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float64(), [0.1, -0.0, float("inf")]),
    (pa.string(), ["", 'ß " \\ \n', "\u2028"]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("us"), [MOMENT, MOMENT.replace(microsecond=0)]),
    (pa.decimal128(38, 10), [decimal.Decimal("-1234567890123456789012345678.0000000001"), decimal.Decimal(0)]),
    (pa.duration("us"), [dt.timedelta(-1, 5, 7), dt.timedelta(days=40, hours=30), dt.timedelta(microseconds=1)]),
    (pa.list_(pa.list_(pa.binary())), [[], [None, [b"a", None]]]),
    (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.date32()))]), [{"a": None, "b": [dt.date(2026, 1, 1)]}]),
    (pa.map_(pa.string(), pa.float64()), [[("x/y", 1.5), ("", None)], []]),
    (pa.map_(pa.int32(), pa.string()), [[(-7, "seven")]]),
    (pa.map_(pa.timestamp("us", "UTC"), pa.int64()), [[(MOMENT.replace(tzinfo=UTC), 1)]]),
]


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=[str(each) for each, _ in VALUES])
def test_a_value_comes_back_as_it_was(dtype: pa.DataType, values: list[Any]) -> None:
    column = pa.array([*values, None], dtype)
    times = pa.array(range(len(column)), pa.timestamp("us", "UTC"))
    whole = pa.table({"row": column, "at": times, "Reason": column})
    spec = InputSpec("orders", whole.schema, ("row",), "at")
    rejected = rejected_table(whole, spec, "late", 5)
    about = {"row_id": pa.array(["x"] * len(column)), "reason": rejected["reason"]}
    nulls = pa.nulls(len(column))
    batch = pa.table(
        about
        | {"batch_id": nulls, "processing_time": nulls, "watermark": nulls}
        | {"event_time": rejected["event_time"], "row": rejected["row"]}
    )
    (found,) = RejectedColumns.of(spec)(batch.combine_chunks().to_batches())
    # Where the input has a column of the name, whatever its case, the other gets an underscore.
    names = ["row_id", "_reason", "batch_id", "processing_time", "watermark", "row", "at", "Reason", "_row"]
    assert found.schema.names == names
    assert found.column("row").equals(column)
    assert found.column("Reason").equals(column)
    assert found.column("at").equals(times)


@pytest.mark.parametrize("error", ["_error", "error"], ids=["this release", "0.5.0"])
def test_a_column_named_error_has_not_the_reason_of_a_fault(error: str) -> None:
    own = pa.schema([("id", pa.int64()), ("error", pa.bool_())])
    texts = ['{"id": 7, "error": true}', json.dumps({error: "the value is not JSON"})]
    spec = InputSpec("orders", own, ("id",), None)
    nulls = pa.nulls(2)
    about = {"row_id": pa.array(["x", "y"]), "reason": pa.array(["null_key", "undecodable"]), "batch_id": nulls}
    batch = pa.table(about | {"processing_time": nulls, "watermark": nulls, "event_time": nulls, "row": texts})
    (found,) = RejectedColumns.of(spec)(batch.combine_chunks().to_batches())
    assert found.column("error").to_pylist() == [True, None]
    assert found.column("row").to_pylist() == texts


@pytest.fixture(scope="module")
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of a query that has rejected trades, two of them equal in all their columns."""
    folder = tmp_path_factory.mktemp("rejected")
    folders = Folders(folder)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10), (2, None, 10), (3, 1, None)]))
    folders.add_customers(customers([(1, 1, 5), (2, None, 6)]))
    folders.add_trades(trades([(2, None, 10), (9, 1, 40)]))
    folders.add_customers(customers([(3, 1, 40)]))
    query = asof(folders.connect(spark)).start(
        output=cj.sinks.delta(f"{folder}/out"),
        checkpoint=f"{folder}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    return f"{folder}/checkpoint"


@pytest.mark.slow  # Three runs of a query.
@pytest.mark.spark
def test_rows_that_were_processed_again_are_a_set_of_ids(spark: SparkSession, query: str, tmp_path: Path) -> None:
    found = cj.read_rejected(spark, query, "trades")
    own = ["trade_id", "customer_id", "event_time", "amount", "position"]
    about = ["row_id", "reason", "batch_id", "processing_time", "watermark"]
    assert found.columns == [*about, *own, "row"]
    assert rows(found, "trade_id", "customer_id", "reason", "batch_id") == [
        (2, None, "null_key", 0),
        (2, None, "null_key", 0),
        (2, None, "null_key", 1),
        (3, 1, "null_event_time", 0),
    ]
    ids = {row.row_id for row in found.collect()}
    assert len(ids) == 4
    place = tmp_path / "fixed"
    for batch in (0, 1, 0, 1):
        again = cj.read_rejected(spark, query, "trades").where(f"batch_id = {batch}").fillna({"customer_id": 7})
        if place.exists():
            again = again.join(table(spark, place), "row_id", "left_anti")
        again.select("row_id", *own).write.format("delta").mode("append").save(str(place))
    assert {row.row_id for row in table(spark, place).collect()} == ids
    assert table(spark, place).count() == 4
    # Files that are written anew have the same rows.
    spark.sql(f"OPTIMIZE delta.`{query}/rejected`").collect()
    assert {row.row_id for row in cj.read_rejected(spark, query, "trades").collect()} == ids


@pytest.mark.spark
@pytest.mark.slow
def test_what_can_not_be_read_is_said(spark: SparkSession, query: str, tmp_path: Path) -> None:
    assert cj.read_rejected(spark, query, "customers").count() == 1
    with refused("the query has no input 'trade'; did you mean 'trades'?"):
        cj.read_rejected(spark, query, "trade")
    with refused("all rejected rows are read; expected a checkpoint without at="):
        cj.read_rejected(spark, cj.Snapshot(query, at=0), "trades")
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    for name, sink in (("callable", lambda frame, batch_id: None), ("parquet", cj.sinks.parquet(f"{tmp_path}/no"))):
        started = asof(folders.connect(spark)).start(
            output=cj.sinks.delta(f"{tmp_path}/{name}/out"),
            rejected=sink,
            checkpoint=f"{tmp_path}/{name}/checkpoint",
            trigger=cj.Trigger.available_now(),
        )
        started.await_termination()
    with refused("the rejected rows go to callable"):
        cj.read_rejected(spark, f"{tmp_path}/callable/checkpoint", "trades")
    found = cj.read_rejected(spark, f"{tmp_path}/parquet/checkpoint", "trades")
    assert rows(found, "trade_id", "batch_id", "processing_time") == [(2, 0, None)]
