"""Topics in Avro and Protobuf replayed through Spark, with schemas that change in the middle, by a real registry."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from tests.kafka.formats.encoded import Encoder, avro_record, framed
from tests.kafka.history import fill, make_history, make_producer
from tests.kafka.records import OUT_OF_ORDERNESS_SECONDS, PARTITIONS, expected_join
from tests.kafka.topics import assert_conserved, assert_joined
from tests.servers import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDERNESS_SECONDS} seconds")


def made_by(kind: str, registry: RegistryServer, **arguments: Any) -> Any:
    return getattr(cj.kafka, kind)(registry.url, **arguments)


def written(servers: str, topic: str, *records: tuple[bytes | None, bytes | None, int]) -> None:
    """Write keys and values with their times in epoch milliseconds to a topic's partition 0."""
    failed: list[object] = []
    producer = make_producer(servers, failed)
    for key, value, moment in records:
        producer.produce(topic, value, key, 0, timestamp=moment)
    assert producer.flush(30) == 0
    assert not failed


def joined(trades: cj.Input, customers: cj.Input, place: Path, **further: Any) -> cj.StreamingQuery:
    query = (
        cj.connect(trades, customers, key_groups=4)
        .asof_join(suffixes=("", "_customer"))
        .start(
            output=cj.sinks.delta(str(place / "out")),
            rejected=cj.sinks.delta(str(place / "rejected")),
            checkpoint=str(place / "checkpoint"),
            trigger=cj.Trigger.available_now(drain=True),
            **further,
        )
    )
    query.await_termination(progress=False)
    return query


def read_as(source: Any, name: str) -> cj.Input:
    return cj.Input(source, key="customer_id", event_time="event_time", name=name, watermark=WATERMARK)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param("avro", "protobuf", marks=pytest.mark.slow),
        pytest.param("protobuf", "avro", marks=pytest.mark.slow),
        pytest.param("json_schema", "json_schema", marks=pytest.mark.slow),
    ],
)
def test_oracle_of_two_formats_whose_schemas_change_in_the_middle(
    spark: SparkSession, broker: Broker, registry: RegistryServer, tmp_path: Path, left: str, right: str
) -> None:
    history = make_history(3_000, 600, keys=100)
    servers, turn = broker.bootstrap_servers, int(history.trades["micros"].median())
    names = [f"{side}-{left}-{right}" for side in ("trades", "customers")]
    encoders = []
    for kind, topic, side in zip((left, right), names, ("trades", "customers"), strict=True):
        encoders.append(Encoder.registered(registry, kind, side, f"{topic}-value", turn))
        broker.create_topic(topic, PARTITIONS)
        fill(servers, topic, getattr(history, side), encode=encoders[-1])
    end = int(history.trades["micros"].max()) // 1000
    whole = encoders[0](history.trades.tail(1))[0]
    bad = [b"{}", b"", framed(99_999, b"abc"), framed(encoders[1].ids[0], b"abc"), None]
    bad += [whole[:-3]]
    written(servers, names[0], *((b"1", each, end) for each in bad))
    inputs = [
        read_as(cj.kafka.source(servers, topic, value=made_by(kind, registry), max_records=1_500), side)
        for kind, topic, side in zip((left, right), names, ("trades", "customers"), strict=True)
    ]
    joined(*inputs, tmp_path)
    assert_joined(spark, str(tmp_path / "out"), expected_join(history))
    assert_conserved(spark, str(tmp_path / "checkpoint"))
    rows = spark.read.format("delta").load(str(tmp_path / "out"))
    noted = rows.where("note is not null").count()
    if left != "json_schema":
        assert noted == int((history.trades["micros"] >= turn).sum())
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected")).collect()
    texts = [(each.reason, json.loads(each.row)) for each in rejected if each.input == "trades"]
    assert sorted(reason for reason, _ in texts) == ["tombstone"] + ["undecodable"] * (len(bad) - 1)
    assert all(row["partition"] == 0 and row["topic"] == names[0] for _, row in texts), texts
    told = " ".join(str(row) for _, row in texts)
    assert "the value's schema 99999 is not in the registry" in told
    if left != right:
        kinds = {"avro": "AVRO", "protobuf": "PROTOBUF"}
        assert f"is {kinds[right]}, expected {kinds[left]}" in told


@pytest.mark.slow
def test_a_key_of_another_format_and_a_newer_schema_at_the_next_start(
    spark: SparkSession, broker: Broker, registry: RegistryServer, tmp_path: Path
) -> None:
    servers, start = broker.bootstrap_servers, 1_760_000_000_000
    broker.create_topic("orders", 1)
    broker.create_topic("rates", 1)
    order = {"type": "record", "name": "Order", "fields": [{"name": "order_id", "type": "long"}]}
    order["fields"] += [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]
    number = registry.register("orders-value", json.dumps(order))
    key = registry.register("orders-key", '"string"')
    records, euro = [(each, start + 1_000 * each) for each in range(20)], framed(key, avro_record("string", "€"))
    written(
        servers,
        "orders",
        *(
            (
                framed(key, avro_record("string", "€")),
                framed(number, avro_record(order, {"order_id": each, "at": at})),
                at,
            )
            for each, at in records
        ),
        (b"no Avro", framed(number, avro_record(order, {"order_id": 99, "at": start})), start + 19_000),
    )
    written(
        servers, "rates", *((b"7", json.dumps({"key": "€", "rate": at, "at": at}).encode(), at) for _, at in records)
    )

    def inputs(schema: int | None = None) -> list[cj.Input]:
        orders = cj.kafka.source(
            servers,
            "orders",
            value=cj.kafka.avro(registry.url, schema=schema),
            key=cj.kafka.avro(registry.url),
        )
        rates = cj.kafka.source(servers, "rates", value=cj.kafka.json("key string, rate long, at long"))
        return [
            cj.Input(orders, key="key", event_time="at", name="orders", watermark=WATERMARK),
            cj.Input(
                rates, key="key", event_time=F.timestamp_millis("at").alias("since"), name="rates", watermark=WATERMARK
            ),
        ]

    def run(place: Path, *sides: cj.Input, **further: Any) -> None:
        query = (
            cj.connect(*sides, key_groups=2)
            .asof_join(suffixes=("", "_rate"))
            .start(
                output=cj.sinks.delta(str(place / "out"), options={"mergeSchema": "true"}),
                rejected=cj.sinks.delta(str(place / "rejected")),
                checkpoint=str(place / "checkpoint"),
                trigger=cj.Trigger.available_now(drain=further.pop("drain", False)),
                **further,
            )
        )
        query.await_termination(progress=False)

    run(tmp_path, *inputs())
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected")).collect()
    assert [each.reason for each in rejected] == ["undecodable"]
    assert "the key has no schema id" in rejected[0].row
    order["fields"] += [{"name": "note", "type": ["null", "string"], "default": None}]
    newer = registry.register("orders-value", json.dumps(order))
    last = start + 20_000
    row = {"order_id": 20, "at": last, "note": "new"}
    written(servers, "orders", (euro, framed(newer, avro_record(order, row)), last))
    with pytest.raises(cj.CheckpointError, match=r"column 'note' more; start\(..., evolve=True\)"):
        run(tmp_path, *inputs())
    # By the version that it began with it goes on, over records of the newer one, whose column it may take up later.
    run(tmp_path, *inputs(schema=1))
    row = {"order_id": 21, "at": last + 1_000, "note": "taken up"}
    written(servers, "orders", (euro, framed(newer, avro_record(order, row)), last + 1_000))
    run(tmp_path, *inputs(), drain=True, evolve=True)
    rows = spark.read.format("delta").load(str(tmp_path / "out")).orderBy("order_id").collect()
    assert [(each.order_id, each.rate) for each in rows] == [*records, (20, start + 19_000), (21, start + 19_000)]
    assert [each.note for each in rows] == [None] * 21 + ["taken up"]


CUSTOMER = "customer_id long, tier string"
OF_CUSTOMER = ["tier", "_source_timestamp", "topic_customer", "partition_customer", "offset_customer"]


def sales_input(servers: str, topic: str) -> cj.Input:
    return cj.Input(
        cj.kafka.source(servers, topic, schema="sale long, customer_id long, at long"),
        key="customer_id",
        event_time=F.timestamp_millis("at").alias("sold"),
        name="sales",
        watermark=WATERMARK,
    )


def change(op: str, at: int, before: Any = None, after: Any = None, *, wrapped: bool = False) -> bytes:
    event = {"before": before, "after": after, "op": op, "source": {"ts_ms": at, "db": "shop"}, "ts_ms": at + 5}
    return json.dumps({"schema": {"type": "struct"}, "payload": event} if wrapped else event).encode()


@pytest.mark.parametrize(
    ("kind", "unavailable"),
    [
        pytest.param("json", "reject", marks=pytest.mark.slow),
        pytest.param("avro", "reject", marks=pytest.mark.slow),
        pytest.param("json", "null", marks=pytest.mark.slow),
    ],
)
def test_debezium_is_versions_and_deletes(
    spark: SparkSession, broker: Broker, registry: RegistryServer, tmp_path: Path, kind: str, unavailable: Any
) -> None:
    servers, start = broker.bootstrap_servers, 1_760_000_000_000
    topic, sold = f"shop.customers.{kind}.{unavailable}", f"sales-{kind}-{unavailable}"
    broker.create_topic(topic, 1)
    broker.create_topic(sold, 1)

    def row(tier: str) -> dict[str, Any]:
        return {"customer_id": 7, "tier": tier}

    moved = {"customer_id": 8, "tier": "silver"}
    events = [
        change("r", start, after=row("basic")),
        change("u", start + 10_000, row("basic"), row("gold"), wrapped=True),
        change("d", start + 20_000, row("gold")),
        None,
        change("c", start + 30_000, after=row("silver")),
        change("t", start + 31_000),
        change("d", start + 32_000),
        change("u", start + 40_000, row("silver"), moved),
        change("u", start + 45_500, after={**moved, "tier": "__debezium_unavailable_value"}),
    ]
    value = cj.kafka.json(CUSTOMER)
    if kind == "avro":
        fields = [{"name": "customer_id", "type": "long"}, {"name": "tier", "type": "string"}]
        record = {"type": "record", "name": "Value", "fields": fields}
        source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
        schema = {
            "type": "record",
            "name": "Envelope",
            "fields": [
                {"name": "before", "type": ["null", record], "default": None},
                {"name": "after", "type": ["null", "Value"], "default": None},
                {"name": "source", "type": source},
                {"name": "op", "type": "string"},
                {"name": "ts_ms", "type": ["null", "long"], "default": None},
            ],
        }
        number = registry.register(f"{topic}-value", json.dumps(schema))

        def as_avro(event: bytes | None) -> bytes | None:
            if event is None:
                return None
            found = json.loads(event)
            return framed(number, avro_record(schema, found.get("payload", found)))

        events = [as_avro(each) for each in events]
        value = cj.kafka.avro(registry.url)
    written(servers, topic, *((b"7", each, start + 1_000 * at) for at, each in enumerate(events)))
    sales = [(at, start + at, 7) for at in (5_000, 15_000, 25_000, 35_000, 45_000)]
    sales.append((46_000, start + 46_000, 8))
    written(
        servers,
        sold,
        *((b"", json.dumps({"sale": n, "customer_id": key, "at": at}).encode(), at) for n, at, key in sales),
    )
    query = (
        cj.connect(
            sales_input(servers, sold),
            cj.Input(
                cj.kafka.source(servers, topic, value=cj.kafka.debezium(value, unavailable=unavailable)),
                key="customer_id",
                event_time="_source_timestamp",
                name="customers",
                watermark=WATERMARK,
            ),
            key_groups=2,
        )
        .temporal_join(suffixes=("", "_customer"))
        .start(
            output=cj.sinks.delta(str(tmp_path / "out")),
            rejected=cj.sinks.delta(str(tmp_path / "rejected")),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=cj.Trigger.available_now(drain=True),
        )
    )
    query.await_termination(progress=False)
    rows = spark.read.format("delta").load(str(tmp_path / "out")).orderBy("sale").collect()
    last = "silver" if unavailable == "reject" else None
    assert [each.tier for each in rows] == ["basic", "gold", None, "silver", None, last]
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected")).collect()
    # A truncation, and a delete without its row, are no changes of a row. The tombstone is none, and is counted.
    hidden = [each for each in rejected if each.reason == "unavailable_value"]
    others = [each for each in rejected if each not in hidden]
    assert [each.reason for each in others] == ["undecodable"] * 2
    assert {"op is not c, u, r or d" in each.row for each in others} == {True, False}
    assert [json.loads(each.row)["offset"] for each in hidden] == ([8] if unavailable == "reject" else [])
    assert all("column 'tier'" in each.row and "REPLICA IDENTITY FULL" in each.row for each in hidden)
    assert rows[0].__fields__ == ["sale", "customer_id", "at", "topic", "partition", "offset", "sold", *OF_CUSTOMER]
    assert_conserved(spark, str(tmp_path / "checkpoint"))
    customers = query.progress.inputs[1]
    # The update that moves the row to another key is two rows.
    done = len(events) + 1 - len(rejected)
    assert (customers.rows_in, customers.done, customers.tombstones) == (len(events) + 1, done, 1)
    ending = query.progress.ending()
    assert "passed over 1 row of 'customers' as tombstones after deletes" in ending
    assert customers.unavailable == (unavailable == "null")
    nulled = "set values of 1 row of 'customers' to null that were unavailable"
    assert (
        nulled if unavailable == "null" else "1 row of 'customers' with a value that its source could not"
    ) in ending


@pytest.mark.slow
@pytest.mark.parametrize("snapshot_known", ["at_event_time", "at_snapshot"])
def test_changes_of_a_database_are_known_when_they_were_made(
    spark: SparkSession, broker: Broker, tmp_path: Path, snapshot_known: Any
) -> None:
    servers, start = broker.bootstrap_servers, 1_760_000_000_000
    topic, sold = f"known-{snapshot_known}", f"known-sales-{snapshot_known}"
    broker.create_topic(topic, 1)
    broker.create_topic(sold, 1)

    def row(tier: str, valid_at: int) -> dict[str, Any]:
        moment = datetime.fromtimestamp(start / 1000 + valid_at, timezone.utc)
        return {"customer_id": 7, "tier": tier, "valid_at": moment.isoformat()}

    events = [
        (60, "r", None, row("basic", 0)),
        (100, "u", row("basic", 0), row("gold", 20)),
        (120, "u", row("gold", 20), row("moved back", 10)),
        (140, "d", row("gold", 20), None),
        (160, "c", None, row("silver", 150)),
    ]
    moments = [start + 1_000 * at for at, *_ in events]
    changes = [change(op, at, *sides) for at, (_, op, *sides) in zip(moments, events, strict=True)]
    written(servers, topic, *((b"7", each, at) for each, at in zip(changes, moments, strict=True)))
    expected = {5: "basic", 30: "basic", 70: "basic", 101: "gold", 130: "gold", 141: None, 155: None, 161: "silver"}
    sales = [(n, start + 1_000 * n) for n in expected]
    written(
        servers, sold, *((b"", json.dumps({"sale": n, "customer_id": 7, "at": at}).encode(), at) for n, at in sales)
    )
    value = cj.kafka.debezium(cj.kafka.json("customer_id long, tier string, valid_at timestamp"))
    pair = cj.connect(
        sales_input(servers, sold),
        cj.Input(
            cj.kafka.source(servers, topic, value=value),
            key="customer_id",
            event_time="valid_at",
            known_at="_source_timestamp",
            snapshot_known=snapshot_known,
            name="customers",
            watermark=WATERMARK,
        ),
        key_groups=2,
    )
    query = pair.temporal_join(suffixes=("", "_customer")).start(
        output=cj.sinks.delta(str(tmp_path / "out")),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)
    if snapshot_known == "at_snapshot":
        expected |= {5: None, 30: None}
    rows = spark.read.format("delta").load(str(tmp_path / "out")).collect()
    assert {each.sale: each.tier for each in rows} == expected
    assert query.progress.inputs[1].rejected == {"moved_back": 1}
    (refused,) = cj.read_rejected(spark, str(tmp_path / "checkpoint"), "customers").collect()
    assert (refused.reason, refused.offset, refused.tier) == ("moved_back", 2, None)
    assert "an update has moved 'valid_at' back" in refused.row
    assert_conserved(spark, str(tmp_path / "checkpoint"))


def test_a_registry_that_is_away_is_told_within_seconds(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("lonely", 1)
    begun, place = time.monotonic(), f"http://ali:opensesame@127.0.0.1:{free_ports(1)[0]}"
    source = cj.kafka.source(broker.bootstrap_servers, "lonely", value=cj.kafka.avro(place))
    with pytest.raises(cj.QueryFailedError, match=r"schema registry http://127.0.0.1:\d+ gave no answer") as told:
        source.open()
    assert not {"ali", "opensesame"} & set(re.split(r"\W", str(told.value) + repr(source)))
    assert time.monotonic() - begun < 20
