"""The log of the files that Spark's file source has read: read as a whole, and written so that a new stream continues.

The log is in ``spark/sources/<n>``. For each id it has a text ``<id>`` with the line ``v1`` and a JSON line for each
file. At a regular interval the text is named ``<id>.compact`` and repeats all earlier entries, after which Spark may
delete the older texts. A source offset ``{"logOffset": k}`` means that all files of the ids up to k were read. Spark
never writes an id without files; a log that lacks an id is refused by Spark and by this module.

Spark looks into the log for the files that it has read, and reads all others. Each manifest therefore has a sum of the
entries up to its batch, by which a log is noticed that was changed, or is a former one.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.session.offset_log import COMMITS, SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

__all__ = ["LogDigests", "check_logs", "compact_interval", "entries", "write_log"]

_VERSION, _COMPACT = "v1", ".compact"
_INTERVAL, _USUAL_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval", 10
_FIELDS = ("path", "timestamp", "batchId")


def compact_interval(spark: SparkSession) -> int:
    """Return the number of ids after which the session's file sources compact a new log."""
    return int(str(spark.conf.get(_INTERVAL, str(_USUAL_INTERVAL))))


def entries(files: Store, n: int) -> list[dict[str, Any]]:
    """Return the entries of a source's log, one for each file, in the order of their ids.

    Args:
        files: The checkpoint.
        n: The source's number, in the order of the plan.

    Returns:
        A dict ``{"path", "timestamp", "batchId"}`` for each file: the path encoded as a URL, the file's modification
        time in epoch milliseconds, and the id under Spark's name for it. Empty where there is no log.

    Raises:
        CheckpointError: The log is of another version, or has a line that is no entry.
    """
    folder = _folder(n)
    compacted: dict[int, str] = {}
    single: dict[int, str] = {}
    for name in files.names(folder):
        number = name.removesuffix(_COMPACT)
        if number.isdigit():
            (compacted if name != number else single)[int(number)] = name
    newest = max(compacted, default=-1)
    names = [compacted[newest]] if compacted else []
    names += [single[number] for number in sorted(single) if number > newest]
    # A compacted log may repeat entries that an older version of Spark had written twice.
    found = {(entry["batchId"], entry["path"]): entry for name in names for entry in _read(files, f"{folder}/{name}")}
    return [found[place] for place in sorted(found, key=lambda place: place[0])]


def write_log(
    files: Store,
    n: int,
    entries: Iterable[Mapping[str, Any]],
    last_id: int,
    *,
    interval: int = _USUAL_INTERVAL,
    check: Callable[[], None] | None = None,
) -> None:
    """Write a source's log as if Spark had read exactly up to an id; the call is idempotent.

    Args:
        files: The new checkpoint.
        n: The source's number in it.
        entries: The entries, as ``entries`` returns them; those after ``last_id`` are left out.
        last_id: The ``logOffset`` of the source's offset; -1 where nothing was read.
        interval: The session's ``compact_interval``: Spark expects the compacted texts at its multiples.
        check: Raises an error where another start has taken over. With it, what an earlier start has left of another
            log is deleted, as long as no batch is committed; None where nothing may be there.

    Raises:
        CheckpointError: An id up to ``last_id`` has no entry, or the folder already has texts of other ids.
    """
    by_id: dict[int, list[str]] = {number: [] for number in range(last_id + 1)}
    for entry in entries:
        if entry["batchId"] <= last_id:
            by_id[entry["batchId"]].append(_line(entry))
    missing = [number for number, lines in by_id.items() if not lines]
    if missing:
        msg = (
            f"checkpoint {files.root}: the file source's log should come to {last_id}, but its entries have no files "
            f"for {_shown(missing)}; restore from an older batch, or start with a new checkpoint"
        )
        raise CheckpointError(msg)
    compact_at = (last_id + 1) // interval * interval - 1
    texts = {str(number): by_id[number] for number in range(compact_at + 1, last_id + 1)}
    if compact_at >= 0:
        texts[f"{compact_at}{_COMPACT}"] = [line for number in range(compact_at + 1) for line in by_id[number]]
    folder = _folder(n)
    others = [name for name in files.names(folder) if name not in texts]
    if others and (check is None or files.names(COMMITS)):
        msg = (
            f"checkpoint {files.root}: {folder} holds {_shown(others)}, so a query has already run here; "
            f"choose an empty directory"
        )
        raise CheckpointError(msg)
    check = check or _nothing
    for name in others:
        check()
        files.delete(f"{folder}/{name}")
    # The newest is written last: Spark takes it for the end of the log, and looks for the others from there.
    for name in sorted(texts, key=lambda name: int(name.removesuffix(_COMPACT))):
        files.write_checked(f"{folder}/{name}", "\n".join([_VERSION, *texts[name]]), check)


def _nothing() -> None:
    return None


class LogDigests:
    """The digests of what file sources have read; their offsets are only the numbers of entries in their logs.

    Args:
        files: The checkpoint.
    """

    def __init__(self, files: Store) -> None:
        self._files = files
        self._known: dict[tuple[int, str], str] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._has_all: bool | None = None

    def sums(self, offsets: Sequence[str]) -> dict[str, list[Any]]:
        """Return a sum of each log's entries up to an offset, for the manifest (``check_logs``).

        Args:
            offsets: Each source's offset, as its line in Spark's offset log.

        Returns:
            For each file source, by its number, the last id and the sum. Nothing where a source is read twice, since
            it has two lines and one log.
        """
        if self._has_all is None:
            folders = [int(name) for name in self._files.names(SOURCES) if name.isdigit()]
            self._has_all = max(folders, default=-1) + 1 == len(offsets)
        if not self._has_all:
            return {}
        for n, line in enumerate(offsets):
            number = _log_offset(line)
            if number is not None:
                self._sums[n] = int(number), self._sum_until(n, int(number))
        return {str(n): [number, _hexadecimal(total)] for n, (number, total) in self._sums.items()}

    def _sum_until(self, n: int, number: int) -> int:
        known, total = self._sums.get(n, (number + 1, 0))
        added: list[dict[str, Any]] = []
        for each in range(known + 1, number + 1):
            found = self._entries_at(n, each)
            added += found
            if not found:
                known = number + 1
        if known > number:
            listed = [each for each in entries(self._files, n) if each["batchId"] <= number]
            if all(each["batchId"] != number for each in listed):
                # A sum of an old listing would never be found again.
                msg = (
                    f"checkpoint {self._files.root}: the listing of {_folder(n)}, the log of the files that Spark has "
                    f"read, lacks its newest entry {number}; start the query again"
                )
                raise CheckpointError(msg)
            return _sum(listed)
        return total + _sum(added)

    def _entries_at(self, n: int, number: int) -> list[dict[str, Any]]:
        """Return the entries of one id; none where its text was deleted after it was compacted."""
        for name in (f"{_folder(n)}/{number}", f"{_folder(n)}/{number}{_COMPACT}"):
            if self._files.exists(name):
                found = {each["path"]: each for each in _read(self._files, name) if each["batchId"] == number}
                return [*found.values()]
        return []

    def of(self, offsets: Sequence[str]) -> list[str]:
        """Return a digest of the log's text at each offset of a file source.

        Args:
            offsets: Each source's offset, as its line in Spark's offset log.

        Returns:
            A SHA-256 for each file source, in hexadecimal digits; empty where the log has no such text.
        """
        found: dict[tuple[int, str], str] = {}
        for n, line in enumerate(offsets):
            number = _log_offset(line)
            if number is not None:
                place = (n, number)
                found[place] = self._known.get(place) or self._digest(n, number)
        # The text is not read again while a source's offset stays the same.
        self._known = found
        return list(found.values())

    def _digest(self, n: int, number: str) -> str:
        for name in (number, f"{number}{_COMPACT}"):
            text = self._files.read(f"{_folder(n)}/{name}")
            if text is not None:
                return hashlib.sha256(text.encode()).hexdigest()
        return ""


def check_logs(files: Store, sums: Mapping[str, Sequence[Any]]) -> None:
    """Check that the logs of a checkpoint's file sources have the entries that the query has counted.

    Args:
        files: The checkpoint.
        sums: What ``LogDigests.sums`` returned for the last batch.

    Raises:
        CheckpointError: A log has other entries, so files would be read twice or never.
    """
    for n, (number, expected) in sums.items():
        found = _hexadecimal(_sum(each for each in entries(files, int(n)) if each["batchId"] <= number))
        if found != expected:
            msg = (
                f"checkpoint {files.root}: {_folder(int(n))}, the log of the files that Spark has read, is not what "
                f"the query has counted up to {number}: it was changed, or is a former one, so files would be read "
                f"twice or never; put it back from a backup of the checkpoint"
            )
            raise CheckpointError(msg)


def _sum(found: Iterable[Mapping[str, Any]]) -> int:
    """Return a sum of entries that does not depend on their order."""
    return sum(int.from_bytes(hashlib.sha256(_line(each).encode()).digest()[:16], "big") for each in found)


def _hexadecimal(total: int) -> str:
    return f"{total % 2**128:032x}"


def _log_offset(line: str) -> str | None:
    """Return the id in the offset of a file source; None for the offsets of other sources."""
    try:
        offset = json.loads(line)
    except ValueError:
        return None
    return str(offset["logOffset"]) if isinstance(offset, dict) and offset.keys() == {"logOffset"} else None


def _read(files: Store, name: str) -> list[dict[str, Any]]:
    version, *lines = (files.read(name) or "").splitlines() or [""]
    if version != _VERSION:
        msg = (
            f"checkpoint {files.root}: {name} is not in the form {_VERSION}; got {version[:20]!r}; restore with the "
            f"version of Spark that wrote it"
        )
        raise CheckpointError(msg)
    try:
        parsed = [json.loads(line) for line in lines]
        return [{field: entry[field] for field in _FIELDS} for entry in parsed]
    except (ValueError, KeyError, TypeError) as error:
        msg = (
            f"checkpoint {files.root}: {name} holds a line that is no entry with {', '.join(_FIELDS)}; "
            f"restore from a copy of the checkpoint that is whole"
        )
        raise CheckpointError(msg) from error


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps({field: entry[field] for field in _FIELDS}, separators=(",", ":"), ensure_ascii=False)


def _folder(n: int) -> str:
    return f"{SOURCES}/{n}"


def _shown(values: Iterable[Any]) -> str:
    first, *rest = [str(value) for value in values]
    return ", ".join([first, *rest[:4], *(["..."] if len(rest) > 4 else [])])
