"""The stores on a simulated disk: with compare-and-swap, as object stores, or without it, as Hadoop's file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.storage.store import Store, Tagged, visible_names

if TYPE_CHECKING:
    from tests.simulation.simulated_disk import Disk

__all__ = ["SimulatedStore"]


class SimulatedStore(Store):
    """The files below a directory of a disk."""

    def __init__(self, disk: Disk, root: str, what: str = "checkpoint") -> None:
        self._disk, self._root, self.label = disk, root.rstrip("/"), what
        self.has_conditional_writes = disk.has_conditional_writes

    @property
    def root(self) -> str:
        return self._root

    def for_tasks(self) -> None:
        return None

    def path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def url(self, name: str) -> str:
        return self.path(name).replace(" ", "%20")

    def exists(self, name: str = "") -> bool:
        return self._disk.operate("exists", self.path(name), lambda: self._disk.is_there(self.path(name)))

    def read_tagged(self, name: str) -> Tagged | None:
        path = self.path(name)

        def effect() -> Tagged | None:
            found = self._disk.files.get(path)
            return None if found is None else Tagged(found.content, str(found.tag))

        return self._disk.operate("read", path, effect)

    def write_bytes(self, name: str, content: bytes) -> None:
        path = self.path(name)
        self._disk.operate("write", path, lambda: self._disk.put(path, content), torn=lambda: self._disk.torn_at(path))

    def replace(self, name: str, content: bytes, tag: str | None) -> bool:
        path, disk = self.path(name), self._disk

        def is_same() -> bool:
            found = disk.files.get(path)
            return (None if found is None else str(found.tag)) == tag

        def effect() -> bool:
            if not is_same():
                return False
            disk.put(path, content)
            return True

        if not self.has_conditional_writes:
            # It is compared first and then written, and another task may run in between.
            put, torn = (lambda: disk.put(path, content)), (lambda: disk.torn_at(path))
            with disk.without_pause():
                if not disk.operate("read", path, is_same):
                    return False
                disk.operate("replace", path, put, torn=torn)
            # As ``HadoopStore`` does: another process may have written meanwhile.
            found = disk.operate("read", path, lambda: disk.files.get(path))
            return found is not None and found.content == content
        return disk.operate("replace", path, effect, torn=lambda: disk.torn_at(path))

    def make_directory(self, name: str) -> None:
        # As on an object store, a directory is a hidden empty file.
        path = f"{self.path(name)}/.directory"
        self._disk.operate(
            "make directory", path, lambda: None if path in self._disk.files else self._disk.put(path, b"")
        )

    def check_place(self) -> None:
        self.exists()

    def modified(self, name: str) -> int:
        def effect() -> int:
            found = self._disk.files.get(self.path(name))
            if found is None:
                raise FileNotFoundError(self.path(name))
            return int(1000 * found.modified)

        return self._disk.operate("size", self.path(name), effect)

    def size(self, name: str) -> int:
        path = self.path(name)

        def effect() -> int:
            if path in self._disk.files:
                return len(self._disk.files[path].content)
            return sum(len(self._disk.files[each].content) for each in self._disk.all_below(path))

        return self._disk.operate("size", path, effect)

    def delete(self, name: str) -> None:
        self._disk.operate("delete", self.path(name), lambda: self._disk.remove(self.path(name)))

    def delete_directory(self, name: str) -> None:
        path = self.path(name)

        def effect() -> None:
            for each in self._disk.all_below(path):
                self._disk.remove(each)

        self._disk.operate("delete directory", path, effect)

    def names(self, directory: str) -> list[str]:
        path = self.path(directory)

        def effect(unseen: int = 0) -> list[str]:
            return visible_names(self._disk.below(path, unseen))

        # Delta asks of a store that the listing of a table's log is never old.
        return self._disk.operate("list", path, effect, stale=None if path.endswith("/_delta_log") else effect)
