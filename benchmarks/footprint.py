"""What a process and all its children take: memory as PSS, so that shared pages count once, and CPU seconds.

To the tree belong the descendants, and whoever is in the session that the process leads, if its parent is gone. CPU is
user and system time by ``/proc/PID/stat``, with that of children that ended and were waited for; what a process took
whose parent ended before it counts as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Footprint", "end_tree"]

_TICKS = os.sysconf("SC_CLK_TCK")
_FURTHER_LOOKS, _LOOK_SECONDS = 2, 0.02


class Footprint:
    """Samples a process tree while it is entered; ``peak`` is in bytes (0 where the system has no PSS).

    A sample of a large process stops it for a while, so samples are few, and get fewer after a quick start. What would
    be a new peak is looked at again: from the moment a JVM starts a program until the program runs, the new process is
    the JVM's own memory under another name, and would count a second time.
    """

    def __init__(self, process: int | None = None) -> None:
        self.peak = 0
        self._process = os.getpid() if process is None else process
        self._cpu_seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def cpu_seconds(self) -> float:
        """Return what the tree has used until now; it never goes back."""
        ticks = sum(_tree(self._process).values())
        self._cpu_seconds = max(self._cpu_seconds, ticks / _TICKS)
        return self._cpu_seconds

    def _sample(self) -> None:
        pause = 0.1
        while not self._done.wait(pause):
            pause = min(2.0, pause * 1.2)
            memory = self._memory()
            for _ in range(_FURTHER_LOOKS):
                if memory > self.peak and not self._done.wait(_LOOK_SECONDS):
                    memory = min(memory, self._memory())
            self.peak = max(self.peak, memory)
            self.cpu_seconds()

    def _memory(self) -> int:
        return sum(map(_pss, _tree(self._process)))


def end_tree(process: int) -> None:
    """Kill a process and all its children, each by its own id."""
    for each in _tree(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _tree(root: int) -> dict[int, int]:
    """Return the processes of the tree and the CPU ticks of each."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    waiting = [root]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        process, parent, session = int(entry.name), int(fields[1]), int(fields[3])
        ticks[process] = sum(map(int, fields[11:15]))
        children.setdefault(parent, []).append(process)
        if session == root:
            waiting.append(process)
    found: dict[int, int] = {}
    while waiting:
        process = waiting.pop()
        if process in ticks and process not in found:
            found[process] = ticks[process]
            waiting += children.get(process, [])
    return found


def _pss(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
