"""What the Spark tests share: one generated pair of streams, and what pandas makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.data import Folders, Streams, generate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def users_session_stays_active(request: pytest.FixtureRequest) -> Iterator[None]:
    """See that no query leaves the copy that its batches have as the active session, which sources take."""
    yield
    if "spark" in request.fixturenames:
        spark = request.getfixturevalue("spark")
        assert type(spark).getActiveSession() is spark


@pytest.fixture(scope="session")
def streams() -> Streams:
    """Streams of 600 trades and 150 versions that hold all that is difficult about order."""
    return generate()


@pytest.fixture(scope="session")
def folders(streams: Streams, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The same as two files each; to be read only."""
    return streams.write(tmp_path_factory.mktemp("streams"), files=2)


@pytest.fixture(scope="session")
def two_frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """A static trade and a static customer, for what is refused before anything runs."""
    trades = spark.sql("select 1L trade_id, 1L customer_id, timestamp_millis(1000) event_time, 1.5D amount")
    customers = spark.sql("select 1L customer_id, timestamp_millis(500) event_time, 'gold' tier")
    return trades, customers
