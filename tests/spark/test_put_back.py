"""Checkpoints that are older than what was written, and settings that changed between a failed batch and its second
run: each row once, or a refusal that helps. ``benchmarks.kills`` holds the full set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.kills.changing import change_settings, choose_changes
from benchmarks.kills.kill_points import FAILURES
from benchmarks.kills.places import Place
from benchmarks.kills.putting_back import CHANGES, Copy, choose_copies, put_back
from cojoin.checkpoints.identity import note_sources
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.s3 import S3Server

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _two_partitions(shuffle_partitions: Callable[[int], None]) -> None:
    shuffle_partitions(2)


def test_a_checkpoint_that_is_put_back_writes_no_row_twice(spark: SparkSession, tmp_path: Path) -> None:
    seed = SEED
    # New input, in other batches than it came in at first: the doubled and the lost row at once.
    case = Copy(1 + 2 * (seed % 2), "more files a batch", rejected="beside" if seed % 3 else "delta")
    verdict = put_back(spark, tmp_path, seed, case)
    assert not verdict.faults, verdict.told()


@pytest.mark.slow  # Three runs, each some seconds longer than on a disk.
def test_a_checkpoint_on_s3_that_is_put_back_writes_no_row_twice(
    spark: SparkSession, bucket: S3Server, tmp_path: Path
) -> None:
    (case,) = choose_copies(1, SEED)
    verdict = put_back(spark, tmp_path, SEED, case, Place(bucket.endpoint, bucket.bucket))
    assert not verdict.faults, verdict.told()


@pytest.mark.slow
def test_settings_that_change_between_a_batch_s_two_runs_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    seed = SEED
    changes = [name for name, (before, after) in CHANGES.items() if before.of_function != after.of_function]
    point, change = FAILURES[seed % len(FAILURES)], changes[seed % len(changes)]
    verdict = change_settings(spark, tmp_path, seed, point, change)
    assert not verdict.faults, verdict.told()


@pytest.mark.slow  # Three runs each.
@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.more)])
def test_a_copy_of_any_age_put_back_with_any_change(spark: SparkSession, tmp_path: Path, count: int) -> None:
    seed = SEED
    verdicts = [
        put_back(spark, tmp_path / str(number), seed + number, case)
        for number, case in enumerate(choose_copies(count, seed))
    ]
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


@pytest.mark.slow  # Two or three runs each.
@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.more)])
def test_any_settings_that_change_after_any_commit(spark: SparkSession, tmp_path: Path, count: int) -> None:
    seed = SEED
    verdicts = [
        change_settings(spark, tmp_path / str(number), seed + number, *case)
        for number, case in enumerate(choose_changes(count, seed))
    ]
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


@pytest.mark.parametrize("age", [1, 3])
@pytest.mark.slow  # Three runs.
def test_a_copy_put_back_as_it_was_is_not_refused_for_nothing(spark: SparkSession, tmp_path: Path, age: int) -> None:
    # Nothing new came: where it is told apart, each row is there once and nothing was wrong; else it is refused.
    verdict = put_back(spark, tmp_path, SEED, Copy(age, between=0))
    assert not verdict.faults, verdict.told()
    assert age > 1 or verdict.refusal is None, verdict.told()


@pytest.mark.slow  # Three runs.
def test_what_one_output_refuses_no_other_holds_in_another_form(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The output is a folder of parquet files, whose batches are replaced; the rejected rows' Delta table refuses.
    (point,) = (each for each in FAILURES if each.name == "before the manifest")

    def without_settings(*given: Any, settings: Any, **more: Any) -> str:
        del settings
        return note_sources(*given, **more)

    # As an earlier release, which did not keep with which settings a batch was planned.
    monkeypatch.setattr("cojoin.spark.query.start.plan_settings", lambda _: None)
    monkeypatch.setattr("cojoin.spark.query.planned_batch.note_sources", without_settings)
    verdict = change_settings(spark, tmp_path, 18, point, "late trades applied", output="parquet")
    assert verdict.refusal is not None
    assert not verdict.faults, verdict.told()
