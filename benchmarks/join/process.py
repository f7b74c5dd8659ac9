"""One run of one contender in a process of its own, watched from outside.

The process leads a session and so a process group of its own. It is killed with all its children, each by its id, when
its time is over. Memory is the peak over its whole life; CPU seconds are those of the whole tree between the two lines
that it prints at the start and at the end of the timed part, to the hundredth as the system counts them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.footprint import Footprint, end_tree
from benchmarks.join.oracle import find_faults
from benchmarks.join.result import count_rows, result_files

if TYPE_CHECKING:
    from benchmarks.join.contender import Contender
    from benchmarks.join.generate import Size

__all__ = ["Run", "run_contender"]

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 60
CAUSE = re.compile(r"^Caused by: |^[\w.]*(Error|Exception)\b")


@dataclass
class Run:
    """What one run did.

    Attributes:
        name: Which contender.
        number: In which round.
        trades: How many trades it joined.
        versions: How many versions there were.
        files: How many files each input had.
        seconds: Of the timed part.
        cpu_seconds: Of the process tree in the timed part.
        whole_seconds: Of the whole process.
        peak_bytes: The most memory of the process tree.
        batches: The seconds of each batch, from those who tell.
        faults: What is wrong with its result, and in how many rows.
        failure: Why there is no result.
        told: What else it told.
    """

    name: str
    number: int
    trades: int
    versions: int
    files: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    whole_seconds: float = 0.0
    peak_bytes: int = 0
    batches: list[float] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    failure: str | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether it has a result, and a right one."""
        return self.failure is None and not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "is_exact": self.is_exact}


def run_contender(contender: Contender, size: Size, data: Path, work: Path, number: int) -> Run:
    """Run a contender and look at its result; a failure is a result too."""
    run = Run(contender.name, number, size.trades, size.versions, size.files)
    log = work / "stderr.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            contender.words(data, work),
            cwd=work,
            env=_variables(contender),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        _watch(process, run, contender.timeout_seconds)
    if run.failure is None and not (process.returncode == 0 and run.seconds):
        run.failure = f"exit code {process.returncode}: {_last_words(log)}"
    if run.failure is None:
        files = result_files(work / "out", contender.sink)
        if contender.answer is not None:
            run.faults = find_faults(data, files, contender.answer)
        elif (rows := count_rows(files)) != size.trades + size.versions:
            run.faults = {"rows too many or too few": abs(rows - size.trades - size.versions)}
    return run


def _watch(process: subprocess.Popen[str], run: Run, seconds: float) -> None:
    started = time.perf_counter()
    with Footprint(process.pid) as footprint:
        assert process.stdout is not None
        listener = threading.Thread(target=_listen, args=(process.stdout, run, footprint), daemon=True)
        listener.start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            run.failure = f"gave up after {seconds:,.0f} s"
        finally:
            end_tree(process.pid)
            process.wait()
        listener.join(END_SECONDS)
    run.whole_seconds, run.peak_bytes = time.perf_counter() - started, footprint.peak


def _listen(stdout: IO[str], run: Run, footprint: Footprint) -> None:
    """Take what the process tells; whatever else it prints is its own affair."""
    before = 0.0
    for line in stdout:
        if not line.startswith('{"event"'):
            continue
        told = json.loads(line)
        match told.pop("event"):
            case "started":
                before = footprint.cpu_seconds()
            case "finished":
                run.cpu_seconds = footprint.cpu_seconds() - before
                run.seconds = told.pop("seconds")
            case "batches":
                run.batches = told.pop("seconds")
        run.told |= told


def _variables(contender: Contender) -> dict[str, str]:
    own = {} if contender.environment is None else contender.environment.variables
    path = [str(ROOT), *filter(None, [own.get("PYTHONPATH"), os.environ.get("PYTHONPATH")])]
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(path)}


def _last_words(log: Path) -> str:
    """Return the line that names the cause, where one does, and the end of what was said."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    causes = [line.strip()[:300] for line in lines if CAUSE.search(line)]
    return "\n".join([*causes[-1:], *lines[-30:]])[:4000]
