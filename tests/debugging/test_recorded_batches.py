"""Batches whose manifests were deleted are the same in the progress table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.debugging.recorded_batches import batches_after
from cojoin.session.sessions import open_store
from tests.debugging.shop import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_progress_says_the_same_as_manifests(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.append(range(4), delta=False)
    shop.run(shop.pair(delta=False).asof_join(), drain=True)
    files = open_store(spark, shop.checkpoint)
    known = batches_after(spark, files, 0)
    assert [each.batch_id for each in known] == [1, 2, 3, 4]
    assert [each.drained for each in known] == [False, False, False, True]
    for before in (3, 99):
        Manifests(files).clean(before)
        assert batches_after(spark, files, 0) == known
    shutil.rmtree(tmp_path / "checkpoint" / "progress")
    assert batches_after(spark, files, 0) == []
    with pytest.raises(cj.CheckpointError):
        batches_after(spark, open_store(spark, str(tmp_path / "none")), 0)
