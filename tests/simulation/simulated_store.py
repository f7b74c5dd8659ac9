"""A disk in memory, the stores on it, and what may go wrong at each operation.

Everything lies on one disk: the checkpoints, Spark's own files and the Delta tables. Each operation goes through
``Disk.operate``, where another task may run first and where a fault may strike:

- ``crash before``, ``crash after``: the process ends, without or with the operation's effect;
- ``torn``: it ends in the middle of a write, of which a temporary file is left;
- ``fails``: an error, without effect;
- ``answer lost``: an error, although the operation took effect;
- ``stale``: a listing lacks the newest changes;
- ``power``: every process ends, and the newest changes are undone, as where they were not flushed to the disk;
- ``pause``: the process stands still for minutes;
- ``rival``: another driver starts now, on another machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cojoin.errors import CheckpointError
from cojoin.storage.store import Store, Tagged, visible_names
from tests.simulation.simulated_clock import Crash

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.simulated_clock import Process, Scheduler

__all__ = ["FAULTS", "INJECTED", "MUTATING", "OPERATIONS", "Disk", "Fault", "SimulatedStore", "can_strike"]

T = TypeVar("T")

INJECTED = "simulated fault"
"""What the message of each injected error has."""

OPERATIONS = (
    "exists",
    "read",
    "list",
    "write",
    "replace",
    "delete",
    "delete directory",
    "make directory",
    "size",
    "plan batch",
    "commit batch",
    "read state",
    "write state",
    "read segment",
    "write segment",
    "write rows",
    "delta look",
    "delta commit",
)
_ATOMIC = ("delete", "delete directory", "make directory")
_WRITES = (
    "write",
    "replace",
    "plan batch",
    "commit batch",
    "write state",
    "write segment",
    "write rows",
    "delta commit",
)
MUTATING = frozenset((*_ATOMIC, *_WRITES))
FAULTS = ("crash before", "crash after", "torn", "fails", "answer lost", "stale", "power", "pause", "rival")


def can_strike(operation: str, fault: str) -> bool:
    """Return whether a fault makes sense at an operation."""
    if fault == "torn":
        return operation in _WRITES
    if fault in ("answer lost", "crash after"):
        return operation in MUTATING
    # Delta works on stores with consistent listings only.
    return operation == "list" if fault == "stale" else True


@dataclass(frozen=True)
class Fault:
    """A fault that strikes at the n-th operation of a kind, counted from the moment at which it is armed.

    Attributes:
        kind: One of ``FAULTS``.
        operation: One of ``OPERATIONS``; None strikes at the first at which the fault makes sense.
        after: How many such operations go well before.
        size: How much: seconds of a pause, changes that are undone or not seen.
    """

    kind: str
    operation: str | None
    after: int
    size: int

    def __str__(self) -> str:
        return f"{self.kind} (size {self.size}) at {self.operation or 'any operation'} number {self.after + 1}"


class File(NamedTuple):
    content: bytes
    tag: int
    modified: float


class Disk:
    """Files by path, the faults that wait, and the history of what was done.

    Args:
        swaps: Whether its stores have compare-and-swap.
        loses_power: Whether changes may be undone by a power failure, as on a local file system.
    """

    def __init__(self, running: Scheduler, *, swaps: bool, loses_power: bool) -> None:
        self.scheduler, self.swaps, self.loses_power = running, swaps, loses_power
        self.files: dict[str, File] = {}
        self._children: dict[str, Counter[str]] = {}
        """For each directory its names, each with the number of files there or below."""
        self._tags = 0
        self.journal: list[tuple[str, File | None]] = []
        """Each change: the path, and what was there before."""
        self.processes: list[Process] = []
        self.armed: list[list[Any]] = []
        """The faults that wait, each with how many operations still go well."""
        self.struck: Counter[tuple[str, str]] = Counter()
        self.operations: Counter[str] = Counter()
        self.history: list[tuple[float, str, str, str, str]] = []
        self.on_rival: Callable[[], None] = lambda: None
        self.begun: dict[str, int] = {}
        """For each Delta table the epoch of the newest run that has opened it."""
        self.zombies: list[str] = []
        """The commits of runs whose successor had begun."""
        self.lost_power = False
        self.was_stale = self.was_paused = False

    def arm(self, fault: Fault) -> None:
        """Let a fault strike from now on."""
        self.armed.append([fault, fault.after])

    def disarm(self) -> None:
        """Let everything go well from now on."""
        self.armed.clear()

    def tell(self, what: str, name: str = "", note: str = "") -> None:
        """Add a line to the history."""
        running = self.scheduler
        me = running.current
        who = me.name if me.process is None else f"{me.process.name}/{me.name}"
        self.history.append((running.now, who, what, name, note))

    def operate(  # noqa: C901 - a branch for each fault
        self,
        operation: str,
        name: str,
        effect: Callable[[], T],
        *,
        error: Callable[[str], Exception] = CheckpointError,
        torn: Callable[[], None] | None = None,
        stale: Callable[[int], T] | None = None,
        is_second: bool = False,
    ) -> T:
        """Run one operation, with what other tasks and faults do around it.

        Args:
            operation: One of ``OPERATIONS``.
            name: The path.
            effect: The operation itself.
            error: Makes the error of one that fails.
            torn: What is left where the process ends in the middle.
            stale: The operation as it answers without the newest changes, by their number.
            is_second: Whether it is the second half of a ``replace`` without compare-and-swap. That such a store is
                not safe where a process stands still right there is documented, so no pause strikes there.
        """
        running = self.scheduler
        if running.current.process is None:
            # The operator looks on; nothing goes wrong for him.
            return effect()
        running.step()
        self.operations[operation] += 1
        fault = self._strikes(operation, is_second=is_second)
        if fault is None:
            self.tell(operation, name)
            return effect()
        kind = fault.kind
        self.struck[operation, kind] += 1
        self.tell(operation, name, f"!! {kind}" + (f" {fault.size}" if kind in ("pause", "power", "stale") else ""))
        if kind == "pause":
            self.was_paused = True
            running.process.paused_until = running.now + fault.size
            running.sleep(0)
            self.tell("goes on")
            return effect()
        if kind == "rival":
            self.on_rival()
            return effect()
        if kind == "stale" and stale is not None:
            self.was_stale = True
            return stale(fault.size)
        if kind == "power":
            self._lose_power(fault.size)
        if kind == "crash before":
            self._end_process()
        if kind == "torn":
            if torn is not None:
                torn()
            self._end_process()
        if kind == "fails":
            message = f"{INJECTED}: {operation} of {name} failed"
            raise error(message)
        result = effect()
        if kind == "answer lost":
            message = f"{INJECTED}: the answer to {operation} of {name} was lost"
            raise error(message)
        if kind == "crash after":
            self._end_process()
        return result

    def _strikes(self, operation: str, *, is_second: bool = False) -> Fault | None:
        for waiting in self.armed:
            fault: Fault = waiting[0]
            if fault.operation not in (None, operation) or not can_strike(operation, fault.kind):
                continue
            if fault.kind == "power" and not self.loses_power:
                continue
            if is_second and fault.kind in ("pause", "rival"):
                continue
            if waiting[1]:
                waiting[1] -= 1
                continue
            self.armed.remove(waiting)
            return fault
        return None

    def _end_process(self) -> None:
        self.scheduler.process.is_dead = True
        raise Crash

    def _lose_power(self, changes: int) -> None:
        """End every process, and undo the newest changes."""
        self.lost_power = True
        for each in self.processes:
            each.is_dead = True
        for _ in range(min(changes, len(self.journal))):
            path, before = self.journal.pop()
            self._set(path, before)
        raise Crash

    def _set(self, path: str, file: File | None) -> None:
        """Set what is at a path, and keep the directories' names."""
        change = (file is not None) - (path in self.files)
        if file is None:
            self.files.pop(path, None)
        else:
            self.files[path] = file
        if change:
            directory, _, name = path.rpartition("/")
            while name:
                names = self._children.setdefault(directory, Counter())
                names[name] += change
                if not names[name]:
                    del names[name]
                directory, _, name = directory.rpartition("/")

    def is_there(self, path: str) -> bool:
        """Return whether there is a file, or a directory with any file below it."""
        return path in self.files or bool(self._children.get(path))

    def all_below(self, directory: str) -> list[str]:
        """Return the paths of all files below a directory."""
        return [path for path in self.files if path.startswith(f"{directory}/")] if self.is_there(directory) else []

    def put(self, path: str, content: bytes) -> None:
        """Write a file whole."""
        self.journal.append((path, self.files.get(path)))
        self._tags += 1
        self._set(path, File(content, self._tags, self.scheduler.now))

    def remove(self, path: str) -> None:
        """Delete a file where it exists."""
        before = self.files.get(path)
        if before is not None:
            self.journal.append((path, before))
            self._set(path, None)

    def below(self, directory: str, unseen: int = 0) -> set[str]:
        """Return the names in a directory.

        Args:
            directory: Its path.
            unseen: How many of the newest changes below it are not seen.
        """
        if not unseen:
            return set(self._children.get(directory, ()))
        prefix = f"{directory}/"
        at = len(prefix)
        files: dict[str, File | None] = dict(self.files)
        for path, before in reversed(self.journal):
            if path.startswith(prefix) and unseen:
                unseen -= 1
                files[path] = before
        return {path[at:].partition("/")[0] for path, file in files.items() if file and path.startswith(prefix)}

    def torn_at(self, path: str) -> None:
        """Leave the temporary file of a write that was not finished."""
        directory, _, last = path.rpartition("/")
        self._tags += 1
        self.put(f"{directory}/.{last}.{self._tags}.tmp", b"{")


class SimulatedStore(Store):
    """The files below a directory of a disk."""

    def __init__(self, disk: Disk, root: str, what: str = "checkpoint") -> None:
        self._disk, self._root, self.what, self.swaps = disk, root.rstrip("/"), what, disk.swaps

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

        if not self.swaps:
            # It is compared first and then written, and another task may run in between.
            if not disk.operate("read", path, is_same):
                return False
            put, torn = (lambda: disk.put(path, content)), (lambda: disk.torn_at(path))
            disk.operate("replace", path, put, torn=torn, is_second=True)
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
        return self._disk.operate(
            "list",
            path,
            lambda: visible_names(self._disk.below(path)),
            stale=lambda unseen: visible_names(self._disk.below(path, unseen)),
        )
