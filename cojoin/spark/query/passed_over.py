"""Warnings at the start of a query about files that Spark's source of files skips without a message.

Files that come late, with times long before the newest file that was read (``maxFileAge``), are never read. They are
those of the folder that are not in the source's log, so they are counted. With ``ignoreMissingFiles`` a file that is
gone by the time of its reading is left out with all its rows; only those of a batch that is planned can be counted.

It costs a reading of the log, and a listing of the folder that ends after a second: some 100,000 local files, 10,000 of
an object store, 2,000 of HDFS. Of a larger one it is told that at least so many are passed over. Nothing is counted
where Spark's own rules would have to be repeated, for a pattern in the path or ``pathGlobFilter``, nor in local folders
with Spark Connect, whose server may have other ones.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cojoin.engine.display import format_time
from cojoin.errors import CheckpointError
from cojoin.session.kinds import adapter_of
from cojoin.session.offset_log import committed_batches, source_offsets
from cojoin.session.source_logs import entries
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.stores import open_store
from cojoin.spark.sources.source import Source
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import unpatterned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.bound_input import BoundInput
    from cojoin.storage.store import Store

__all__ = ["files_passed_over"]

_AGE, _USUAL_AGE = "maxfileage", "7d"
_MISSING, _MISSING_SETTING = "ignoremissingfiles", "spark.sql.files.ignoreMissingFiles"
_SPAN = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_MILLIS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LIMITS = ("maxfilespertrigger", "maxbytespertrigger")
_GLOB, _RECURSIVE = "pathglobfilter", "recursivefilelookup"
_SECONDS = 1.0
"""The seconds for which a folder is listed, and planned files are looked for."""


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
            yield _missing(what, known if adapter_of(spark).shares_paths else [], _planned_from(files, number))
        if known and not _reads_any_age(options):
            told = _too_old(spark, source, what, known, options)
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
    planned = (_path(each["path"]) for each in known if each["batchId"] >= planned_from and _is_local(each["path"]))
    gone = [each for each in _for_a_second(planned) if not Path(each).exists()]
    count = f". Of the batch that is planned {len(gone):,} are gone, such as {gone[0]}" if gone else ""
    return (
        f"{what}: with ignoreMissingFiles Spark passes over files that are gone when it reads them, and does not count "
        f"their rows{count}; leave it out, so that such a batch fails and can run again once the file is back"
    )


def _too_old(
    spark: SparkSession, source: Source, what: str, known: Sequence[Mapping[str, Any]], options: Mapping[str, str]
) -> str | None:
    """Return a warning with the number of files that are too old; None if there is none, or if it is not known."""
    age = options.get(_AGE, _USUAL_AGE)
    span = _SPAN.fullmatch(age.lower())
    if span is None or span[2] not in _MILLIS:
        return None
    oldest = max(int(each["timestamp"]) for each in known) - int(span[1]) * _MILLIS[span[2]]
    read, listed = {_path(each["path"]) for each in known}, _listed(spark, source, options)
    found: dict[str, int] = {}
    is_whole = False
    # Spark says what is wrong with the folder when it reads it.
    with contextlib.suppress(CheckpointError, *SPARK_ERRORS):
        found |= {path: at for path, at in _for_a_second(listed) if at < oldest and path not in read}
        is_whole = next(listed, None) is None
    if not found:
        return None
    example = max(found, key=lambda path: found[path])
    which = "1 file" if len(found) == 1 else f"{len(found):,} files"
    return (
        f"{what}: Spark passes over {which if is_whole else f'at least {which}'} of {source.location}, such as "
        f"{example} of {format_time(found[example])}: they came when newer ones were read already, and are older than "
        f"these by more than maxFileAge, which is {age}. To have them read, give them new times, or the source "
        f'options={{"maxFileAge": "3650d"}}'
    )


def _listed(spark: SparkSession, source: Source, options: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the path and the time in epoch milliseconds of each file that Spark lists."""
    location = str(source.location)
    if _GLOB in options or unpatterned(location) != location:
        return
    store = open_store(spark, location, "source")
    if not isinstance(store, LocalStore) or adapter_of(spark).shares_paths:
        # Of the folders in it Spark reads those that are named by a column's value.
        is_recursive = _is_true(options.get(_RECURSIVE))
        listed = store.times(lambda name: (is_recursive or "=" in name) and not _is_hidden(name))
        yield from (each for each in listed if not _is_hidden(each[0].rpartition("/")[2]))


def _for_a_second(items: Iterable[Any]) -> Iterator[Any]:
    """Yield items until a second is over."""
    deadline = time.monotonic() + _SECONDS
    for each in items:
        yield each
        if time.monotonic() > deadline:
            return


def _is_hidden(name: str) -> bool:
    """Return whether Spark does not read a file or folder of a name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_local(url: str) -> bool:
    return urlsplit(url).scheme == "file"


def _path(url: str) -> str:
    """Return the path of a file in Spark's log without scheme and host, as a listing has it."""
    return unquote(urlsplit(url).path)
