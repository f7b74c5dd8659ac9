"""History in Delta and parquet, the newer part in Kafka: joined as if it were one, and what is refused."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.kafka.archive_files import archived as archived_rows
from cojoin.kafka.archive_index import ArchivedPartition, ArchiveIndex, Layout, Piece
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.records import DECODED, PIECE_BYTES, TIME, VALUE, RecordFormat
from cojoin.kafka.tasks import ArchivedSpan, make_tasks
from tests.kafka.archives import decoded, delete_records, raw
from tests.kafka.history import History, fill, make_history, make_producer, record_keys, record_times
from tests.kafka.logins import grant, login, user_of
from tests.kafka.records import CUSTOMER_DDL, PARTITIONS, TRADE_DDL, expected_join, values
from tests.kafka.topics import assert_conserved, assert_joined
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker
    from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

START = 1_767_571_200_000  # 2026-01-05
RAW_DDL = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
HEADERS_DDL = "headers array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class Lake:
    """Two topics whose older records stand in archives alone, and whose newest are still to be written.

    Attributes:
        servers: The broker's address.
        history: What the archives and the topics will hold together.
        folder: Where the archives are.
        cuts: By topic, each partition's first offset that is in no archive.
    """

    servers: str
    history: History
    folder: Path
    cuts: dict[str, list[int]]

    def inputs(self, most: int) -> list[cj.Input]:
        """Return both inputs, of at most so many records a batch."""
        trades = cj.sources.delta(str(self.folder / "a lake" / "trades"))
        customers = cj.sources.files(str(self.folder / "customers"), "parquet", schema=RAW_DDL)
        return [
            cj.Input(
                cj.kafka.source(self.servers, f"archived-{name}", schema=schema, archive=archive, max_records=most),
                key="customer_id",
                event_time="event_time",
                name=name,
                watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"),
            )
            for name, schema, archive in (("trades", TRADE_DDL, trades), ("customers", CUSTOMER_DDL, customers))
        ]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    history, folder = make_history(6_000, 1_500), tmp_path_factory.mktemp("lake")
    made = Lake(broker.bootstrap_servers, history, folder, {})
    for topic, records in (("archived-trades", history.trades), ("archived-customers", history.customers)):
        broker.create_topic(topic, PARTITIONS)
        fill(made.servers, topic, records[~is_live(history, records)])
        counts = [int((records["partition"] == number).sum()) for number in range(PARTITIONS)]
        # All of one partition, nothing of an empty one, and of the others up to offsets of their own.
        made.cuts[topic] = [int(count * share) for count, share in zip(counts, (0.6, 0.3, 1, 0.5), strict=True)]
        made.cuts[topic][2] = int(((records["partition"] == 2) & ~is_live(history, records)).sum())
    trades = decoded(spark, "archived-trades", before(history.trades, made.cuts["archived-trades"]))
    # In no order, and with what no reader asked for.
    other = spark.sql("SELECT 'others' AS topic, 0 AS partition, 5L AS offset, timestamp_millis(0) AS timestamp")
    trades = trades.unionByName(other, allowMissingColumns=True).repartition(2)
    trades.write.format("delta").partitionBy("topic", "partition").save(str(folder / "a lake" / "trades"))
    customers = raw(spark, "archived-customers", before(history.customers, made.cuts["archived-customers"]))
    customers.repartition(3).write.parquet(str(folder / "customers"))
    for topic, cuts in made.cuts.items():
        # Of one partition the broker still has some of what the archive has.
        delete_records(made.servers, topic, [max(0, cut - 7 * (at == 1)) for at, cut in enumerate(cuts)])
    return made


def is_live(history: History, records: pd.DataFrame) -> pd.Series:
    """Tell which records come while the query runs: those of the last day."""
    return records["micros"] // 1000 >= history.end - 86_400_000


def before(records: pd.DataFrame, cuts: list[int]) -> pd.DataFrame:
    return records[records["offset"] < np.array(cuts)[records["partition"]]]


def wait_until(query: cj.Query, happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while query.is_active and not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_stopped_in_the_archive_then_live(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    inputs = lake.inputs(2_500)

    def start(trigger: cj.Trigger) -> cj.Query:
        joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))
        return joined.start(output=cj.sinks.delta(table), checkpoint=checkpoint, trigger=trigger)

    def read(query: cj.Query) -> list[int]:
        return [0, 0] if query.progress is None else [each.rows_in for each in query.progress.inputs]

    query = start(cj.Trigger.available_now())
    wait_until(query, lambda: any(read(query)))
    query.stop()
    assert query.exception() is None
    assert read(query)[0] < sum(lake.cuts["archived-trades"]) * 0.9
    query = start(cj.Trigger.processing_time("100 milliseconds"))
    old = [int((~is_live(lake.history, each)).sum()) for each in (lake.history.trades, lake.history.customers)]
    wait_until(query, lambda: read(query) == old)
    for topic, records in (("archived-trades", lake.history.trades), ("archived-customers", lake.history.customers)):
        live = records[is_live(lake.history, records)]
        failed: list[object] = []
        producer = make_producer(lake.servers, failed)
        rows = zip(values(live), record_keys(live), live["partition"].tolist(), record_times(live), strict=True)
        for value, key, partition, moment in rows:
            producer.produce(topic, value, key, partition, timestamp=moment)
        assert producer.flush(30) == 0
        assert not failed
    wait_until(query, lambda: read(query) == [6_000, 1_500])
    query.stop()
    query = start(cj.Trigger.available_now(drain=True))
    query.await_termination(progress=False)

    assert_joined(spark, table, expected_join(lake.history))
    reports = assert_conserved(spark, checkpoint)
    assert all(each.late_applied == 0 and not each.rejected for report in reports for each in report.inputs)


@pytest.fixture(scope="module")
def mixed(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, pa.Table]:
    """A topic of 40 records with keys and headers, some without a value or undecodable; its first 25, archived raw."""
    servers, folder = broker.bootstrap_servers, tmp_path_factory.mktemp("mixed")
    broker.create_topic("archived-mixed", 2)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(80):
        value = None if number % 10 == 4 else b"{" if number % 10 == 7 else f'{{"id": {number}, "at": "2026-01-05"}}'
        at, place = START + 60_000 * (number ^ 2), number % 2
        producer.produce("archived-mixed", value, f"{number}", place, timestamp=at, headers=[("h", b"1"), ("h", b"2")])
    assert producer.flush(20) == 0
    table = spark.read.format("kafka").options(
        **{"kafka.bootstrap.servers": servers, "subscribe": "archived-mixed", "includeHeaders": "true"}
    )
    records = table.load().drop("timestampType")
    archived = records.where("offset < 25")
    # Names in other letters, and files of two kinds: the second knows no headers.
    archived.where("offset % 2 = 0").withColumnRenamed("value", "Value").write.parquet(str(folder / "raw"))
    archived.where("offset % 2 = 1").drop("headers").write.mode("append").parquet(str(folder / "raw"))
    return servers, folder, records.toArrow()


def decode(record: cj.kafka.Record) -> tuple[Any, ...]:
    found = json.loads(record.value)
    return found["id"], record.timestamp, (record.key or b"").decode(), len(record.headers)


@pytest.mark.slow
def test_a_raw_archive_reads_as_the_topic(spark: SparkSession, mixed: tuple[str, Path, pa.Table]) -> None:
    servers, folder, _ = mixed
    archive = cj.sources.files(str(folder / "raw"), "parquet", schema=f"{RAW_DDL}, {HEADERS_DDL}")
    columns = {"key": cj.kafka.key("long"), "made": cj.kafka.timestamp()}
    by_json = {"schema": "id long, at timestamp", "columns": columns, "tombstones": "keep"}
    by_hand = {"schema": "id long, at_ms long, spelled string, headers long", "decode": decode}
    for options in (by_json, by_hand, by_json | {"from_": {"archived-mixed": {0: "2026-01-05T00:05:00Z", 1: 11}}}):
        read = [
            cj.kafka.source(servers, "archived-mixed", **options, **more).open(streaming=False).toArrow()
            for more in ({}, {"archive": archive})
        ]
        topic, both = (each.sort_by([("partition", "ascending"), ("offset", "ascending")]) for each in read)
        assert 40 < both.num_rows <= 72
        if "decode" in options:  # half of the archive has no headers
            assert both["headers"].to_pylist().count(0) == sum(
                offset < 25 and offset % 2 for offset in both["offset"].to_pylist()
            )
            topic, both = topic.drop("headers"), both.drop("headers")
        assert both.equals(topic)


@pytest.mark.slow  # Beside the broker it needs an object store.
def test_an_archive_on_s3_reads_as_the_topic_by_the_sessions_settings(
    spark: SparkSession, mixed: tuple[str, Path, pa.Table], bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, folder, _ = mixed
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for path in (folder / "raw").glob("*.parquet"):
        bucket.client().upload_file(str(path), bucket.bucket, f"my raw/{path.name}")
    archive = cj.sources.files(f"{bucket.root}/my raw", "parquet", schema=RAW_DDL)
    options = {"schema": "id long, at timestamp", "tombstones": "keep"}
    read = [
        cj.kafka.source(servers, "archived-mixed", **options, **more).open(streaming=False).toArrow()
        for more in ({}, {"archive": archive})
    ]
    topic, both = (each.sort_by([("partition", "ascending"), ("offset", "ascending")]) for each in read)
    assert 40 < both.num_rows <= 72
    assert both.equals(topic)


def test_ranges_within_an_archive_are_exact(spark: SparkSession, mixed: tuple[str, Path, pa.Table]) -> None:
    servers, folder, records = mixed
    archive = cj.sources.files(str(folder / "raw"), "parquet", schema=RAW_DDL)
    begin, end = START + 11 * 60_000, START + 71 * 60_000
    source = cj.kafka.source(
        servers,
        "archived-mixed",
        columns={"key": cj.kafka.key()},
        tombstones="keep",
        archive=archive,
        from_=datetime.fromtimestamp(begin / 1000, timezone.utc),
        to=datetime.fromtimestamp(end / 1000, timezone.utc),
    )
    found = source.open(streaming=False).toArrow()
    places = sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    rows = sorted(records.select(["partition", "offset", "timestamp"]).to_pylist(), key=lambda each: each["offset"])
    expected = []
    for number in (0, 1):
        of = [round(1000 * each["timestamp"].timestamp()) for each in rows if each["partition"] == number]
        first, last = (next(at for at, moment in enumerate(of) if moment >= edge) for edge in (begin, end))
        expected += [(number, offset) for offset in range(first, last)]
    assert places == expected
    assert source.look_ahead() == ((begin, end), [])


def test_a_cluster_answers_for_both_parts(mixed: tuple[str, Path, pa.Table]) -> None:
    servers, _, _ = mixed
    one, two = ("archived-mixed", 0), ("archived-mixed", 1)
    begins = np.array([START + 600_000, START + 1_200_000, START + 3_600_000])
    held = ArchivedPartition.of(begins, np.array([11, 10, 29]), START + 9_999_999, [Piece("file:/a", one, 10, 30)])
    index = ArchiveIndex("archive", 600_000, (START + 700_000,), {one: held}, Layout({}, None))
    cluster = Cluster(ClusterOptions(servers), "input 'x'", index)
    # The brokers have older ones than the archive, and these come first.
    assert cluster.earliest([one, two]) == {one: 0, two: 0}
    assert cluster.first_at([one], START)[one] == (0, START + 120_000)
    found = [cluster.first_at([one], START + after)[one] for after in (700_001, 1_300_000, 3_700_000, 4_650_000)]
    assert [at and at[0] for at in found] == [6, 29, 30, 38]
    assert cluster.first_at([one], START + 4_700_000)[one] is None
    assert index.sections(one, 5, 35) == [(5, 10, False), (10, 30, True), (30, 35, False)]
    assert index.sections(two, 5, 35) == [(5, 35, False)]


def small(folder: Path, **columns: Any) -> cj.sources.Source:
    """Write an archive of one file."""
    rows: dict[str, Any] = {
        "topic": pa.array(["archived-refused"] * 4),
        "partition": pa.array([0] * 4, pa.int32()),
        "offset": pa.array(range(4), pa.int64()),
        "timestamp": pa.array([START] * 4, pa.timestamp("us", "UTC")),
        "value": pa.array([b"{}"] * 4),
    }
    table = pa.table({name: each for name, each in (rows | columns).items() if each is not None})
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "a.parquet")
    ddl = {"double": "double", "binary": "binary", "string": "string", "int32": "int", "int64": "bigint"}
    ddl |= {"timestamp[us, tz=UTC]": "timestamp", "timestamp[us]": "timestamp_ntz"}
    return cj.sources.files(
        str(folder), "parquet", schema=", ".join(f"{each.name} {ddl[str(each.type)]}" for each in table.schema)
    )


@pytest.fixture(scope="module")
def refusing(broker: Broker) -> str:
    broker.create_topic("archived-refused", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(10):
        producer.produce("archived-refused", f'{{"id": {number}}}', partition=0, timestamp=START)
    assert producer.flush(20) == 0
    delete_records(broker.bootstrap_servers, "archived-refused", [7])
    return broker.bootstrap_servers


def opened(servers: str, archive: Any, **options: Any) -> cj.kafka.KafkaSource:
    made = cj.kafka.source(servers, "archived-refused", **{"schema": "id long", "archive": archive} | options)
    made.open(streaming=False)
    return made


def test_archives_without_what_is_needed_are_refused(spark: SparkSession, refusing: str, tmp_path: Path) -> None:
    whole = small(tmp_path / "whole")
    for archive in ("/lake/trades", cj.sources.files("/lake", "json", schema="id long"), spark.range(1)):
        with refused("source kafka archived-refused: archive: expected cojoin.sources.delta()"):
            opened(refusing, archive)
    with refused("did you mean cojoin.sources.delta('/lake/trades')"):
        opened(refusing, "/lake/trades")
    with refused(f"archive delta {tmp_path}/none can't be read"):
        opened(refusing, cj.sources.delta(f"{tmp_path}/none"))
    with refused("it has no column partition, timestamp;", "offset", kind=cj.SchemaError):
        opened(refusing, small(tmp_path / "a", partition=None, timestamp=None))
    with refused("column offset: expected bigint or int, got double", kind=cj.SchemaError):
        opened(refusing, small(tmp_path / "b", offset=pa.array([1.0] * 4)))
    with refused("column timestamp: expected timestamp, got timestamp_ntz", kind=cj.SchemaError):
        opened(refusing, small(tmp_path / "c", timestamp=pa.array([START] * 4, pa.timestamp("us"))))
    with refused("got no value, id is string instead of bigint, no at", kind=cj.SchemaError):
        opened(refusing, small(tmp_path / "d", value=None, id=pa.array(["1"] * 4)), schema="id long, at timestamp")
    with refused("timestamp is the record's own", kind=cj.SchemaError):
        opened(refusing, small(tmp_path / "e", value=None), schema="timestamp timestamp")
    with refused("no column headers, key, of which columns=", kind=cj.SchemaError):
        opened(refusing, whole, columns={"key": cj.kafka.key(), "h": cj.kafka.header("h")})
    with refused("rows without topic, partition or offset"):
        opened(refusing, small(tmp_path / "f", offset=pa.array([0, 1, None, 2], pa.int64())))


@pytest.mark.slow  # Four Delta tables, and a deletion in one.
def test_archives_that_tasks_would_misread_are_refused(spark: SparkSession, refusing: str, tmp_path: Path) -> None:
    rows = spark.read.parquet(str(small(tmp_path / "whole").location)).withColumn("id", F.col("offset"))

    def table(name: str, *by: str, **properties: str) -> str:
        written = rows.withColumn("day", F.lit(1)).coalesce(1).write.format("delta").partitionBy(*by)
        written.options(**properties).save(str(tmp_path / name))
        return str(tmp_path / name)

    deleted = table("deleted", **{"delta.enableDeletionVectors": "true"})
    spark.sql(f"DELETE FROM delta.`{deleted}` WHERE offset = 1")
    with refused("holds 4 rows, of which Spark reads 3", "REORG TABLE"):
        opened(refusing, cj.sources.delta(deleted))
    with refused("columns are mapped (delta.columnMapping.mode = name)"):
        opened(refusing, cj.sources.delta(table("mapped", **{"delta.columnMapping.mode": "name"})))
    with refused("it is partitioned by ['id'], which its files do not hold"):
        opened(refusing, cj.sources.delta(table("by", "id")))
    # What is not read may stand in the folders' names.
    assert opened(refusing, cj.sources.delta(table("fine", "day", "topic")))


@pytest.mark.slow
def test_archives_that_do_not_fit_the_topic_are_refused(refusing: str, tmp_path: Path) -> None:
    whole = small(tmp_path / "whole")
    gap = "partition 0: offsets 4 to 6 (3 records): neither archive parquet"
    source = opened(refusing, whole, to={"archived-refused": {0: 4}})
    source.check(is_new=True)  # what is gone is not read
    source = cj.kafka.source(refusing, "archived-refused", schema="id long", archive=whole)
    source.check(is_new=False)
    with refused(gap):
        source.check(is_new=True)
    with refused("offsets 4 to 6 (3 records)", 'data_loss="skip"', kind=cj.QueryFailedError):
        try:
            source.open(streaming=False).count()
        except PySparkException as error:
            raise cj.QueryFailedError(str(error)) from None
    skipping = replace(source, data_loss="skip")
    skipping.check(is_new=True)
    assert skipping._gaps("x", '{"positions": {"archived-refused": {"0": 2}}}') == []
    assert [str(gap) for gap in skipping._gaps("x", '{"positions": {"archived-refused": {"0": 5}}}')] == [
        "topic archived-refused partition 0: offsets 5 to 6 (2 records)"
    ]
    with refused("has records of topic 'archived-old', and the brokers have no such topic: only", "take its records"):
        old = small(tmp_path / "old", topic=pa.array(["archived-old", *["archived-refused"] * 3]))
        cj.kafka.source(refusing, topic_pattern="archived-(old|refused)", schema="id long", archive=old).check(
            is_new=False
        )
    with refused("topic archived-refused partition 7", "has partitions [0, 1]"):
        opened(refusing, small(tmp_path / "a", partition=pa.array([7] * 4, pa.int32())))
    with refused("up to offset 13 of topic archived-refused partition 0, and the topic ends before 10"):
        opened(refusing, small(tmp_path / "b", offset=pa.array(range(10, 14), pa.int64())))
    with refused("has 4 rows of topic archived-refused partition 0, of offsets 0 to 2: some occur twice"):
        opened(refusing, small(tmp_path / "c", offset=pa.array([0, 1, 1, 2], pa.int64())))


def test_an_offset_that_is_there_twice_beside_a_hole_ends_the_query(refusing: str, tmp_path: Path) -> None:
    source = cj.kafka.source(
        refusing,
        "archived-refused",
        schema="id long",
        archive=small(tmp_path / "a", offset=pa.array([0, 3, 3, 6], pa.int64())),
    )
    with pytest.raises(PySparkException, match="has offset 3 of topic archived-refused partition 0 twice, in file:"):
        source.open(streaming=False).count()


def shares(folder: Path, topic: str, *offsets: list[int]) -> cj.sources.Source:
    """Write an archive of a file for each list of offsets of a partition, whose values tell it from the topic."""
    for number, each in enumerate(offsets):
        columns = {
            "topic": pa.array([topic] * len(each)),
            "partition": pa.array([0] * len(each), pa.int32()),
            "offset": pa.array(each, pa.int64()),
            "timestamp": pa.array([START + 1000 * offset for offset in each], pa.timestamp("ms", "UTC")).cast(
                pa.timestamp("us", "UTC")
            ),
            "value": pa.array([f'{{"id": {1000 + offset}}}'.encode() for offset in each]),
        }
        archive = small(folder / str(number), **columns)
        (folder / "all").mkdir(exist_ok=True)
        (folder / str(number) / "a.parquet").rename(folder / "all" / f"{number}.parquet")
    return replace(archive, location=str(folder / "all"))


def numbered(broker: Broker, topic: str, count: int, first: int = 0) -> str:
    """Make a topic of so many records, a second apart, of which the broker has given up those before the first."""
    broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, f'{{"id": {number}}}', partition=0, timestamp=START + 1000 * number)
    assert producer.flush(20) == 0
    if first:
        delete_records(broker.bootstrap_servers, topic, [first])
    return broker.bootstrap_servers


def test_an_archive_in_the_middle_of_a_topic_with_holes_is_filled_by_the_brokers(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    del spark
    servers = numbered(broker, "archived-middle", 60)
    archived = [*range(20, 26), *range(31, 35), 37, 38, 39]
    archive = shares(tmp_path, "archived-middle", archived[:8], archived[8:])
    source = cj.kafka.source(servers, "archived-middle", schema="id long", archive=archive)
    source.check(is_new=True)
    found = source.open(streaming=False).toArrow()
    rows = sorted(zip(found["offset"].to_pylist(), found["id"].to_pylist(), strict=True))
    # The broker's own, before, between and behind; each record once.
    assert rows == [(offset, 1000 + offset if offset in archived else offset) for offset in range(60)]
    # A time within a hole is found there, and not where the archive goes on.
    index = source._archived()
    assert index is not None
    cluster = Cluster(ClusterOptions(servers), "input 'x'", index)
    assert cluster.first_at([("archived-middle", 0)], START + 27_000)["archived-middle", 0] == (27, START + 27_000)
    cluster.close()


@pytest.mark.slow
def test_what_neither_part_has_is_a_loss_unless_it_was_compacted(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    monkeypatch.setattr("cojoin.kafka.archive._BLOCK", 10)
    servers = numbered(broker, "archived-lost", 60, first=45)
    archived = [*range(3), *range(5, 20), *range(40, 50)]
    archive = shares(tmp_path, "archived-lost", archived)
    lost = "topic archived-lost partition 0: offsets 20 to 39 (20 records)"
    source = cj.kafka.source(servers, "archived-lost", schema="id long", archive=archive)
    with refused(lost, "neither archive parquet", 'data_loss="skip"', "records of aborted transactions"):
        source.check(is_new=True)
    later = replace(source, range=cj.kafka.source(servers, "archived-lost", schema="id long", from_=40).range)
    later.check(is_new=True)
    begins, ends = ({("archived-lost", 0): offset} for offset in (0, 60))
    (task,) = make_tasks(source._connect("x"), begins, ends, None, 1, label="x", skips_losses=True)
    assert [str(gap) for gap in task.gaps] == [lost]
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        "archived-lost",
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    for done in client.incremental_alter_configs([resource]).values():
        done.result(20)
    while "compact" not in str(source._connect("x").setting("archived-lost", "cleanup.policy")):
        time.sleep(0.05)
    # Who may not read the policy can't have it noticed.
    grant(broker, user_of("PLAIN"), "archived-lost")
    other = cj.kafka.source(topics="archived-lost", schema="id long", archive=archive, **login(broker, "PLAIN"))
    with refused(lost, "Whether compaction removed them is not known: grant DESCRIBE_CONFIGS"):
        other.check(is_new=True)
    source.check(is_new=True)
    found = source.open(streaming=False).toArrow()["offset"].to_pylist()
    assert sorted(found) == [*archived, *range(50, 60)]


def test_an_archive_of_large_records_is_read_page_by_page(tmp_path: Path) -> None:
    rows = 40
    table = pa.table({"offset": range(rows), "value": [bytes([number]) * 900_000 for number in range(rows)]})
    table = table.append_column("timestamp", pa.array([START] * rows, pa.timestamp("us", "UTC")))
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    partition = ("trades", 0)
    piece = Piece(f"file:{tmp_path}/a.parquet", partition, 0, rows)
    layout = Layout({"offset": "offset", VALUE: "value", TIME: "timestamp", "topic": "topic", "partition": "p"}, None)
    form = RecordFormat((VALUE,), None, None, keeps_tombstones=False, archive=layout)
    span, held = ArchivedSpan(partition, 3, rows, (piece,), is_filled=True), {}
    batches = list(archived_rows([span], form, "x", held))
    assert [each for batch in batches for each in batch["offset"].to_pylist()] == list(range(3, rows))
    assert max(batch.nbytes for batch in batches) < PIECE_BYTES + (1 << 20)
    assert held == {partition: set(range(3, rows))}


def test_a_moment_that_stands_for_no_timestamp_is_none(tmp_path: Path) -> None:
    moments = pa.array([1_000 * START, -1_000, -2_000, None], pa.timestamp("us", "UTC"))
    table = pa.table({"offset": range(4), "value": [b"{}"] * 4, "timestamp": moments})
    pq.write_table(table, tmp_path / "a.parquet")
    layout = Layout({"offset": "offset", VALUE: "value", TIME: "timestamp", "topic": "topic", "partition": "p"}, None)
    span = ArchivedSpan(("trades", 0), 0, 4, (Piece(f"file:{tmp_path}/a.parquet", ("trades", 0), 0, 4),), False)
    wanted = [1_000 * START, None, -2_000, None]
    form = RecordFormat((VALUE, TIME), None, None, keeps_tombstones=False, archive=layout)
    (batch,) = archived_rows([span], form, "x", {})
    assert batch[TIME].cast(pa.int64()).to_pylist() == wanted
    millis = pa.struct([("n", pa.int64())])
    form = RecordFormat((), lambda record: (record.timestamp,), millis, keeps_tombstones=False, archive=layout)
    (batch,) = archived_rows([span], form, "x", {})
    assert [each["n"] for each in batch[DECODED].to_pylist()] == [each and each // 1_000 for each in wanted]


@pytest.mark.slow
def test_an_archive_that_grew_is_counted_again(spark: SparkSession, refusing: str, tmp_path: Path) -> None:
    location = str(tmp_path / "grows")
    small(tmp_path / "first")
    spark.read.parquet(str(tmp_path / "first")).write.format("delta").save(location)
    source = cj.kafka.source(refusing, "archived-refused", schema="id long", archive=cj.sources.delta(location), to=4)
    first = source._archived()
    assert source._archived(again=True) is first
    more = small(tmp_path / "second", offset=pa.array(range(4, 8), pa.int64()))
    spark.read.parquet(str(more.location)).write.format("delta").mode("append").save(location)
    assert source._archived() is first
    grown = source._archived(again=True)
    assert grown is not None
    assert grown.archived["archived-refused", 0].cut == 8
