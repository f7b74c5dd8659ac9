"""A place that can't be made, or that Spark has no file system for, is told in a few words before the query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.session.sessions import open_store
from cojoin.session.workers import SharedPlaces, begun
from cojoin.spark.query.outputs import shared_places
from cojoin.storage.place_tokens import Place
from tests.spark.data import Folders, asof, connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOWHERE = "/proc/none/place"
NO_SYSTEM = {
    "s3://bucket/x": 'No FileSystem for scheme "s3"',
    "abfss://bucket@shop.dfs.core.windows.net/x": "SecureAzureBlobFileSystem not found",
    "nothing at all://x": "Illegal character in scheme name",
}
UNMADE = "can't be made"


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Callable[..., cj.Query]:
    def start(**places: Any) -> cj.Query:
        joined = asof(connect(*Folders(tmp_path).sources()))
        given = {"output": cj.sinks.delta(f"{tmp_path}/out"), "checkpoint": f"{tmp_path}/checkpoint"}
        return joined.start(**(given | places), trigger=cj.Trigger.available_now())

    return start


def told(use: Callable[[], Any], *parts: str, kind: type[Exception] = cj.CheckpointError) -> None:
    with pytest.raises(kind) as caught:
        use()
    said = str(caught.value)
    assert all(part in said for part in parts), said
    assert "expected a" in said
    assert "\n" not in said
    assert "py4j" not in said


def test_a_checkpoint_that_can_not_be_made_is_refused(start: Callable[..., cj.Query], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for path in (NOWHERE, f"{tmp_path}/file/within"):
        told(lambda path=path: start(checkpoint=path), f"checkpoint file:{path}: ", UNMADE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", NO_SYSTEM)
def test_a_place_without_a_file_system_is_refused(
    spark: SparkSession, start: Callable[..., cj.Query], tmp_path: Path, path: str
) -> None:
    why, package = NO_SYSTEM[path], "spark.jars.packages"
    told(lambda: start(checkpoint=path), f"checkpoint {path!r}: ", why, package)
    told(lambda: start(restore_from=cj.Snapshot(path)), f"checkpoint {path!r}: ", why, package)
    told(lambda: cj.read_state(spark, path), f"checkpoint {path!r}: ", why, package)
    told(lambda: cj.read_progress(spark, path), f"checkpoint {path!r}: ", why, package)
    told(lambda: start(output=cj.sinks.delta(path)), f"output {path!r}: ", why, kind=cj.ConfigurationError)
    assert not (tmp_path / "checkpoint").exists()


def test_outputs_that_can_not_be_made_are_refused(start: Callable[..., cj.Query], tmp_path: Path) -> None:
    for sink in (cj.sinks.delta(NOWHERE), cj.sinks.parquet(NOWHERE)):
        told(lambda sink=sink: start(output=sink), f"output file:{NOWHERE}: ", UNMADE, kind=cj.ConfigurationError)
        told(lambda sink=sink: start(rejected=sink), f"rejected file:{NOWHERE}: ", UNMADE, kind=cj.ConfigurationError)
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "out").exists()


def test_what_is_nowhere_holds_no_checkpoint(spark: SparkSession) -> None:
    with pytest.raises(cj.CheckpointError, match="the directory does not exist"):
        cj.read_state(spark, NOWHERE)


def test_workers_look_for_the_tokens_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    # They are this process's children, so that a query asks nothing.
    assert shared_places(spark, open_store(spark, f"{tmp_path}/checkpoint"), {}) is None
    (tmp_path / "trades").mkdir()
    (tmp_path / "trades" / "part-0").touch()
    written = [Place("checkpoint", f"{tmp_path}/checkpoint"), Place("output", f"{tmp_path}/lake/out")]
    read = [Place("input 'trades'", f"{tmp_path}/trades")]
    with begun(SharedPlaces(written, read), spark, to_the_end=True):
        # Those of the workers were found and removed.
        assert [len(list((tmp_path / each).iterdir())) for each in ("checkpoint", "lake/out", "trades")] == [1, 1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["trades"]
    places = SharedPlaces(written, read)
    places.put()
    (token,) = (tmp_path / "lake" / "out").iterdir()
    token.unlink()
    told(
        lambda: places.ask(spark),
        f"output file:{tmp_path}/lake/out: on host ",
        "another folder",
        kind=cj.ConfigurationError,
    )
