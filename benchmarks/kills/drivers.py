"""Drivers in processes of their own (``killed_driver.py``): started, watched, stopped, woken, and ended for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.session import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from benchmarks.kills.killed_driver import Step

__all__ = ["Driver", "DriverError", "is_alive", "state_of"]

PATIENCE_SECONDS = 1_200


class DriverError(RuntimeError):
    """A driver did not do what it was told, or did not end; the message holds the end of its log."""


class Driver:
    """A process that does steps, with its JVM in its own process group; nothing of it is left after the ``with`` block.

    Args:
        steps: What it does, one after the other.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.lives_on = False
        """Whether the block leaves a JVM alone that is to end by itself."""
        self._log = steps[0].path.with_name("driver.log")
        command = [sys.executable, "-m", "benchmarks.kills.killed_driver", *(str(step.write()) for step in steps)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.lives_on:
            self.signal(signal.SIGKILL)
        self._process.wait()

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-2000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its JVM, as far as they live."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self, step: Step) -> None:
        """Kill from outside who is the step's victim."""
        if step.victim == "JVM":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.jvm(step), signal.SIGKILL)
        elif step.victim == "Python":
            self._process.kill()
        else:
            self.signal(signal.SIGKILL)

    def jvm(self, step: Step) -> int:
        """Return the JVM's process, once a step has begun."""
        return int(step.path.with_name("jvm").read_text())

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that it brings about.

        Raises:
            DriverError: It has ended, or it takes too long.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if self._process.poll() is not None and not holds():
                msg = f"the driver ended before {what}: {self.log}"
                raise DriverError(msg)
            if time.monotonic() > deadline:
                msg = f"{what} did not come: {self.log}"
                raise DriverError(msg)
            time.sleep(0.005)

    def wait_for_file(self, step: Step, name: str) -> str:
        """Wait until a step has written a file; returns its text."""
        path = step.path.with_name(name)
        self.wait_until(path.exists, f"{name!r} of {step.phase}, {step.name}")
        return path.read_text()

    def wait_until_stopped(self, step: Step) -> None:
        """Wait until the process and its JVM stand still."""
        pids = self._process.pid, self.jvm(step)
        self.wait_until(lambda: all(state_of(pid) == "T" for pid in pids), "standing still")

    def wait(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the Python process has ended by itself.

        Raises:
            DriverError: It takes too long.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            msg = f"the driver did not end within {seconds:g} s: {self.log}"
            raise DriverError(msg) from None


def state_of(pid: int) -> str | None:
    """Return a process's state, such as ``"T"`` for one that stands still; None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process lives; one that only waits for its parent to look does not."""
    return state_of(pid) not in {None, "Z", "X"}
