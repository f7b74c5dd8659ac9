"""``erase``: keys taken out of a query's state, into a new checkpoint with which the query goes on.

The state is that after the last finished batch. Every table of each key group is written anew without the keys' rows,
so no byte of them is in the new checkpoint; positions, watermarks and counters stay. Buffered rows that are removed are
counted as rejected, with the reason ``erased``, so that every row is still accounted for. The old checkpoint is only
read. A query that begins with the new one and goes on in the same outputs ends the old one.

It costs one read and one write of the whole state.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.checkpoints.checkpoint import open_files
from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.inspect.key_state import BUFFERS, as_key
from cojoin.checkpoints.inspect.query_state import read_state, state_manifest
from cojoin.checkpoints.lease_liveness import is_live
from cojoin.checkpoints.lease_record import holder
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.written_state import WrittenState, check_free
from cojoin.engine import rescaling
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.key_groups import group_labels
from cojoin.engine.keyed_state_backend import TouchedKeys
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.tables import take_rows
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.offset_log import committed_batches
from cojoin.session.sealed import for_workers
from cojoin.session.stores import open_store
from cojoin.spark.savepoints.erasure import Erasure
from cojoin.spark.savepoints.new_savepoint import NewSavepoint, Positions, keep, told_of
from cojoin.spark.savepoints.remains import list_remains
from cojoin.spark.savepoints.state_packing import CONTENT_DDL, content_row
from cojoin.spark.savepoints.written_header import group_headers, written_report
from cojoin.storage.locations import Location, as_location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store

__all__ = ["erase", "without_partitions"]

_REASON = "erased"


def erase(
    spark: SparkSession, checkpoint: Location, keys: Sequence[Any], into: Location, *, counts: bool = True
) -> Erasure:
    """Take keys out of a query's state: write a new checkpoint without their rows, and list what remains elsewhere.

    Args:
        spark: The session.
        checkpoint: The checkpoint directory of a query that is stopped.
        keys: The keys, each as ``read_state(...).key`` takes it: a value; a tuple where the key has several columns, or
            a dict by the left input's columns.
        into: An empty directory for the new checkpoint. The query goes on with it: ``start(restore_from=...)`` with a
            ``checkpoint`` of its own and the same outputs.
        counts: Whether the keys' rows in the outputs are counted, which reads the tables.

    Returns:
        What was removed, and where rows of the keys remain, with the statements that remove them.

    Raises:
        ConfigurationError: An argument is invalid, or a key has other columns.
        FunctionError: A value of a key is not of its column's type.
        CheckpointError: The directory is no checkpoint, its query runs or was drained, or ``into`` is in use. Nothing
            was written.

    Example:
        >>> done = erase(spark, "/lake/_cojoin/enriched", [17], "/lake/_cojoin/without")  # doctest: +SKIP
        >>> joined.start(restore_from=done.checkpoint, checkpoint="/lake/_cojoin/enriched_2", ...)  # doctest: +SKIP
    """
    path = as_location(checkpoint, "checkpoint", expected="the path of a query's checkpoint directory")
    place = as_location(into, "into", expected="the path of an empty directory")
    files = open_files(spark, path)
    target = open_store(spark, place)
    if isinstance(keys, (str, bytes, dict)) or not isinstance(keys, (list, tuple, set, frozenset)) or not keys:
        msg = f"erase: keys: expected a list of keys, such as [17], got {keys!r}"
        raise ConfigurationError(msg)
    target.check_place()
    check_free(target, "erase")
    _check_stopped(files)
    state = read_state(spark, path)
    _check_newest(files, state)
    wanted = [as_key(key, state.inputs[0]) for key in keys]
    manifest = state_manifest(files, state)
    if manifest.report.drained:
        msg = (
            f"erase: checkpoint {files.root}: its query was drained, so nothing goes on from it; delete the whole "
            f"directory, and the keys' rows in its outputs"
        )
        raise CheckpointError(msg)
    stored, last = read_query(files), _last(files)
    contents = keep(_contents(state, wanted))
    try:
        facts = told_of(contents, int(stored["query"]["key_groups"]))
        removed: Counter[str] = Counter()
        for each in facts.told.values():
            removed.update(each["removed"])
        header, report = _without_keys(state, manifest, removed, wanted)
        names = (state.inputs[0].name, state.inputs[1].name)
        new_report = written_report(manifest.batch_id, names, None, header, facts.rows, facts.sizes, report)
        positions = Positions(manifest.query_id, stored["sources"], manifest, files)
        note = WrittenState("erase", files.root, manifest.batch_id)

        def check() -> None:
            _check_stopped(files)
            if _last(files) != last:
                msg = f"erase: checkpoint {files.root}: its query went on meanwhile; stop it, and erase again"
                raise CheckpointError(msg)

        savepoint = NewSavepoint(spark, target, note, stored["query"], positions)
        savepoint.write(contents, group_headers(header, facts.rows), new_report, check)
    finally:
        contents.unpersist()
    remains = list_remains(
        spark, files, stored["query"], state.inputs, manifest.outputs, stored["sources"], wanted, counts=counts
    )
    named = {state.part_name(name): rows for name, rows in removed.items() if rows}
    return Erasure(path, place, manifest.batch_id, wanted, named, remains)


def _check_stopped(files: Store) -> None:
    if is_live(files):
        msg = f"erase: a query runs on checkpoint {files.root} ({holder(files)}); stop it, and erase then"
        raise CheckpointError(msg)


def _check_newest(files: Store, state: QueryState) -> None:
    """Check that a state is that after the last batch that counts."""
    counted = max([*Manifests(files).batch_ids()[-1:], *Snapshots(files).batch_ids()[-1:]], default=-1)
    newest = max([counted, *committed_batches(files)[-1:]])
    if counted > state.batch_id:
        msg = (
            f"erase: checkpoint {files.root}: batch {counted} is written and not committed, since its query was "
            f"interrupted; start the query once more, which finishes it, and erase then"
        )
        raise CheckpointError(msg)
    if newest > state.batch_id:
        msg = (
            f"erase: checkpoint {files.root}: the state after batch {newest} can't be read, only that of batch "
            f"{state.batch_id}; run the query with a snapshot (checkpoint_interval=1), and erase then"
        )
        raise CheckpointError(msg)


def _last(files: Store) -> tuple[int, int] | None:
    last = Manifests(files).last()
    return None if last is None else (last.batch_id, last.epoch)


def _contents(state: QueryState, keys: Sequence[Values]) -> DataFrame:
    """Return the content of each key group without some keys, as rows of ``CONTENT_DDL``."""
    inputs, opener = state.inputs, state.stored.opener
    # Spark's own state has the key groups' labels, a snapshot their numbers.
    labels = group_labels(int(state.query["key_groups"]))
    numbers = {label: number for number, label in enumerate(labels)} if state.origin == "state store" else None
    tables = [_table_of(keys, inputs[0])]

    def without(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        touched = TouchedKeys(tables)
        for batch in batches:
            for at, group in enumerate(batch.column(0).to_pylist()):
                kept, removed = {}, {}
                (whole,) = opener([batch.slice(at, 1)])
                for name, table in whole.items():
                    keeps = touched.find(table.select(rescaling.key_columns(name, inputs))) < 0
                    # Copied also where nothing is removed: an array may have bytes that belong to no row any more.
                    kept[name] = take_rows(table, np.flatnonzero(keeps))
                    removed[name] = int((~keeps).sum())
                number = group if numbers is None else numbers[group]
                yield from content_row(number, kept, {}, removed=removed).to_batches()

    return state.stored.contents.mapInArrow(for_workers(without), CONTENT_DDL)


def _table_of(keys: Sequence[Values], spec: InputSpec) -> pa.Table:
    fields = [spec.schema.field(name) for name in spec.key]
    columns = [encode_entries([key[field.name] for key in keys], field.type) for field in fields]
    return pa.table(columns, schema=pa.schema([pa.field(field.name, field.type) for field in fields]))


def _without_keys(
    state: QueryState, manifest: Manifest, removed: Mapping[str, int], keys: Sequence[Values]
) -> tuple[dict[str, Any], BatchReport]:
    """Return the header of all key groups together, and the report, with what is removed counted as rejected."""
    header = rescaling.merged_header(state.stored.headers)
    report = manifest.report.as_dict()
    for side, spec in enumerate(state.inputs):
        gone = sum(rows for name, rows in removed.items() if name in BUFFERS and BUFFERS[name][0] == side)
        if gone:
            counts = header["counts"][side]
            counts["rejected"] = {**counts["rejected"], _REASON: counts["rejected"].get(_REASON, 0) + gone}
        watermark = header["watermark"]["inputs"][side]
        names = _partitions_of(spec, keys, {*watermark["largest"], *watermark["merge"]["channels"]})
        header["watermark"]["inputs"][side] = without_partitions(watermark, names)
        told = report["inputs"][side]
        told["partitions"] = {name: time for name, time in told["partitions"].items() if name not in names}
        told["idle_partitions"] = [name for name in told["idle_partitions"] if name not in names]
        if told["holding_partition"] in names:
            told["holding_partition"] = None
    return header, BatchReport.from_dict(report)


def _partitions_of(spec: InputSpec, keys: Sequence[Values], names: Collection[str]) -> set[str]:
    """Return which of an input's source partitions are named by one of the keys; none where other keys share them."""
    if not {*spec.key} <= {*spec.partition}:
        return set()
    places = [spec.partition.index(name) for name in spec.key]
    spelled = [json.loads(json.dumps(list(key.values()), default=str)) for key in keys]
    found = set()
    for name in names:
        values = json.loads(name)
        if len(values) == len(spec.partition) and [values[place] for place in places] in spelled:
            found.add(name)
    return found


def without_partitions(watermark: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return an input's watermark, as the header has it, without some source partitions; it does not go back.

    Args:
        watermark: The watermark (``InputWatermark.snapshot``).
        names: The partitions.
    """
    left = dict(watermark)
    newest = max((time for name, time in watermark["largest"].items() if name in names), default=NONE)
    for each in ("largest", "marks", "silent_since"):
        left[each] = {name: value for name, value in watermark[each].items() if name not in names}
    channels = watermark["merge"]["channels"]
    left["merge"] = {
        **watermark["merge"],
        "channels": {name: value for name, value in channels.items() if name not in names},
    }
    if newest > NONE:
        left["largest"][ONE_PARTITION] = max(newest, left["largest"].get(ONE_PARTITION, NONE))
    return left
