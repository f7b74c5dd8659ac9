"""The segments of a checkpoint: files that tasks write and read, and that the driver deletes.

They are in ``<checkpoint>/segments/``. A local file is written under a temporary name and renamed, and mapped into
memory when it is read. On an object store, tasks write and read whole objects with the settings of the session. On
HDFS, pyarrow writes and reads the files. Each process caches the non-local files that it read last. The driver tries to
write and read a file before the start. If that fails, or Hadoop alone reaches the object store, all state stays in
Spark's state store.

A segment is deleted once no restart, no repeated batch and no snapshot can need it. That is when neither the manifests
of the last ten batches nor the index of a snapshot names it (``Snapshots.segments``), and it was written at least two
batches before the last one. A restart alone needs two manifests. The others leave a savepoint in another process time
to register while its batch is one of the last ten; then its files stay, however long it takes. Where Spark has computed
a batch twice, as after a lost executor, the state may name other files than the manifest, with equal rows
(``may_be_deleted``). A crash before the deletion may leave files behind, which a later run deletes. It never loses a
file that is needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.storage.file_systems import file_system
from cojoin.storage.object_store_settings import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cojoin.checkpoints.manifest import Manifest, Manifests
    from cojoin.storage.object_store import ObjectStore
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_LOG = logging.getLogger(__name__)

FOLDER = "segments"
KEPT_MANIFESTS = 10
"""The number of newest manifests whose segments are kept."""

_KEPT_BATCHES = 2
_LISTED_EVERY = 100
_CACHE_BYTES = 256 << 20

_stores: dict[str, ObjectStore] = {}
"""The object stores that this process has opened, by the folder's URL."""

_read: OrderedDict[str, tuple[pa.Buffer, int]] = OrderedDict()
"""The files that this process read last from non-local file systems, each with the number of its fetch."""

_fetches = count()


@dataclass(frozen=True)
class SegmentFolder:
    """The folder of a checkpoint's segments (``state.segments.SegmentStore``); it is serialized with the tasks.

    ``settings`` are those of its object store; None on other file systems. ``cache_bytes`` limits the cache of files
    that a process read from non-local file systems.
    """

    uri: str
    settings: Settings | None = None
    cache_bytes: int = _CACHE_BYTES

    @classmethod
    def of(cls, files: Store) -> SegmentFolder:
        """Return the folder of a checkpoint."""
        return cls(files.url(FOLDER), files.for_tasks())

    @property
    def place(self) -> str:
        """The directory, for messages."""
        return self.uri

    def within(self, memory: int) -> SegmentFolder:
        """Return the folder with a cache for tasks that may use ``memory`` bytes."""
        return replace(self, cache_bytes=min(_CACHE_BYTES, memory // 4))

    def write(self, name: str, content: pa.Buffer) -> object:
        """Write a file whole or not at all, and return its stamp if it is local; an older file of its name is equal."""
        if self.settings is not None:
            _object_store(self.uri, self.settings).write_bytes(name, content.to_pybytes())
            return None
        system, path = file_system(f"{self.uri}/{name}", "segments")
        try:
            if system.type_name == "local":
                _write_local(Path(path), content)
                return _stamp(path)
            partial = f"{path.removesuffix(name)}.{name}.{uuid.uuid4().hex}.tmp"
            with system.open_output_stream(partial) as stream:
                stream.write(content)
            system.move(partial, path)
        except OSError as error:
            msg = (
                f"segment {path} of {content.size:,} bytes can't be written: {error.strerror or error}; see to "
                f"this place and start the query again: the batch is run again, and nothing is lost"
            )
            raise CheckpointError(msg) from error
        return None

    def open(self, name: str) -> tuple[pa.Buffer, object]:
        """Return a file's bytes and their stamp; a local file is mapped into memory; ``OSError`` if it can't be read.

        The stamp is a local file's inode, size and modification time before it was opened, and the number of the fetch
        of any other file.
        """
        uri = f"{self.uri}/{name}"
        if self.settings is None:
            system, path = file_system(uri, "segments")
            if system.type_name == "local":
                stamp = _stamp(path)
                with pa.memory_map(path) as file:
                    return file.read_buffer(), stamp
        if uri in _read:
            _read.move_to_end(uri)
            return _read[uri]
        if self.settings is None:
            with system.open_input_file(path) as file:
                content = file.read_buffer()
        else:
            content = self._read_object(name)
        _read[uri] = content, next(_fetches)
        while len(_read) > 1 and sum(each.size for each, _ in _read.values()) > self.cache_bytes:
            _read.popitem(last=False)
        return _read[uri]

    def _read_object(self, name: str) -> pa.Buffer:
        assert self.settings is not None
        try:
            content = _object_store(self.uri, self.settings).read_bytes(name)
        except CheckpointError as error:
            raise OSError(str(error)) from error
        if content is None:
            msg = f"{self.uri}/{name} does not exist"
            raise FileNotFoundError(msg)
        return pa.py_buffer(content)


def _write_local(path: Path, content: pa.Buffer) -> None:
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        partial.write_bytes(memoryview(content))
        os.replace(partial, path)  # noqa: PTH105 - the one call that is atomic wherever Python runs
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _stamp(path: str) -> tuple[int, ...]:
    about = Path(path).stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def _object_store(uri: str, settings: Settings) -> ObjectStore:
    if uri not in _stores:
        from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - queries on local files do not load obstore

        _stores[uri] = ObjectStore.of(replace(settings, prefix=f"{settings.prefix}/{FOLDER}".lstrip("/")), uri)
    return _stores[uri]


def open_segments(files: Store, memory: int | None = None, *, names_files: bool = False) -> SegmentFolder | None:
    """Create and return the folder of a checkpoint's segments; None if a test file can't be written and read.

    It is also None for an object store that only Hadoop reaches with the session's settings, since pyarrow would write
    without them, such as without encryption. A query that already has segments in such a store continues with them.
    ``memory`` is the bytes that a task may use. Raises ``CheckpointError`` where the state has rows in files
    (``names_files``), and a test file can't be written and read.
    """
    folder, probe = SegmentFolder.of(files), f"probe-{uuid.uuid4().hex}"
    is_hadoops = folder.settings is None and files.root.partition("://")[0] in SCHEMES
    try:
        if is_hadoops and all(name.startswith("probe-") for name in files.names(FOLDER)):
            why = "tasks do not reach its object store with the session's settings"
        else:
            files.make_directory(FOLDER)
            folder.write(probe, pa.py_buffer(probe.encode()))
            content = folder.open(probe)[0].to_pybytes()
            is_listed = files.exists(f"{FOLDER}/{probe}")
            files.delete(f"{FOLDER}/{probe}")
            if is_listed and content == probe.encode():
                return folder if memory is None else folder.within(memory)
            why = f"a test file in {FOLDER} is {'not as it was written' if is_listed else 'not listed'}"
    except (ConfigurationError, CheckpointError, OSError, pa.ArrowException) as error:
        why = str(error)
    if names_files:
        msg = (
            f"{files.named}: its state has rows in files in {FOLDER}, where a test file can't be written and read: "
            f"{why}; see to this store, and start the query again"
        )
        raise CheckpointError(msg)
    _LOG.warning("%s: its state stays in Spark's own state store, in memory as a whole: %s", files.named, why)
    return None


def obsolete(names: Collection[str], last_batch_id: int, needed: Collection[str]) -> list[str]:
    """Return the files that are not needed, and were written at least two batches before the last one.

    >>> obsolete(["000000000003-00000-ab.arrow", "000000000005-00000-cd.arrow"], 5, [])
    ['000000000003-00000-ab.arrow']
    """
    return sorted(name for name in names if name not in needed and _batch_id(name) <= last_batch_id - _KEPT_BATCHES)


def _batch_id(name: str) -> int:
    digits = name.partition("-")[0]
    return int(digits) if digits.isdigit() else -1


def may_be_deleted(manifests: Manifests, batch_id: int, *, unnamed: bool) -> bool:
    """Return whether a cleaning may have deleted files that the state after a batch names, or be deleting them.

    It may not while the batch is one of the last ten, since the files in their manifests are kept. Where the state also
    names files that the batch's manifest does not (``unnamed``), it may from two batches later on.
    """
    batch_ids = manifests.batch_ids()
    return batch_id not in batch_ids[-KEPT_MANIFESTS:] or (unnamed and batch_ids[-1] >= batch_id + _KEPT_BATCHES)


class SegmentCleaner:
    """Deletes the segments of one checkpoint that are no longer needed."""

    def __init__(self, files: Store, manifests: Manifests) -> None:
        self._files = files
        self._recent = deque(manifests.read_all(manifests.batch_ids()[-KEPT_MANIFESTS:]), maxlen=KEPT_MANIFESTS)
        self._names: set[str] = set()
        self._of_snapshots: set[str] = set()
        self._until_listed = 0

    def take(self, manifest: Manifest, unnamed: Collection[str] = ()) -> list[str]:
        """Register the manifest of a finished batch, and return the old files that no recent manifest names.

        ``unnamed`` are files that the batch has written and its manifest does not name. The directory is listed at the
        first and then at every 100th batch, to find files that crashes and lost tasks have left behind.
        """
        if self._recent and self._recent[-1].batch_id == manifest.batch_id:
            self._recent.pop()
        self._recent.append(manifest)
        if not self._until_listed:
            self._names.update(self._files.names(FOLDER))
            self._until_listed = _LISTED_EVERY
        self._until_listed -= 1
        self._names.update(manifest.segments, unnamed)
        needed = {name for each in self._recent for name in each.segments}
        outlived = obsolete(self._names, manifest.batch_id, needed)
        # If a file can't be deleted now, a later listing returns it again.
        self._names.difference_update(outlived)
        return outlived

    def remove(self, names: Collection[str], of_snapshots: Callable[[], Collection[str]]) -> None:
        """Delete the files that ``take`` returned; those that snapshots name are left to later calls."""
        names = {*names, *self._of_snapshots}
        if names:
            self._of_snapshots = names.intersection(of_snapshots())
        for name in sorted(names - self._of_snapshots):
            self._files.delete(f"{FOLDER}/{name}")
