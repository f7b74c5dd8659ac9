"""Warnings at the start of a query about files that Spark's source of files skips without a message.

Files that come late, with times long before the newest file that was read (``maxFileAge``), are never read. They are
those of the folder that are not in the source's log, so they are counted. With ``ignoreMissingFiles`` a file that is
gone by the time of its reading is left out with all its rows; only those of a batch that is planned can be counted.

It costs a reading of the log, and a listing of the folder, as each micro-batch makes one.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.offset_log import source_offsets
from cojoin.checkpoints.spark_state_store import committed_batches
from cojoin.engine.formats import format_time
from cojoin.spark.restore.source_logs import entries
from cojoin.spark.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.bound_input import BoundInput
    from cojoin.storage.store import Store

__all__ = ["files_passed_over"]

_AGE, _USUAL_AGE = "maxfileage", "7d"
_MISSING, _MISSING_SETTING = "ignoremissingfiles", "spark.sql.files.ignoreMissingFiles"
_SPAN = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_MILLIS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LIMITS = ("maxfilespertrigger", "maxbytespertrigger")
_LISTING = ("pathglobfilter", "recursivefilelookup")
"""The options by which Spark lists a folder."""

_HIDDEN = (".", "_")
"""The first characters of the names of files and folders that Spark does not read."""


def files_passed_over(
    spark: SparkSession, files: Store, inputs: Sequence[BoundInput], lines: Sequence[int]
) -> Iterator[str]:
    """Yield the warnings about each input that is a folder of files.

    Args:
        spark: The session.
        files: The checkpoint.
        inputs: Both inputs.
        lines: How many lines of Spark's offset log belong to each input.
    """
    for at, bound in enumerate(inputs):
        source = bound.source
        # A source that is read twice has two lines and one log.
        if type(source) is not Source or not source.has_log or lines[at] != 1:
            continue
        what, options = f"input {bound.spec.name!r}", {name.lower(): each for name, each in source.options.items()}
        number = sum(lines[:at])
        known = entries(files, number)
        if _is_true(options.get(_MISSING, spark.conf.get(_MISSING_SETTING, "false"))):
            yield _missing(what, known, _planned_from(files, number))
        if known and not _reads_any_age(options):
            told = _too_old(spark, source, what, known, options.get(_AGE, _USUAL_AGE))
            if told is not None:
                yield told


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _reads_any_age(options: Mapping[str, str]) -> bool:
    """Return whether Spark ignores ``maxFileAge``: it reads the newest files first, or compares names alone."""
    newest_first = _is_true(options.get("latestfirst")) and any(each in options for each in _LIMITS)
    return newest_first or _is_true(options.get("filenameonly"))


def _planned_from(files: Store, number: int) -> int:
    """Return the first id of the log that no committed batch has read."""
    committed = committed_batches(files)
    before = source_offsets(files, committed[-1]) if committed else []
    found = re.search(r'"logOffset":\s*(\d+)', before[number]) if number < len(before) else None
    return 0 if found is None else int(found[1]) + 1


def _missing(what: str, known: Sequence[Mapping[str, Any]], planned_from: int) -> str:
    planned = [_local(each["path"]) for each in known if each["batchId"] >= planned_from]
    gone = [each for each in planned if each is not None and not each.exists()]
    count = f". Of the batch that is planned {len(gone):,} are gone, such as {gone[0]}" if gone else ""
    return (
        f"{what}: with ignoreMissingFiles Spark passes over files that are gone when it reads them, and does not count "
        f"their rows{count}; leave it out, so that such a batch fails and can run again once the file is back"
    )


def _too_old(
    spark: SparkSession, source: Source, what: str, known: Sequence[Mapping[str, Any]], age: str
) -> str | None:
    """Return a warning with the number of files that are too old to be read; None if none is, or if it is not known."""
    span = _SPAN.fullmatch(age.lower())
    if span is None or span[2] not in _MILLIS:
        return None
    oldest = max(int(each["timestamp"]) for each in known) - int(span[1]) * _MILLIS[span[2]]
    read = {_path(each["path"]) for each in known}
    found = {path: time for path, time in _listed(spark, source, oldest) if path not in read}
    if not found:
        return None
    example = max(found, key=lambda path: found[path])
    which = "1 file" if len(found) == 1 else f"{len(found):,} files"
    return (
        f"{what}: Spark passes over {which} of {source.location}, such as {example} of "
        f"{format_time(found[example])}: they came when newer ones were read already, and are older than these by more "
        f"than maxFileAge, which is {age}. To have them read, give them new times, or the source "
        f'options={{"maxFileAge": "3650d"}}'
    )


def _listed(spark: SparkSession, source: Source, before: int) -> Iterator[tuple[str, int]]:
    """Yield the path and the time in epoch milliseconds of each file that is older than a moment."""
    root = _local(str(source.location))
    options = {name: value for name, value in source.options.items() if name.lower() in _LISTING}
    if root is not None and not options and root.is_dir():
        yield from _in_folder(root, before)
        return
    reader = spark.read.format("binaryFile").options(**options)
    try:
        rows = reader.load(source.location).select("path", F.unix_millis("modificationTime").alias("time"))
        for row in rows.where(F.col("time") < before).toLocalIterator():
            yield _path(row["path"]), row["time"]
    except PySparkException:
        # Spark says what is wrong with the folder when it reads it.
        return


def _in_folder(root: Path, before: int) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(root):
        # Of the folders in it Spark reads those that are named by a column's value.
        folders[:] = [name for name in folders if "=" in name and not name.startswith(_HIDDEN)]
        for path in (Path(folder, name) for name in names if not name.startswith(_HIDDEN)):
            # A file may be gone since it was listed.
            with contextlib.suppress(OSError):
                time = path.stat().st_mtime_ns // 1_000_000
                if time < before:
                    yield str(path), time


def _local(location: str) -> Path | None:
    """Return a location as a local path; None where it is none, or a pattern."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or any(each in location for each in "*?[{"):
        return None
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def _path(location: str) -> str:
    """Return a file's path without scheme and host, as the log and a listing have it alike."""
    return unquote(urlsplit(location).path)
