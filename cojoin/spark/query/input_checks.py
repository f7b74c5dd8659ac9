"""Checks of the inputs before a query starts: columns, change feeds, rows that are skipped, and spans of validity.

A table may be altered between ``connect`` and ``start``; without a check, Spark's stream would fail inside a batch. A
query that continues needs the changes of its tables from its position on, and the check reads each table's log. Another
query's positions are checked when it is restored (``savepoints.restore``).

Spark's file source skips some files without a message, so a warning names them. It never reads a file whose time is
long before that of the newest file that was read (``maxFileAge``). Such a file is in the folder and not in the source's
log, so these files are counted. With ``ignoreMissingFiles``, a file that is gone when it is to be read is skipped; only
those of a planned batch are counted. With ``ignoreCorruptFiles``, a damaged file is skipped from the damage on, and not
counted. As settings of the session, these two apply to Delta's own source, too. With either, a table's changes are not
read, since a row would stay valid if the file that deletes it were skipped.

The warnings cost a read of the log, and a listing of the folder that ends after a second: some 100,000 local files,
10,000 of an object store, 2,000 of HDFS. For a larger folder, the number is a lower bound. Nothing is counted where the
path has a pattern or the source has ``pathGlobFilter``, whose rules are Spark's, nor in local folders with Spark
Connect, whose server may have other ones.

A Delta table that was put back from a backup while the query was stopped, and has grown since, has other rows in the
versions that the query has read. The commit of the last of these versions is later than the batch that read it, so a
warning names the version. This costs a read of one commit for each table. The warning is missing where the commit is
less than ten minutes later, since clocks may differ, where another batch was run or the query was restored since, and
where the commit has no time.

Rows with a span of validity must not end before they begin, and those of one key must not overlap. That is checked for
a static DataFrame, for a version of a static side before it is loaded, and for the present rows of a table that is
going to be streamed. Later rows are checked where they are read: a row that ends before it begins is rejected, and
where rows overlap, the one that begins last is valid. The check costs one pass over the keys and the two columns,
sorted by key.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from cojoin.delta.table_stream import Position
from cojoin.engine.display import format_time
from cojoin.engine.input_spec import DIRECT
from cojoin.engine.row_changes import ends_too_early, overlapping
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.delta_tables import table_log
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_checkpoint import (
    COMMITS,
    committed_batches,
    logged_time,
    newest_id,
    source_entries,
    source_offsets,
)
from cojoin.session.spark_errors import JAVA_ERRORS, SPARK_ERRORS
from cojoin.spark.query.input_progress import InputStreams
from cojoin.spark.sources.source import Source
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import unpatterned, without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.bound_input import BoundInput
    from cojoin.storage.store import Store


def check_source_columns(inputs: Sequence[BoundInput]) -> None:
    """Raise a ConfigurationError if a streamed table's columns have changed; loads check static sides."""
    for bound in inputs:
        if not isinstance(bound.source, Source) or bound.source.format != "delta" or not bound.is_streaming:
            continue
        try:
            then, now = _columns(bound.frame.schema), _columns(bound.present_columns())
        except JAVA_ERRORS:
            # The stream's own error is clearer about a table that can't be read any more.
            continue
        if bound.spec.event_time not in now:
            # An event time that is an expression is a column of the query alone.
            then.pop(str(bound.spec.event_time), None)
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            shown = [f"{name} ({then.get(name, 'missing')} then, {now.get(name, 'missing')} now)" for name in changed]
            msg = (
                f"input {bound.spec.name!r}: {bound.source.title}: columns have changed since the query was built: "
                f"{', '.join(shown)}; make the inputs and connect them again"
            )
            raise ConfigurationError(msg)


def _columns(schema: StructType) -> dict[str, str]:
    return {each.name: each.dataType.simpleString() for each in schema.fields}


def check_feeds(files: Store, inputs: Sequence[BoundInput]) -> None:
    """Raise a CheckpointError unless each change feed has all changes since the last committed micro-batch."""
    newest = newest_id(files, COMMITS)
    if newest is None or not any(each.source is not None and each.source.begins_with_snapshot for each in inputs):
        return
    lines, counts = source_offsets(files, newest)[:-1], InputStreams.of(inputs).lines
    if len(lines) != sum(counts):
        return
    for bound, count in zip(inputs, counts, strict=True):
        own, lines = lines[:count], lines[count:]
        if bound.source is not None and bound.source.begins_with_snapshot:
            bound.source.lost_since(bound.frame.sparkSession, f"input {bound.spec.name!r}", own[0])


_AGE, _USUAL_AGE = "maxfileage", "7d"
_MISSING = "ignoreMissingFiles"
_SKIPPED_WITH = {_MISSING: "are gone when it reads them", "ignoreCorruptFiles": "are damaged"}
"""Spark's options to skip files, with the files that each skips; settings of the same effect end with these names."""

_SPAN = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_MILLIS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LIMITS = ("maxfilespertrigger", "maxbytespertrigger")
_GLOB, _RECURSIVE = "pathglobfilter", "recursivefilelookup"
_CLOCKS_DIFFER_MS = 600_000
"""By how much the clock of a table's writer may be ahead of the driver's, in milliseconds."""

_SECONDS = 1.0
"""The seconds for which a folder is listed, and planned files are looked for."""


def files_passed_over(
    spark: SparkSession, files: Store, inputs: Sequence[BoundInput], lines: Sequence[int]
) -> Iterator[str]:
    """Yield the warnings about each input that is a folder of files or a Delta table.

    ``lines`` has the number of lines of Spark's offset log that belong to each input.
    """
    for at, bound in enumerate(inputs):
        source, label = bound.source, f"input {bound.spec.name!r}"
        skipping = _skipping_options(spark, bound)
        # A source that is read twice has two lines and one log.
        if type(source) is not Source or not source.has_log or lines[at] != 1:
            yield from (_warned(label, option) for option in skipping)
            continue
        options = {name.lower(): each for name, each in source.options.items()}
        number = sum(lines[:at])
        known = source_entries(files, number)
        for option in skipping:
            listed = known if option == _MISSING and adapter_of(spark).shares_paths else []
            yield _warned(label, option, listed, _planned_from(files, number))
        if known and not _reads_any_age(options):
            yield from _by_times(spark, source, label, known, options)


def tables_put_back(
    spark: SparkSession, files: Store, inputs: Sequence[BoundInput], streams: InputStreams
) -> Iterator[str]:
    """Yield a warning for each Delta table whose last version that was read is later than the batch which read it."""
    batch_id = newest_id(files, COMMITS) if any(streams.logs) else None
    lines = [] if batch_id is None else source_offsets(files, batch_id)[:-1]
    names = [bound.spec.name for bound, count in zip(inputs, streams.lines, strict=True) for _ in range(count)]
    if batch_id is None or len(lines) != len(names):
        return
    ran_at = logged_time(files, batch_id)
    for name, table, position in zip(names, streams.logs, map(Position.read, lines), strict=True):
        version = -1 if position is None else position.last_version
        if table is None or version < 0:
            continue
        written_at = _written_at(spark, table[0], version)
        # A time in the future is that of a wrong clock.
        if written_at is not None and ran_at + _CLOCKS_DIFFER_MS < written_at <= 1_000 * time.time():
            yield (
                f"input {name!r}: Delta table {without_login(table[0])}: the batch {batch_id} of {format_time(ran_at)} "
                f"has read up to version {version}, and that version is of {format_time(written_at)}: unless a clock "
                f"was wrong, the table was put back from a backup and has grown again, so the rows that it got up to "
                f"that version are left out. To have them, start a new query with its own checkpoint"
            )


def _written_at(spark: SparkSession, location: str, version: int) -> int | None:
    """Return a commit's own time, in epoch milliseconds; None where it can't be read."""
    # Where the table can't be read, the stream raises the error.
    with contextlib.suppress(CheckpointError, ConfigurationError, *SPARK_ERRORS):
        log = table_log(spark, location)
        return None if log is None else log.commit(version, has_files=False).timestamp
    return None


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _reads_any_age(options: Mapping[str, str]) -> bool:
    """Return whether Spark ignores ``maxFileAge``: it reads the newest files first, or compares names alone."""
    newest_first = _is_true(options.get("latestfirst")) and any(each in options for each in _LIMITS)
    return newest_first or _is_true(options.get("filenameonly"))


def _planned_from(files: Store, number: int) -> int:
    """Return the first batch id in the log of the source with this number that no committed batch has read."""
    committed = committed_batches(files)
    before = source_offsets(files, committed[-1]) if committed else []
    position = re.search(r'"logOffset":\s*(\d+)', before[number]) if number < len(before) else None
    return 0 if position is None else int(position[1]) + 1


def _skipping_options(spark: SparkSession, bound: BoundInput) -> list[str]:
    """Return the options with which Spark skips files of an input; the session's settings of the same effect count."""
    source = bound.source
    is_table = isinstance(source, Source) and source.format == "delta"
    if source is None or not (is_table or type(source) is Source) or bound.spec.reading == DIRECT:
        return []
    # Delta's source takes no such option.
    options = {} if is_table else {name.lower(): each for name, each in source.options.items()}
    return [
        name
        for name in _SKIPPED_WITH
        if _is_true(options.get(name.lower(), spark.conf.get(f"spark.sql.files.{name}", "false")))
    ]


def check_whole_feeds(inputs: Sequence[BoundInput]) -> None:
    """Raise a ConfigurationError if Spark would leave out files of a table's changes."""
    for bound in inputs:
        skipping = _skipping_options(bound.frame.sparkSession, bound)
        if skipping and bound.source is not None and bound.source.begins_with_snapshot:
            name = skipping[0]
            msg = (
                f"input {bound.spec.name!r}: {bound.source.title}: with spark.sql.files.{name} Spark leaves out files "
                f"that {_SKIPPED_WITH[name]}, and without their changes, rows that were changed or deleted would stay "
                f"valid; set it to false, and connect the inputs again"
            )
            raise ConfigurationError(msg)


def _warned(label: str, option: str, known: Sequence[Mapping[str, Any]] = (), planned_from: int = 0) -> str:
    urls = (urlsplit(each["path"]) for each in known if each["batchId"] >= planned_from)
    planned = (unquote(url.path) for url in urls if url.scheme == "file")
    gone = [each for each in _for_a_second(planned) if not Path(each).exists()]
    count = f". Of the batch that is planned {len(gone):,} are gone, such as {gone[0]}" if gone else ""
    return (
        f"{label}: with {option} Spark passes over files that {_SKIPPED_WITH[option]}, and does not count their "
        f"rows{count}; leave it out, so that such a batch fails and can run again once the file is back"
    )


def _by_times(
    spark: SparkSession, source: Source, label: str, known: Sequence[Mapping[str, Any]], options: Mapping[str, str]
) -> Iterator[str]:
    """Yield the warnings about files that are too old, and about those that have changed since they were read."""
    age = options.get(_AGE, _USUAL_AGE)
    span = _SPAN.fullmatch(age.lower())
    if span is None or span[2] not in _MILLIS:
        return
    oldest = max(int(each["timestamp"]) for each in known) - int(span[1]) * _MILLIS[span[2]]
    # Spark's log has URLs, a listing has paths.
    read = {unquote(urlsplit(each["path"]).path): int(each["timestamp"]) for each in known}
    listed = _listed(spark, source, options)
    times: dict[str, int] = {}
    is_whole = False
    # Where the folder can't be listed, Spark raises the error when it reads the folder.
    with contextlib.suppress(CheckpointError, *SPARK_ERRORS):
        times |= _for_a_second(listed)
        is_whole = next(listed, None) is None
    passed_over = [path for path, at in times.items() if at < oldest and path not in read]
    if passed_over:
        example = max(passed_over, key=lambda path: times[path])
        yield (
            f"{label}: Spark passes over {_count(passed_over, is_whole=is_whole)} of {source.location}, such as "
            f"{example} of {format_time(times[example])}: they came when newer ones were read already, and are older "
            f"than these by more than maxFileAge, which is {age}. To have them read, give them new times, or the "
            f'source options={{"maxFileAge": "3650d"}}'
        )
    # A store may have times in whole seconds.
    changed = [path for path, at in times.items() if abs(read.get(path, at) - at) >= _MILLIS["s"]]
    again = [path for path in changed if read[path] < oldest <= times[path]]
    once = [path for path in changed if path not in again]
    for paths, effect in (
        (again, "Spark's log has dropped them, so all their rows are read again"),
        (once, "Spark reads a file once, so rows that were added since are left out"),
    ):
        if paths:
            example = max(paths, key=lambda path: times[path])
            yield (
                f"{label}: {_count(paths, is_whole=is_whole)} of {source.location} changed after Spark had read them, "
                f"such as {example}, which was of {format_time(read[example])} and is of "
                f"{format_time(times[example])}: {effect}. Write rows to new files"
            )


def _count(paths: Sequence[str], *, is_whole: bool) -> str:
    which = "1 file" if len(paths) == 1 else f"{len(paths):,} files"
    return which if is_whole else f"at least {which}"


def _listed(spark: SparkSession, source: Source, options: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the path and the time in epoch milliseconds of each file that Spark lists."""
    location = str(source.location)
    if _GLOB in options or unpatterned(location) != location:
        return
    store = open_store(spark, location, "source")
    if not isinstance(store, LocalStore) or adapter_of(spark).shares_paths:
        # Spark also reads the folders in it whose names have a partition's value.
        is_recursive = _is_true(options.get(_RECURSIVE))
        listed = store.times(lambda name: (is_recursive or "=" in name) and not _is_hidden(name))
        yield from (each for each in listed if not _is_hidden(each[0].rpartition("/")[2]))


def _for_a_second(items: Iterable[Any]) -> Iterator[Any]:
    """Yield items for one second at most."""
    deadline = time.monotonic() + _SECONDS
    for item in items:
        yield item
        if time.monotonic() > deadline:
            return


def _is_hidden(name: str) -> bool:
    """Return whether Spark does not read a file or folder of a name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


_ENDS_EARLY, _OVERLAPS = 1, 2


def check_present_validity(inputs: Iterable[BoundInput]) -> None:
    """Check the spans of validity of the inputs' present rows, where these can be read (``check_rows_validity``)."""
    for bound in inputs:
        frame = bound.present_rows() if _has_validity(bound.spec) else None
        if frame is not None:
            check_rows_validity(frame, bound.spec)


def check_rows_validity(frame: DataFrame, spec: InputSpec) -> None:
    """Raise a ConfigurationError if rows of a static DataFrame end before they begin, or rows of a key overlap."""
    if not _has_validity(spec):
        return
    assert spec.changes is not None
    valid_from, valid_to = str(spec.changes.valid_from), str(spec.changes.valid_to)
    # Columns are renamed by position, since a user's may have any name.
    keys = [f"k{place}" for place in range(len(spec.key))]
    chosen = [frame[back_quoted(name)].alias(alias) for name, alias in zip(spec.key, keys, strict=True)]
    times = frame[back_quoted(valid_from)].alias("begins"), frame[back_quoted(valid_to)].alias("ends")
    rows = frame.select(*chosen, *times).where(F.col("ends").isNull() | (F.col("ends") != F.col("begins")))
    for name in (*keys, "begins"):
        rows = rows.where(F.col(name).isNotNull())
    by_key = Window.partitionBy(*keys).orderBy("begins", "ends")
    before = F.lag(F.struct("begins", "ends", F.expr("true").alias("is_one"))).over(by_key)
    rows = rows.withColumn("before", before)
    is_open = F.col("before.ends").isNull() | (F.col("before.ends") > F.col("begins"))
    fault = F.when(F.col("ends") < F.col("begins"), _ENDS_EARLY).when(F.col("before.is_one") & is_open, _OVERLAPS)
    first = F.min(F.struct(*keys, "begins", "ends", "before"))
    faulty = rows.withColumn("found", fault).where("found IS NOT NULL").groupBy("found")
    by_kind = {row.found: row for row in faulty.agg(F.count("*").alias("rows"), first.alias("example")).collect()}
    if _ENDS_EARLY in by_kind:
        row = by_kind[_ENDS_EARLY]
        raise ends_too_early(spec, row.rows, _shown(spec, row.example, row.example))
    if _OVERLAPS in by_kind:
        row = by_kind[_OVERLAPS]
        one, other = (_shown(spec, row.example, times) for times in (row.example.before, row.example))
        raise overlapping(spec, row.rows, one, other)


def _has_validity(spec: InputSpec) -> bool:
    return spec.changes is not None and spec.changes.valid_from is not None


def _shown(spec: InputSpec, keys: Any, times: Any) -> str:
    assert spec.changes is not None
    values = [(name, keys[f"k{place}"]) for place, name in enumerate(spec.key)]
    values += [(str(spec.changes.valid_from), str(times["begins"])), (str(spec.changes.valid_to), times["ends"])]
    return f"Row({', '.join(f'{name}={value if value is None else str(value)!r}' for name, value in values)})"
