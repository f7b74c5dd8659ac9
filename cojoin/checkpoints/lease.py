"""The lease of a checkpoint: one query runs on it at a time, and a query that was killed can start again unaided.

``lease.json`` names the holder: owner, epoch (the fencing token), host and process. A second file, ``beats/<epoch>``,
which only the holder writes, has a heartbeat counter that grows while the holder is alive, and whether the holder has
released or ended the checkpoint. A holder that was suspended and continues therefore never overwrites the record of its
successor.

A lease is taken over only where its holder is no longer alive. On the same machine a holder is alive if its process is,
however old its heartbeat; a holder of this process, if it is registered. On another machine it is alive if its
heartbeat changes within the lease timeout, so a holder that is suspended for longer loses the lease. No clocks are
compared.

A takeover is a compare-and-swap of ``lease.json`` with a higher epoch, so of several queries that take over at the same
moment one succeeds (``Store.replace``), and the former holder notices it at its next ``check``. Manifests, the index of
snapshots and the commits to Delta tables carry the epoch and are compared in the same way, so a former holder can't
overwrite what its successor has committed. Hadoop's file systems share no compare-and-swap
(``Store.has_conditional_writes`` is false): on them, two queries that take over at the same moment both write and wait,
and the one that then reads the other's record gives up.

A record that is older than a heartbeat file was put back from a backup. It is refused, since its epoch would be given
twice. The holder's own file also names the last manifest that counts, which reveals a former version of that, too.
Reading a damaged file raises ``CheckpointError``.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.checkpoints.manifest import Manifests
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.documents import (
    SETTLE_SECONDS,
    Form,
    damaged,
    from_text,
    numbered_name,
    numbers_in,
    read_tagged_text,
    read_text,
    replace_document,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.storage.store import Store

LEASE_FILE = "lease.json"
_CURE = (
    "see that no query runs on the checkpoint, and that none was restored from it into the same output; then delete "
    "this file"
)
# Release 0.5.0 kept the heartbeat counter and the end in this file, too.
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
_HEARTBEATS = "beats"
_HEARTBEAT_FORM = Form(
    "the sign of life of the query that holds the lease",
    1,
    _CURE,
    {"owner": str, "beat": int, "released": bool, "ended": (str, type(None))},
)
_POLL_SECONDS = 0.25
_MISSED_HEARTBEATS = 3
_owners: set[str] = set()
"""The owners of the leases that this process holds."""

_lock = threading.Lock()
_TRIES = 5


@dataclass(frozen=True)
class LeaseRecord:
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

    def __str__(self) -> str:
        return f"host {self.host!r}, process {self.pid}, epoch {self.epoch}"


class StoredLease(NamedTuple):
    """A checkpoint's lease as it was read; ``record`` is the holder, or None.

    ``text`` is that of both files, which changes while the holder is alive. ``tag`` is that of ``lease.json``, which
    changes when another query takes over; None without the file. ``counted`` is the last manifest that counts, as
    ``write_heartbeat`` wrote it; None where unknown. ``is_unfenced``: the holder has released the lease before it had
    fenced off an earlier one.
    """

    record: LeaseRecord | None
    text: str
    tag: str | None
    counted: Sequence[int] | None = None
    is_unfenced: bool = False


def read_record(files: Store) -> LeaseRecord | None:
    """Return the content of ``lease.json`` alone; None without the file."""
    text = read_text(files, LEASE_FILE, _FORM)
    return None if text is None else _parse(files, text)


def read_lease(files: Store) -> StoredLease:
    """Return the holder of a checkpoint, with the text and the tag of its files.

    Raises ``CheckpointError`` also where ``lease.json`` is a former version of itself.
    """
    known = newest_epoch(files)
    text, tag = read_tagged_text(files, LEASE_FILE, _FORM)
    if tag is None:
        return StoredLease(None, "", None)
    record = _parse(files, text)
    if record.epoch < known:
        # Read after the heartbeats were listed, it can't be behind them.
        why = f"it is of epoch {record.epoch}, and {numbered_name(_HEARTBEATS, known)} exists: it is a former version"
        raise damaged(files, LEASE_FILE, _FORM, why)
    name = numbered_name(_HEARTBEATS, record.epoch)
    own = read_text(files, name, _HEARTBEAT_FORM)
    if own is None:
        return StoredLease(record, text, tag)
    heartbeat = from_text(files, name, _HEARTBEAT_FORM, own, dict)
    if heartbeat["owner"] == record.owner and not record.released:
        record = replace(record, beat=heartbeat["beat"], released=heartbeat["released"], ended=heartbeat["ended"])
    return StoredLease(record, text + own, tag, heartbeat.get("counted"), heartbeat.get("unfenced", False))


def newest_epoch(files: Store) -> int:
    """Return the newest epoch that has a heartbeat file; 0 without one."""
    return max(numbers_in(files, _HEARTBEATS), default=0)


def replace_record(files: Store, record: LeaseRecord, tag: str | None) -> bool:
    """Write ``lease.json`` if it still has the tag of ``read_lease``, and return whether it was written."""
    return replace_document(files, LEASE_FILE, _FORM, asdict(record), tag)


def write_heartbeat(
    files: Store,
    record: LeaseRecord,
    beat: int,
    *,
    released: bool = False,
    ended: str | None = None,
    counted: Sequence[int] | None = None,
    unfenced: bool = False,
) -> None:
    """Write the holder's own file, with its heartbeat counter.

    ``ended`` is the reason why the holder has ended the checkpoint, or None. ``counted`` is the last manifest that
    counts: its batch, and the epoch of the run that wrote it. ``unfenced``: an earlier holder, which may be suspended,
    is not yet fenced off.
    """
    content = {"owner": record.owner, "beat": beat, "released": released, "ended": ended, "counted": counted}
    content["unfenced"] = unfenced
    write_document(files, numbered_name(_HEARTBEATS, record.epoch), _HEARTBEAT_FORM, content)


def delete_former_heartbeats(files: Store, record: LeaseRecord) -> None:
    """Delete the heartbeat files of former holders."""
    for epoch in numbers_in(files, _HEARTBEATS):
        if epoch != record.epoch:
            files.delete(numbered_name(_HEARTBEATS, epoch))


def ended(files: Store) -> str | None:
    """Return the reason why a checkpoint was ended; None where it was not."""
    record = read_lease(files).record
    return None if record is None else record.ended


def holder(files: Store) -> str | None:
    """Return a text that names a checkpoint's holder, dead or alive; None where it is free."""
    record = read_lease(files).record
    return None if record is None or record.released else str(record)


def _parse(files: Store, text: str) -> LeaseRecord:
    return from_text(files, LEASE_FILE, _FORM, text, lambda content: LeaseRecord(**content))


def register_owner(owner: str) -> None:
    """Note that this process holds the lease of an owner."""
    with _lock:
        _owners.add(owner)


def forget_owner(owner: str) -> None:
    """Note that this process no longer holds the lease of an owner; an unknown one is ignored."""
    with _lock:
        _owners.discard(owner)


def is_live(files: Store, *, patience_seconds: float = 30.0) -> bool:
    """Return whether a query runs on a checkpoint, without acquiring its lease, by ``holder_is_alive``."""
    record, text, *_ = read_lease(files)
    return record is not None and holder_is_alive(files, record, text, patience_seconds)


def holder_is_alive(files: Store, record: LeaseRecord, text: str, patience_seconds: float) -> bool:
    """Return whether the holder of a lease is alive; ``text`` is that of its files when it was read.

    ``patience_seconds`` is the lease timeout: how long a heartbeat from another machine is watched.
    """
    if record.released:
        return False
    own, theirs = process_started(os.getpid()), record.process_started
    same_machine = own is not None and theirs is not None and _machine(own) == _machine(theirs)
    if same_machine and record.host == socket.gethostname():
        if (record.pid, theirs) == (os.getpid(), own):
            with _lock:
                return record.owner in _owners
        return process_started(record.pid) == theirs
    deadline = time.monotonic() + max(patience_seconds, _MISSED_HEARTBEATS * record.beat_seconds)
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now, newest, *_ = read_lease(files)
        if newest != text:
            return now is not None and not now.released
    return False


def _machine(started: str) -> str:
    return started.rpartition("/")[0]


def process_started(pid: int) -> str | None:
    """Return an id of a live process on this machine that, unlike its pid, is not reused: its boot and start time.

    None where the process does not exist, or the system has no ``/proc``.
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


class Lease:
    """The right to run on a checkpoint; ``Lease.acquire`` creates it."""

    def __init__(self, files: Store, record: LeaseRecord, *, takes_over: bool) -> None:
        self._files, self._record, self._takes_over = files, record, takes_over
        self._heartbeats = 0
        self._counted: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def record(self) -> LeaseRecord:
        """The holder. ``Lease(files, record, takes_over=...)`` is the same lease in another process, for its checks."""
        return self._record

    @property
    def epoch(self) -> int:
        """The number of this holder, counted from 1."""
        return self._record.epoch

    @property
    def takes_over(self) -> bool:
        """Whether an earlier holder may still be suspended, and is not yet fenced off."""
        return self._takes_over

    @property
    def is_held(self) -> bool:
        """Whether this process still writes heartbeats: the lease is neither released, ended, nor known to be lost."""
        return not self._stopped.is_set()

    @classmethod
    def acquire(cls, files: Store, *, patience_seconds: float = 30.0, beat_seconds: float = 5.0) -> Lease:
        """Acquire the lease of a checkpoint, taking it over where its holder is no longer alive; heartbeats start.

        ``patience_seconds`` is the lease timeout: how long a heartbeat from another machine must not change before the
        holder counts as dead; at least three heartbeats. ``beat_seconds`` is the interval of this lease's heartbeats.
        Raises ``CheckpointError`` where another query runs on the checkpoint, or the checkpoint was ended.
        """
        seen = read_lease(files)
        before = seen.record
        if before is not None:
            if before.ended is not None:
                msg = f"{files.named} was ended for good: {before.ended}; start with another checkpoint"
                raise CheckpointError(msg)
            if holder_is_alive(files, before, seen.text, patience_seconds):
                raise _taken(files, before)
        record = _next_record(files, before, beat_seconds=beat_seconds)
        lease = cls(files, record, takes_over=before is not None and (seen.is_unfenced or not before.released))
        if seen.counted is not None:
            batch_id, epoch = seen.counted
            lease._counted = int(batch_id), int(epoch)
        # Registered before it is written: another thread that reads it must not take the holder for dead.
        register_owner(record.owner)
        try:
            lease._write_and_confirm(seen)
        except BaseException:
            lease._stop()
            raise
        threading.Thread(target=lease._heartbeat_loop, name="cojoin-lease", daemon=True).start()
        return lease

    @property
    def counted(self) -> tuple[int, int] | None:
        """The last manifest that counts, as far as it is known: its batch, and the epoch of the run that wrote it."""
        return self._counted

    def note_counted(self, batch_id: int) -> None:
        """Note that this run has written a batch's manifest, for the next heartbeat."""
        self._counted = batch_id, self.epoch

    def note_fenced(self) -> None:
        """Note that the earlier holders are fenced off, so that the next one need not do it after a release."""
        self._takes_over = False

    def raise_above(self, epoch: int) -> None:
        """Raise this holder's epoch above one that an output of the query has, as if it took over once more.

        A checkpoint that was put back from a backup has lower epochs than its outputs. Raises ``QueryFailedError``
        where another query took over meanwhile.
        """
        raised, failed = replace(self._record, epoch=epoch + 1), None
        with self._lock:
            seen = read_lease(self._files)
            if seen.record is not None and self._is_ours(seen.record):
                try:
                    replace_record(self._files, raised, seen.tag)
                except CheckpointError as error:
                    # Where only the answer was lost, the read below finds the record.
                    failed = error
                if read_record(self._files) == raised:
                    self._record, failed = raised, None
                    self._write_heartbeat()
                    delete_former_heartbeats(self._files, self._record)
        if failed is not None:
            raise failed
        self.check()

    def check(self) -> None:
        """Raise ``QueryFailedError`` where another query took over, or the checkpoint was ended, deleted or damaged.

        It reads ``lease.json`` alone, one small file, which does not change when this holder itself releases or ends
        the lease: after that, the check still succeeds until another query takes over.
        """
        try:
            now = read_record(self._files)
        except CheckpointError as error:
            self._stop()
            msg = f"{error}. This query held epoch {self.epoch} and stops, since another may have taken over"
            raise QueryFailedError(msg) from error
        if now is not None and self._is_ours(now):
            return
        self._stop()
        raise self._fenced_off(now)

    def explained(self, error: Exception) -> Exception:
        """Return the cause of an error: that another query has taken over meanwhile, or else the error itself.

        A holder that was suspended finds files that have changed between two looks. That another query has taken over
        is what its user needs then, not what is wrong with the files.
        """
        try:
            now = read_record(self._files)
        except CheckpointError:
            return error
        return error if now is not None and self._is_ours(now) else self._fenced_off(now)

    def _fenced_off(self, now: LeaseRecord | None) -> QueryFailedError:
        """Return the error of a holder that has lost the lease, by the present content of ``lease.json``."""
        if now is None:
            why = f"{LEASE_FILE} is gone: the checkpoint was deleted under the running query"
        elif now.ended is not None:
            why = f"the checkpoint was ended: {now.ended}"
        elif now.released:
            # Only release 0.5.0 notes the end of its lease in this file.
            why = f"another query took over at epoch {now.epoch}, and has ended"
        else:
            why = f"another query took over at epoch {now.epoch} ({now})"
        msg = (
            f"{self._files.named}: fenced off: {why}; this query held epoch {self.epoch} and stops, "
            f"start it again once nothing else runs on the checkpoint"
        )
        return QueryFailedError(msg)

    def release(self) -> None:
        """Release the lease; one that is no longer held, or is damaged, is left unchanged."""
        # A damaged lease is reported when it is acquired next.
        with contextlib.suppress(CheckpointError), self._lock:
            if not self.is_held:
                return
            self._stop()
            now = read_record(self._files)
            if now is not None and self._is_ours(now):
                self._write_heartbeat(released=True)

    def _write_and_confirm(self, seen: StoredLease) -> None:
        """Write the record unless the lease has changed since, and check that it stays."""
        failed = None
        # Where the text has changed, a holder has written a heartbeat or taken over meanwhile.
        if read_lease(self._files).text == seen.text:
            try:
                replace_record(self._files, self._record, seen.tag)
            except CheckpointError as error:
                # Where only the answer was lost, the read below finds the record.
                failed = error
            if not self._files.has_conditional_writes:
                time.sleep(SETTLE_SECONDS)
        now = read_record(self._files)
        if now is not None and self._is_ours(now):
            # Before the former ones go, so that one always exists that shows how new the record must be.
            self._write_heartbeat()
            delete_former_heartbeats(self._files, self._record)
            return
        if failed is not None:
            raise failed
        if now is not None:
            raise _taken(self._files, now)
        msg = f"{self._files.named}: {LEASE_FILE} was deleted while the query started; start it again"
        raise CheckpointError(msg)

    def _write_heartbeat(self, *, released: bool = False) -> None:
        self._heartbeats += 1
        write_heartbeat(
            self._files,
            self._record,
            self._heartbeats,
            released=released,
            counted=self._counted,
            unfenced=self._takes_over,
        )

    def _heartbeat_loop(self) -> None:
        while not self._stopped.wait(self._record.beat_seconds):
            # Errors, for example of a JVM that has ended, are left to the next heartbeat or check.
            with contextlib.suppress(Exception), self._lock:
                if not self.is_held:
                    return
                now = read_record(self._files)
                if now is not None and self._is_ours(now):
                    self._write_heartbeat()
                elif now is not None:
                    self._stop()

    def _is_ours(self, record: LeaseRecord) -> bool:
        return (record.owner, record.epoch, record.released) == (self._record.owner, self._record.epoch, False)

    def _stop(self) -> None:
        self._stopped.set()
        forget_owner(self._record.owner)


def end(files: Store, reason: str) -> None:
    """End a checkpoint: its lease can never be acquired again, and its holder is fenced off.

    The reason is for the message of a later attempt.
    """
    for _ in range(_TRIES):
        seen = read_lease(files)
        if seen.record is not None and seen.record.ended is not None:
            return
        record = _next_record(files, seen.record, released=True, ended=reason)
        if replace_record(files, record, seen.tag):
            write_heartbeat(files, record, 1, released=True, ended=reason, counted=seen.counted)
            return
    msg = f"{files.named}: {LEASE_FILE} is written again and again by other queries; stop them"
    raise CheckpointError(msg)


def _next_record(files: Store, before: LeaseRecord | None, **values: Any) -> LeaseRecord:
    """Return the record with which this process takes over from a former holder."""
    # Where a user has deleted a damaged record, the epochs continue after the newest that is known.
    return LeaseRecord(
        epoch=1 + (_newest_known(files) if before is None else before.epoch),
        owner=str(uuid.uuid4()),
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()),
        **values,
    )


def _newest_known(files: Store) -> int:
    """Return the newest epoch that the heartbeats and the last manifest name."""
    last = None
    # A damaged manifest is reported where it is needed.
    with contextlib.suppress(CheckpointError):
        last = Manifests(files).last()
    return max(newest_epoch(files), 0 if last is None else last.epoch)


def _taken(files: Store, record: LeaseRecord) -> CheckpointError:
    return CheckpointError(f"{files.named}: another query runs on it ({record}); stop it, or choose another checkpoint")
