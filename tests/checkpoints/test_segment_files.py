"""A checkpoint's segments as files: whole or not at all, mapped, and removed only when nobody can need them."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import fs

from cojoin.checkpoints import segment_files
from cojoin.checkpoints.segment_files import SegmentCleaner, SegmentFolder, may_be_deleted, open_segments
from cojoin.engine.state.segments import Segment, SegmentContext, write_file
from cojoin.errors import CodecError
from cojoin.storage.local_store import LocalStore
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def test_a_file_is_written_whole_and_mapped(tmp_path: Path) -> None:
    (tmp_path / "my segments").mkdir()
    folder = SegmentFolder(f"file:{tmp_path}/my%20segments")
    for _ in range(2):
        folder.write("a.arrow", pa.py_buffer(b"content"))
    assert [path.name for path in (tmp_path / "my segments").iterdir()] == ["a.arrow"]
    content, stamp = folder.open("a.arrow")
    assert content.to_pybytes() == b"content"
    assert stamp == folder.open("a.arrow")[1]
    assert stamp != folder.write("a.arrow", pa.py_buffer(b"content"))
    with pytest.raises(FileNotFoundError):
        folder.open("b.arrow")


def test_a_file_that_can_not_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    folder = SegmentFolder(tmp_path.as_uri())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
        with refused(f"segment {tmp_path}/a.arrow of 2,000 bytes can't be written: File too large; see to this place"):
            folder.write("a.arrow", pa.py_buffer(b"x" * 2_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[list[str]]:
    """Have another file system than the local one; give what is opened."""
    opened: list[str] = []
    system: Any = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def reach(uri: str, what: str) -> tuple[Any, str]:
        opened.append(uri)
        return system, uri.rpartition("/")[2]

    with (
        mock.patch.object(segment_files, "file_system", reach),
        mock.patch.object(segment_files, "_read", type(segment_files._read)()),
    ):
        yield opened


@pytest.mark.usefixtures("remote")
def test_elsewhere_the_last_files_are_kept_in_memory(tmp_path: Path) -> None:
    folder = SegmentFolder("s3://bucket/segments").within(40)
    for name in "abc":
        folder.write(name, pa.py_buffer(b"12345"))
    for name in "abca":
        assert folder.open(name)[0].to_pybytes() == b"12345"
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    assert folder.open("a")[0].to_pybytes() == b"12345"
    with pytest.raises(FileNotFoundError):
        folder.open("b")


@pytest.mark.usefixtures("remote")
def test_elsewhere_a_file_that_is_fetched_anew_is_compared_anew(tmp_path: Path) -> None:
    folder = SegmentFolder("s3://bucket/segments").within(4)
    context = SegmentContext(folder)
    files = []
    for content in (b"12345", b"67890"):
        name, digest = write_file(context, pa.py_buffer(content))
        files.append(Segment(name, 1, 0, 5, digest))
    for _ in range(2):
        for file in files:
            file.content(folder)
    (tmp_path / files[0].name).write_bytes(b"12346")
    # Only the last one is in memory.
    files[1].content(folder)
    with pytest.raises(CodecError, match="expected content with the digest"):
        files[0].content(folder)


class OfHadoop(LocalStore):
    """A folder that stands for one on an object store that Hadoop alone reaches."""

    @property
    def root(self) -> str:
        return "s3a://lake/checkpoint"


def test_an_object_store_that_is_left_to_hadoop_gets_no_segments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = OfHadoop(str(tmp_path))
    assert open_segments(files) is None
    assert "s3a://lake/checkpoint: its state stays in Spark's own state store, in memory as a whole: tasks do not" in (
        caplog.text
    )
    assert not list(tmp_path.iterdir())
    # A query continues with those that it has.
    files.write("segments/000000000001-00000-x.arrow", "")
    assert open_segments(files) == SegmentFolder.of(files)


@pytest.mark.parametrize("fault", ["not listed", "not as it was written"])
def test_a_folder_that_is_not_used_is_logged_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    files = LocalStore(str(tmp_path))
    assert open_segments(files) is not None
    lists = mock.patch.object(LocalStore, "exists", return_value=False)
    damages = mock.patch.object(SegmentFolder, "open", return_value=(pa.py_buffer(b""), None))
    with lists if fault == "not listed" else damages:
        assert open_segments(files) is None
    assert f"own state store, in memory as a whole: a test file in segments is {fault}" in caplog.text
    # A query with segments would fail in its first batch, by another reason.
    said = f"in files in segments, where a test file can't be written and read: a test file in segments is {fault};"
    with lists if fault == "not listed" else damages, refused(said):
        open_segments(files, names_files=True)


@dataclass
class Files:
    """The files of a checkpoint, of which only the names matter."""

    there: set[str]
    listed: int = 0

    def names(self, _: str) -> list[str]:
        self.listed += 1
        return sorted(self.there)

    def delete(self, path: str) -> None:
        self.there.discard(path.removeprefix("segments/"))


@dataclass
class Batch:
    batch_id: int
    segments: tuple[str, ...]


class Manifests:
    def __init__(self, batches: list[Batch]) -> None:
        self._batches = {each.batch_id: each for each in batches}

    def batch_ids(self) -> list[int]:
        return sorted(self._batches)

    def read(self, batch_id: int) -> Batch:
        return self._batches[batch_id]

    def read_all(self, batch_ids: Iterable[int]) -> list[Batch]:
        return [self.read(each) for each in batch_ids]


@pytest.fixture(autouse=True)
def three_batches() -> Iterator[None]:
    """Let three batches be enough to forget a file."""
    with mock.patch.object(segment_files, "KEPT_MANIFESTS", 3):
        yield


def segment(batch_id: int, text: str = "x") -> str:
    return f"{batch_id:012d}-00000-{text}.arrow"


def cleaned(
    cleaner: SegmentCleaner, batch: Batch, of_snapshots: tuple[str, ...] = (), unnamed: tuple[str, ...] = ()
) -> list[str]:
    found = cleaner.take(batch, unnamed)  # type: ignore[arg-type]
    cleaner.remove(found, lambda: of_snapshots)
    return found


def test_a_file_goes_once_three_batches_have_not_named_it() -> None:
    files: Any = Files({segment(each) for each in range(6)})
    cleaner = SegmentCleaner(files, Manifests([]))  # type: ignore[arg-type]
    assert cleaned(cleaner, Batch(1, (segment(0), segment(1)))) == []
    assert cleaned(cleaner, Batch(2, (segment(2),))) == []
    assert cleaned(cleaner, Batch(3, (segment(2), segment(3)))) == []
    # Batch 1 is no longer one of the last three, and what it had is named by none of them.
    assert cleaned(cleaner, Batch(4, (segment(2), segment(4)))) == [segment(0), segment(1)]
    assert files.there == {segment(each) for each in (2, 3, 4, 5)}
    # Batch 4 counts again, run after a crash, and is one batch all the same.
    assert cleaned(cleaner, Batch(4, (segment(4),))) == []
    assert files.listed == 1


def test_a_file_of_a_snapshot_stays_as_long_as_the_snapshot() -> None:
    files: Any = Files({segment(each) for each in range(2)})
    cleaner = SegmentCleaner(files, Manifests([]))  # type: ignore[arg-type]
    assert cleaned(cleaner, Batch(4, ()), (segment(1),)) == [segment(0), segment(1)]
    assert files.there == {segment(1)}
    assert cleaned(cleaner, Batch(5, ()), (segment(1),)) == []
    assert files.there == {segment(1)}
    assert cleaned(cleaner, Batch(6, ())) == []
    assert files.there == set()


def test_what_a_crash_left_is_found_by_the_next_run_and_what_is_needed_stays() -> None:
    files: Any = Files({segment(3), segment(3, "lost"), segment(7), segment(9, "of a task that was lost")})
    known = Manifests([Batch(6, (segment(3),)), Batch(7, (segment(3), segment(7))), Batch(8, (segment(7),))])
    cleaner = SegmentCleaner(files, known)  # type: ignore[arg-type]
    assert cleaned(cleaner, Batch(9, (segment(7),))) == [segment(3, "lost")]
    assert cleaned(cleaner, Batch(10, (segment(7),))) == [segment(3)]
    assert cleaned(cleaner, Batch(11, (segment(7),))) == [segment(9, "of a task that was lost")]


def test_files_that_a_batch_has_written_and_merged_go_without_a_listing() -> None:
    files: Any = Files({segment(1, "merged")})
    cleaner = SegmentCleaner(files, Manifests([]))  # type: ignore[arg-type]
    cleaned(cleaner, Batch(0, ()))
    assert cleaned(cleaner, Batch(1, ()), unnamed=(segment(2, "merged"),)) == []
    files.there.add(segment(2, "merged"))
    found = [cleaned(cleaner, Batch(each, ())) for each in (2, 3, 4)]
    assert found == [[], [segment(1, "merged")], [segment(2, "merged")]]
    assert files.listed == 1


def test_a_probe_of_a_start_that_was_killed_goes_too() -> None:
    files: Any = Files({"probe-abc"})
    cleaner = SegmentCleaner(files, Manifests([]))  # type: ignore[arg-type]
    assert cleaned(cleaner, Batch(1, ())) == ["probe-abc"]


def test_files_of_a_state_stay_while_its_batch_is_one_of_the_last_and_other_ones_for_a_batch() -> None:
    manifests: Any = Manifests([Batch(each, ()) for each in range(3, 8)])
    assert [may_be_deleted(manifests, each, unnamed=False) for each in (4, 5, 7)] == [True, False, False]
    assert [may_be_deleted(manifests, each, unnamed=True) for each in (4, 5, 6, 7)] == [True, True, False, False]
