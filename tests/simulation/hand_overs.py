"""The holders of a lease that stand still while another driver takes over, and what becomes of their commits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.simulated_clock import Process, Task
    from tests.simulation.simulated_disk import Disk

__all__ = ["HandOvers"]

_LEASE = "/lease.json"

_REFUSALS = (
    ("fenced off: another run of this query", "refused by the fence of a table"),
    ("fenced off: another run, of epoch", "refused by the epoch of a manifest or a snapshot"),
    ("fenced off", "refused by the lease"),
    ("another query runs on it", "refused by the lease"),
    ("Concurrent", "refused by Delta, as a conflict"),
    ("others commit to it at the same time", "refused by Delta, as a conflict"),
    ("CONCURRENT_STREAM_LOG_UPDATE", "refused by Spark's log"),
)


@dataclass(eq=False)
class _Sleeper:
    """A process that stands still: its task that runs first afterwards, when it wakes, and the leases that it held."""

    process: Process
    task: Task | None
    operations: int
    held: dict[str, str]


class HandOvers:
    """What happened to the processes of a disk that stood still.

    Attributes:
        woken: The processes that went on after another driver had taken their lease.
        late_commits: The commits to an output of runs whose successor had begun to write.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._sleepers: list[_Sleeper] = []
        self.woken: list[Process] = []
        self.late_commits: list[str] = []

    def put_to_sleep(self, process: Process, seconds: float, task: Task | None = None, wakes: int = 0) -> None:
        """Let a process stand still.

        Args:
            process: The process.
            seconds: For how long.
            task: The task that runs first when drivers that have taken over wake the process.
            wakes: After how many operations of such drivers it wakes, if that is sooner; 0 where only time wakes it.
        """
        running = self._disk.scheduler
        if process.swapping:
            return
        process.paused_until = running.now + seconds
        held = {path: owner for path, owner in self._owners().items() if owner in process.owners}
        self._sleepers.append(_Sleeper(process, task, wakes, held))

    def note_operation(self, process: Process) -> None:
        """Note that a process goes on, or that one which holds a lease runs an operation beside those that sleep."""
        running = self._disk.scheduler
        for each in list(self._sleepers):
            if each not in self._sleepers:
                # It went on while another that was woken ran.
                continue
            if each.process is process:
                self._sleepers.remove(each)
                self._woke(each)
            elif each.process.is_dead:
                self._sleepers.remove(each)
            elif each.operations and process.owners:
                each.operations -= 1
                if not each.operations and each.task is not None:
                    each.process.paused_until = running.now
                    running.let(each.task)

    def _woke(self, sleeper: _Sleeper) -> None:
        now = self._owners()
        if any(now.get(path, owner) != owner for path, owner in sleeper.held.items()):
            self.woken.append(sleeper.process)

    def _owners(self) -> dict[str, str]:
        files = self._disk.files
        return {path: json.loads(files[path].content)["content"]["owner"] for path in files if path.endswith(_LEASE)}

    def counted(self) -> Counter[str]:
        """Return how many hand-overs there were with a holder that woke later, and how each of those ended."""
        counted = Counter({"hand-overs": len(self.woken), "double commits": len(self.late_commits)})
        for process in self.woken:
            text = "" if process.error is None else str(process.error)
            if not text:
                what = "ended before it wrote again"
            else:
                what = next((why for words, why in _REFUSALS if words in text), "stopped by another fault")
            counted[what] += 1
        return counted
