"""A query of Spark Connect with inputs, checkpoint and output on an object store that the server has settings for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

import cojoin as cj
from tests.conftest import SETTINGS
from tests.seeds import SEED
from tests.servers.connect import connect_server
from tests.servers.jars import delta_jars, s3_jars
from tests.servers.s3 import BUCKET, s3_process, settings_for
from tests.servers.s3 import SETTINGS as CREDENTIALS
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AN_HOUR = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 hour")

pytestmark = [pytest.mark.connect, pytest.mark.slow]


@pytest.fixture
def at_store(tmp_path: Path) -> Iterator[SparkSession]:
    """A session at a server of its own, which has an object store's settings."""
    if not s3_jars():
        pytest.skip("the jars for s3a:// are those of Spark 4.2")
    with s3_process(tmp_path) as endpoint:
        store = {f"spark.hadoop.{name}": value for name, value in settings_for(endpoint).items()}
        jars = {"spark.jars": ",".join(map(str, [*delta_jars(), *s3_jars()]))}
        with connect_server(tmp_path, SETTINGS | store | jars) as address:
            session = SparkSession.builder.remote(address).create()
            yield session
            session.stop()


def rows_of_day(random: np.random.Generator, day: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return 200 trades of a day and 40 customers, at times of their own, in any order."""
    trades, customers = (
        pd.DataFrame(
            {
                name: range(day * size, (day + 1) * size),
                "customer": random.integers(0, 6, size),
                "event_time": pd.to_datetime(
                    1_700_000_000_000_000 + day * 86_400_000_000 + random.permutation(size) * 1_000_000 + offset,
                    unit="us",
                    utc=True,
                ),
            }
        )
        for name, size, offset in (("trade", 200, 0), ("version", 40, 500_000))
    )
    return trades, customers


def test_a_join_goes_on_from_day_to_day_and_in_other_key_groups(at_store: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    root = f"s3a://{BUCKET}"

    def joined(key_groups: int) -> cj.Joined:
        trades, customers = (
            cj.Input(cj.sources.delta(f"{root}/{name}"), "customer", "event_time", name, watermark=AN_HOUR)
            for name in ("trades", "customers")
        )
        return cj.connect(trades, customers, key_groups=key_groups).asof_join()

    def run(key_groups: int, place: str, trigger: cj.Trigger, **options: object) -> cj.Query:
        query = joined(key_groups).start(
            output=cj.sinks.delta(f"{root}/{place}/out"),
            checkpoint=f"{root}/{place}/checkpoint",
            trigger=trigger,
            **options,
        )
        query.await_termination()
        return query

    days = [rows_of_day(random, day) for day in range(2)]
    for number, day in enumerate(days):
        for name, rows in zip(("trades", "customers"), day, strict=True):
            at_store.createDataFrame(rows).write.format("delta").mode("append").save(f"{root}/{name}")
        if number == 0:
            query = run(3, "daily", PAUSE)
    run(2, "fork", DRAIN, restore_from=query.savepoint())
    out = pd.concat(
        at_store.read.format("delta").load(f"{root}/{place}/out").select("trade", "version").toPandas()
        for place in ("daily", "fork")
    )
    trades, customers = (pd.concat(each).sort_values("event_time") for each in zip(*days, strict=True))
    expected = pd.merge_asof(trades, customers, on="event_time", by="customer")[["trade", "version"]]
    pd.testing.assert_frame_equal(
        *(each.sort_values("trade").astype("float64").reset_index(drop=True) for each in (out, expected))
    )
    said = (tmp_path / "connect-server.txt").read_text()
    assert not [name for name in ("access", "secret") if CREDENTIALS[f"fs.s3a.{name}.key"] in said]
