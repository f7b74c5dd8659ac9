"""Small files are there whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_file_is_written_read_replaced_listed_and_deleted(spark: SparkSession, tmp_path: Path) -> None:
    files = CheckpointFiles(spark, f"{tmp_path}/checkpoint")
    assert files.root == f"file:{tmp_path}/checkpoint"
    assert not files.exists()
    assert files.read("a/b.json") is None
    assert files.names("a") == []
    files.write("a/b.json", "first, and longer than what follows")
    files.write("a/b.json", "zweite Fassung: 'µs' ✓\n")
    files.write("a/a.json", "")
    assert files.read("a/b.json") == "zweite Fassung: 'µs' ✓\n"
    assert files.read("a/a.json") == ""
    assert files.names("a") == ["a.json", "b.json"]
    assert files.path("a/b.json") == f"file:{tmp_path}/checkpoint/a/b.json"
    files.delete("a/b.json")
    files.delete("a/b.json")
    assert not files.exists("a/b.json")


def test_what_a_crash_left_half_written_is_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / ".3.json.0f.tmp").write_text("{")
    (tmp_path / "2.json").write_text("{}")
    assert CheckpointFiles(spark, str(tmp_path)).names("") == ["2.json"]


def test_a_file_that_is_being_replaced_is_still_the_former_one(spark: SparkSession, tmp_path: Path) -> None:
    files = CheckpointFiles(spark, str(tmp_path))
    # What a crash leaves between the two renames.
    (tmp_path / ".2.json.former").write_text("former")
    assert files.exists("2.json")
    assert files.read("2.json") == "former"
    assert files.names("") == ["2.json"]
    files.write("2.json", "new")
    assert (files.read("2.json"), files.names("")) == ("new", ["2.json"])
    assert not (tmp_path / ".2.json.former").exists()
    (tmp_path / ".2.json.former").write_text("former")
    files.delete("2.json")
    assert not files.exists("2.json")
