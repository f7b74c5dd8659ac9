"""The process that runs deliveries with another hash seed and another clock, as its parent asks.

Its parent starts it (``worker_process``) and talks to it in frames: eight bytes of length, then the content. The first
frames are the plan and the rows. Then each request is answered by one frame. The plan was pickled by the parent and
comes through a pipe that only the parent holds.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cojoin.engine.values.codec import read_table
from cojoin.testing.determinism.deliveries import Delivery
from cojoin.testing.determinism.delivery_runner import DeliveryRunner
from cojoin.testing.determinism.function_pickling import loads
from cojoin.testing.determinism.shifted_clock import Clock, install, set_clock

if TYPE_CHECKING:
    from typing import IO

__all__ = ["read_frame", "serve", "write_frame"]

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], content: Any) -> None:
    """Write a frame and flush the stream."""
    stream.write(_LENGTH.pack(memoryview(content).nbytes))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Return the content of the next frame.

    Raises:
        EOFError: The stream has ended.
    """
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
        asked = json.loads(read_frame(requests))
        set_clock(Clock(**asked["clock"]))
        output = runner.run(Delivery.from_json(asked["delivery"]))
        set_clock(Clock())
        write_frame(answers, json.dumps({"rows": output.rows, "error": output.error}).encode())
