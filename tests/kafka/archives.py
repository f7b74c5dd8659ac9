"""Archives of topics: frames as the queries leave them that write one, and the broker's own records given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka.history import record_keys, record_times
from tests.kafka.records import values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def decoded(spark: SparkSession, topic: str, records: pd.DataFrame) -> DataFrame:
    """Return records as a query leaves them that decodes a topic and keeps the record's place and time."""
    columns = records.drop(columns="micros").assign(
        topic=topic,
        event_time=pd.to_datetime(records["micros"], unit="us", utc=True),
        timestamp=pd.to_datetime(record_times(records), unit="ms", utc=True),
    )
    frame = spark.createDataFrame(pa.Table.from_pandas(columns, preserve_index=False))
    return frame.withColumn("partition", frame["partition"].cast("int"))


def raw(spark: SparkSession, topic: str, records: pd.DataFrame) -> DataFrame:
    """Return records as Spark's Kafka source does."""
    table = pa.table(
        {
            "topic": [topic] * len(records),
            "partition": records["partition"].to_numpy().astype(np.int32),
            "offset": records["offset"].to_numpy(),
            "timestamp": pa.array(record_times(records), pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
            "key": [each.encode() for each in record_keys(records)],
            "value": [each.encode() for each in values(records)],
        }
    )
    return spark.createDataFrame(table)


def delete_records(servers: str, topic: str, first: list[int]) -> None:
    """Have the broker give up what is before each partition's offset."""
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [TopicPartition(topic, number, offset) for number, offset in enumerate(first) if offset]
    for done in admin.delete_records(wanted).values():
        done.result()
