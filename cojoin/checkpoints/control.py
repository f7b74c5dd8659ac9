"""The control input (tag 0): what the driver tells every key group, in band and planned by Spark like any other rows.

It is a folder of small text files in the checkpoint, a message a line, that Spark streams. A drain's last batch is
planned by hand: the message that ends all inputs is written, then an entry of Spark's offset log that leaves every
other source where it stands. Spark runs a batch that is planned and not committed exactly as it was planned, so a
crash in between runs the same batch again and nothing newer is read. The message is the promise: once it is there,
every start finishes the drain first. The logs are Spark's ``v1`` texts: a line with the version, for offsets a line
of metadata, then a line a source in the order of the plan, the control input last.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.files import CheckpointFiles

__all__ = [
    "END_OF_INPUT",
    "drain_is_promised",
    "open_control",
    "plan_drain",
    "plan_look_at_the_clock",
    "resumed_batches",
    "source_offsets",
]

END_OF_INPUT = '{"end_of_input": true}'

_FOLDER, _END_FILE = "control", "control/end_of_input.txt"
_OFFSETS, _COMMITS, _SOURCES = "spark/offsets", "spark/commits", "spark/sources"
_RUNS_FILE, _KEPT_RUNS = "runs.json", 5
_VERSION = "v1"
_ENDED = json.dumps({"logOffset": 0})


def open_control(spark: SparkSession, files: CheckpointFiles, labels: Sequence[int], tag: int) -> DataFrame:
    """Open the control input as ``(key_group, tag, payload)``, each message once for every key group's label."""
    files.make_directory(_FOLDER)
    messages = spark.readStream.text(files.path(_FOLDER))
    groups = F.explode(F.array(*map(F.lit, labels)))
    return messages.select(
        groups.alias("key_group"),
        F.lit(tag).cast("tinyint").alias("tag"),
        F.col("value").cast("binary").alias("payload"),
    )


def source_offsets(files: CheckpointFiles, batch_id: int) -> list[str]:
    """Give where each source stands at the end of a batch, a line each, as Spark logged it."""
    text = files.read(f"{_OFFSETS}/{batch_id}")
    return [] if text is None else text.splitlines()[2:]


def drain_is_promised(files: CheckpointFiles) -> bool:
    """Tell whether a drain was begun: it must be finished before anything newer is read."""
    return files.exists(_END_FILE)


def plan_drain(files: CheckpointFiles) -> bool:
    """Plan the drain's last batch after the last committed one; planning it twice is once.

    Returns:
        False where no batch ever ran, so there is nothing to end.

    Raises:
        CheckpointError: The offset log is not as this version knows it; nothing was written.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None:
        return False
    lines = (files.read(f"{_OFFSETS}/{newest}") or "").splitlines()
    # Not the number of lines: an input that is read twice has a line for each, and one folder.
    control = _newest(files, _SOURCES)
    if control is None or len(lines) < 3 or lines[0] != _VERSION:
        msg = f"checkpoint {files.root}: the offset log's batch {newest} is not in the form {_VERSION}; got {lines[:1]}"
        raise CheckpointError(msg)
    if lines[-1] == _ENDED:
        return True
    if newest != committed:
        msg = (
            f"checkpoint {files.root}: batch {newest} is planned but not committed; let a run finish it before a drain"
        )
        raise CheckpointError(msg)
    files.write(_END_FILE, END_OF_INPUT)
    entry = {"path": files.path(_END_FILE), "timestamp": files.modified(_END_FILE), "batchId": 0}
    files.write(f"{_SOURCES}/{control}/0", "\n".join([_VERSION, json.dumps(entry)]))
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([*lines[:-1], _ENDED]))
    return True


def plan_look_at_the_clock(files: CheckpointFiles, now: int) -> bool:
    """Plan a batch without rows after the last committed one: what waits for the clock alone gets its turn.

    Args:
        files: The checkpoint.
        now: The batch's processing time, in epoch milliseconds.

    Returns:
        False where no batch ever ran, or one is planned and not yet committed: that one has a clock of its own.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None or newest != committed:
        return False
    version, metadata, *sources = (files.read(f"{_OFFSETS}/{newest}") or "").splitlines()
    entry = json.dumps({**json.loads(metadata), "batchTimestampMs": now})
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([version, entry, *sources]))
    return True


def resumed_batches(files: CheckpointFiles) -> frozenset[int]:
    """Note that a run starts, and give the batches with which the last runs began anew.

    A batch that an earlier run planned belongs to that run: executed again, it must not take itself for a new start.
    """
    text, newest = files.read(_RUNS_FILE), _newest(files, _OFFSETS)
    begins_with = 0 if newest is None else newest + 1
    # Each once: however often a run fails before it plans a batch, the start of the last one that did is kept.
    starts = [*dict.fromkeys([*(json.loads(text)["starts"] if text else []), begins_with])][-_KEPT_RUNS:]
    files.write(_RUNS_FILE, json.dumps({"starts": starts}))
    return frozenset(starts)


def _newest(files: CheckpointFiles, directory: str) -> int | None:
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)
