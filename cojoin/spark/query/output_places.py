"""Where a query's outputs may lie: each in a place of its own, and in the same one from start to start.

Compared are places, not spellings: a Delta table by name and by path, with a scheme or without, over a link of the
local file system. What an output must not be: the checkpoint or a part of it (but for the places that ``rejected`` and
side outputs have there by default), another output, an input. Nor may one lie within another, where readers and
cleaners of the outer one would meet the inner one's files; a folder whose name begins with ``_`` or ``.`` is none of
theirs, so below one it may.

A query's outputs do not change from run to run: what was written would lie apart from what is to come, and a batch that
is run again would be written twice. A table that was moved is still the same: it has the query's own transactions. Of a
callable nobody can tell where it writes, so it is not compared with another callable, nor with places.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.spark.sinks.sink import OutputId
from cojoin.spark.sinks.sinks import CallableSink, DeltaSink, ParquetSink
from cojoin.spark.sources.sources import Source
from cojoin.storage.delta_files import table_log
from cojoin.storage.locations import is_path
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.spark.input import BoundInput
    from cojoin.spark.sinks.sinks import Sink

__all__ = ["check_places", "check_unchanged"]


def check_places(
    spark: SparkSession, files: CheckpointFiles, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput]
) -> None:
    """See that each output has a place of its own, before anything is written.

    Args:
        spark: The session.
        files: The query's checkpoint.
        sinks: Where each output goes.
        inputs: The two inputs.

    Raises:
        ConfigurationError: An output is, or lies within, what it must not.
    """
    found = {_spell(output): (sink.describe(), _place(spark, sink)) for output, sink in sinks.items()}
    outputs = {name: (shown, place) for name, (shown, place) in found.items() if place is not None}
    checkpoint = _resolved(spark, files.root)
    for output in sinks:
        name = _spell(output)
        if name not in outputs:
            continue
        shown, place = outputs[name]
        usual = _default_place(output)
        if usual is not None and place == f"{checkpoint}/{usual}":
            continue
        _refuse(name, shown, place, "the checkpoint", files.root, checkpoint, hidden_counts=False)
    for bound in inputs:
        for location in _locations_read(bound):
            read = _of_table(spark, location)
            if read is None:
                continue
            place = _resolved(spark, read)
            for name, (shown, output) in outputs.items():
                _refuse(name, shown, output, f"input {bound.spec.name!r}", location, place)
    names = list(outputs)
    for at, name in enumerate(names):
        for other in names[:at]:
            _refuse(name, *outputs[name], other, *outputs[other])


def check_unchanged(
    spark: SparkSession, files: CheckpointFiles, last: Manifest | None, sinks: Mapping[str, Sink]
) -> None:
    """See that a query that goes on writes where it wrote.

    Args:
        spark: The session.
        files: The query's checkpoint.
        last: The manifest of its last batch; None before the first.
        sinks: Where each output goes now.

    Raises:
        CheckpointError: An output goes to another place than before.
    """
    for output, sink in sinks.items():
        stored = {} if last is None else last.outputs.get(output, {})
        if last is None or _is_same(spark, files, last.query_id, output, stored, sink):
            continue
        before = next(f"{kind} {stored[kind]}" for kind in ("delta", "parquet", "callable") if kind in stored)
        msg = (
            f"checkpoint {files.root}: {_spell(output)} went to {before} and would now go to {sink.describe()}: rows "
            f"of one query would lie in two places. Start with the output as it was; or begin a new query with this "
            f"one's state, restore_from=cojoin.Checkpoint({files.root!r}), with a checkpoint and outputs of its own"
        )
        raise CheckpointError(msg)


def _is_same(
    spark: SparkSession, files: CheckpointFiles, query_id: str, output: str, stored: Mapping[str, Any], sink: Sink
) -> bool:
    written = stored.get("batch_id")
    if written is None or isinstance(sink, CallableSink):
        return written is None or not {"delta", "parquet"} & stored.keys()
    kind = "delta" if isinstance(sink, DeltaSink) else "parquet" if isinstance(sink, ParquetSink) else None
    before = stored.get(kind or "")
    if kind is None or before is None:
        # Nothing is known of sinks of other kinds, nor of one that a callable was and that was never called.
        return kind is None or not {"delta", "parquet", "callable"} & stored.keys()
    place = _place(spark, sink)
    usual = _default_place(output)
    if place == _resolved(spark, _of_table(spark, before) or before):
        return True
    if usual is not None and place == _resolved(spark, files.path(usual)) and before.endswith(f"/{usual}"):
        return True
    if isinstance(sink, DeltaSink):
        # It was moved, if the query's own transactions are there.
        log = table_log(spark, sink.location)
        there = log is not None and log.tableExists()
        return bool(there and log.unsafeVolatileSnapshot().transactions().contains(OutputId(query_id, output).app_id))
    return CheckpointFiles(spark, str(place)).exists(f"batch_id={written}")


def _refuse(
    name: str, shown: str, place: str, other: str, other_shown: str, other_place: str, *, hidden_counts: bool = True
) -> None:
    if place == other_place:
        relation = "is"
    elif _is_within(place, other_place, hidden_counts=hidden_counts):
        relation = "lies within"
    elif _is_within(other_place, place, hidden_counts=True):
        relation = "holds"
    else:
        return
    msg = f"{name}: {shown} {relation} {other} ({other_shown}); give it a place of its own"
    raise ConfigurationError(msg)


def _is_within(inner: str, outer: str, *, hidden_counts: bool) -> bool:
    """Return whether a place lies below another; where it counts, not below a folder that readers pass over."""
    root = f"{outer.rstrip('/')}/"
    if not inner.startswith(root):
        return False
    return not (hidden_counts and any(part.startswith(("_", ".")) for part in inner[len(root) :].split("/")))


def _spell(output: str) -> str:
    return output if output in (OUTPUT, REJECTED) else f"side output {output!r}"


def _default_place(output: str) -> str | None:
    return None if output == OUTPUT else "rejected" if output == REJECTED else f"side_outputs/{output}"


def _place(spark: SparkSession, sink: Sink) -> str | None:
    """Return where a sink writes; None where nobody can tell."""
    if isinstance(sink, ParquetSink):
        return _resolved(spark, sink.path)
    if isinstance(sink, DeltaSink):
        location = _of_table(spark, sink.location)
        return None if location is None else _resolved(spark, location)
    return None


def _of_table(spark: SparkSession, location: str) -> str | None:
    """Return the path of a table, named or not, there or still to be made; None where the catalog can't tell."""
    if is_path(location):
        return location
    state = spark._jsparkSession.sessionState()  # noqa: SLF001 - PySpark has no way to where a table would be made
    try:
        identifier = state.sqlParser().parseTableIdentifier(location)
        catalog = state.catalog()
        if catalog.tableExists(identifier):
            return str(catalog.getTableMetadata(identifier).location().toString())
        return str(catalog.defaultTablePath(identifier).toString())
    except (Py4JError, PySparkException):
        # A catalog of another kind; what is wrong with the name the table's own errors say.
        return None


def _resolved(spark: SparkSession, location: str) -> str:
    """Return a location in full, links of the local file system followed."""
    try:
        root = CheckpointFiles(spark, location).root
    except (Py4JError, PySparkException):
        # A file system that is not there: whoever opens it says so, with the reason.
        return location.rstrip("/")
    scheme, colon, path = root.partition(":")
    return f"file:{os.path.realpath('/' + path.lstrip('/'))}" if colon and scheme == "file" else root.rstrip("/")


def _locations_read(bound: BoundInput) -> list[str]:
    """Return the tables and folders that an input reads; of a DataFrame of the user's own as far as its plan says."""
    if bound.source is not None:
        # Those of other kinds, such as topics, have no place.
        is_stored = type(bound.source) is Source and bound.source.location is not None
        return [str(bound.source.location)] if is_stored else []
    leaves = bound.frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - nothing else tells
    found: list[str] = []
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        if leaf.getClass().getSimpleName() != "StreamingRelation":
            continue
        options = leaf.dataSource().options()
        if options.contains("path"):
            found.append(str(options.apply("path")))
    return found
