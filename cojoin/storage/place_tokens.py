"""The check that processes on several hosts see the same folder at a path, by small files that they write into it.

The driver writes a token with a random id into each place. Each worker looks for this token, and adds its own, for
which the driver looks. (Nothing is written into an input: a worker looks for one of the listed files, with its size.)
Another disk, another mount and a layer of a container's file system all fail this.

Network file systems remember for up to a minute that a file did not exist. So a process that misses a file lists its
folder and looks again, for up to 90 seconds.

Readers of the places, Spark's and Delta's among them, ignore the tokens, whose names begin with a dot. Tokens of killed
processes are deleted by the first start at least a day later, like other temporary files (``store.is_abandoned``): a
running query renews the times of its tokens before each batch, and restores missing ones.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.storage.local_store import LocalStore, reason_of
from cojoin.storage.store import is_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

SECONDS = 90.0
"""For how long a file is looked for that a network file system may show late."""

CURE = (
    "expected a folder that the driver and all workers reach by this path and may write to: give one on a file system "
    "that every host mounts at this path, or on an object store, such as s3a://"
)
_CURE_OF_INPUTS = "expected files that the driver and all workers reach by the same path"

_OF_ONE_HOST = frozenset(
    {"btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "xfs", "zfs"}
)
"""Types of file systems that only one host writes to, so that a file that is missing does not appear a moment later."""

_NAME = ".cojoin-place."
_NAMES = (_NAME, f".{_NAME}")
"""The beginnings of the names of tokens, and of those that are being written."""

_LOOKED_THROUGH = 10_000
_FILES, _HOSTS = 3, 4


class Place(NamedTuple):
    """A local path, absolute and without a scheme, that the driver and the workers have to share."""

    label: str
    path: str


class ListedFile(NamedTuple):
    """A file of an input, as the driver sees it."""

    place: Place
    path: str
    size: int


class Fault(NamedTuple):
    """A fault of a place on a host, in words that follow the host's name; ``is_read``: the place is only read."""

    label: str
    path: str
    why: str
    host: str
    is_read: bool = False


def this_host() -> str:
    """Return the name of this host and of the user who runs this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # Containers often run as a user without a name.
        user = str(os.getuid())
    return f"host {socket.gethostname()} (user {user})"


@dataclass
class Tokens:
    """The tokens of one run of a query; the id is in the name of each and, in the driver's, the content."""

    places: tuple[Place, ...]
    driver: str = field(default_factory=this_host)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _made: list[Path] = field(default_factory=list, repr=False)
    _is_swept: bool = field(default=False, repr=False)

    def put(self) -> None:
        """Put the driver's token into each place, which is made where it does not exist.

        The first time, what dead queries have left in the places is deleted. Where a place can't be made or written to
        (``CheckpointError``), no token is left.
        """
        try:
            for place in self.places:
                if not self._is_swept:
                    self._sweep(place)
                self._made += _missing(Path(place.path))
                self._store(place).write_bytes(self._name(), self.token.encode())
        except BaseException:
            self.remove()
            raise
        self._is_swept = True

    def touch(self) -> None:
        """Keep the driver's tokens from looking abandoned; one that was deleted is written again."""
        for place in self.places:
            token = Path(place.path, self._name())
            if token.exists():
                os.utime(token)
            else:
                self._store(place).write_bytes(token.name, self.token.encode())

    def remove(self, *, of_workers: bool = False) -> None:
        """Remove the driver's tokens, and the folders that were made for them and are empty.

        With ``of_workers``, each place is listed once for the tokens that workers have left.
        """
        for place in self.places:
            with contextlib.suppress(OSError):
                Path(place.path, self._name()).unlink()
            if of_workers:
                self._sweep(place)
        for made in self._made:
            with contextlib.suppress(OSError):
                made.rmdir()
        self._made = []

    def to_json(self) -> str:
        """Return the tokens as a text for a worker, which ``read`` reads."""
        return json.dumps({"token": self.token, "driver": self.driver, "places": self.places})

    @classmethod
    def read(cls, text: str) -> Tokens:
        """Return the tokens of a text by ``to_json``."""
        values = json.loads(text)
        return cls(tuple(Place(*each) for each in values["places"]), values["driver"], values["token"])

    def look(self, own: str, seconds: float = SECONDS) -> list[Fault]:
        """Look for the driver's token in each place, and write the worker's own next to it; return the faults.

        On a worker.
        """
        faults = ((place, self._fault_of(place, own, seconds)) for place in self.places)
        return [Fault(*place, why, this_host()) for place, why in faults if why]

    def forget(self, own: str) -> None:
        """Remove a worker's own token from each place."""
        for place in self.places:
            with contextlib.suppress(OSError):
                Path(place.path, self._name(own)).unlink()

    def find(self, others: Collection[tuple[str, str]], seconds: float = SECONDS) -> list[Fault]:
        """Look for the tokens that workers have written, and remove them; return the missing ones. On the driver.

        ``others`` has the host and the id of each worker's token.
        """
        paths = {
            Path(place.path, self._name(own)): (place, host) for place in self.places for host, own in sorted(others)
        }
        missing = _late_files(paths, os.path.lexists, seconds)
        for _, own in others:
            self.forget(own)
        why = "what is written to it does not reach the driver"
        return [Fault(*paths[path][0], why, paths[path][1]) for path in missing]

    def _fault_of(self, place: Place, own: str, seconds: float) -> str | None:
        token = Path(place.path, self._name())
        may_come = not _is_of_one_host(token)
        try:
            if _late_files([token], os.path.lexists, seconds if may_come else 0):
                if not token.parent.exists():
                    return "it does not exist"
                return "there is another folder, which lacks what the driver has just written"
            if token.read_text(errors="replace") != self.token:
                return "there is something else than what the driver has just written"
        except OSError as error:
            return f"it can't be read: {reason_of(error)}"
        try:
            Path(place.path, self._name(own)).write_bytes(own.encode())
        except OSError as error:
            return f"it can't be written: {reason_of(error)}"
        return None

    def _sweep(self, place: Place) -> None:
        """Delete the tokens of this run in a place, and those that dead queries have left in it a day ago."""
        with contextlib.suppress(OSError), os.scandir(place.path) as entries:
            for entry in entries:
                if entry.name.startswith(_NAMES):
                    # Another start may delete it at the same moment.
                    with contextlib.suppress(OSError):
                        if self.token in entry.name or is_abandoned(entry.name, entry.stat().st_mtime):
                            os.unlink(entry.path)  # noqa: PTH108 - a path as a string

    @staticmethod
    def _store(place: Place) -> LocalStore:
        return LocalStore(place.path, place.label)

    def _name(self, own: str | None = None) -> str:
        # As of temporary files, so that cleaning the checkpoint deletes those of killed drivers.
        return f"{_NAME}{self.token}.tmp" if own is None else f"{_NAME}{self.token}.{own}.tmp"


def described_faults(faults: Sequence[Fault], driver: str) -> str:
    """Return the faults in one sentence: the hosts by place and by fault, the driver's host, and the cure.

    >>> fault = Fault("output", "/srv/out", "it does not exist", "host a (user me)")
    >>> described_faults([fault], "host b (user me)")[:89]
    'output file:/srv/out: on host a (user me) it does not exist; the driver runs on host b (u'
    """
    hosts_of: dict[tuple[str, str, str], list[str]] = {}
    for fault in faults:
        hosts = hosts_of.setdefault((fault.label, fault.path, fault.why), [])
        if fault.host not in hosts:
            hosts.append(fault.host)
    sentences = [
        f"{label} file:{path}: on {_and(sorted(hosts))} {why}" for (label, path, why), hosts in hosts_of.items()
    ]
    cure = _CURE_OF_INPUTS if all(fault.is_read for fault in faults) else CURE
    return f"{'; '.join(sentences)}; the driver runs on {driver}: {cure}"


def files_in(place: Place) -> list[ListedFile]:
    """Return some files below a path, or the file itself; hidden ones, which readers ignore, are left out."""
    path = Path(place.path)
    if path.is_file():
        return [ListedFile(place, str(path), path.stat().st_size)]
    files: list[ListedFile] = []
    for entry in _walked(str(path)):
        with contextlib.suppress(OSError):
            files.append(ListedFile(place, entry.path, entry.stat().st_size))
        if len(files) == _FILES:
            break
    return files


def remaining_files(places: Iterable[Place], known: Iterable[ListedFile]) -> list[ListedFile]:
    """Return the files of inputs that still have their sizes, and some others of each input that has none of them."""
    left = [each for each in known if _has_size(each.path, each.size)]
    have = {each.place for each in left}
    return left + [each for place in places if place not in have for each in files_in(place)]


def find_files(files: Iterable[ListedFile], seconds: float = SECONDS) -> list[Fault]:
    """Look for files of inputs, of each of which any one is enough; return the faults. On a worker."""
    by_place: dict[Place, list[ListedFile]] = {}
    for file in files:
        by_place.setdefault(file.place, []).append(file)
    faults = []
    for place, listed in by_place.items():
        if any(_has_size(file.path, file.size) for file in listed):
            continue
        first = listed[0]
        if unseen(os.path.dirname(first.path), [(os.path.basename(first.path), first.size)], seconds):  # noqa: PTH119, PTH120
            faults.append(
                Fault(*place, f"file {first.path} of {first.size} bytes is missing", this_host(), is_read=True)
            )
    return faults


def unseen(folder: str, files: Iterable[tuple[str, int]], seconds: float = SECONDS) -> list[str]:
    """Return which files of a folder do not exist with their sizes; those on a network file system may come late.

    A file is a name and a size. ``seconds`` is how long they are looked for on a network file system.
    """
    sizes = {Path(folder, name): size for name, size in files}

    def exists(path: Path) -> bool:
        return _has_size(path, sizes[path])

    missing = [path for path in sizes if not exists(path)]
    if missing and not _is_of_one_host(missing[0]):
        missing = _late_files(missing, exists, seconds)
    return [path.name for path in missing]


def _late_files(paths: Iterable[Path], exists: Callable[[Path], bool], seconds: float) -> list[Path]:
    """Return those of some files that have not appeared within a time."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while missing := [path for path in paths if not exists(path)]:
        if time.monotonic() >= deadline:
            return missing
        for folder in {each for path in missing for each in (path.parent.parent, path.parent)}:
            # A network file system compares what it remembers of a folder when the folder is opened.
            with contextlib.suppress(OSError):
                os.listdir(folder)  # noqa: PTH208 - only that it is read counts
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    return []


def _has_size(path: str | Path, size: int) -> bool:
    try:
        return os.stat(path).st_size == size  # noqa: PTH116 - a path or a string
    except OSError:
        return False


def _missing(path: Path) -> list[Path]:
    """Return the folders that have to be made for a path, the innermost first."""
    folders = []
    while not path.exists():
        folders.append(path)
        path = path.parent
    return folders


def _walked(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, those of the folder first, of a limited number of entries."""
    folders, left = [folder], _LOOKED_THROUGH
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if entry.name.startswith((".", "_")):
                        continue
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif entry.is_file():
                        yield entry
        except OSError:
            continue


def _is_of_one_host(path: Path) -> bool:
    """Return whether a path is on a file system that only this host writes to."""
    place, kind, length = os.path.realpath(path), "", -1
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            _, mounted, type_, *_ = line.split(" ")
            # Blanks in a path are written as numbers.
            root = mounted.replace("\\040", " ").rstrip("/")
            if (place == root or place.startswith(f"{root}/")) and len(root) >= length:
                kind, length = type_, len(root)
    return kind in _OF_ONE_HOST


def _and(hosts: Sequence[Any]) -> str:
    shown = list(hosts) if len(hosts) <= _HOSTS else [*hosts[: _HOSTS - 1], f"{len(hosts) - _HOSTS + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
