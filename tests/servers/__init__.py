"""Real servers for the tests: each a process of its own, found by its own ports, ended by its own id.

A server writes to a log file, and whoever waits for it in vain is shown the end of that file: what went wrong in
another process is otherwise lost. Nothing here looks for processes by name, so servers of other runs are safe.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Options by which a JVM does not mention that an archive of classes is another class path's."""


def archive(name: str) -> Path:
    """Return the path of an archive of classes, ``"spark"`` or ``"kafka"``, whether it exists or not."""
    return Path(sys.prefix) / f"{name}.jsa"


def archive_options(name: str) -> str:
    """Return the JVM's options that read an archive; none where it was not made."""
    return f"-XX:SharedArchiveFile={archive(name)} {QUIET}" if archive(name).is_file() else ""


class ServerError(RuntimeError):
    """A server ended, did not answer in time, or refused; the message holds the end of its log."""


class Server:
    """One process with its log: started at once, waited for, and stopped at the latest by `kill`."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        """Start `command` in `folder`, where its output goes to `<name>.log`."""
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        """The process id, which stays the server's own until `stop` has returned."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return as soon as `ready` does say so; an `OSError` from it counts as "not yet"."""
        deadline = time.monotonic() + seconds
        while True:
            if (code := self._process.poll()) is not None:
                raise ServerError(self.report(f"ended with exit code {code}"))
            try:
                if ready():
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise ServerError(self.report(f"was not ready after {seconds:g} s"))
            time.sleep(0.1)

    def report(self, what: str, lines: int = 40) -> str:
        """A message that says `what` happened and shows the last `lines` of the log."""
        tail = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"{self.name} (process {self.pid}) {what}; the end of its log:", *tail])

    def stop(self, seconds: float = 15) -> None:
        """Ask the process to end, and make it end when it has not done so after `seconds`."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on; they are held all at once, so no two are the same."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
