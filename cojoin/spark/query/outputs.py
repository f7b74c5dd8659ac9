"""The outputs of a query at its start: each has its own place, which stays the same in all runs, and is then opened.

Places are compared as they resolve, not as they are spelled: a Delta table by name or by path, a path with or without
a scheme, or through a symbolic link of the local file system. An output must not be an input, another output, the
checkpoint or a part of it (except the default places of ``rejected`` and the side outputs). Nor may one place lie
within another, as readers and cleaners of the outer one would read the files of the inner one; below a folder that they
skip, with a name that begins with ``_`` or ``.``, it may, except in the checkpoint.

A query's outputs do not change between runs: its rows would be in two places, and a batch that is run again would be
written twice. A table that was moved is still the same one: its log has the query's own transactions. A callable may
write anywhere, so it is compared neither with another callable nor with places.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.control import keep_former_runs_from_draining
from cojoin.checkpoints.state_commits import StateCommits
from cojoin.delta.table_batches import FencedOffError
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.delta_tables import read_table
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_checkpoint import OFFSETS, committed_batches
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.workers import SharedPlaces
from cojoin.spark.query.batch_protocol import OpenOutput
from cojoin.spark.sinks.sink import OutputId, Position
from cojoin.spark.sinks.sinks import CallableSink, DeltaSink, ParquetSink
from cojoin.spark.sources.source import Source
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import is_path, unpatterned, without_login
from cojoin.storage.place_tokens import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.sinks.sink import Sink
    from cojoin.storage.store import Store

_KINDS = ("delta", "parquet", "kafka", "sql", "callable")
_NAMED = ("kafka", "sql")
"""The kinds whose places are compared by their names."""


def check_places(spark: SparkSession, files: Store, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput]) -> None:
    """Raise a ConfigurationError, before anything is written, unless each output has its own place.

    It must not be that of the checkpoint, an input or another output, nor within or around one of these.
    """
    places = {_spell(output): (sink.describe(), _place(spark, sink)) for output, sink in sinks.items()}
    outputs = {name: (shown, place) for name, (shown, place) in places.items() if place is not None}
    checkpoint = _resolved(spark, files.root)
    sources = [each.source for each in inputs if each.source is not None]
    for output, sink in sinks.items():
        sink.check_inputs(sources, _spell(output))
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
            read = adapter_of(spark).table_location(location)
            if read is None:
                continue
            place = _resolved(spark, read)
            for name, (shown, output) in outputs.items():
                _refuse(name, shown, output, f"input {bound.spec.name!r}", location, place)
    names = list(outputs)
    for at, name in enumerate(names):
        for other in names[:at]:
            _refuse(name, *outputs[name], other, *outputs[other])


def shared_places(
    spark: SparkSession,
    files: Store,
    sinks: Mapping[str, Sink],
    inputs: Sequence[BoundInput] = (),
    *,
    is_client: bool = False,
) -> SharedPlaces | None:
    """Return the local paths that the workers of a query reach by themselves; None if no worker can have other ones.

    ``is_client`` is true in a client of Spark Connect, which writes to the checkpoint only: the process on the server
    that writes the batches checks the outputs.
    """
    if not adapter_of(spark).has_other_hosts:
        return None
    written = [Place("checkpoint", files.root)]
    for output, sink in () if is_client else sinks.items():
        location = sink.location if isinstance(sink, DeltaSink) else sink.directory()
        path = None if location is None else adapter_of(spark).table_location(location)
        if path is not None and not is_path(str(location)) and read_table(spark, str(location)) is None:
            # Spark creates a table by name only where its folder is empty or missing.
            path = path.rstrip("/").rpartition("/")[0]
        if path is not None and not path.startswith(f"{files.root}/"):
            written.append(Place(_spell(output), path))
    read = [
        Place(f"input {bound.spec.name!r}", unpatterned(path))
        for bound in (() if is_client else inputs)
        for location in (*_locations_read(bound), *_tables_read(bound))
        if (path := adapter_of(spark).table_location(location)) is not None
    ]
    local = _local(spark, written), _local(spark, read)
    return SharedPlaces(*local) if any(local) else None


def _local(spark: SparkSession, places: Sequence[Place]) -> tuple[Place, ...]:
    """Return those places that are on the local file system, by their paths without links resolved."""
    local = []
    for place in places:
        with contextlib.suppress(CheckpointError, *SPARK_ERRORS):
            store = open_store(spark, place.path)
            if isinstance(store, LocalStore):
                local.append(Place(place.label, store.root.removeprefix("file:")))
    return tuple(local)


def check_unchanged(spark: SparkSession, files: Store, last: Manifest | None, sinks: Mapping[str, Sink]) -> None:
    """Raise a CheckpointError unless a query that continues after ``last`` writes to the same places as before."""
    for output, sink in sinks.items():
        stored = {} if last is None else last.outputs.get(output, {})
        if last is None or _is_same(spark, files, last.query_id, output, stored, sink):
            continue
        before = next(f"{kind} {stored[kind]}" for kind in _KINDS if kind in stored)
        msg = (
            f"{files.named}: {_spell(output)} went to {before} and would now go to {sink.describe()}: rows "
            f"of one query would lie in two places. Start with the output as it was; or begin a new query with this "
            f"one's state, restore_from=cojoin.Snapshot({without_login(files.root)!r}), with its own checkpoint and "
            f"outputs"
        )
        raise CheckpointError(msg)


def _is_same(
    spark: SparkSession, files: Store, query_id: str, output: str, stored: Mapping[str, Any], sink: Sink
) -> bool:
    written = stored.get("batch_id")
    if written is None or isinstance(sink, CallableSink):
        return written is None or not {"delta", "parquet", *_NAMED} & stored.keys()
    named = [sink.place().get(each) for each in _NAMED]
    kind = "delta" if isinstance(sink, DeltaSink) else "parquet" if isinstance(sink, ParquetSink) else None
    before = stored.get(kind or "")
    if kind is None or before is None:
        # Sinks of the user's own kinds can't be compared; it only counts whether the stored place is of a known kind.
        # Whether a topic is the same one, by its id, is checked when the output is opened.
        is_known = bool(set(_KINDS) & stored.keys())
        return (kind is None and named == [stored.get(each) for each in _NAMED]) or not is_known
    place = _place(spark, sink)
    usual = _default_place(output)
    if place == _resolved(spark, adapter_of(spark).table_location(before) or before):
        return True
    if usual is not None and place == _resolved(spark, files.path(usual)) and before.endswith(f"/{usual}"):
        return True
    if isinstance(sink, DeltaSink):
        # If the table has the query's own transactions, it was moved.
        table = read_table(spark, sink.location)
        return table is not None and table.transaction(OutputId(query_id, output).app_id) is not None
    return open_store(spark, str(place)).exists(f"batch_id={written}")


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
    msg = f"{name}: {shown} {relation} {other} ({other_shown}); give it its own place"
    raise ConfigurationError(msg)


def _is_within(inner: str, outer: str, *, hidden_counts: bool) -> bool:
    """Return whether a place lies below another, and with ``hidden_counts`` not below a folder that readers skip."""
    root = f"{outer.rstrip('/')}/"
    if not inner.startswith(root):
        return False
    return not (hidden_counts and any(part.startswith(("_", ".")) for part in inner[len(root) :].split("/")))


def _spell(output: str) -> str:
    return output if output in (OUTPUT, REJECTED) else f"side output {output!r}"


def _default_place(output: str) -> str | None:
    return None if output == OUTPUT else "rejected" if output == REJECTED else f"side_outputs/{output}"


def _place(spark: SparkSession, sink: Sink) -> str | None:
    """Return the path that a sink writes to; None where it is not known."""
    if isinstance(sink, ParquetSink):
        return _resolved(spark, sink.path)
    if isinstance(sink, DeltaSink):
        location = adapter_of(spark).table_location(sink.location)
        return None if location is None else _resolved(spark, location)
    return sink.unique_place()


def _resolved(spark: SparkSession, location: str) -> str:
    """Return a location in full, with symbolic links of the local file system resolved."""
    try:
        root = open_store(spark, location).root
    except SPARK_ERRORS:
        # The file system is not available; opening the location raises an error with the reason.
        return location.rstrip("/")
    scheme, colon, path = root.partition(":")
    return f"file:{os.path.realpath('/' + path.lstrip('/'))}" if colon and scheme == "file" else root.rstrip("/")


def _tables_read(bound: BoundInput) -> list[str]:
    """Return the table of a Delta source of a special kind, such as one with changes."""
    source = bound.source
    if source is None or type(source) is Source or source.format != "delta" or source.location is None:
        return []
    return [source.location]


def _locations_read(bound: BoundInput) -> list[str]:
    """Return the tables and folders that an input reads; for a user's own DataFrame, as far as its plan names them."""
    if bound.source is not None:
        # Sources of other kinds, such as topics, have no path.
        is_stored = type(bound.source) is Source and bound.source.location is not None
        return [str(bound.source.location)] if is_stored else []
    sources = adapter_of(bound.frame.sparkSession).stream_sources(bound.frame)
    return [each.options["path"] for each in sources if each is not None and "path" in each.options]


def open_outputs(
    spark: SparkSession, sinks: Mapping[str, Sink], checkpoint: ClaimedCheckpoint, plan: Plan
) -> dict[str, OpenOutput]:
    """Open the outputs; raise a CheckpointError unless they and Spark's commit log are as the checkpoint left them."""
    files, last, lease = checkpoint.files, checkpoint.last, checkpoint.lease
    next_batch = max(committed_batches(files), default=-1) + 1
    if last is not None and last.batch_id > next_batch:
        msg = (
            f"{files.named}: its newest manifest is of batch {last.batch_id}, and Spark's own log ends with "
            f"batch {next_batch - 1}: parts of it are of other moments, as in a copy that was made while the query "
            f"ran; put back a copy of one moment, or restore one of its snapshots into a new checkpoint with "
            f"restore_from=cojoin.Snapshot({without_login(files.root)!r})"
        )
        raise CheckpointError(msg)
    # From here on, no earlier run can write a snapshot, or end the inputs.
    keep_former_runs_from_draining(files, lease.epoch)
    if lease.takes_over:
        StateCommits(spark, files).fence_runs(lease.epoch)
    # The first batch of a restored query is planned before it has ever run.
    is_planned = files.exists(f"{OFFSETS}/{next_batch}") and (next_batch > 0 or checkpoint.begins_at is None)
    opened = {}
    try:
        for name, sink in sinks.items():
            _, schema = plan.outputs[name]
            order = plan.output_order if name == OUTPUT else None
            output = OutputId(checkpoint.query_id, name, lease.epoch, lease.takes_over, schema, order)
            writer = sink.open(spark, output)
            written = {} if last is None else last.outputs.get(name, {})
            writer.check(Position(files.root, next_batch, written, is_planned))
            opened[name] = OpenOutput(sink, writer)
    except FencedOffError as error:
        # A checkpoint that was put back from a backup has older epochs than its outputs; any other one fails.
        lease.raise_above(error.epoch)
        return open_outputs(spark, sinks, checkpoint, plan)
    lease.note_fenced()
    return opened
