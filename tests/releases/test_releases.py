"""Checkpoints of earlier releases are read, explained, continued and restored as if this one had written them.

Those of a release are written once, by ``make.py``, and stay as they are.
"""

from __future__ import annotations

import random
import re
import tarfile
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.checkpoint import find_snapshot
from cojoin.checkpoints.identity import note_sources, read_query
from cojoin.checkpoints.lease import is_live
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.session.sessions import open_store
from tests.checkpoints.damages import DAMAGES, SEED, told_of
from tests.releases import queries
from tests.releases.queries import CASES, DRAIN, Case, Place
from tests.releases.unpacked import FOLDER, RELEASES, expected, locked, looked_at, told, unpack
from tests.seeds import drawn
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WITHOUT_CHECKSUMS = ["0.5.0"]
"""The releases whose files have no checksum; later ones refuse any damage by it (``tests/checkpoints``)."""

QUICK = {"continued": "function"}
"""What each push runs; all others together are slow, since each runs or reads a query of its own: minutes in sum."""


def cases(what: str) -> Any:
    return pytest.mark.parametrize(
        ("release", "case"),
        [
            pytest.param(release, case, id=f"{release}-{name}", marks=_marks(what, release, name))
            for release, (name, case) in product(RELEASES, CASES.items())
        ],
    )


def _marks(what: str, release: str, name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: of each release the slow circle runs one of each kind, which the seed draws."""
    if QUICK.get(what) == name:
        return []
    chosen = random.Random(f"{SEED} {what} {release}").sample([*CASES], 1)
    return [pytest.mark.slow, *([] if name in chosen else [pytest.mark.more])]


@pytest.fixture
def place(release: str, case: Case) -> Iterator[Place]:
    with locked(release):
        yield unpack(release, case.name)


def go_on(spark: SparkSession, case: Case, place: Place, **options: Any) -> cj.Query:
    for number in (3, 4):
        place.add(spark, number, delta_trades=case.delta_trades)
    return case.run(place, DRAIN, **options)


@cases("read")
def test_it_is_read_and_explained_as_that_release_did(
    spark: SparkSession, release: str, case: Case, place: Place
) -> None:
    assert looked_at(spark, place) == expected(release, case.name)["looked_at"]


@cases("continued")
def test_it_goes_on(spark: SparkSession, release: str, case: Case, place: Place) -> None:
    if case.is_over:
        with refused("its query was drained after batch", kind=cj.CheckpointError):
            go_on(spark, case, place)
    else:
        query = go_on(spark, case, place)
        assert query.progress is not None
        assert query.progress.is_conserved
    assert told(spark, place) == expected(release, case.name)["told"]


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(["asof", "killed", "restored"], 1))
@pytest.mark.parametrize("release", RELEASES)
def test_it_goes_on_with_idleness_and_columns_that_may_come(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, release: str, name: str
) -> None:
    case = CASES[name]
    monkeypatch.setattr(queries, "FIVE_SECONDS", queries.FIVE_SECONDS.with_idleness("1 hour"))
    with locked(release):
        place = unpack(release, name)
        go_on(spark, case, place, evolve=True)
        assert told(spark, place) == expected(release, name)["told"]
        assert read_query(open_store(spark, place.checkpoint))["query"]["needs_clock"] is False


@cases("restored")
def test_it_is_restored(spark: SparkSession, tmp_path: Path, release: str, case: Case, place: Place) -> None:
    if case.is_over:
        with refused("no snapshot exists", kind=cj.CheckpointError):
            go_on(spark, case, place, checkpoint=f"{tmp_path}/new", restore_from=cj.Snapshot(place.checkpoint))
        return
    files = open_store(spark, place.checkpoint)
    if not Snapshots(files).batch_ids():
        cj.savepoint(spark, place.checkpoint)
    snapshot = Snapshots(files).all()[-1]
    versions = {name: each.get("version") for name, each in snapshot.manifest.outputs.items()}
    # Before its first rows the output has those of its own origin.
    before = told(spark, place, versions=versions if versions["output"] is not None else None)
    checkpoint, output = f"{tmp_path}/new", f"{tmp_path}/out"
    query = go_on(
        spark,
        case,
        place,
        key_groups=5,
        checkpoint=checkpoint,
        output=cj.sinks.delta(output),
        restore_from=cj.Snapshot(place.checkpoint, at=snapshot.batch_id),
    )
    after = told(spark, place, checkpoint=checkpoint, output=output)
    both = {name: sorted([*before[name], *after[name]], key=str) for name in before}
    assert both == {name: sorted(each, key=str) for name, each in expected(release, case.name)["told"].items()}
    assert query.progress is not None
    assert query.progress.is_conserved


@pytest.mark.parametrize("release", WITHOUT_CHECKSUMS)
def test_damage_to_a_file_without_a_checksum_is_told_in_our_words(
    spark: SparkSession, tmp_path: Path, release: str
) -> None:
    with tarfile.open(FOLDER / release / "restored.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    path = tmp_path / "restored" / "checkpoint"
    files, drawn = open_store(spark, str(path)), random.Random(SEED)
    readers: dict[str, Any] = {
        "query.json": lambda: note_sources(files, read_query(files)["sources"]),
        "restored.json": lambda: Restoration.read(files),
        "lease.json": lambda: is_live(files),
        "manifest/*": lambda: Manifests(files).last(),
        "snapshots/*": lambda: find_snapshot(files),
    }
    for pattern, read in readers.items():
        file = max(path.glob(pattern))
        whole = file.read_text("utf-8")
        for damage, make in DAMAGES.items():
            file.write_text(text := make(whole, drawn), encoding="utf-8")
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
            _, said = told_of(read)
            # What has no checksum can be another value unnoticed; never another shape.
            assert file.name in (said or file.name), (SEED, said)
            assert said is not None or damage in {"flipped", "changed", "removed"}, (SEED, damage, text)
        file.write_text(whole, encoding="utf-8")


@pytest.mark.parametrize("release", WITHOUT_CHECKSUMS)
def test_a_position_changed_by_hand_is_seen_by_the_manifest(spark: SparkSession, tmp_path: Path, release: str) -> None:
    with tarfile.open(FOLDER / release / "asof.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    files = open_store(spark, str(tmp_path / "asof" / "checkpoint"))
    last = find_snapshot(files).batch_id
    index = tmp_path / "asof" / "checkpoint" / "snapshots" / f"{last:012d}.json"
    text = index.read_text("utf-8")
    found = re.search(r'reservoirVersion\\":(\d+)', text)
    assert found is not None
    index.write_text(text.replace(found[0], found[0].replace(found[1], str(int(found[1]) + 2))), encoding="utf-8")
    (index.parent / f".{index.name}.crc").unlink(missing_ok=True)
    with refused(f"snapshot of batch {last}", f"manifest/{index.name}", "was changed", kind=cj.CheckpointError):
        find_snapshot(files)
    assert find_snapshot(files, last - 1).batch_id == last - 1
