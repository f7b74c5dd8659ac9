"""A disk in memory, and what goes wrong at its operations (``faults``).

Everything lies on one disk: the checkpoints, Spark's own files and the Delta tables. Each operation goes through
``Disk.operate``, where another task may run first and where a fault may strike.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cojoin.errors import CheckpointError
from tests.simulation.faults import INJECTED, Fault, can_strike
from tests.simulation.hand_overs import HandOvers
from tests.simulation.simulated_clock import Crash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.simulated_clock import Process, Scheduler

__all__ = ["Disk"]

T = TypeVar("T")


class File(NamedTuple):
    content: bytes
    tag: int
    modified: float


class Disk:
    """Files by path, the faults that wait, and the history of what was done.

    Args:
        has_conditional_writes: Whether its stores have compare-and-swap.
        loses_power: Whether changes may be undone by a power failure, as on a local file system.
    """

    def __init__(self, running: Scheduler, *, has_conditional_writes: bool, loses_power: bool) -> None:
        self.scheduler, self.has_conditional_writes, self.loses_power = running, has_conditional_writes, loses_power
        self.spark_writes = False
        """Whether Spark's own writer writes the rows of outputs and the state table, as where it encrypts its files."""
        self.is_overwritten = False
        """Whether others may look for a commit of a Delta table and then write it, as Spark does on S3 by default."""
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
        self.on_put: Callable[[str, bytes], None] = lambda *_: None
        self.hand_overs = HandOvers(self)
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
    ) -> T:
        """Run one operation, with what other tasks and faults do around it.

        Args:
            operation: One of ``OPERATIONS``.
            name: The path.
            effect: The operation itself.
            error: Makes the error of one that fails.
            torn: What is left where the process ends in the middle.
            stale: The operation as it answers without the newest changes, by their number.
        """
        running = self.scheduler
        if running.current.process is None:
            # The operator looks on; nothing goes wrong for him.
            return effect()
        running.step()
        self.hand_overs.note_operation(running.process)
        self.operations[operation] += 1
        fault = self._strikes(operation)
        if fault is None:
            self.tell(operation, name)
            return effect()
        kind = fault.kind
        self.struck[operation, kind] += 1
        self.tell(operation, name, f"!! {kind}" + (f" {fault.size}" if kind in ("pause", "power", "stale") else ""))
        if kind == "pause":
            self.was_paused = True
            self.hand_overs.put_to_sleep(running.process, fault.size, running.current, fault.wakes)
            running.sleep(0)
            self.hand_overs.note_operation(running.process)
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

    @contextlib.contextmanager
    def without_pause(self) -> Iterator[None]:
        """Let the running process not stand still within the block: between compare and write, where there is no swap.

        That a store without compare-and-swap is not safe there is documented.
        """
        process = self.scheduler.current.process
        if process is not None:
            if not process.swapping:
                process.swapping_since = self.scheduler.now
            process.swapping += 1
        try:
            yield
        finally:
            if process is not None:
                process.swapping -= 1

    def _strikes(self, operation: str) -> Fault | None:
        process = self.scheduler.process
        for waiting in self.armed:
            fault: Fault = waiting[0]
            if fault.operation not in (None, operation) or not can_strike(operation, fault.kind):
                continue
            if fault.kind == "power" and not self.loses_power:
                continue
            if process.swapping and fault.kind in ("pause", "rival"):
                continue
            if fault.task is not None and fault.task != self.scheduler.current.name:
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
        self.on_put(path, content)

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
