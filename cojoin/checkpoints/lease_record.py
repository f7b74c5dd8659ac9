"""The record of a checkpoint's lease: what its files say, whether the holder is alive or not (``lease_liveness``).

``lease.json`` names the holder: owner, epoch (the fencing token), host and process. A second file, ``beats/<epoch>``,
which only the holder writes, has a heartbeat counter that grows while the holder is alive, and says whether the holder
has released or ended the checkpoint. A holder that was suspended and continues therefore never overwrites the record of
its successor.

A record that is older than a heartbeat file is a former version of itself, put back, and is refused: its epoch would be
given a second time. The holder's own file also names the last manifest that counts, so that a former version of that is
noticed, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cojoin.storage.document_text import Form, damaged, from_text
from cojoin.storage.documents import (
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

__all__ = [
    "LEASE_FILE",
    "LeaseRecord",
    "StoredLease",
    "delete_former_heartbeats",
    "ended",
    "holder",
    "newest_epoch",
    "read_lease",
    "read_record",
    "replace_record",
    "write_heartbeat",
]

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
    """A checkpoint's lease as it was read.

    Attributes:
        record: The holder; None where there is none.
        text: The text of both files, which changes while the holder is alive.
        tag: The tag of ``lease.json``, which changes when another query takes over; None where there is no such file.
        counted: The last manifest that counts, as ``write_heartbeat`` wrote it; None where that is not known.
        is_unfenced: Whether the holder has released the lease before it had fenced off an earlier one.
    """

    record: LeaseRecord | None
    text: str
    tag: str | None
    counted: Sequence[int] | None = None
    is_unfenced: bool = False


def read_record(files: Store) -> LeaseRecord | None:
    """Return the content of ``lease.json`` alone; None where there is no such file.

    Raises:
        CheckpointError: The file is damaged.
    """
    text = read_text(files, LEASE_FILE, _FORM)
    return None if text is None else _parse(files, text)


def read_lease(files: Store) -> StoredLease:
    """Return the holder of a checkpoint, with the text and the tag of its files.

    Raises:
        CheckpointError: A file is damaged, or ``lease.json`` is a former version of itself.
    """
    known = newest_epoch(files)
    text, tag = read_tagged_text(files, LEASE_FILE, _FORM)
    if tag is None:
        return StoredLease(None, "", None)
    record = _parse(files, text)
    if record.epoch < known:
        # Read after the heartbeats were listed, it can't be behind them.
        why = f"it is of epoch {record.epoch}, and {numbered_name(_HEARTBEATS, known)} is there: it is a former version"
        raise damaged(files, LEASE_FILE, _FORM, why)
    name = numbered_name(_HEARTBEATS, record.epoch)
    own = read_text(files, name, _HEARTBEAT_FORM)
    if own is None:
        return StoredLease(record, text, tag)
    said = from_text(files, name, _HEARTBEAT_FORM, own, dict)
    if said["owner"] == record.owner and not record.released:
        record = replace(record, beat=said["beat"], released=said["released"], ended=said["ended"])
    return StoredLease(record, text + own, tag, said.get("counted"), said.get("unfenced", False))


def newest_epoch(files: Store) -> int:
    """Return the newest epoch of which there is a heartbeat file; 0 where there is none."""
    return max(numbers_in(files, _HEARTBEATS), default=0)


def replace_record(files: Store, record: LeaseRecord, tag: str | None) -> bool:
    """Write ``lease.json`` if it still is the one that was read, and return whether it was written.

    Args:
        files: The checkpoint.
        record: The new holder.
        tag: The tag with which ``read_lease`` found the former holder.
    """
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

    Args:
        files: The checkpoint.
        record: The holder.
        beat: The heartbeat counter.
        released: Whether the holder has released the lease.
        ended: The reason why the holder has ended the checkpoint; None where it has not.
        counted: The last manifest that counts: its batch, and the epoch of the run that wrote it.
        unfenced: Whether an earlier holder, which may be suspended, is not yet fenced off.
    """
    content = {"owner": record.owner, "beat": beat, "released": released, "ended": ended, "counted": counted}
    content["unfenced"] = unfenced
    write_document(files, numbered_name(_HEARTBEATS, record.epoch), _HEARTBEAT_FORM, content)


def delete_former_heartbeats(files: Store, record: LeaseRecord) -> None:
    """Delete the heartbeat files of former holders."""
    for each in numbers_in(files, _HEARTBEATS):
        if each != record.epoch:
            files.delete(numbered_name(_HEARTBEATS, each))


def ended(files: Store) -> str | None:
    """Return the reason why a checkpoint was ended; None where it was not.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record = read_lease(files).record
    return None if record is None else record.ended


def holder(files: Store) -> str | None:
    """Return a text that names a checkpoint's holder, dead or alive; None where it is free.

    Raises:
        CheckpointError: Its lease is damaged.
    """
    record = read_lease(files).record
    return None if record is None or record.released else str(record)


def _parse(files: Store, text: str) -> LeaseRecord:
    return from_text(files, LEASE_FILE, _FORM, text, lambda content: LeaseRecord(**content))
