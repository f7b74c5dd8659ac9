"""Each small file of a checkpoint under each kind of damage: whoever reads it is told, or it was not needed.

What is told names the file and says what to do. It is a ``CheckpointError`` whatever was asked, and never another's.
"""

from __future__ import annotations

import random
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import cojoin as cj
from cojoin.checkpoints.checkpoint import find_snapshot, open_files
from cojoin.checkpoints.claimed_checkpoint import resumed_batches
from cojoin.checkpoints.identity import claim_checkpoint, note_sources, read_query
from cojoin.checkpoints.lease import Lease, end, ended, holder, is_live
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.segment_files import SegmentCleaner
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.cli.checkpoints import _Command
from cojoin.cli.options import parse_arguments, secrets_of
from cojoin.session.hadoop_store import HadoopStore
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import check_offsets, source_offsets
from cojoin.spark.savepoints.restore import unfinished
from tests.checkpoints.damages import DAMAGES, SEED, changed, told_of
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cojoin.storage.store import Store
    from tests.checkpoints.lakes import Lake

pytestmark = pytest.mark.spark

MANIFEST, SNAPSHOT = "manifest/000000000001.json", "snapshots/000000000001.json"


class Copy:
    """A copy of a checkpoint, one of whose files is damaged for a while."""

    def __init__(self, spark: SparkSession, lake: Lake, folder: Path) -> None:
        self.spark, self.lake, self.path = spark, lake, folder / "checkpoint"
        shutil.copytree(lake.checkpoint, self.path)
        self.files = open_store(spark, str(self.path))
        Restoration("file:/lake/old", 3, ["-"], stage="ready").write(self.files)
        resumed_batches(self.files)
        self.whole = {name: self.files.read(name) or "" for name in READERS}
        self.heartbeats = set(self.files.names("beats"))

    def damage(self, name: str, text: str) -> None:
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        # Else Hadoop's own file systems see it, where they are local.
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    def mend(self, name: str) -> None:
        self.damage(name, self.whole[name])
        # Heartbeats of later holders say that the lease that is put back is a former one.
        for later in set(self.files.names("beats")) - self.heartbeats:
            self.files.delete(f"beats/{later}")


def acquire(files: Store) -> None:
    lease = Lease.acquire(files)
    lease.release()


def claim(files: Store) -> str:
    stored = read_query(files)
    return claim_checkpoint(files, stored["query"], stored["sources"]) + note_sources(files, stored["sources"])


def offsets(files: Store) -> None:
    last = Manifests(files).last()
    assert last is not None
    check_offsets(files, last.batch_id, last.offsets)


READERS: dict[str, list[Callable[[Store], Any]]] = {
    "query.json": [read_query, claim],
    MANIFEST: [
        lambda files: Manifests(files).last(),
        lambda files: SegmentCleaner(files, Manifests(files))._recent,
        find_snapshot,
        offsets,
    ],
    SNAPSHOT: [find_snapshot, lambda files: Snapshots(files).all(), lambda files: find_snapshot(files, 0)],
    "restored.json": [Restoration.read, lambda files: unfinished(SparkSession.getActiveSession(), files, None)],
    "lease.json": [holder, ended, is_live, acquire],
    "runs.json": [resumed_batches],
}
"""The small files, and who reads each."""


@pytest.fixture(scope="module")
def copied(spark: SparkSession, lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(spark, lake, tmp_path_factory.mktemp("damaged"))


@pytest.fixture
def copy(copied: Copy) -> Iterator[Copy]:
    yield copied
    for name in READERS:
        copied.mend(name)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_told_or_not_needed(copy: Copy, name: str) -> None:
    drawn = random.Random(f"{SEED} {name}")
    readers = [each for each in READERS[name] if each is not acquire]
    expected = [read(copy.files) for read in readers]
    for damage, make in DAMAGES.items():
        text = make(copy.whole[name], drawn)
        copy.damage(name, text)
        told = 0
        for read, whole in zip(readers, expected, strict=True):
            found, said = told_of(partial(read, copy.files))
            told += said is not None
            if said is None:
                assert found == whole, (SEED, damage, read)
            else:
                assert f"{name}, " in said, (SEED, damage, said)
                assert any(cure in said for cure in ("put it back", "delete this file", "start with")), (
                    SEED,
                    damage,
                    said,
                )
        assert told or damage == "flipped", (SEED, damage, text)


def test_one_that_the_file_system_itself_refuses_is_told_alike(copy: Copy) -> None:
    for name, readers in READERS.items():
        path = copy.path / name
        hadoop = HadoopStore(copy.spark, str(copy.path))
        hadoop.write(name, copy.whole[name])
        path.write_text(copy.whole[name].replace("0", "1"), encoding="utf-8")
        for files, why in ((copy.files, "its checksums are others"), (hadoop, "ChecksumException")):
            with refused(f"{name}, ", "is damaged: it can't be read", why, kind=cj.CheckpointError):
                readers[0](files)


def test_what_a_person_left_beside_them_is_passed_over(copy: Copy) -> None:
    for folder in ("manifest", "snapshots"):
        (copy.path / folder / "000000000001.json.bak").write_text("{")
        (copy.path / folder / "notes.json").write_text("{")
    assert Manifests(copy.files).batch_ids() == Snapshots(copy.files).batch_ids() == [0, 1]


def test_a_damaged_note_of_what_was_removed_stops_no_cleaning(copy: Copy) -> None:
    snapshots = Snapshots(copy.files)
    snapshots.remove(0)
    assert [each.batch_id for each in snapshots.removed()] == [0]
    copy.files.write("snapshots_removed/000000000007.json", "{")
    assert [each.batch_id for each in snapshots.removed()] == [0]
    snapshots.write(snapshots.removed()[0])


def test_a_lease_that_nobody_can_read_lets_nobody_run(copy: Copy) -> None:
    held = Lease.acquire(copy.files)
    copy.damage("lease.json", "{")
    for use in (acquire, lambda files: end(files, "restored elsewhere")):
        with refused("lease.json", "delete this file", kind=cj.CheckpointError):
            use(copy.files)
    with refused("lease.json", "delete this file", "and stops, since", kind=cj.QueryFailedError):
        held.check()
    assert not held.is_held


def test_an_offset_log_that_was_cut_or_changed_is_told(copy: Copy) -> None:
    name = "spark/offsets/1"
    whole = copy.files.read(name) or ""
    assert len(source_offsets(copy.files, 1)) == 3
    for text in ("", "v1", whole[:-3], whole.replace("v1", "v9"), whole.replace('"logOffset":1', '"logOffset":0', 1)):
        copy.damage(name, text)
        with refused(name, "put it back", kind=cj.CheckpointError):
            offsets(copy.files)
    copy.damage(name, whole)


NEEDED = {
    "query.json": {"start", "restore", "state", "progress", "explain", "savepoint", "show", "list"},
    MANIFEST: {"start", "savepoint"},
    SNAPSHOT: {"restore", "state", "explain", "savepoint", "show"},
    "restored.json": {"start"},
    "lease.json": {"start", "show"},
}
"""What can't go on without a file; all else does not ask for it, or can do without."""


@pytest.mark.parametrize("name", NEEDED)
def test_whatever_is_asked_the_damaged_file_is_named(
    spark: SparkSession, lake: Lake, copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, join = str(copy.path), lake.connect().asof_join(suffixes=("", "_customer"))

    def typed(action: str) -> None:
        getattr(
            _Command(
                parse_arguments(words := ["checkpoints", action, path], secrets_of(words)),
                spark,
                open_files(spark, path),
            ),
            action.replace("list", "snapshots"),
        )()

    new = {"checkpoint": str(tmp_path / "new"), "output": cj.sinks.delta(str(tmp_path / "out"))}
    asked: dict[str, Callable[[], Any]] = {
        "start": lambda: lake.run(join, checkpoint=path),
        "restore": lambda: lake.run(join, restore_from=cj.Snapshot(path), **new),
        "state": lambda: cj.read_state(spark, path),
        "progress": lambda: cj.read_progress(spark, path),
        "explain": lambda: cj.explain(spark, path, key=1),
        "savepoint": lambda: cj.savepoint(spark, path),
        "show": lambda: typed("show"),
        "list": lambda: typed("list"),
    }
    copy.damage(name, changed(copy.whole[name], random.Random(SEED)))
    for what in sorted(NEEDED[name]):
        with refused(f"{name}, ", "is damaged", kind=cj.CheckpointError):
            asked[what]()
        assert not (tmp_path / "new").exists()
    if "list" not in NEEDED[name]:
        asked["list"]()
        told = capsys.readouterr()
        assert "asof join of 'trades' with 'customers'" in told.out
        assert (f"{name}, " in told.err) == (name in {MANIFEST, SNAPSHOT, "lease.json"})


def test_a_position_that_was_changed_by_hand_loses_no_row(
    spark: SparkSession, lake: Lake, copy: Copy, tmp_path: Path
) -> None:
    text = copy.whole[SNAPSHOT]
    assert '{\\"logOffset\\":1}' in text
    copy.damage(SNAPSHOT, text.replace('{\\"logOffset\\":1}', '{\\"logOffset\\":3}'))
    join = lake.connect().asof_join(suffixes=("", "_customer"))
    with refused(SNAPSHOT, "its checksum is another's", "restore another snapshot", kind=cj.CheckpointError):
        lake.run(
            join,
            checkpoint=str(tmp_path / "new"),
            output=cj.sinks.delta(str(tmp_path / "out")),
            restore_from=cj.Snapshot(str(copy.path)),
        )
