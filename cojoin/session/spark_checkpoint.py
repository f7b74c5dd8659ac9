"""Spark's own files of a query, as cojoin reads, compares and writes them: offset log, source logs and state store.

*The offset log* has a file for each batch, in version ``v1``: a line with the version, a line of metadata, then a line
for each source in the order of the plan. The control input is the last source. Spark runs a batch that is planned and
not committed exactly as it was planned, so cojoin plans batches by writing their entries.

*The log of a file source*, in ``spark/sources/<n>``, has for each id a log file ``<id>``: the line ``v1``, then a JSON
line for each data file. At regular intervals, it is named ``<id>.compact`` and repeats all earlier entries, after which
Spark may delete the older log files. A source offset ``{"logOffset": k}`` means that all files of the ids up to k
were read. Spark never writes an id without files; Spark and this module refuse a log that lacks an id. Spark reads
again every file that is missing in the log. Each manifest therefore has a checksum of the entries up to its batch,
which reveals a log that was changed or is an older copy.

*The state store* is read without running the query that wrote it. (Spark: ``StateDataSource``.)

In this module, ``files`` is the checkpoint, an offset is a source's line in the offset log, and ``check`` raises an
error where another start has taken over. Errors are ``CheckpointError``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.session_adapter import FILE_MANAGER
from cojoin.session.sessions import adapter_of
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from cojoin.storage.store import Store

STATE_COLUMNS = ("key.key_group AS label", "value.groupState.state AS content")
"""The key and the state of each value, as SQL."""

ENCODED = re.compile(r"[\s%\[\]{}^`|\"<>\\#?]")
"""The characters that Spark's state reader encodes in a path; it finds nothing, since it searches the encoded path."""
NOTHING_READ = "-"
"""The offset of a source of which nothing was read, in Spark's offset log."""


def has_read(line: str | None) -> bool:
    """Return whether a source's line of Spark's offset log is a position; some sources write ``null`` without one."""
    return line is not None and line.strip() not in ("", NOTHING_READ, "null")


OFFSETS, COMMITS, SOURCES = "spark/offsets", "spark/commits", "spark/sources"
"""The folders of Spark's logs in a checkpoint."""

LOG_VERSION = "v1"
PUT_BACK = (
    "put it back from a backup of the checkpoint, or restore a snapshot into a new checkpoint with restore_from= "
    "(`cojoin checkpoints list` shows them)"
)
"""The remedy where a log of Spark is damaged, as the end of a sentence."""

BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""The property of a batch's jobs that has the batch's id."""

_METADATA = "spark/metadata"
"""Without this file, Spark takes the logs for damaged."""

_MISSING_STATE = (
    "CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT",
    "CANNOT_READ_DELTA_FILE_NOT_EXISTS",
    "CANNOT_READ_MISSING_SNAPSHOT_FILE",
    "CANNOT_READ_STREAMING_STATE_FILE",
    "SNAPSHOT_PARTITION_ID_NOT_FOUND",
    "FileNotFound",
)
"""Spark's errors where a file of the state store does not exist; its others mean that one is damaged, for example."""

_POLLING_DELAY, _POLLING = "spark.sql.streaming.pollingDelay", "30ms"
INITIALIZING = "Initializing"
"""The beginning of the status of a query that has not opened its sources."""

_FALLBACK = "FileSystemBasedCheckpointFileManager"
_LOSSES = {
    _FALLBACK: "keeps the state of an earlier attempt where a batch or a task is repeated",
    "AbortableStreamBasedCheckpointFileManager": "continues where the store has refused a file",
}
"""The harm of two of Spark's classes that write checkpoints on stores that are not local, by the classes' names."""

_SOURCES_SECONDS, _PAUSE_SECONDS = 2.0, 0.005

_COMPACT = ".compact"
_INTERVAL, _USUAL_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval", 10
_FIELDS = ("path", "timestamp", "batchId")


def load_states(spark: SparkSession, files: Store, batch_id: int) -> DataFrame:
    """Return the state values after a batch, for ``STATE_COLUMNS``; raises ``SPARK_ERRORS`` if Spark deleted them."""
    # The format needs classes that a session loads only with its first stream.
    _ = spark.streams
    store = spark.read.format("statestore").option("batchId", batch_id).load(files.path("spark"))
    # Spark Connect reads the files only when the schema is requested.
    _ = store.columns
    return store


def names_missing_state(error: BaseException) -> bool:
    """Return whether an error of reading the values means that Spark no longer has them."""
    return any(each in str(error) for each in _MISSING_STATE)


def names_state_store(error: BaseException) -> bool:
    """Return whether an error of reading the values is one of Spark's state store, such as for a damaged file."""
    return "STATE_STORE" in str(error)


def log_lines(files: Store, name: str) -> list[str]:
    """Return the lines of a file of Spark's logs; none where it is missing.

    Spark ends lines where ``bytes.splitlines`` does; that of texts also ends them at U+2028 and the like.
    """
    return [line.decode(errors="replace") for line in (files.read_bytes(name) or b"").splitlines()]


def source_offsets(files: Store, batch_id: int) -> list[str]:
    """Return each source's end offset of a batch; empty where it has no entry. Raises an error for a damaged entry."""
    return planned_lines(files, batch_id)[2:] if files.exists(f"{OFFSETS}/{batch_id}") else []


def logged_time(files: Store, batch_id: int) -> int:
    """Return the time of a planned batch, in epoch milliseconds: its ``current_timestamp``, also if it is repeated."""
    return int(json.loads(planned_lines(files, batch_id)[1]).get("batchTimestampMs", 0))


def planned_entry(spark: SparkSession, files: Store) -> str:
    """Return the line of ``SessionAdapter.planned_metadata``."""
    return adapter_of(spark).planned_metadata(files)


def plan_first_batch(
    spark: SparkSession, files: Store, sources: Sequence[str], control: int, check: Callable[[], None]
) -> None:
    """Plan a restored query's first batch, which reads only the control input, up to the id ``control`` in its log.

    ``sources`` has the offset of each other source at the end of the batch. The query keeps the session's number of
    shuffle partitions.
    """
    files.write_checked(_METADATA, json.dumps({"id": str(uuid.uuid4())}), check)
    offsets = [*sources, log_offset(control)]
    files.write_checked(f"{OFFSETS}/0", "\n".join([LOG_VERSION, planned_entry(spark, files), *offsets]), check)


def begin_after(files: Store, sources: Sequence[str], check: Callable[[], None]) -> None:
    """Set the sources' offsets to those of another query, once the first batch is committed; the call is idempotent.

    A second batch that reads nothing is planned with the same offsets: Spark initialises its sources from the last two.
    """
    version, metadata, *first = planned_lines(files, 0)
    text = "\n".join([version, metadata, *sources, first[-1]])
    files.write_checked(f"{OFFSETS}/0", text, check)
    if not files.create(f"{OFFSETS}/1", text.encode()):
        # Spark has planned it for a start that was suspended, maybe by the former offsets; that start can't execute it.
        files.write_checked(f"{OFFSETS}/1", text, check)


def plan_look_at_the_clock(files: Store, now: int) -> bool:
    """Plan a batch without rows after the last committed one, at a processing time (epoch milliseconds).

    Returns False where no batch ever ran, a planned batch is not yet committed, or another run has planned the batch.
    """
    newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
    if newest is None or newest != committed:
        return False
    version, metadata, *sources = planned_lines(files, newest)
    entry = json.dumps({**json.loads(metadata), "batchTimestampMs": now})
    # As among Spark's own runs, the entry of the run that writes it first counts.
    return files.create(f"{OFFSETS}/{newest + 1}", "\n".join([version, entry, *sources]).encode())


def planned_batch(files: Store) -> int | None:
    """Return the batch that is planned and not committed, which Spark runs first; None without one."""
    newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
    return newest if newest is not None and newest != committed else None


def log_offset(number: int) -> str:
    """Return the offset of the control input's log as Spark writes it.

    Spark compares offsets as texts: for the same number in another spelling, it would plan a batch without new data.
    """
    return json.dumps({"logOffset": number}, separators=(",", ":"))


def check_offsets(files: Store, batch_id: int, expected: Sequence[str]) -> None:
    """Check that Spark's offset log has the ``expected`` offsets, from the manifest of the batch ``batch_id``.

    If they differ, the query would not continue where it stopped. Batches that Spark has committed since have read no
    rows, so they have the same offsets.
    """
    batch_id = max(batch_id, newest_id(files, COMMITS) or 0)
    logged = source_offsets(files, batch_id)
    if logged != list(expected):
        differs = next((pair for pair in zip(logged, expected, strict=False) if pair[0] != pair[1]), None)
        difference = (
            f"{len(logged)} sources, the manifest {len(expected)}"
            if differs is None
            else f"{differs[0]}, the manifest {differs[1]}"
        )
        msg = f"{files.named}: {OFFSETS}/{batch_id} differs from the query's manifest: it has {difference}; {PUT_BACK}"
        raise CheckpointError(msg)


def plan_interrupted(spark: SparkSession, files: Store, begins: Sequence[str], ends: Sequence[str]) -> None:
    """Write, into an empty directory, the logs of a query whose batch from ``begins`` to ``ends`` was interrupted."""
    entry = planned_entry(spark, files)
    files.write(_METADATA, json.dumps({"id": str(uuid.uuid4())}))
    files.write(f"{OFFSETS}/0", "\n".join([LOG_VERSION, entry, *begins]))
    files.write(f"{COMMITS}/0", "\n".join([LOG_VERSION, json.dumps({"nextBatchWatermarkMs": 0})]))
    files.write(f"{OFFSETS}/1", "\n".join([LOG_VERSION, entry, *ends]))


def planned_lines(files: Store, batch_id: int) -> list[str]:
    """Return the lines of a batch's entry in Spark's offset log."""
    name = f"{OFFSETS}/{batch_id}"
    lines = log_lines(files, name)
    # Of the offsets, only the control input's, in the last line, has a format that is known.
    if len(lines) < 3 or lines[0] != LOG_VERSION or not _is_object(lines[1]) or not _is_position(lines[-1]):
        msg = (
            f"{files.named}: {name}, a batch in Spark's offset log, is not in the form {LOG_VERSION}: it was "
            f"cut or changed, or written by another version of Spark; {PUT_BACK}"
        )
        raise CheckpointError(msg)
    return lines


def _is_position(line: str) -> bool:
    return line == NOTHING_READ or (_is_object(line) and isinstance(json.loads(line).get("logOffset"), int))


def _is_object(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def committed_batches(files: Store) -> list[int]:
    """Return the batches in Spark's commit log, oldest first."""
    return sorted(int(name) for name in files.names(COMMITS) if name.isdigit())


def newest_id(files: Store, directory: str) -> int | None:
    """Return the greatest number that names a file or folder in a directory; None without one."""
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)


def stream_settings(spark: SparkSession, files: Store) -> dict[str, str]:
    """Return the settings that a query is started with, without those that the user has set; none with Spark Connect.

    A checkpoint on a local disk gets another way of writing Spark's files. By default, Spark starts ``chmod`` and
    ``readlink`` several times for each, which takes 37 milliseconds instead of 9, and a batch has four to six files.
    A source keeps the way with which it was opened, so the session must have the settings until ``await_sources``
    returns. Meanwhile they hold for other queries that this session starts, too.

    Without new rows, Spark looks for some every 10 milliseconds, which takes a third of a core.
    """
    adapter = adapter_of(spark)
    settings = {_POLLING_DELAY: _POLLING} if adapter.runs_batches else {}
    manager = adapter.local_file_manager() if isinstance(files, LocalStore) else None
    if manager is not None:
        settings[FILE_MANAGER] = manager
    return {name: value for name, value in settings.items() if spark.conf.get(name, None) is None}


def check_file_manager(spark: SparkSession, files: Store) -> None:
    """Raise a ``ConfigurationError`` if Spark would write the checkpoint by a class that may lose files on this store.

    On local disks a rename replaces a file, so both classes are safe.
    """
    scheme = files.root.partition(":")[0]
    if isinstance(files, LocalStore) or scheme == "file":
        return
    adapter = adapter_of(spark)
    name = str(spark.conf.get(FILE_MANAGER, None) or adapter.hadoop_setting(FILE_MANAGER) or "")
    reason, setting = _LOSSES.get(name.rpartition(".")[2]), f"fs.AbstractFileSystem.{scheme}.impl"
    if reason is not None:
        msg = (
            f"{files.named}: expected the class by which Spark writes a checkpoint on this store, got "
            f"{FILE_MANAGER}={name}, which {reason}; unset it, and Spark chooses one that raises"
        )
        raise ConfigurationError(msg)
    # With Spark Connect, Hadoop's own defaults are not known.
    if adapter.runs_batches and not name and adapter.hadoop_setting(setting) is None:
        cure = "write the place as s3a://" if scheme in {"s3", "s3n"} else f"set spark.hadoop.{setting} to its class"
        msg = (
            f"{files.named}: Hadoop has no {setting}, so Spark would write the checkpoint by its "
            f"{_FALLBACK}, which {_LOSSES[_FALLBACK]}; {cure}"
        )
        raise ConfigurationError(msg)


def await_sources(stream: StreamingQuery) -> None:
    """Wait until a new query has opened its sources, with the settings of its session; two seconds at most.

    Later, a source keeps what it has opened, such as its log.
    """
    end = time.monotonic() + _SOURCES_SECONDS
    while time.monotonic() < end and stream.isActive and str(stream.status["message"]).startswith(INITIALIZING):
        time.sleep(_PAUSE_SECONDS)


def compact_interval(spark: SparkSession) -> int:
    """Return the number of ids after which the session's file sources compact a new log."""
    return int(str(spark.conf.get(_INTERVAL, str(_USUAL_INTERVAL))))


def source_entries(files: Store, n: int) -> list[dict[str, Any]]:
    """Return the entries of the log of the ``n``-th source of the plan, one for each file, in the order of their ids.

    An entry is ``{"path", "timestamp", "batchId"}``: the path encoded as a URL, the file's modification time in epoch
    milliseconds, and the entry's id, which Spark calls ``batchId``. Without a log, the list is empty.
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
    entries = {(entry["batchId"], entry["path"]): entry for name in names for entry in _read(files, f"{folder}/{name}")}
    return [entries[place] for place in sorted(entries, key=lambda place: place[0])]


def write_source_log(
    files: Store,
    n: int,
    entries: Iterable[Mapping[str, Any]],
    last_id: int,
    *,
    interval: int = _USUAL_INTERVAL,
    check: Callable[[], None] | None = None,
) -> None:
    """Write the ``n``-th source's log as if Spark had read exactly up to an id; the call is idempotent.

    ``entries`` are those of ``source_entries``. ``last_id`` is the ``logOffset`` of the source's offset (-1: nothing
    was read); later entries are left out. Spark expects a compacted log file at each ``interval``-th id. With
    ``check``, log files that an earlier start has left are deleted, as long as no batch is committed; without it, the
    folder must have no log files of other ids.
    """
    by_id: dict[int, list[str]] = {number: [] for number in range(last_id + 1)}
    for entry in entries:
        if entry["batchId"] <= last_id:
            by_id[entry["batchId"]].append(_line(entry))
    missing = [number for number, lines in by_id.items() if not lines]
    if missing:
        msg = (
            f"{files.named}: the file source's log should reach id {last_id}, but its entries have no files "
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
            f"{files.named}: {folder} holds {_shown(others)}, so a query has already run in it; "
            f"choose an empty directory"
        )
        raise CheckpointError(msg)
    check = check or (lambda: None)
    for name in others:
        check()
        files.delete(f"{folder}/{name}")
    # The newest is written last: Spark takes it for the end of the log, and looks for the others from there.
    for name in sorted(texts, key=lambda name: int(name.removesuffix(_COMPACT))):
        files.write_checked(f"{folder}/{name}", "\n".join([LOG_VERSION, *texts[name]]), check)


class LogDigests:
    """The digests of the files that file sources have read: a file source's offset is only an id in its log."""

    def __init__(self, files: Store) -> None:
        self._files = files
        self._known: dict[tuple[int, str], str] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._has_all: bool | None = None

    def sums(self, offsets: Sequence[str]) -> dict[str, list[Any]]:
        """Return the last id and a sum of the entries up to it, by file source, for ``check_source_logs``.

        It is empty where the plan reads a source twice, which has two offsets, but one log.
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
        for next_id in range(known + 1, number + 1):
            entries = self._entries_at(n, next_id)
            added += entries
            if not entries:
                known = number + 1
        if known > number:
            listed = [each for each in source_entries(self._files, n) if each["batchId"] <= number]
            if all(each["batchId"] != number for each in listed):
                # The checksum of an outdated listing would not match the log at the next start.
                msg = (
                    f"{self._files.named}: the listing of {_folder(n)}, the log of the files that Spark has "
                    f"read, lacks its newest entry {number}; start the query again"
                )
                raise CheckpointError(msg)
            return _sum(listed)
        return total + _sum(added)

    def _entries_at(self, n: int, number: int) -> list[dict[str, Any]]:
        """Return the entries of one id; none where its text was deleted after it was compacted."""
        for name in (f"{_folder(n)}/{number}", f"{_folder(n)}/{number}{_COMPACT}"):
            if self._files.exists(name):
                by_path = {each["path"]: each for each in _read(self._files, name) if each["batchId"] == number}
                return [*by_path.values()]
        return []

    def of(self, offsets: Sequence[str]) -> list[str]:
        """Return the SHA-256 of the log's text at the offset of each file source; empty where the text is gone."""
        digests: dict[tuple[int, str], str] = {}
        for n, line in enumerate(offsets):
            number = _log_offset(line)
            if number is not None:
                place = (n, number)
                digests[place] = self._known.get(place) or self._digest(n, number)
        # The text is not read again while a source's offset stays the same.
        self._known = digests
        return list(digests.values())

    def _digest(self, n: int, number: str) -> str:
        for name in (number, f"{number}{_COMPACT}"):
            text = self._files.read(f"{_folder(n)}/{name}")
            if text is not None:
                return hashlib.sha256(text.encode()).hexdigest()
        return ""


def check_source_logs(files: Store, sums: Mapping[str, Sequence[Any]]) -> None:
    """Check that file sources' logs have the entries of ``LogDigests.sums``, or files would be read twice or never."""
    for n, (number, expected) in sums.items():
        actual = _hexadecimal(_sum(each for each in source_entries(files, int(n)) if each["batchId"] <= number))
        if actual != expected:
            msg = (
                f"{files.named}: {_folder(int(n))}, the log of the files that Spark has read, does not "
                f"have the entries up to {number} that the query has read: it was changed or is an older copy, so "
                f"files would be read twice or never; put it back from a backup of the checkpoint"
            )
            raise CheckpointError(msg)


def _sum(entries: Iterable[Mapping[str, Any]]) -> int:
    """Return a sum of entries that does not depend on their order."""
    return sum(int.from_bytes(hashlib.sha256(_line(each).encode()).digest()[:16], "big") for each in entries)


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
    version, *lines = log_lines(files, name) or [""]
    if version != LOG_VERSION:
        msg = (
            f"{files.named}: {name} is not in the form {LOG_VERSION}; got {version[:20]!r}; restore with the "
            f"version of Spark that wrote it"
        )
        raise CheckpointError(msg)
    try:
        parsed = [json.loads(line) for line in lines]
        return [{field: entry[field] for field in _FIELDS} for entry in parsed]
    except (ValueError, KeyError, TypeError) as error:
        msg = (
            f"{files.named}: {name} holds a line that is not an entry with {', '.join(_FIELDS)}; "
            f"put it back from a backup of the checkpoint"
        )
        raise CheckpointError(msg) from error


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps({field: entry[field] for field in _FIELDS}, separators=(",", ":"), ensure_ascii=False)


def _folder(n: int) -> str:
    return f"{SOURCES}/{n}"


def _shown(values: Iterable[Any]) -> str:
    first, *rest = [str(value) for value in values]
    return ", ".join([first, *rest[:4], *(["..."] if len(rest) > 4 else [])])
