"""Runs of deliveries in this process and in others, and the comparison of two of them.

The other processes have their own hash seeds, and clocks that can be shifted or stopped. Each is started for its first
run. Its parent writes frames: eight bytes of length, then the content. The first frames are the plan and the rows; then
each request is answered by one frame.

The plan is pickled by cloudpickle, PySpark's where it is installed, and comes through a pipe that only the parent
holds. Nothing else in cojoin reads pickled bytes.

``install`` replaces the functions of ``time`` in such a process, and ``now``, ``utcnow`` and ``today`` of ``datetime``,
from which pandas takes its time too. A class written in C refuses new attributes, so they are put into its dictionary;
an interpreter that refuses this too keeps ``datetime`` as it is. The clocks of other libraries written in C, such as
``numpy.datetime64("now")``, are not shifted; they differ when a run is repeated.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cojoin.engine.values.codec import read_table, write_table
from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.installed_packages import is_installed
from cojoin.testing.determinism.deliveries import Delivery, DeliveryRunner, RunOutput
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Future
    from typing import IO

    from typing_extensions import Self

    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan


_TIME, _MONOTONIC, _PERFORMANCE = time.time, time.monotonic, time.perf_counter
_LOCAL, _UTC, _TEXT, _FORMAT = time.localtime, time.gmtime, time.ctime, time.strftime
_URANDOM = os.urandom
_NANOS = 1_000_000_000
_SEED = 7


@dataclass(frozen=True)
class Clock:
    """The clock and the random numbers of a run, which begins at a time in epoch seconds, or for None at the real one.

    The clock may stand still; ``random``, ``numpy.random`` and ``os.urandom`` may begin with one seed.
    """

    at: int | None = None
    stands_still: bool = False
    seeds_random: bool = False


_current = Clock()
_shift = 0.0


def set_clock(clock: Clock) -> None:
    """Set the clock of the next run."""
    global _current, _shift
    _current, _shift = clock, 0.0 if clock.at is None else clock.at - _TIME()
    os.urandom = random.randbytes if clock.seeds_random else _URANDOM
    if clock.seeds_random:
        random.seed(_SEED)
        np.random.seed(_SEED)  # noqa: NPY002 - the generator that functions use without saying so


def install() -> None:
    """Replace the clocks of this process by ones that ``set_clock`` moves; modules imported before may keep theirs."""
    replaced: dict[str, Callable[..., Any]] = {
        "time": _now,
        "time_ns": lambda: round(_now() * _NANOS),
        "monotonic": lambda: _ticks(_MONOTONIC),
        "monotonic_ns": lambda: round(_ticks(_MONOTONIC) * _NANOS),
        "perf_counter": lambda: _ticks(_PERFORMANCE),
        "perf_counter_ns": lambda: round(_ticks(_PERFORMANCE) * _NANOS),
        "localtime": lambda seconds=None: _LOCAL(_now() if seconds is None else seconds),
        "gmtime": lambda seconds=None: _UTC(_now() if seconds is None else seconds),
        "ctime": lambda seconds=None: _TEXT(_now() if seconds is None else seconds),
        "strftime": lambda pattern, moment=None: _FORMAT(pattern, _LOCAL(_now()) if moment is None else moment),
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    attributes: Any = gc.get_referents(datetime.__dict__)[0]
    with suppress(TypeError, AttributeError):
        attributes["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(_now(), tz))
        attributes["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(_now(), timezone.utc).replace(tzinfo=None))
        attributes["today"] = classmethod(lambda cls: cls.fromtimestamp(_now()))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _now() -> float:
    if _current.stands_still and _current.at is not None:
        return float(_current.at)
    return _TIME() + _shift


def _ticks(real: Callable[[], float]) -> float:
    return 1.0 if _current.stands_still else real()


HASH_SEEDS = (1, 2, 3)
"""The hash seeds of the other processes."""


@dataclass(frozen=True)
class Run:
    """A delivery, and the hash seed and clock of its process; a seed of None is this process, with the real clock."""

    delivery: Delivery
    hash_seed: int | None = None
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Contrast:
    """Two runs that must emit the same rows, of one key or for None of all keys."""

    first: Run
    second: Run
    key: str | None = None

    def of_rows(self, kept: Collection[int], last_events: tuple[int, int]) -> Contrast:
        """Return the contrast with some of the rows."""
        first, second = (
            replace(run, delivery=run.delivery.of_rows(kept, last_events)) for run in (self.first, self.second)
        )
        return Contrast(first, second, self.key)

    @property
    def rows(self) -> list[int]:
        """The rows of either run."""
        return sorted({*self.first.delivery.rows, *self.second.delivery.rows})


class Seen(NamedTuple):
    """A contrast whose runs differ, and their outputs."""

    contrast: Contrast
    first: RunOutput
    second: RunOutput


class Laboratory:
    """Runs deliveries of one plan over the rows of both inputs; ``close`` ends its processes."""

    def __init__(self, plan: Plan, rows: Sides) -> None:
        self.runner = DeliveryRunner(plan, rows)
        self._pickled = pickle_plan(self.runner.plan)
        self._in_time = getattr(plan.operation, "order", "event_time") == "event_time"
        self._workers: dict[int, WorkerProcess] = {}

    def worker(self, hash_seed: int) -> WorkerProcess:
        """Return the process with a hash seed, after starting it if need be."""
        if hash_seed not in self._workers:
            self._workers[hash_seed] = WorkerProcess(self._pickled, self.runner.tables, hash_seed)
        return self._workers[hash_seed]

    def ask(self, run: Run) -> Future[RunOutput]:
        """Ask another process for a run."""
        assert run.hash_seed is not None
        return self.worker(run.hash_seed).ask(run.delivery, run.clock)

    def run(self, run: Run) -> RunOutput:
        """Return the output of a run."""
        if run.hash_seed is None:
            return self.runner.run(run.delivery)
        return self.worker(run.hash_seed).run(run.delivery, run.clock)

    def compare(self, contrast: Contrast) -> Seen | None:
        """Run both runs; return their outputs if these differ, else None."""
        first, second = self.run(contrast.first), self.run(contrast.second)
        if contrast.key is not None:
            first, second = first.of_key(contrast.key), second.of_key(contrast.key)
        differs = self.differs(contrast.first, first, contrast.second, second)
        return Seen(contrast, first, second) if differs else None

    def differs(self, first: Run, first_output: RunOutput, second: Run, second_output: RunOutput) -> bool:
        """Return whether the outputs of two runs differ.

        A key's rows must come in one order, except that in arrival order they follow the delivery.
        """
        ordered = self._in_time or first.delivery == second.delivery
        return first_output.differs(second_output, ordered=ordered)

    def close(self) -> None:
        """End the other processes."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_PATIENCE_SECONDS = 120
_CODE = "import sys; sys.path[:] = {path!r}; from cojoin.testing.determinism.processes import serve; serve()"


def pickle_plan(plan: Plan) -> bytes:
    """Return a plan as bytes for another process; an error names the attribute that can't be pickled."""
    error, pickled = _pickled(plan)
    if pickled is not None:
        return pickled
    function = getattr(plan.operation, "function", plan.operation)
    name = type(function).__name__
    for attribute, value in vars(function).items():
        reason, _ = _pickled(value)
        if reason is not None:
            culprit = f"its attribute {attribute!r} (a {type(value).__name__})"
            break
    else:
        culprit, reason = "something that it or its methods name", error
    msg = (
        f"check_determinism also runs {name} in other processes, with other hash seeds and clocks, and {culprit} can't "
        f"be pickled: {reason}; make it in open(), and close it in close(), as a function on Spark must, too"
    )
    raise ConfigurationError(msg)


def _pickled(value: Any) -> tuple[str | None, bytes | None]:
    try:
        return None, dumps(value)
    except EnvironmentSetupError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code
        return str(error), None


class WorkerProcess:
    """A process with a ``PYTHONHASHSEED`` that runs deliveries of a pickled plan; ``close`` ends it."""

    def __init__(self, pickled: bytes, rows: Sides, hash_seed: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, without a shell
            [sys.executable, "-c", _CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._thread = ThreadPoolExecutor(1)
        self._ready = self._thread.submit(self._begin, [pickled, *map(write_table, rows)])

    def ask(self, delivery: Delivery, clock: Clock) -> Future[RunOutput]:
        """Ask for the output of a delivery; requests are answered in their order."""
        request = json.dumps({"delivery": delivery.to_json(), "clock": asdict(clock)}).encode()
        return self._thread.submit(self._answer, request)

    def run(self, delivery: Delivery, clock: Clock) -> RunOutput:
        """Return the output of a delivery, unless the process ends or does not answer in time."""
        try:
            return self.ask(delivery, clock).result(_PATIENCE_SECONDS)
        except NoAnswer:
            self.close()
            msg = f"a run in another process did not end within {_PATIENCE_SECONDS} s"
            raise HarnessError(msg) from None

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        self._thread.shutdown(cancel_futures=True)
        for stream in (self._requests, self._answers, self._errors):
            with suppress(OSError):
                stream.close()

    def _begin(self, frames: list[Any]) -> None:
        try:
            for frame in frames:
                write_frame(self._requests, frame)
            refusal = json.loads(read_frame(self._answers)).get("refusal")
        except (EOFError, OSError):
            raise self._ended() from None
        if refusal is not None:
            msg = (
                f"check_determinism also runs the function in other processes, and one could not load it; put what it "
                f"imports where Python finds it:\n{refusal}"
            )
            raise ConfigurationError(msg)

    def _answer(self, request: bytes) -> RunOutput:
        self._ready.result()
        try:
            write_frame(self._requests, request)
            answer = json.loads(read_frame(self._answers))
        except (EOFError, OSError):
            raise self._ended() from None
        rows = {
            output: {key: [tuple(row) for row in rows_of_key] for key, rows_of_key in keys.items()}
            for output, keys in answer["rows"].items()
        }
        return RunOutput(rows, answer["error"])

    def _ended(self) -> HarnessError:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-8:]
        return HarnessError("\n".join([f"a process of the check ended with exit code {code}", *lines]))


_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], content: Any) -> None:
    """Write a frame and flush the stream."""
    stream.write(_LENGTH.pack(memoryview(content).nbytes))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Return the content of the next frame; ``EOFError`` if the stream has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return stream.read(length)


def serve() -> None:
    """Answer the parent's requests until it closes its end."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What the function prints must not come between the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(EOFError, BrokenPipeError):
        _answer(requests, answers)


def _answer(requests: IO[bytes], answers: IO[bytes]) -> None:
    install()
    pickled, tables = read_frame(requests), (read_table(read_frame(requests)), read_table(read_frame(requests)))
    try:
        runner = DeliveryRunner(loads(pickled), tables)
    except Exception:  # noqa: BLE001 - unpickling imports the user's modules
        write_frame(answers, json.dumps({"refusal": traceback.format_exc(limit=-2)}).encode())
        return
    write_frame(answers, b"{}")
    while True:
        request = json.loads(read_frame(requests))
        set_clock(Clock(**request["clock"]))
        output = runner.run(Delivery.from_json(request["delivery"]))
        set_clock(Clock())
        write_frame(answers, json.dumps({"rows": output.rows, "error": output.error}).encode())


def dumps(value: Any) -> bytes:
    """Return a value as bytes; classes and functions of ``__main__`` by their code, as Spark sends them to workers."""
    # Imported here since other checks and the harness never load Spark by themselves.
    if is_installed("pyspark"):
        from cojoin.session.sealed import pickled  # noqa: PLC0415

        return pickled(value)
    if is_installed("cloudpickle"):
        import cloudpickle  # noqa: PLC0415

        return bytes(cloudpickle.dumps(value))
    msg = (
        "check_determinism also runs the function in other processes: expected the package cloudpickle, or "
        "pyspark, which has its own, found none; run: pip install cloudpickle"
    )
    raise EnvironmentSetupError(msg)


def loads(content: bytes) -> Any:
    """Return the value of the bytes of ``dumps``, which this process's parent has made."""
    return pickle.loads(content)  # noqa: S301 - from the parent, which is of the same user and package
