"""Filling topics and reading them back, by Spark's own sink and batch source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.session.sessions import open_store
from tests.kafka.records import CUSTOMER_DDL, OUT_OF_ORDERNESS_SECONDS, PARTITIONS, TRADE_DDL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.batch_report import BatchReport

BATCHES = 4
"""In how many batches a run reads the filled topics."""

KEY_GROUPS = 4


@dataclass(frozen=True)
class Topics:
    """Two topics with their sizes.

    Attributes:
        servers: The broker's address.
        trades: The name of the left topic.
        customers: The name of the right topic.
        sizes: How many records each of them holds.
    """

    servers: str
    trades: str
    customers: str
    sizes: tuple[int, int]

    def connect(self, batches: int = BATCHES, key_groups: int = KEY_GROUPS) -> cj.ConnectedInputs:
        """Connect the two topics, each read in so many batches or, since slices go by time, some more."""
        left, right = (-(-size // batches) for size in self.sizes)
        return cj.connect(
            self._input(self.trades, "trades", TRADE_DDL, left),
            self._input(self.customers, "customers", CUSTOMER_DDL, right),
            key_groups=key_groups,
        )

    def connect_frames(self, spark: SparkSession, key_groups: int = KEY_GROUPS) -> cj.ConnectedInputs:
        """Connect the two topics as Spark's own source reads them, in ``BATCHES`` batches."""
        # Spark rounds each partition's share of the limit down: some room, or a last batch takes up what that leaves.
        left, right = (size // BATCHES + 2 * PARTITIONS for size in self.sizes)
        return cj.connect(
            self._native(spark, self.trades, "trades", TRADE_DDL, left),
            self._native(spark, self.customers, "customers", CUSTOMER_DDL, right),
            key_groups=key_groups,
        )

    def _native(self, spark: SparkSession, topic: str, name: str, schema: str, most: int) -> cj.Input:
        return cj.Input(
            native(spark, self.servers, topic, schema, most),
            key="customer_id",
            event_time="event_time",
            name=name,
            partition=("topic", "partition"),
            sequence="offset",
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDERNESS_SECONDS} seconds"),
        )

    def _input(self, topic: str, name: str, schema: str, most: int) -> cj.Input:
        return cj.Input(
            cj.kafka.source(self.servers, topic, schema=schema, max_records=most, max_drift="10 seconds"),
            key="customer_id",
            event_time="event_time",
            name=name,
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDERNESS_SECONDS} seconds"),
        )


def native(spark: SparkSession, servers: str, topic: str, schema: str, most: int) -> DataFrame:
    """Read a topic by Spark's own source, so many records a batch."""
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger=most).load()
    value = F.from_json(F.col("value").cast("string"), schema, {"timeZone": "UTC"})
    place = ("topic", "partition", "offset")
    return records.select(value.alias("value"), *place).select("value.*", *place)


def fill(
    spark: SparkSession, servers: str, topic: str, values: Sequence[str | None], partitions: Sequence[int]
) -> None:
    """Write values to partitions of a topic, each partition's in the order given."""
    table = pa.table(
        {
            "value": pa.array(values, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "position": pa.array(range(len(values)), pa.int64()),
        }
    )
    # A partition's records all go through one task, whose producer keeps their order.
    ordered = spark.createDataFrame(table).repartition("partition").sortWithinPartitions("partition", "position")
    kafka = {"kafka.bootstrap.servers": servers, "topic": topic}
    ordered.drop("position").write.format("kafka").options(**kafka).save()


def delete_records(spark: SparkSession, servers: str, topic: str, before: int) -> None:
    """Have the broker give up the records of a topic's partition 0 before an offset, as its retention does."""
    jvm: Any = spark._jvm
    settings, wanted = jvm.java.util.HashMap(), jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    partition = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
    # Py4J can't tell RecordsToDelete.beforeOffset from the method of an instance by that name.
    gateway: Any = spark.sparkContext._gateway
    of_long, values = gateway.new_array(jvm.java.lang.Class, 1), gateway.new_array(jvm.Object, 1)
    of_long[0], values[0] = jvm.java.lang.Long.TYPE, jvm.java.lang.Long.valueOf(str(before))
    kind = partition.getClass().getClassLoader().loadClass("org.apache.kafka.clients.admin.RecordsToDelete")
    wanted.put(partition, kind.getMethod("beforeOffset", of_long).invoke(None, values))
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        admin.deleteRecords(wanted).all().get()
    finally:
        admin.close()


def read_back(spark: SparkSession, servers: str, topic: str) -> pa.Table:
    """Return a topic's ``value``, ``partition`` and ``offset``, by partition and offset."""
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    records = spark.read.format("kafka").options(**kafka).load()
    table = records.select(F.col("value").cast("string").alias("value"), "partition", "offset").toArrow()
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])


def assert_joined(spark: SparkSession, table: str | DataFrame, expected: pa.Table) -> None:
    """See that a Delta table, or a frame, holds each expected row once, and no other."""
    # Times as epoch microseconds: no time zone can touch them.
    times = {"micros": "event_time", "customers_micros": "customers_event_time"}
    frame = spark.read.format("delta").load(table) if isinstance(table, str) else table
    frame = frame.withColumns({name: F.unix_micros(column) for name, column in times.items()})
    joined = frame.select(*expected.column_names).toArrow().cast(expected.schema).sort_by("trade_id")
    ids, wanted = joined.column("trade_id").to_pylist(), expected.column("trade_id").to_pylist()
    assert len(ids) - len(set(ids)) == 0, "rows that are there twice"
    assert set(wanted) - set(ids) == set(), "rows that are lost"
    assert ids == wanted
    for name in expected.column_names:
        assert joined.column(name).equals(expected.column(name)), f"column {name!r} differs"


def assert_conserved(spark: SparkSession, checkpoint: str) -> list[BatchReport]:
    """See that the law of conservation held at every batch, and give the batches' reports."""
    manifests = Manifests(open_store(spark, checkpoint))
    ids = manifests.batch_ids()
    assert ids == list(range(len(ids)))
    reports = [manifest.report for manifest in map(manifests.read, ids) if manifest is not None]
    assert len(reports) == len(ids)
    for report in reports:
        assert report.is_conserved, report.table()
    return reports
