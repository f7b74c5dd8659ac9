"""The control input (tag 0): messages of the driver to the key groups, as one more source of the Spark query.

The control input is a folder of Parquet files in the checkpoint, which Spark reads as a stream. Each row is a message
to one key group or to all of them: the state that a restored query begins with, rows of a table that is a static side
(``spark.batch.control_input``), that the inputs were read to their ends (``engine.time.control_rows``), a call to look
at the clock, or the end of all inputs.

A restored query's first batch, a drain's last batch and that of a run that has read its inputs completely are planned
by cojoin: the message is written, and then an entry of Spark's offset log (``spark_checkpoint``) that leaves the
offsets of all other sources unchanged. After a crash in between, the same batch therefore runs again, and nothing newer
is read. If a run ends before it plans the batch of a complete reading, the next run's first batch reads it; it still
holds then.

``drain.json`` records that a drain has begun, so that each start finishes it first. It is written before the drain's
message, and a run that begins writes its epoch into it, both by compare-and-swap. So every run either finds the promise
when it begins, or keeps earlier runs from promising one: a drain that was suspended never ends the inputs of its
successor. Checkpoints of release 0.5.0 have no such file; in them, the message alone is the promise.

In this module, ``epoch`` is that of the run's lease, ``check`` raises an error where another run has taken over, and
``interval`` is the number of entries after which Spark compacts a source's log. ``QueryFailedError``: a later run has
begun; ``CheckpointError``: a file is damaged or has a newer format.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import CheckpointError
from cojoin.session.spark_checkpoint import (
    COMMITS,
    LOG_VERSION,
    NOTHING_READ,
    OFFSETS,
    PUT_BACK,
    SOURCES,
    log_lines,
    log_offset,
    newest_id,
    planned_lines,
)
from cojoin.storage.documents import Form, read_document, write_fenced
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.time.control_rows import CompleteReading
    from cojoin.storage.store import Store

_FILE = "drain.json"
_FORM = Form(
    "the promise of a drain",
    1,
    "put it back from a backup of the checkpoint, or, if no run was started with drain=True, delete it",
    {"epoch": int, "promised": bool},
)
CONTROL_DDL = "key_group int, payload binary"
"""A message: the label of the key group that it is for, null for all key groups; and its bytes."""

END_OF_INPUT = b'{"end_of_input": true}'
LOADED_DDL = f"{CONTROL_DDL}, tag tinyint, load binary, checksum bigint"
"""A message of a load, which also has a tag, the name of the load, and the CRC-32 of its bytes."""

_COMPACT = ".compact"
CONTROL_FOLDER, _END_FILE = "control", "control/end_of_input.parquet"
_CLOCK_FILE = "clock-"
_READING = re.compile(r"reading-(\d+)\.parquet")
_KEPT_READINGS = 2
_SCHEMA = pa.schema([("key_group", pa.int32()), ("payload", pa.binary())])


def was_promised(files: Store) -> bool:
    """Return whether a run has promised a drain."""
    stored = read_document(files, _FILE, _FORM, dict)
    return stored is not None and bool(stored["promised"])


def promise_drain(files: Store, epoch: int) -> None:
    """Promise a drain; the call is idempotent."""
    _write(files, epoch, lambda _: {"epoch": epoch, "promised": True})


def keep_former_runs_from_draining(files: Store, epoch: int) -> None:
    """Note that a run begins, so that no earlier run can promise a drain any more; the first run writes nothing."""
    if epoch > 1:
        _write(files, epoch, lambda stored: {"epoch": epoch, "promised": bool(stored.get("promised"))})


def _write(files: Store, epoch: int, over: Any) -> None:
    write_fenced(files, _FILE, _FORM, over({"epoch": epoch}), "has begun", over=over)


def open_control(
    spark: SparkSession, files: Store, labels: Sequence[int], tag: int, *, has_loads: bool = False
) -> DataFrame:
    """Return the control input as a stream of ``(key_group, tag, payload)``; ``tag`` is that of a message without one.

    A message to all key groups becomes one row for each label. A message of a load begins with the load's name and the
    checksum of what follows. Rows without bytes are the driver's notes to itself. With ``has_loads``, an input is a
    table that is loaded, whose rows are in a folder; otherwise folders are ignored: release 0.5.0 has left the rows of
    a restoration in one, which Spark would find a second time.
    """
    files.make_directory(CONTROL_FOLDER)
    reader = spark.readStream.schema(LOADED_DDL).option("recursiveFileLookup", str(has_loads).lower())
    rows = reader.parquet(literally(files.path(CONTROL_FOLDER)))
    messages = rows.where(F.col("payload").isNotNull())
    every = F.array(*map(F.lit, labels))
    receivers = F.when(F.col("key_group").isNull(), every).otherwise(F.array("key_group"))
    checksum = F.unhex(F.lpad(F.hex("checksum"), 16, "0"))
    loaded = F.when(F.col("load").isNotNull(), F.concat("load", checksum, "payload")).otherwise(F.col("payload"))
    return messages.select(
        F.explode(receivers).alias("key_group"),
        F.coalesce("tag", F.lit(tag)).cast("tinyint").alias("tag"),
        loaded.alias("payload"),
    )


def drain_is_promised(files: Store) -> bool:
    """Return whether a drain was begun, which must finish before anything newer is read."""
    promised, content = was_promised(files), files.read_bytes(_END_FILE)
    if content is None:
        return promised
    # Names that are not UTF-8 are a ValueError.
    with contextlib.suppress(pa.ArrowException, OSError, ValueError):
        if pq.read_table(pa.BufferReader(content)).equals(_messages([END_OF_INPUT])):
            return True
    msg = (
        f"{files.named}: {_END_FILE}, the message that ends all inputs, is damaged: it is not what cojoin "
        f"wrote; put it back from a backup of the checkpoint"
    )
    raise CheckpointError(msg)


def plan_drain(files: Store, epoch: int, check: Callable[[], None] = lambda: None, interval: int = 10) -> bool:
    """Plan the drain's last batch after the last committed batch; the call is idempotent.

    Returns False where no batch ever ran, so that there is nothing to end. Where the last planned batch is not
    committed, nothing is written, and ``CheckpointError`` is raised.
    """
    planned = _Planned.read(files)
    if planned is None:
        return False
    names = (f"{SOURCES}/{planned.control}/{planned.read_up_to}{suffix}" for suffix in ("", _COMPACT))
    if planned.read_up_to is not None and any(_END_FILE in (files.read(name) or "") for name in names):
        return True
    if not planned.is_committed:
        msg = (
            f"{files.named}: batch {planned.batch_id} is planned but not committed; let a run finish it before a drain"
        )
        raise CheckpointError(msg)
    check()
    promise_drain(files, epoch)
    if not planned.follow_with(files, _END_FILE, _messages([END_OF_INPUT]), check, interval):
        check()
        msg = (
            f"{files.named}: batch {planned.batch_id + 1} was planned when the drain was about to plan it, "
            f"so another run has continued meanwhile; start the query again"
        )
        raise CheckpointError(msg)
    return True


def plan_readings(
    files: Store,
    epoch: int,
    readings: Mapping[int, CompleteReading],
    now: int,
    check: Callable[[], None] = lambda: None,
    interval: int = 10,
) -> bool:
    """Plan the last batch, without rows, of a run that has read its inputs completely.

    ``readings`` are by the input's number, ``now`` is the batch's processing time in epoch milliseconds. Returns False
    where no batch ever ran, or where a planned batch is not yet committed.
    """
    planned = _Planned.read(files)
    if planned is None or not planned.is_committed:
        return False
    earlier = sorted(int(match[1]) for match in map(_READING.fullmatch, files.names(CONTROL_FOLDER)) if match)
    for number in earlier[: 1 - _KEPT_READINGS]:
        # The run before this one has read it, in a batch that was committed, and planned others since.
        check()
        files.delete(f"{CONTROL_FOLDER}/reading-{number}.parquet")
    table = _messages(_control(number, reading=reading.as_dict()) for number, reading in sorted(readings.items()))
    check()
    name = f"{CONTROL_FOLDER}/reading-{epoch}.parquet"
    if planned.follow_with(files, name, table, check, interval, processing_time=now):
        return True
    check()
    return False


def plan_clock_message(
    files: Store, now: int, epoch: int, check: Callable[[], None] = lambda: None, interval: int = 10
) -> bool:
    """Plan a batch after the last committed one that only has the key groups called, so that they look at the clock.

    Spark calls key groups without rows only by their timeouts (``plan_look_at_the_clock``). Where the state has none,
    since the query that began it, or the run before, did not need the clock, a message calls them: that of a map task
    without rows. ``now`` and the result are those of ``plan_readings``.
    """
    planned = _Planned.read(files)
    if planned is None or not planned.is_committed:
        return False
    # All batches are committed, so the messages of earlier ones were read. Listed before the check: those of a run that
    # takes over after it stay.
    read = [name for name in files.names(CONTROL_FOLDER) if name.startswith(_CLOCK_FILE)]
    check()
    for name in read:
        files.delete(f"{CONTROL_FOLDER}/{name}")
    name = f"{CONTROL_FOLDER}/{_CLOCK_FILE}{epoch}-{planned.batch_id + 1}.parquet"
    table = _messages([_control(1, processing_time=now)])
    return planned.follow_with(files, name, table, check, interval, processing_time=now)


@dataclass(frozen=True)
class _Planned:
    """The last batch that was planned, after which a batch with a message of the control input may follow.

    ``lines`` are its entry in Spark's offset log, ``control`` is the number of the control input among the query's
    sources.
    """

    batch_id: int
    lines: Sequence[str]
    control: int
    is_committed: bool

    @classmethod
    def read(cls, files: Store) -> _Planned | None:
        """Return the newest one; None where no batch ever ran."""
        newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
        if newest is None:
            return None
        lines = planned_lines(files, newest)
        # Not the number of lines: a source that is read twice has two lines and one folder.
        control = newest_id(files, SOURCES)
        if control is None:
            msg = f"{files.named}: {SOURCES} is gone, in which Spark keeps what it read; {PUT_BACK}"
            raise CheckpointError(msg)
        return cls(newest, lines, control, newest == committed)

    @property
    def read_up_to(self) -> int | None:
        """The last entry of the control input's log that was read; None before the first."""
        return None if self.lines[-1] == NOTHING_READ else int(json.loads(self.lines[-1])["logOffset"])

    def follow_with(
        self,
        files: Store,
        name: str,
        table: pa.Table,
        check: Callable[[], None],
        interval: int,
        *,
        processing_time: int | None = None,
    ) -> bool:
        """Write a message into a file and plan a batch that reads only it; False where another run has planned one.

        ``processing_time`` is the batch's, in epoch milliseconds; None leaves that of the batch before.
        """
        message = io.BytesIO()
        pq.write_table(table, message)
        files.write_bytes(name, message.getvalue())
        log_id = 0 if self.read_up_to is None else self.read_up_to + 1
        offset = register_messages(files, self.control, [name], log_id, check, interval)
        version, metadata, *sources = self.lines
        if processing_time is not None:
            metadata = json.dumps({**json.loads(metadata), "batchTimestampMs": processing_time})
        # As for Spark itself, the first run that plans a batch has planned it.
        return files.create(
            f"{OFFSETS}/{self.batch_id + 1}", "\n".join([version, metadata, *sources[:-1], offset]).encode()
        )


def _control(number: int, processing_time: int = 0, **further: Any) -> bytes:
    """Return a control row of an input without rows, as a map task writes one."""
    values = {"input": number, "partitions": {}, "rows": 0, "processing_time": processing_time, **further}
    return json.dumps(values).encode()


def _messages(payloads: Iterable[bytes]) -> pa.Table:
    """Return messages to all key groups."""
    every = list(payloads)
    return pa.table([pa.array([None] * len(every), pa.int32()), pa.array(every, pa.binary())], schema=_SCHEMA)


def register_messages(
    files: Store,
    source: int,
    names: Sequence[str],
    log_id: int,
    check: Callable[[], None] = lambda: None,
    interval: int = 10,
) -> str:
    """Write files of messages into the log of the control input's source, as if Spark had found them.

    The ``names`` are paths below the checkpoint. Where the entry is a compacted one, it repeats those before it.
    Returns the source's offset after these files, as a line of the offset log.
    """
    entries = [
        json.dumps({"path": _as_listed(files.url(name)), "timestamp": files.modified(name), "batchId": log_id})
        for name in names
    ]
    name = f"{SOURCES}/{source}/{log_id}"
    if (log_id + 1) % interval == 0:
        entries, name = [*_lines_before(files, f"{SOURCES}/{source}", log_id), *entries], f"{name}{_COMPACT}"
    files.write_checked(name, "\n".join([LOG_VERSION, *entries]), check)
    return log_offset(log_id)


def _as_listed(url: str) -> str:
    """Return a file's URL as Spark lists it; by another one it would find the file a second time.

    >>> _as_listed("file:/lake/control/a.parquet"), _as_listed("s3a://lake/a.parquet")
    ('file:///lake/control/a.parquet', 's3a://lake/a.parquet')
    """
    scheme, _, rest = url.partition(":")
    return f"{scheme}://{rest}" if rest.startswith("/") and not rest.startswith("//") else url


def _lines_before(files: Store, folder: str, log_id: int) -> list[str]:
    """Return the lines of a source's log before an entry: the last compacted one's, and those of each one after it."""
    ids = {int(name.removesuffix(_COMPACT)): name for name in files.names(folder) if name.endswith(_COMPACT)}
    begin = max((each for each in ids if each < log_id), default=-1)
    names = [*([ids[begin]] if ids and begin >= 0 else []), *(str(each) for each in range(begin + 1, log_id))]
    return [line for name in names for line in log_lines(files, f"{folder}/{name}")[1:]]
