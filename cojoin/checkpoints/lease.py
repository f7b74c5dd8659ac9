"""The lease: one query runs on a checkpoint at a time, and one that was killed starts again without anybody's help.

``lease.json`` names the holder: owner, epoch, host, process. A file beside it, which only the holder writes, has a beat
that grows while it lives, and says when it has released or ended the checkpoint; so a holder that stood still and goes
on overwrites nobody's name. On the same machine the process itself tells whether it lives; between machines no clock is
compared, only whether the beat moves. Every take-over has a higher epoch, and who was taken over finds out at its next
``check``.

What this can't do: file systems have no compare-and-swap. Two that take over within the same moment both write, wait,
and the one that finds the other's name loses; a holder that stands still for longer than the patience (a suspended
machine) loses the lease, and may finish what it had begun before its next check.
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
# Release 0.5.0 had the beat and the end here, too.
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
# Two takers must see each other's file: longer than one needs from its look to its write.
_SETTLE_SECONDS = 0.2
_POLL_SECONDS = 0.25
_STANDING_BEATS = 3

_live: dict[str, Lease] = {}
_live_lock = threading.Lock()


@dataclass(frozen=True)
class _Record:
    """What ``lease.json`` says, with what its holder's own file adds."""

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
    """The right to run on a checkpoint; ``Lease.acquire`` gives it."""

    def __init__(self, files: CheckpointFiles, record: _Record) -> None:
        self._files, self._record = files, record
        self._beats = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def epoch(self) -> int:
        """Which holder this is, counted from 1."""
        return self._record.epoch

    @property
    def is_held(self) -> bool:
        """Whether this process still beats for it: neither released, ended, nor known to be lost."""
        return not self._stopped.is_set()

    @classmethod
    def acquire(cls, files: CheckpointFiles, *, patience_seconds: float = 30.0, beat_seconds: float = 5.0) -> Lease:
        """Take the checkpoint, from a holder that lives no more if need be.

        Args:
            files: The checkpoint.
            patience_seconds: For how long another machine's beat must stand still; at least three of its beats.
            beat_seconds: How often this lease beats.

        Raises:
            CheckpointError: Another query runs on it; or it was ended for good; or nobody can tell, since its lease is
                damaged.
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
        # Known as live before it is written: another thread that reads it must not take it for a dead one.
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
        """See that the lease is still held; one small read.

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
        """Release the checkpoint; what is no longer held, or damaged, is left alone."""
        # Whoever takes it next is told of the damage.
        with contextlib.suppress(CheckpointError):
            self._finish(ended=None)

    def end(self, reason: str) -> None:
        """End the checkpoint for good: nobody can take it again.

        Args:
            reason: What a person is told who tries.
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
        """Write the record, unless someone was quicker, and see that it stays."""
        _, found = _look(self._files)
        # The same text: whoever beats or took it in between is alive.
        if found == seen:
            # Another's rename may come between ours: then theirs stands, and the look below says so.
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
            # Whatever happens here (the JVM may have gone), the next beat or check will see.
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
    """Mark a checkpoint as ended for good; who holds it is fenced off.

    Args:
        files: The checkpoint.
        reason: What a person is told who tries to run on it.
    """
    before, _ = _look(files)
    if before is not None and before.ended is not None:
        return
    epoch = 1 if before is None else before.epoch + 1
    started = _process_started(os.getpid())
    record = _Record(epoch, str(uuid.uuid4()), socket.gethostname(), os.getpid(), started, released=True, ended=reason)
    files.write(_FILE, record.to_text())


def ended(files: CheckpointFiles) -> str | None:
    """Return why a checkpoint was ended for good; None where it was not.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record, _ = _look(files)
    return None if record is None else record.ended


def holder(files: CheckpointFiles) -> str | None:
    """Return who holds a checkpoint, dead or alive, for people; None where it is free.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record, _ = _look(files)
    return None if record is None or record.released else str(record)


def is_live(files: CheckpointFiles, *, patience_seconds: float = 30.0) -> bool:
    """Return whether a query runs on a checkpoint, without taking it.

    Args:
        files: The checkpoint.
        patience_seconds: For how long another machine's beat is watched, as in ``Lease.acquire``.

    Raises:
        CheckpointError: Nobody can tell, since its lease is damaged.
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
    """Return who holds a checkpoint, with what its own file says of it, and both texts, which grow while it lives."""
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
    """Name a living process of this machine beyond its reusable number; None where there is none, or no way to know."""
    try:
        # The command's name may hold blanks and brackets: what follows begins after the last one.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        # A zombie has ended; only its parent has not looked yet.
        return None if stat[0] in "ZX" else f"{_boot()}/{stat[19]}"
    except (OSError, IndexError):
        return None


@functools.cache
def _boot() -> str:
    """Name the running kernel and the space of process numbers: containers share the one and not the other."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot_id}/{Path('/proc/self/ns/pid').readlink()}"
