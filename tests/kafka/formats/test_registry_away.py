"""A registry that stops while a query runs, a schema that is deleted, and a registry's login: nothing lost or shown."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.kafka.formats.encoded import avro_record, framed
from tests.kafka.formats.test_replay_formats import written
from tests.kafka.sink.committed import read_committed
from tests.kafka.test_secrets import commands, plans
from tests.servers.registry import RegistryServer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

START = 1_760_000_000_000
PASSWORD = "opensesame-3003"
WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
FIELDS = [
    {"name": "k", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "v", "type": "long"},
]
FIRST: dict[str, Any] = {"type": "record", "name": "Row", "fields": FIELDS}
SECOND = {**FIRST, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}


def registered(registry: RegistryServer, *subjects: str) -> list[int]:
    """Register both versions for each subject, in the same order each time, so that they have the same ids."""
    return [registry.register(each, json.dumps(schema)) for each in subjects for schema in (FIRST, SECOND)]


def rows(servers: str, topic: str, number: int, schema: Any, values: range) -> None:
    written(
        servers,
        topic,
        *(
            (
                b"1",
                framed(number, avro_record(schema, {"k": 1, "at": START + 1_000 * each, "v": each})),
                START + 1_000 * each,
            )
            for each in values
        ),
    )


def joined(servers: str, registry: Any, left: str, right: str, version: int | None = 1) -> cj.Joined:
    sides = [
        cj.Input(
            cj.kafka.source(servers, topic, value=cj.kafka.avro(registry, schema=version)),
            key="k",
            event_time="at",
            name=name,
            watermark=WATERMARK,
        )
        for topic, name in ((left, "left"), (right, "right"))
    ]
    return cj.connect(*sides, key_groups=2).asof_join(suffixes=("", "_right"))


def run(query: cj.Joined, place: Path, *, drain: bool = False, output: Any = None) -> cj.Query:
    made = query.start(
        output=output or cj.sinks.delta(str(place / "out")),
        rejected=cj.sinks.delta(str(place / "rejected")),
        checkpoint=str(place / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=drain),
    )
    made.await_termination(progress=False)
    return made


def found(spark: SparkSession, place: Path) -> list[tuple[int, int | None]]:
    table = spark.read.format("delta").load(str(place / "out"))
    return sorted((each.v, each.v_right) for each in table.collect())


def test_nothing_is_lost_where_the_registry_stops(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A second version comes in while the registry is away; a third is deleted before anybody has read it."""
    servers, topics = broker.bootstrap_servers, ("away-left", "away-right")
    for each in topics:
        broker.create_topic(each, 1)
    subjects = [f"{each}-value" for each in topics]
    with RegistryServer() as registry:
        port, ids = registry.port, registered(registry, *subjects)
        for topic, number in zip(topics, ids[::2], strict=True):
            rows(servers, topic, number, FIRST, range(10))
        run(joined(servers, registry.url, *topics), tmp_path)
        before = found(spark, tmp_path)
        assert before
        for topic, number in zip(topics, ids[1::2], strict=True):
            rows(servers, topic, number, SECOND, range(10, 20))
        query = joined(servers, registry.url, *topics)
        # The columns are resolved: only the workers ask from here on.
        registry.stop()
        with pytest.raises(
            cj.QueryFailedError, match=r"schema registry http://127\.0\.0\.1:\d+\S* gave no answer"
        ) as told:
            run(query, tmp_path)
        assert "no record is lost" in str(told.value)
        with pytest.raises(cj.QueryFailedError, match="gave no answer"):
            joined(servers, registry.url, *topics, version=None)
    assert found(spark, tmp_path) == before
    with RegistryServer(port) as registry:
        assert registered(registry, *subjects) == ids
        third = {**SECOND, "fields": [*SECOND["fields"], {"name": "more", "type": "long", "default": 0}]}
        deleted = registry.register(subjects[0], json.dumps(third))
        rows(servers, topics[0], deleted, third, range(20, 21))
        registry.client.delete_version(subjects[0], 3)
        registry.client.delete_version(subjects[0], 3, permanent=True)
        run(joined(servers, registry.url, *topics), tmp_path, drain=True)
    assert found(spark, tmp_path) == [(each, each) for each in range(20)]
    rejected = spark.read.format("delta").load(str(tmp_path / "rejected")).collect()
    assert [each.reason for each in rejected] == ["undecodable"]
    assert f"the value's schema {deleted} is not in the registry" in rejected[0].row


def test_a_registrys_login_is_nowhere(
    spark: SparkSession,
    broker: Broker,
    registry: RegistryServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    servers, topics = broker.bootstrap_servers, ("login-left", "login-right")
    for each in (*topics, "login-out"):
        broker.create_topic(each, 1)
    ids = registered(registry, *(f"{each}-value" for each in topics))
    for topic, number in zip(topics, ids[::2], strict=True):
        rows(servers, topic, number, FIRST, range(5))
    # This registry lets everybody in, and is sent the login all the same.
    login = cj.kafka.registry(registry.url, username="ali", password=PASSWORD)
    in_address = registry.url.replace("http://", f"http://ali:{PASSWORD}@")
    sink = cj.sinks.kafka(servers, "login-out", key="k", value=cj.kafka.avro(login))
    query = joined(servers, login, *topics)
    done = run(query, tmp_path, drain=True, output=sink)
    assert len(read_committed(servers, "login-out")) == 5
    shown: list[Any] = [repr(each) for each in (login, sink, sink.encoding, query, done, done.progress)]
    shown += [repr(cj.kafka.source(servers, topics[0], value=cj.kafka.avro(in_address)))]
    away = cj.kafka.registry("http://127.0.0.1:1", username="ali", password=PASSWORD)
    for broken in (away, cj.kafka.registry(f"http://ali:{PASSWORD}@127.0.0.1:1")):
        with pytest.raises(cj.QueryFailedError) as told:
            joined(servers, broken, *topics)
        shown += [str(told.value), repr(told.value), repr(told.value.__cause__)]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    said = capfd.readouterr()
    everything = {
        "shown": shown,
        "files": [each.read_bytes().decode(errors="replace") for each in files],
        "output": [said.out, said.err, caplog.text],
        "processes": commands(os.getpid()),
        "plans": plans(spark),
    }
    for name, texts in everything.items():
        assert texts, name
        for text in texts:
            assert PASSWORD not in text, (name, text[max(0, text.index(PASSWORD) - 200) :][:400])
