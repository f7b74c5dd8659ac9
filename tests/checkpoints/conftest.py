"""The queries whose checkpoints are read; made once, and only read or added to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.storage.local_store import LocalStore
from tests.checkpoints.lakes import Lake, asof_lake, function_lake

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store


@pytest.fixture
def files(tmp_path: Path) -> Store:
    """The directory of a checkpoint, which is not there yet."""
    return LocalStore(f"{tmp_path}/checkpoint")


@pytest.fixture(scope="session")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """An as-of join of two batches."""
    return asof_lake(tmp_path_factory.mktemp("asof"))


@pytest.fixture(scope="session")
def watched(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A function with states and timers, after its first rows."""
    return function_lake(tmp_path_factory.mktemp("function"))
