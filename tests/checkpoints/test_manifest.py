"""A manifest says all of its batch, and makes it count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.reports import manifest
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def manifests(tmp_path: Path) -> Manifests:
    return Manifests(LocalStore(str(tmp_path)))


def test_a_manifest_is_read_as_it_was_written(manifests: Manifests) -> None:
    assert Manifest.from_dict(manifest(7, drained=True).as_dict()).report == manifest(7, drained=True).report
    manifests.write(manifest(7))
    read = manifests.read(7)
    assert read is not None
    assert read.report == manifest(7).report
    assert (read.query_id, list(read.offsets), read.outputs, read.durations_ms) == (
        "a query",
        ['{"logOffset":1}', "-"],
        {"output": {"delta": "/x", "version": 4}},
        {"execute": 1.5},
    )


def test_the_newest_counts_and_old_ones_are_cleaned_away(manifests: Manifests) -> None:
    assert manifests.last() is None
    assert manifests.read(0) is None
    for batch_id in (0, 1, 2, 10, 9):
        manifests.write(manifest(batch_id))
    manifests.write(manifest(9, rows=5))
    assert manifests.batch_ids() == [0, 1, 2, 9, 10]
    newest = manifests.last()
    assert newest is not None
    assert newest.batch_id == 10
    manifests.clean(before=9)
    assert manifests.batch_ids() == [9, 10]
    replaced = manifests.read(9)
    assert replaced is not None
    assert replaced.report.rows_out == 5


def test_a_run_that_was_taken_over_makes_nothing_count_anew(manifests: Manifests) -> None:
    manifests.write(replace(manifest(7), epoch=2))
    with refused("fenced off: another run, of epoch 2, has finished batch 7 meanwhile", kind=cj.QueryFailedError):
        manifests.write(replace(manifest(7, rows=5), epoch=1))
    manifests.write(replace(manifest(7, rows=5), epoch=2))
    read = manifests.read(7)
    assert read is not None
    assert read.report.rows_out == 5
