"""Which brokers and topics a location names."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.cli.typed_locations import SINKS, Location
from tests.spark.refused import refused


@pytest.mark.parametrize(
    ("text", "parts", "name"),
    [
        ("kafka:one:9092/trades", ("one:9092", ["trades"], None), "trades"),
        (
            "kafka:one:9092,two:9092/trades-a, trades.b",
            ("one:9092,two:9092", ["trades-a", "trades.b"], None),
            "trades_a",
        ),
        ("kafka:one:9092/^trades-[0-9]{1,3}", ("one:9092", [], "trades-[0-9]{1,3}"), "trades_0_9_1_3"),
        ("kafka:one:9092/^a/b.*", ("one:9092", [], "a/b.*"), "a_b"),
    ],
)
def test_several_topics_and_patterns(text: str, parts: tuple[str, list[str], str | None], name: str) -> None:
    location = Location.parse(text)
    assert location.kafka_parts() == parts
    assert location.name == name


@pytest.mark.parametrize(
    "text", ["kafka:one:9092", "kafka:one:9092/", "kafka:one:9092/ ,", "kafka:/trades", "kafka:/^a", "kafka:one:1/^"]
)
def test_a_location_without_brokers_or_topics(text: str) -> None:
    with refused("expected kafka:HOST:PORT/TOPIC"):
        Location.parse(text)


@pytest.mark.push
def test_a_topic_as_an_output_is_one_topic() -> None:
    sink: Any = Location.parse("kafka:localhost:9092/enriched", SINKS).sink(("customer_id",), {"linger.ms": "5"})
    assert (sink.topic, sink.encoding.key, sink.cluster.settings) == ("enriched", "customer_id", {"linger.ms": "5"})
    both: Any = Location.parse("kafka:localhost:9092/enriched", SINKS).sink(("venue", "customer_id"))
    assert both.encoding.key == ("venue", "customer_id")
    with refused("expected one topic to write to, got enriched, more"):
        Location.parse("kafka:localhost:9092/enriched,more", SINKS).sink()
