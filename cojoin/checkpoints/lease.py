"""The lease of a checkpoint: one query runs on it at a time, and a query that was killed can start again unaided.

``lease.json`` names the holder: owner, epoch, host and process. A second file, which only the holder writes, has a
heartbeat counter that grows while the holder is alive, and says whether the holder has released or ended the
checkpoint. A holder that was suspended and continues therefore never overwrites the record of its successor.

On the same machine, a holder is alive if its process is. Between machines no clocks are compared, only whether the
heartbeat changes. Every takeover has a higher epoch, and the former holder notices it at its next ``check``.

There is a limit to this, because file systems have no compare-and-swap. Two queries that take over at the same moment
both write and wait, and the one that then reads the other's record gives up. A holder that is suspended for longer
than the patience loses the lease, and may still finish what it had begun before its next check.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.documents import Form, from_text, numbered_name, numbers_in, read_text, to_text, write_document
from cojoin.storage.small_files import UnplacedFileError

if TYPE_CHECKING:
    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["Lease", "end", "ended", "holder", "is_live"]

_FILE = "lease.json"
_CURE = (
    "see that no query runs on the checkpoint, and that none was restored from it into the same output; then delete "
    "this file"
)
# Release 0.5.0 kept the beat and the end in this file, too.
_FORM = Form(
    "the lease that keeps a second query away",
    2,
    _CURE,
    {
        "epoch": int,
        "owner": str,
        "host": str,
        "pid": int,
        "process_started": (str, type(None)),
        "beat": int,
        "beat_seconds": (int, float),
        "released": bool,
        "ended": (str, type(None)),
    },
    unsealed=1,
)
_BEATS = "beats"
_BEAT_FORM = Form(
    "the sign of life of the query that holds the lease",
    1,
    _CURE,
    {"owner": str, "beat": int, "released": bool, "ended": (str, type(None))},
)
# Longer than the time from a query's read to its write: two that take over then both read the later record.
_SETTLE_SECONDS = 0.2
_POLL_SECONDS = 0.25
_STANDING_BEATS = 3

_live: dict[str, Lease] = {}
_live_lock = threading.Lock()


@dataclass(frozen=True)
class _Record:
    """The content of ``lease.json``, merged with the holder's own file."""

    epoch: int
    owner: str
    host: str
    pid: int
    process_started: str | None
    beat: int = 0
    beat_seconds: float = 5.0
    released: bool = False
    ended: str | None = None

    def to_text(self) -> str:
        return to_text(_FILE, _FORM, asdict(self))

    def __str__(self) -> str:
        return f"host {self.host!r}, process {self.pid}, epoch {self.epoch}"


class Lease:
    """The right to run on a checkpoint; ``Lease.acquire`` creates it."""

    def __init__(self, files: CheckpointFiles, record: _Record) -> None:
        self._files, self._record = files, record
        self._beats = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def epoch(self) -> int:
        """The number of this holder, counted from 1."""
        return self._record.epoch

    @property
    def is_held(self) -> bool:
        """Whether this process still writes heartbeats: the lease is neither released, ended, nor known to be lost."""
        return not self._stopped.is_set()

    @classmethod
    def acquire(cls, files: CheckpointFiles, *, patience_seconds: float = 30.0, beat_seconds: float = 5.0) -> Lease:
        """Acquire the lease of a checkpoint, taking it over where its holder is no longer alive.

        Args:
            files: The checkpoint.
            patience_seconds: For how long a heartbeat from another machine must not change before the holder counts as
                dead; at least three heartbeats.
            beat_seconds: The interval between heartbeats of this lease.

        Returns:
            The lease, whose heartbeats have started.

        Raises:
            CheckpointError: Another query runs on the checkpoint, the checkpoint was ended, or its lease is damaged.
        """
        before, text = _look(files)
        if before is not None:
            _refuse_ended(files, before)
            if _lives(files, before, text, patience_seconds):
                raise _taken(files, before)
        record = _Record(
            epoch=1 if before is None else before.epoch + 1,
            owner=str(uuid.uuid4()),
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=_process_started(os.getpid()),
            beat_seconds=beat_seconds,
        )
        lease = cls(files, record)
        # Registered before it is written: another thread that reads it must not take the holder for dead.
        with _live_lock:
            _live[record.owner] = lease
        try:
            lease._take(text)
        except BaseException:
            lease._forget()
            raise
        threading.Thread(target=lease._beat, name="cojoin-lease", daemon=True).start()
        return lease

    def check(self) -> None:
        """Check that the lease is still held; this costs one read of a small file.

        Raises:
            QueryFailedError: Another query took over, or the checkpoint was ended or deleted, or its lease is damaged.
        """
        try:
            now = self._read()
        except CheckpointError as error:
            self._forget()
            msg = f"{error}. This query held epoch {self.epoch} and stops here, since another may have taken over"
            raise QueryFailedError(msg) from error
        if now is not None and self._is_ours(now):
            return
        self._forget()
        if now is None:
            why = f"{_FILE} is gone: the checkpoint was deleted under the running query"
        elif now.ended is not None:
            why = f"the checkpoint was ended: {now.ended}"
        elif now.released:
            why = f"another query took over at epoch {now.epoch}, and has ended"
        else:
            why = f"another query took over at epoch {now.epoch} ({now})"
        msg = (
            f"checkpoint {self._files.root}: fenced off: {why}; this query held epoch {self.epoch} and stops here, "
            f"start it again once nothing else runs on the checkpoint"
        )
        raise QueryFailedError(msg)

    def release(self) -> None:
        """Release the lease; one that is no longer held, or is damaged, is left unchanged."""
        # A damaged lease is reported when it is acquired next.
        with contextlib.suppress(CheckpointError):
            self._finish(ended=None)

    def end(self, reason: str) -> None:
        """End the checkpoint: its lease can never be acquired again.

        Args:
            reason: The reason, for the message of a later attempt.
        """
        self._finish(ended=reason)

    def _finish(self, ended: str | None) -> None:
        with self._lock:
            if not self.is_held:
                return
            self._forget()
            now = self._read()
            if now is not None and self._is_ours(now):
                self._say(released=True, ended=ended)

    def _take(self, seen: str) -> None:
        """Write the record unless the lease has changed since, and check that it stays."""
        _, found = _look(self._files)
        # Where the text has changed, a holder has written a heartbeat or taken over meanwhile.
        if found == seen:
            # Where another query's rename comes first, its record stays, and the read below finds it.
            with contextlib.suppress(UnplacedFileError):
                self._files.write(_FILE, self._record.to_text())
            time.sleep(_SETTLE_SECONDS)
        now = self._read()
        if now is None:
            msg = f"checkpoint {self._files.root}: {_FILE} was deleted while the query started; start it again"
            raise CheckpointError(msg)
        if not self._is_ours(now):
            raise _taken(self._files, now)
        for each in numbers_in(self._files, _BEATS):
            if each != self.epoch:
                self._files.delete(numbered_name(_BEATS, each))

    def _read(self) -> _Record | None:
        text = read_text(self._files, _FILE, _FORM)
        return None if text is None else _parse(self._files, text)

    def _say(self, *, released: bool = False, ended: str | None = None) -> None:
        self._beats += 1
        content = {"owner": self._record.owner, "beat": self._beats, "released": released, "ended": ended}
        write_document(self._files, numbered_name(_BEATS, self.epoch), _BEAT_FORM, content)

    def _beat(self) -> None:
        while not self._stopped.wait(self._record.beat_seconds):
            # Errors, for example of a JVM that has ended, are left to the next beat or check.
            with contextlib.suppress(Exception), self._lock:
                if not self.is_held:
                    return
                now = self._read()
                if now is not None and self._is_ours(now):
                    self._say()
                elif now is not None:
                    self._forget()

    def _is_ours(self, record: _Record) -> bool:
        return (record.owner, record.epoch, record.released) == (self._record.owner, self._record.epoch, False)

    def _forget(self) -> None:
        self._stopped.set()
        with _live_lock:
            _live.pop(self._record.owner, None)


def end(files: CheckpointFiles, reason: str) -> None:
    """End a checkpoint: its lease can never be acquired again, and its holder is fenced off.

    Args:
        files: The checkpoint.
        reason: The reason, for the message of a later attempt.
    """
    before, _ = _look(files)
    if before is not None and before.ended is not None:
        return
    epoch = 1 if before is None else before.epoch + 1
    started = _process_started(os.getpid())
    record = _Record(epoch, str(uuid.uuid4()), socket.gethostname(), os.getpid(), started, released=True, ended=reason)
    files.write(_FILE, record.to_text())


def ended(files: CheckpointFiles) -> str | None:
    """Return the reason why a checkpoint was ended; None where it was not.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record, _ = _look(files)
    return None if record is None else record.ended


def holder(files: CheckpointFiles) -> str | None:
    """Return a text that names a checkpoint's holder, dead or alive; None where it is free.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record, _ = _look(files)
    return None if record is None or record.released else str(record)


def is_live(files: CheckpointFiles, *, patience_seconds: float = 30.0) -> bool:
    """Return whether a query runs on a checkpoint, without acquiring its lease.

    Args:
        files: The checkpoint.
        patience_seconds: For how long a heartbeat from another machine is watched, as in ``Lease.acquire``.

    Raises:
        CheckpointError: It is not known, because the lease is damaged.
    """
    record, text = _look(files)
    return record is not None and _lives(files, record, text, patience_seconds)


def _lives(files: CheckpointFiles, record: _Record, text: str, patience_seconds: float) -> bool:
    if record.released:
        return False
    here, there = _process_started(os.getpid()), record.process_started
    same_machine = here is not None and there is not None and _machine(here) == _machine(there)
    if same_machine and record.host == socket.gethostname():
        if (record.pid, there) == (os.getpid(), here):
            with _live_lock:
                return record.owner in _live
        return _process_started(record.pid) == there
    deadline = time.monotonic() + max(patience_seconds, _STANDING_BEATS * record.beat_seconds)
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now, found = _look(files)
        if found != text:
            return now is not None and not now.released
    return False


def _look(files: CheckpointFiles) -> tuple[_Record | None, str]:
    """Return the holder of a checkpoint, and the text of both files, which changes while the holder is alive."""
    text = read_text(files, _FILE, _FORM)
    if text is None:
        return None, ""
    record = _parse(files, text)
    name = numbered_name(_BEATS, record.epoch)
    own = read_text(files, name, _BEAT_FORM)
    if own is None:
        return record, text
    said = from_text(files, name, _BEAT_FORM, own, dict)
    if said["owner"] == record.owner:
        record = replace(record, released=said["released"], ended=said["ended"])
    return record, text + own


def _parse(files: CheckpointFiles, text: str) -> _Record:
    return from_text(files, _FILE, _FORM, text, lambda content: _Record(**content))


def _refuse_ended(files: CheckpointFiles, record: _Record) -> None:
    if record.ended is not None:
        msg = f"checkpoint {files.root} was ended for good: {record.ended}; start with another checkpoint"
        raise CheckpointError(msg)


def _taken(files: CheckpointFiles, record: _Record) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {files.root}: another query runs on it ({record}); stop it, or choose another checkpoint"
    )


def _machine(process_started: str) -> str:
    return process_started.rpartition("/")[0]


def _process_started(pid: int) -> str | None:
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
