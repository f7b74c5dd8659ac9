"""Two versions over the same bounded range of topics, although their producers go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.kafka.history import make_history
from tests.kafka.records import expected_join, values
from tests.kafka.topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def test_versions_over_a_range_of_topics(spark: SparkSession, broker: Broker) -> None:
    history = make_history(2_000, 200, keys=50)
    names = ("compared-trades", "compared-customers")
    for name, rows in zip(names, (history.trades, history.customers), strict=True):
        broker.create_topic(name, 4)
        fill(spark, broker.bootstrap_servers, name, values(rows), rows["partition"].tolist())
    schemas = (
        "trade_id long, customer_id long, event_time timestamp, amount double",
        "version_id long, customer_id long, event_time timestamp, tier string",
    )

    def connected(**bounds: Any) -> cj.ConnectedInputs:
        inputs = [
            cj.Input(
                cj.kafka.source(broker.bootstrap_servers, name, schema=schema, **bounds),
                key="customer_id",
                event_time="event_time",
                name=name,
            )
            for name, schema in zip(names, schemas, strict=True)
        ]
        return cj.connect(*inputs, key_groups=2)

    def version(pair: cj.ConnectedInputs, **settings: Any) -> cj.Joined:
        return pair.asof_join(suffixes=("", "_customer"), **settings)

    expected = expected_join(history)
    found = cj.diff(version(connected(to="latest")), version(connected(to="latest"), how="inner"))
    without = expected.column("version_id").null_count
    assert (found.counts.a, found.counts.only_in_a) == (2_000, without)
    assert found.counts.differing == without
    endless = version(connected())
    with pytest.raises(cj.ConfigurationError, match="input 'compared-trades' has no end"):
        cj.diff(endless, endless)
