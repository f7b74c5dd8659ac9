"""History in Delta and parquet, the newer part in Kafka: joined as if it were one, and what is refused."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import cojoin as cj
from tests.kafka.history import History, fill, make_history, record_keys, record_times
from tests.kafka.records import CUSTOMER_DDL, PARTITIONS, TRADE_DDL, expected_join, values
from tests.kafka.topics import assert_conserved, assert_joined
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Lake:
    """Two topics whose older records stand in archives alone.

    Attributes:
        servers: The broker's address.
        history: What the topics and the archives hold together.
        folder: Where the archives are.
        cuts: By topic, each partition's first offset that is in no archive.
    """

    servers: str
    history: History
    folder: Path
    cuts: dict[str, list[int]]

    def trades(self, **options: Any) -> cj.kafka.KafkaSource:
        return self._source("trades", TRADE_DDL, cj.sources.delta(str(self.folder / "a lake" / "trades")), options)

    def customers(self, **options: Any) -> cj.kafka.KafkaSource:
        schema = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
        archive = cj.sources.files(str(self.folder / "customers"), "parquet", schema=schema)
        return self._source("customers", CUSTOMER_DDL, archive, options)

    def join(self, trades: cj.kafka.KafkaSource, customers: cj.kafka.KafkaSource) -> cj.Joined:
        inputs = [
            cj.Input(
                source,
                key="customer_id",
                event_time="event_time",
                name=name,
                watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"),
            )
            for source, name in ((trades, "trades"), (customers, "customers"))
        ]
        return cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))

    def _source(self, topic: str, schema: str, archive: Any, options: dict[str, Any]) -> cj.kafka.KafkaSource:
        chosen = {"schema": schema, "archive": archive, "max_records": 1_500} | options
        return cj.kafka.source(self.servers, f"archived-{topic}", **chosen)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    history, folder = make_history(6_000, 1_500), tmp_path_factory.mktemp("lake")
    servers, cuts = broker.bootstrap_servers, {}
    for name, records in (("trades", history.trades), ("customers", history.customers)):
        topic = f"archived-{name}"
        broker.create_topic(topic, PARTITIONS)
        fill(servers, topic, records)
        counts = [int((records["partition"] == number).sum()) for number in range(PARTITIONS)]
        # All of one partition, nothing of an empty one, and of the others up to offsets of their own.
        cuts[topic] = [int(count * share) for count, share in zip(counts, (0.6, 0.3, 1, 0.5), strict=True)]
    trades, customers = (
        _before(records, cuts[f"archived-{name}"])
        for name, records in (("trades", history.trades), ("customers", history.customers))
    )
    decoded(spark, "archived-trades", trades).repartition(3).write.format("delta").partitionBy("topic", "partition").save(
        str(folder / "a lake" / "trades")
    )
    raw(spark, "archived-customers", customers).repartition(3).write.parquet(str(folder / "customers"))
    # Of one partition the broker still has some of what the archive has.
    gone = {topic: [max(0, cut - 7 * (at == 1)) for at, cut in enumerate(each)] for topic, each in cuts.items()}
    for topic, before in gone.items():
        delete_records(servers, topic, before)
    return Lake(servers, history, folder, cuts)


def decoded(spark: SparkSession, topic: str, records: pd.DataFrame) -> DataFrame:
    """Give records as a query leaves them that decodes a topic and keeps the record's place and time."""
    columns = records.drop(columns="micros").assign(
        topic=topic,
        event_time=pd.to_datetime(records["micros"], unit="us", utc=True),
        timestamp=pd.to_datetime(record_times(records), unit="ms", utc=True),
    )
    return spark.createDataFrame(pa.Table.from_pandas(columns, preserve_index=False)).withColumn(
        "partition", pa_int("partition")
    )


def pa_int(name: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).cast("int")


def raw(spark: SparkSession, topic: str, records: pd.DataFrame) -> DataFrame:
    """Give records as Spark's Kafka source does."""
    table = pa.table(
        {
            "topic": [topic] * len(records),
            "partition": records["partition"].to_numpy(),
            "offset": records["offset"].to_numpy(),
            "timestamp": pa.array(record_times(records), pa.timestamp("ms", "UTC")),
            "key": [each.encode() for each in record_keys(records)],
            "value": [each.encode() for each in values(records)],
        }
    )
    return spark.createDataFrame(table.cast(RECORD_SCHEMA))


def delete_records(servers: str, topic: str, before: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [TopicPartition(topic, number, offset) for number, offset in enumerate(before) if offset]
    for done in admin.delete_records(wanted).values():
        done.result()


def _before(records: pd.DataFrame, cuts: list[int]) -> pd.DataFrame:
    return records[records["offset"] < np.array(cuts)[records["partition"]]]


def _wait_until(query: cj.Query, happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while query.is_active and not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_stopped_in_the_archive_and_started_again(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def start() -> cj.Query:
        return lake.join(lake.trades(), lake.customers()).start(
            output=cj.sinks.delta(table), checkpoint=checkpoint, trigger=cj.Trigger.available_now(drain=True)
        )

    query = start()
    _wait_until(query, lambda: query.progress is not None and query.progress.batch_id >= 1)
    query.stop()
    assert query.exception() is None
    assert query.progress is not None
    assert query.progress.inputs[0].rows_in < sum(lake.cuts["archived-trades"])
    query = start()
    query.await_termination(progress=False)

    assert_joined(spark, table, expected_join(lake.history))
    reports = assert_conserved(spark, checkpoint)
    assert len(reports) > 4
    assert all(each.late_applied == 0 and not each.rejected for report in reports for each in report.inputs)
