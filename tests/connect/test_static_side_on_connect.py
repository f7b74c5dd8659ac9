"""A static side in a session of Spark Connect: loaded by this process, refreshed by the one beside the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.saved import DRAIN
from tests.spark.shop import Shop, await_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.connect, pytest.mark.slow]


def test_a_table_is_loaded_refreshed_at_a_start_and_restored(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.register((1, 5, "none"), (2, 5, "silver"))
    shop.sell((1, 10), (2, 11))
    first = shop.run(shop.connect().asof_join())
    savepoint = first.savepoint()
    shop.register((1, 5, "gold"), (2, 5, "gold"))
    shop.sell((1, 12), (3, 13))
    last = shop.run(shop.connect(refresh="1 millisecond").asof_join(), trigger=DRAIN)
    assert last.progress is not None
    assert last.progress.inputs[1].table["version"] == 1
    assert shop.rows() == shop.found({0: 0, 1: 1, 2: 1, 3: 1})
    shop.run(shop.connect(4).asof_join(), "fork", restore_from=savepoint, trigger=DRAIN)
    assert shop.rows("fork") == shop.found({1: 0, 2: 0, 3: 0})


def test_a_live_query_is_refreshed_between_its_batches(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.register((1, 5, "none"))
    shop.sell((1, 10))
    joined = shop.connect(refresh="1 millisecond").asof_join()
    query = shop.start(joined, trigger=cj.Trigger.processing_time("0 seconds"))
    for number in range(1, 5):
        await_rows(query, number)
        shop.register((1, 5, f"tier {number}"))
        shop.sell((1, 10 + number))
    await_rows(query, 5)
    query.stop()
    assert query.progress is not None
    assert query.progress.inputs[1].table["version"] >= 2
    assert query.progress.is_conserved
