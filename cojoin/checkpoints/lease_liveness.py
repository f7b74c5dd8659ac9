"""Whether the holder of a lease is alive.

On the same machine, a holder is alive if its process is, however old its heartbeat; a holder of this process, if it is
registered. A holder on another machine is alive if its heartbeat changes within the lease timeout. No clocks are
compared.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.checkpoints.lease_record import LeaseRecord, read_lease

if TYPE_CHECKING:
    from cojoin.storage.store import Store

__all__ = ["forget_owner", "holder_is_alive", "is_live", "process_started", "register_owner"]

_POLL_SECONDS = 0.25
_MISSED_HEARTBEATS = 3

_owners: set[str] = set()
"""The owners of the leases that this process holds."""

_lock = threading.Lock()


def register_owner(owner: str) -> None:
    """Note that this process holds the lease of an owner."""
    with _lock:
        _owners.add(owner)


def forget_owner(owner: str) -> None:
    """Note that this process no longer holds the lease of an owner; an unknown one is ignored."""
    with _lock:
        _owners.discard(owner)


def is_live(files: Store, *, patience_seconds: float = 30.0) -> bool:
    """Return whether a query runs on a checkpoint, without acquiring its lease.

    Args:
        files: The checkpoint.
        patience_seconds: The lease timeout, as in ``Lease.acquire``: for how long another machine's heartbeat is
            watched.

    Raises:
        CheckpointError: It is not known, because the lease is damaged.
    """
    record, text, *_ = read_lease(files)
    return record is not None and holder_is_alive(files, record, text, patience_seconds)


def holder_is_alive(files: Store, record: LeaseRecord, text: str, patience_seconds: float) -> bool:
    """Return whether the holder of a lease is alive.

    Args:
        files: The checkpoint.
        record: The holder.
        text: The text of its files when it was read.
        patience_seconds: The lease timeout: for how long a heartbeat from another machine is watched.

    Raises:
        CheckpointError: It is not known, because the lease is damaged.
    """
    if record.released:
        return False
    here, there = process_started(os.getpid()), record.process_started
    same_machine = here is not None and there is not None and _machine(here) == _machine(there)
    if same_machine and record.host == socket.gethostname():
        if (record.pid, there) == (os.getpid(), here):
            with _lock:
                return record.owner in _owners
        return process_started(record.pid) == there
    deadline = time.monotonic() + max(patience_seconds, _MISSED_HEARTBEATS * record.beat_seconds)
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now, found, *_ = read_lease(files)
        if found != text:
            return now is not None and not now.released
    return False


def _machine(started: str) -> str:
    return started.rpartition("/")[0]


def process_started(pid: int) -> str | None:
    """Return an id of a live process on this machine that, unlike its pid, is not reused.

    Returns:
        The boot and the start time of the process; None where there is no such process, or no ``/proc``.
    """
    try:
        # The command's name may contain blanks and parentheses: the other fields follow the last parenthesis.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        # A zombie has ended; its parent has not yet read its exit status.
        return None if stat[0] in "ZX" else f"{_boot()}/{stat[19]}"
    except (OSError, IndexError):
        return None


@functools.cache
def _boot() -> str:
    """Return the ids of the boot and of the pid namespace: containers share the first and not the second."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot_id}/{Path('/proc/self/ns/pid').readlink()}"
