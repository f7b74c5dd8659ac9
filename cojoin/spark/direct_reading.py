"""Whether the workers read an input's parquet files themselves (``batch.direct_reader``), decided before the start.

They do so where that gives the same rows as Spark's reader: for ``cojoin.sources.files(..., "parquet")`` of a local or
mounted folder, with columns of plain types, and with options and settings that do not change how a file is read. A few
of the files that are there are looked at, too. Both ways have the same offsets, so a checkpoint goes on with either.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.values.types import parse_schema, type_to_ddl
from cojoin.session.kinds import adapter_of
from cojoin.session.session_settings import is_left_to_spark
from cojoin.spark.batch.direct_reader import folders_with_values
from cojoin.spark.batch.parquet_columns import is_plain, misfit
from cojoin.spark.sources.source import Source
from cojoin.storage.parquet_footers import read_footer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec

__all__ = ["is_parquet", "root_of", "why_through_spark"]

_OF_STREAMS = {
    "maxfilespertrigger",
    "maxbytespertrigger",
    "maxfileage",
    "maxcachedfiles",
    "discardcachedinputratio",
    "latestfirst",
    "filenameonly",
    "cleansource",
    "sourcearchivedir",
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
}
"""Options, in lower case, that say which files are read when, and not how."""

_AS_EXPECTED = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
}
"""Settings of Spark's that change what is read of a file, with the values for which the workers read the same."""

_PATTERN = re.compile(r"[\[\]{}*?\\]")
_SAMPLES, _LISTED = 3, 10_000


def is_parquet(source: Any) -> bool:
    """Return whether a source is a folder of parquet files, made by ``cojoin.sources.files``."""
    return type(source) is Source and source.format.lower() == "parquet"


def root_of(session: SparkSession, source: Source) -> str | None:
    """Return the folder of a source as a path that the workers reach; None if it is none."""
    if _PATTERN.search(str(source.location)):
        return None
    return adapter_of(session).local_path(str(source.location))


def why_through_spark(source: Source, frame: DataFrame, spec: InputSpec, *, is_computed: bool) -> str | None:
    """Return why an input's parquet files are read by Spark, in words; None where the workers read them.

    Args:
        source: The source, for which ``is_parquet`` is true.
        frame: The source, opened.
        spec: The input.
        is_computed: Whether its event time is an expression.
    """
    session, schema = frame.sparkSession, spec.source_schema
    if is_left_to_spark(session, "spark.cojoin.parquet"):
        return "spark.cojoin.parquet is spark"
    if not adapter_of(session).shares_paths:
        return "the session is one of Spark Connect"
    if is_computed:
        return "its event time is an expression"
    return (
        _why_by_options(source)
        or _why_by_settings(session)
        or _why_by_schema(source, schema, spec)
        or _why_by_files(root_of(session, source), schema)
    )


def _why_by_options(source: Source) -> str | None:
    others = [name for name in source.options if name.lower() not in _OF_STREAMS]
    return f"it has the option {others[0]}" if others else None


def _why_by_settings(session: SparkSession) -> str | None:
    for name, expected in _AS_EXPECTED.items():
        found = str(session.conf.get(name, expected))
        if found.lower() != expected.lower():
            return f"{name} is {found}"
    return None


def _why_by_schema(source: Source, schema: pa.Schema, spec: InputSpec) -> str | None:
    declared = parse_schema(str(source.schema), what="schema").names
    if declared != schema.names:
        added = [name for name in schema.names if name not in declared]
        return f"its columns are not those of its schema: {', '.join(added or schema.names)}"
    for field in schema:
        if not is_plain(field.type):
            return f"its column {field.name!r} is of the type {type_to_ddl(field.type)}"
        if "." in field.name or field.name.lower() == "_metadata":
            return f"its column is named {field.name!r}"
        if field.name in spec.key and not is_hashed(field.type):
            return f"its key {field.name!r} is of the type {type_to_ddl(field.type)}"
    return None


def _why_by_files(root: str | None, schema: pa.Schema) -> str | None:
    """Look at a few of the files that are there."""
    if root is None:
        return "its files are on no disk that the workers reach by a path"
    try:
        with os.scandir(root) as listed:
            entries = sorted(itertools.islice(listed, _LISTED), key=lambda each: each.name)
    except OSError as error:
        return f"its folder can't be listed: {error.strerror}"
    folders = [each.name for each in entries if each.is_dir()]
    named = [each for folder in folders for each in folders_with_values(f"{root}/{folder}/", root)]
    if named:
        return f"its folder {named[0]!r} has a column's value"
    files = [each for each in entries if each.is_file() and not each.name.startswith(("_", "."))]
    for each in files[:: max(1, -(-len(files) // _SAMPLES))] + files[-1:]:
        try:
            with pa.OSFile(each.path) as stored:
                why = misfit(read_footer(stored), schema)
        except (OSError, pa.ArrowException) as error:
            why = f"it can't be opened: {str(error).partition(chr(10))[0]}"
        if why is not None:
            return f"of its file {each.name}: {why}"
    return None
