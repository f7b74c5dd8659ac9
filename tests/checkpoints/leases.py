"""The files of leases, as the tests read them, and as another process would write them."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.checkpoints import lease
from cojoin.checkpoints.lease import process_started
from cojoin.storage.documents import write_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.storage.store import Store

on_linux = pytest.mark.skipif(process_started(os.getpid()) is None, reason="only /proc tells of another process")


def stored(files: Store) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(files.read("lease.json") or "")["content"]
    return values


def said(files: Store, epoch: int = 1) -> dict[str, Any]:
    """Return what a holder's own file says."""
    text = files.read(f"beats/{epoch:012d}.json")
    values: dict[str, Any] = {"beat": 0} if text in {None, "[]"} else json.loads(text or "")["content"]
    return values


def says(files: Store, **values: Any) -> None:
    """Write the own file of ``held_by``'s other process."""
    content = {"owner": "someone else", "beat": 3, "released": False, "ended": None}
    write_document(files, f"beats/{7:012d}.json", lease._HEARTBEAT_FORM, content | values)


def held_by(files: Store, **values: Any) -> None:
    """Write another process's lease."""
    record = {
        "epoch": 7,
        "owner": "someone else",
        "host": "elsewhere",
        "pid": 11,
        "process_started": None,
        "beat": 0,
        "beat_seconds": 0.1,
        "released": False,
        "ended": None,
    }
    write_document(files, "lease.json", lease._FORM, record | values)


@contextmanager
def beating(files: Store, seconds: float) -> Iterator[None]:
    """Let the other process's beat grow meanwhile."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(seconds):
            says(files, beat=said(files, 7)["beat"] + 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
