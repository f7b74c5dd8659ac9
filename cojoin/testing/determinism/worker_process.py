"""The parent's end of a ``worker``: starts it with a hash seed, sends it the plan and the rows, and asks it to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cojoin.engine.values.codec import write_table
from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.testing.determinism.delivery_runner import RunOutput
from cojoin.testing.determinism.function_pickling import dumps
from cojoin.testing.determinism.worker import read_frame, write_frame
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.testing.determinism.deliveries import Delivery
    from cojoin.testing.determinism.shifted_clock import Clock

__all__ = ["WorkerProcess", "pickle_plan"]

_PATIENCE_SECONDS = 120
_CODE = "import sys; sys.path[:] = {path!r}; from cojoin.testing.determinism.worker import serve; serve()"


def pickle_plan(plan: Plan) -> bytes:
    """Return a plan as bytes that another process of this machine can read.

    Raises:
        ConfigurationError: The function can't be pickled; the message names the attribute at fault, if it is one.
    """
    error, pickled = _pickled(plan)
    if pickled is not None:
        return pickled
    function = getattr(plan.operation, "function", plan.operation)
    name = type(function).__name__
    for attribute, value in vars(function).items():
        reason, _ = _pickled(value)
        if reason is not None:
            what = f"its attribute {attribute!r} (a {type(value).__name__})"
            break
    else:
        what, reason = "something that it or its methods name", error
    msg = (
        f"check_determinism also runs {name} in other processes, with other hash seeds and clocks, and {what} can't be "
        f"pickled: {reason}; make it in open(), and close it in close(), as a function on Spark must, too"
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
    """A process that runs deliveries one after the other; ``close`` ends it.

    Args:
        pickled: The plan, of ``pickle_plan``.
        rows: The rows of both inputs.
        hash_seed: Its ``PYTHONHASHSEED``, by which sets of strings are iterated.
    """

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
        """Return the output of a delivery.

        Raises:
            ConfigurationError: The function can't be imported or unpickled in another process.
            HarnessError: The process ended, or does not answer.
        """
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
            told = json.loads(read_frame(self._answers))
        except (EOFError, OSError):
            raise self._ended() from None
        rows = {
            output: {key: [tuple(row) for row in found] for key, found in keys.items()}
            for output, keys in told["rows"].items()
        }
        return RunOutput(rows, told["error"])

    def _ended(self) -> HarnessError:
        code = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read().decode(errors="replace").strip().splitlines()[-8:]
        return HarnessError("\n".join([f"a process of the check ended with exit code {code}", *told]))
