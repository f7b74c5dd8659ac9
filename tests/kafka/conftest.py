"""The two topics of all Kafka tests, filled once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.session.versions import spark_version
from tests.kafka.history import fill
from tests.kafka.records import PARTITIONS, Records, expected_join, make_records, values
from tests.kafka.topics import Topics, read_back

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

# Many of these modules import the data source of Spark 4.2.
collect_ignore_glob = [] if spark_version() == "4.2" else ["*"]


@pytest.fixture(scope="session")
def records() -> Records:
    """What the topics hold."""
    return make_records()


@pytest.fixture(scope="session")
def topics(spark: SparkSession, broker: Broker, records: Records) -> Topics:
    """The topics, filled; that each record has the partition and offset of `records` is seen by reading them back."""
    servers = broker.bootstrap_servers
    for name, rows in (("trades", records.trades), ("customers", records.customers)):
        broker.create_topic(name, PARTITIONS)
        written = values(rows)
        fill(servers, name, rows)
        stored = read_back(spark, servers, name)
        assert stored.column("value").to_pylist() == written
        assert stored.column("partition").to_pylist() == rows["partition"].tolist()
        assert stored.column("offset").to_pylist() == rows["offset"].tolist()
    return Topics(servers, "trades", "customers", (len(records.trades), len(records.customers)))


@pytest.fixture(scope="session")
def expected(records: Records) -> pa.Table:
    """The joined rows, by the oracle."""
    return expected_join(records)
