"""``erase``: keys taken out of a query's state, into a new checkpoint with which the query continues.

The state is that after the last finished batch. Every table of each key group is written again without the keys' rows,
so no byte of them is in the new checkpoint; positions, watermarks and counters stay. Buffered rows that are removed are
counted as rejected, with the reason ``erased``, so that every row is still accounted for. The old checkpoint is only
read. A query that begins with the new one and continues in the same outputs ends the old one. It costs one read and one
write of the whole state.

The places where rows of the keys remain are listed, each with the way to remove them (``_list_remains``): a query's
outputs are known from its manifest, and their rows are counted where the table has the key's columns. These rows are
left alone: the tables and their readers are the user's.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.checkpoint import Snapshot, open_files
from cojoin.checkpoints.identity import WrittenState, check_free, read_query
from cojoin.checkpoints.inspect.key_state import BUFFERS, as_key
from cojoin.checkpoints.inspect.output_rows import spelled_values
from cojoin.checkpoints.inspect.query_state import read_state, state_manifest
from cojoin.checkpoints.lease import holder, is_live
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.output_tables import read_rows
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.engine import rescaling
from cojoin.engine.batch_report import BatchReport, parse_report
from cojoin.engine.display import Display, Shown
from cojoin.engine.joins.output_columns import names_in_output
from cojoin.engine.key_groups import group_labels
from cojoin.engine.keyed_state_backend import TouchedKeys
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.encoding import encode_entries, encode_rows
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.tables import concat, take_rows
from cojoin.engine.values.types import parse_schema, type_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.delta_tables import table_in_sql
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import finds_session, open_store
from cojoin.session.spark_checkpoint import committed_batches
from cojoin.session.spark_errors import SPARK_ERRORS, first_line
from cojoin.spark.savepoints.new_savepoint import (
    NewSavepoint,
    Positions,
    compute_facts,
    group_headers,
    keep,
    written_report,
)
from cojoin.spark.savepoints.state_packing import CONTENT_DDL, content_row
from cojoin.storage.locations import Location, as_location, without_login

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class Remainder:
    """A place that has, or may have, rows of an erased key.

    Attributes:
        place: The place: a table, a directory, or a source.
        kind: The kind of place, such as ``"output"`` or ``"the old checkpoint"``.
        rows: How many rows of the key it has; None where that is not known.
        statements: The statements that remove them, in this order; empty where cojoin has none.
        note: A remark; empty where there is none.
    """

    place: str
    kind: str
    rows: int | None
    statements: Sequence[str] = ()
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "statements": list(self.statements)}


@dataclass(frozen=True, repr=False)
class Erasure(Shown):
    """The result of ``cojoin.erase``.

    Attributes:
        path: The old checkpoint.
        into: The new checkpoint, with which a query begins: ``restore_from=cojoin.Snapshot(into)``.
        batch_id: The batch after which the state is.
        keys: The keys, each by the column names of the left input.
        removed: How many rows were removed from each part of the state; parts without any are left out.
        remains: Where rows of the keys remain, or may remain.
    """

    path: str
    into: str
    batch_id: int
    keys: Sequence[Mapping[str, Any]]
    removed: Mapping[str, int]
    remains: Sequence[Remainder]

    @property
    def snapshot(self) -> Snapshot:
        """The new checkpoint's snapshot, for ``start(restore_from=...)``."""
        return Snapshot(self.into, self.batch_id)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        remains = [each.as_dict() for each in self.remains]
        return {**vars(self), "keys": list(map(dict, self.keys)), "removed": dict(self.removed), "remains": remains}

    def _display(self) -> Display:
        keys = "1 key" if len(self.keys) == 1 else f"{len(self.keys):,} keys"
        total = sum(self.removed.values())
        done = f"{total:,} row{'' if total == 1 else 's'} removed" if total else "the state had nothing of it"
        head = f"Erased {keys} from the state of {self.path} after batch {self.batch_id}, into {self.into}: {done}"
        table = [("part of the state", "rows removed"), *((name, f"{rows:,}") for name, rows in self.removed.items())]
        first = "Begin the query with the new checkpoint first: outputs that someone has changed since are refused."
        notes = [first, "What remains elsewhere, and what removes it:"]
        for left in self.remains:
            rows = "rows not counted" if left.rows is None else f"{left.rows:,} row{'' if left.rows == 1 else 's'}"
            notes.append(f"- {left.kind}, {left.place}: {rows}{f'. {left.note}' if left.note else ''}")
            notes += [f"    {statement}" for statement in left.statements]
        return Display(head, table if self.removed else [], notes)


_VACUUM_NOTE = (
    "Until VACUUM, older versions of the table have the rows; RETAIN 0 HOURS needs "
    "spark.databricks.delta.retentionDurationCheck.enabled=false, and no reader or writer at work. With deletion "
    "vectors, REORG TABLE ... APPLY (PURGE) comes first. The table's log keeps the smallest and largest values of "
    "older files until delta.logRetentionDuration is over"
)

_PATHS_NOTE = (
    "Spark's log of the files that it has read (spark/sources) keeps their paths, in the new checkpoint, too, which "
    "needs it to continue: a path that names a person, as a folder for each key, stays in it"
)
_WITHOUT_LOG = ("delta", "kafka")
"""The formats whose positions have no paths."""


def _list_remains(
    spark: SparkSession,
    files: Store,
    query: Mapping[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    outputs: Mapping[str, Mapping[str, Any]],
    sources: Sequence[SourceDescription],
    keys: Sequence[Values],
    *,
    counts: bool,
) -> list[Remainder]:
    """Return where rows of some keys remain; ``counts`` decides whether those in the outputs are counted."""
    note = "It has the state as it was, its snapshots, segments, progress, and by default the rejected rows"
    remainders = [Remainder(without_login(files.root), "the old checkpoint", None, (_removal(files.root),), note)]
    remainders += [
        Remainder(without_login(root), "an earlier checkpoint, from which this one began", None, (_removal(root),))
        for root in _former(files)
    ]
    for name, place in outputs.items():
        if place.get("batch_id") is not None:
            remainders.append(_of_output(spark, name, place, query, inputs, keys, counts=counts))
    for spec, source in zip(inputs, sources, strict=True):
        where = "a DataFrame" if source is None else f"{source['format']} {without_login(str(source['location']))}"
        note = (
            "Where its rows come from: not searched. A query that reads it again from its beginning, or a topic's "
            "archive, brings them back"
        )
        if source is not None and source["format"] not in _WITHOUT_LOG:
            note += f". {_PATHS_NOTE}"
        remainders.append(Remainder(where, f"the source of {spec.name!r}", None, (), note))
    return remainders


def _removal(root: str) -> str:
    if root.startswith(("file:", "/")):
        path = "/" + root.removeprefix("file:").lstrip("/")
        return f"rm -r -- '{path}'" if "'" not in path else f"delete the directory {path}"
    return f"delete the directory {without_login(root)}"


def _former(files: Store) -> Iterator[str]:
    """Yield the checkpoints from which a checkpoint's query began."""
    restored, written = Restoration.read(files), WrittenState.read(files)
    if restored is not None:
        yield restored.origin
    if written is not None and written.origin is not None:
        yield written.origin


def _of_output(
    spark: SparkSession,
    name: str,
    place: Mapping[str, Any],
    query: Mapping[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    keys: Sequence[Values],
    *,
    counts: bool,
) -> Remainder:
    label = name if name in (OUTPUT, REJECTED) else f"side output {name!r}"
    kind = next((each for each in ("delta", "parquet") if each in place), None)
    if kind is None:
        shown = ", ".join(f"{each} {where}" for each, where in place.items() if each not in ("batch_id", "version"))
        return Remainder(shown, label, None, (), "It is not known where its rows are")
    location = str(place[kind])
    condition = _rejected(inputs, keys) if name == REJECTED else _emitted(name, query, inputs, keys)
    if condition is None:
        columns = ", ".join(inputs[0].key)
        note = f"Its rows do not have the key's columns ({columns}), so which of them are the key's is not known"
        return Remainder(without_login(location), label, None, (), note)
    rows, note = _count(spark, kind, location, condition) if counts else (None, "")
    if kind == "parquet":
        cure = "Parquet files can't be deleted from: write the folder again without the rows where"
        return Remainder(without_login(location), label, rows, (), f"{note}{'. ' if note else ''}{cure} {condition}")
    table = table_in_sql(spark, location)
    statements = (f"DELETE FROM {table} WHERE {condition}", f"VACUUM {table} RETAIN 0 HOURS")  # noqa: S608 - shown only
    return Remainder(without_login(location), label, rows, statements, ". ".join(filter(None, [note, _VACUUM_NOTE])))


def _count(spark: SparkSession, kind: str, location: str, condition: str) -> tuple[int | None, str]:
    try:
        return read_rows(spark, kind, location).where(F.expr(condition)).count(), ""
    except SPARK_ERRORS as error:
        return None, f"It can't be read: {first_line(error)}"


def _emitted(
    name: str, query: Mapping[str, Any], inputs: tuple[InputSpec, InputSpec], keys: Sequence[Values]
) -> str | None:
    """Return the condition on an output's rows of some keys; None where its columns do not have the key."""
    left, right = inputs
    columns = query["output"] if name == OUTPUT else query.get("side_outputs", {}).get(name)
    if columns is None:
        return None
    schema = parse_schema(columns, label=name)
    if query["operator"] != "process":
        names, _ = names_in_output(left, right, schema.names, query.get("deletes"))
        return _either([_equal({names[each]: value for each, value in key.items()}, left) for key in keys])
    for spec in (left, right):
        types = {field.name: field.type for field in schema}
        if all(types.get(name) == spec.schema.field(name).type for name in spec.key):
            return _either([_equal(dict(zip(spec.key, key.values(), strict=True)), left) for key in keys])
    return None


def _rejected(inputs: tuple[InputSpec, InputSpec], keys: Sequence[Values]) -> str:
    conditions = []
    for spec in inputs:
        for key in keys:
            spelled = spelled_values(spec, dict(zip(spec.key, key.values(), strict=True)))
            tests = [f"input = {_quoted(spec.name)}"]
            for column, value in spelled.items():
                text = value if isinstance(value, str) else json.dumps(value)
                place = "$['" + column + "']"
                tests.append(f"get_json_object(row, {_quoted(place)}) = {_quoted(text)}")
            conditions.append(" AND ".join(tests))
    return _either(conditions)


def _equal(values: Mapping[str, Any], left: InputSpec) -> str:
    """Return the condition that columns have the values of a key, which come in the order of the key's columns."""
    return " AND ".join(
        f"{back_quoted(column)} = {sql_literal(value, dtype)}"
        for (column, value), dtype in zip(values.items(), left.key_schema.types, strict=True)
    )


def _either(conditions: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(conditions))
    return distinct[0] if len(distinct) == 1 else " OR ".join(f"({each})" for each in distinct)


def sql_literal(value: Any, dtype: pa.DataType) -> str:
    """Return a key's value as a literal of Spark's SQL.

    >>> import pyarrow as pa
    >>> sql_literal(7, pa.int64()), sql_literal("gold", pa.string())
    ('7', "'gold'")
    """
    plain = encode_entries([value], dtype)[0].as_py()
    if isinstance(plain, (bool, int)):
        return str(plain).lower()
    if isinstance(plain, str):
        return _quoted(plain)
    if isinstance(plain, bytes):
        return f"X'{plain.hex().upper()}'"
    if isinstance(plain, datetime):
        kind, zone = ("TIMESTAMP_NTZ", "") if plain.tzinfo is None else ("TIMESTAMP", " UTC")
        moment = plain if plain.tzinfo is None else plain.astimezone(timezone.utc)
        return f"{kind}'{moment:%Y-%m-%d %H:%M:%S.%f}{zone}'"
    return f"DATE'{plain}'" if isinstance(plain, date) else f"CAST('{plain}' AS {type_to_ddl(dtype)})"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_REASON = "erased"


@finds_session
def erase(
    spark: SparkSession, checkpoint: Location, keys: Sequence[Any], into: Location, *, counts: bool = True
) -> Erasure:
    """Take keys out of a query's state: write a new checkpoint without their rows, and list what remains elsewhere.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The checkpoint directory of a query that is stopped.
        keys: The keys, each as ``read_state(...).key`` takes it: a value; a tuple where the key has several columns, or
            a dict by the left input's columns.
        into: An empty directory for the new checkpoint. The query continues with ``start(restore_from=...)``, its own
            ``checkpoint`` and the same outputs.
        counts: Whether the keys' rows in the outputs are counted, which reads the tables.

    Returns:
        What was removed, and where rows of the keys remain, with the statements that remove them.

    Raises:
        ConfigurationError: An argument is invalid, or a key has other columns.
        FunctionError: A value of a key is not of its column's type.
        CheckpointError: The directory is not a checkpoint, its query runs or was drained, or ``into`` is in use.
            Nothing was written.

    Example:
        >>> done = erase(spark, "/lake/_cojoin/enriched", [17], "/lake/_cojoin/without")  # doctest: +SKIP
        >>> joined.start(restore_from=done.snapshot, checkpoint="/lake/_cojoin/enriched_2", ...)  # doctest: +SKIP
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
    if not state.inputs[0].key:
        msg = "erase: the query's inputs have no key (key=()), so no key's rows can be taken out of its state"
        raise ConfigurationError(msg)
    wanted = [as_key(key, state.inputs[0]) for key in keys]
    manifest = state_manifest(files, state)
    if manifest.report.drained:
        msg = (
            f"erase: {files.named}: its query was drained, so no query continues from it; delete the whole "
            f"directory, and the keys' rows in its outputs"
        )
        raise CheckpointError(msg)
    stored, last = read_query(files), _last(files)
    contents = keep(_contents(state, wanted))
    try:
        facts = compute_facts(contents, int(stored["query"]["key_groups"]))
        removed: Counter[str] = Counter()
        for statistics in facts.statistics.values():
            removed.update(statistics["removed"])
        header, report = _without_keys(state, manifest, removed, wanted)
        names = (state.inputs[0].name, state.inputs[1].name)
        new_report = written_report(manifest.batch_id, names, None, header, facts.rows, facts.sizes, report)
        positions = Positions(manifest.query_id, stored["sources"], manifest, files)
        note = WrittenState("erase", files.root, manifest.batch_id)

        def check() -> None:
            _check_stopped(files)
            if _last(files) != last:
                msg = f"erase: {files.named}: its query continued meanwhile; stop it, and erase again"
                raise CheckpointError(msg)

        savepoint = NewSavepoint(spark, target, note, stored["query"], positions)
        savepoint.write(contents, group_headers(header, facts.rows), new_report, check)
    finally:
        contents.unpersist()
    remains = _list_remains(
        spark, files, stored["query"], state.inputs, manifest.outputs, stored["sources"], wanted, counts=counts
    )
    named = {state.part_name(name): rows for name, rows in removed.items() if rows}
    return Erasure(path, place, manifest.batch_id, wanted, named, remains)


def _check_stopped(files: Store) -> None:
    if is_live(files):
        msg = f"erase: a query runs on {files.named} ({holder(files)}); stop it, and erase then"
        raise CheckpointError(msg)


def _check_newest(files: Store, state: QueryState) -> None:
    """Check that a state is that after the last batch that counts."""
    counted = max([*Manifests(files).batch_ids()[-1:], *Snapshots(files).batch_ids()[-1:]], default=-1)
    newest = max([counted, *committed_batches(files)[-1:]])
    if counted > state.batch_id:
        msg = (
            f"erase: {files.named}: batch {counted} is written and not committed, since its query was "
            f"interrupted; start the query once more, which finishes it, and erase then"
        )
        raise CheckpointError(msg)
    if newest > state.batch_id:
        msg = (
            f"erase: {files.named}: the state after batch {newest} can't be read, only that of batch "
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
    tables = [encode_rows(list(keys), inputs[0].key_schema, "erase: keys")]

    def without(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        touched = TouchedKeys(tables)
        for batch in batches:
            for at, group in enumerate(batch.column(0).to_pylist()):
                kept, removed = {}, Counter[str]()
                (content,) = opener([batch.slice(at, 1)])
                for name in content.names:
                    pieces = [content.tables[name].schema.empty_table()]
                    for piece in content.pieces(name):
                        keeps = touched.find(piece.select(rescaling.key_columns(name, inputs))) < 0
                        # Copied also where nothing is removed: an array may have bytes that belong to no row any more.
                        pieces.append(take_rows(piece, np.flatnonzero(keeps)))
                        removed[name] += int((~keeps).sum())
                    kept[name] = concat(pieces)
                number = group if numbers is None else numbers[group]
                yield from content_row(number, kept, {}, removed=removed).to_batches()

    return state.stored.contents.mapInArrow(for_workers(without), CONTENT_DDL)


def _without_keys(
    state: QueryState, manifest: Manifest, removed: Mapping[str, int], keys: Sequence[Values]
) -> tuple[dict[str, Any], BatchReport]:
    """Return the header of all key groups together, and the report, with the removed rows counted as rejected."""
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
        counted = report["inputs"][side]
        counted["partitions"] = {name: time for name, time in counted["partitions"].items() if name not in names}
        counted["idle_partitions"] = [name for name in counted["idle_partitions"] if name not in names]
        if counted["holding_partition"] in names:
            counted["holding_partition"] = None
    return header, parse_report(report)


def _partitions_of(spec: InputSpec, keys: Sequence[Values], names: Collection[str]) -> set[str]:
    """Return the source partitions of an input that one of the keys names; none where other keys share them."""
    if not {*spec.key} <= {*spec.partition}:
        return set()
    places = [spec.partition.index(name) for name in spec.key]
    spelled = [json.loads(json.dumps(list(key.values()), default=str)) for key in keys]
    named = set()
    for name in names:
        values = json.loads(name)
        if len(values) == len(spec.partition) and [values[place] for place in places] in spelled:
            named.add(name)
    return named


def without_partitions(watermark: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return an input's watermark (``InputWatermark.snapshot``) without some source partitions; it does not go back."""
    left = dict(watermark)
    newest = max((time for name, time in watermark["largest"].items() if name in names), default=NONE)
    for entry in ("largest", "marks", "silent_since"):
        left[entry] = {name: value for name, value in watermark[entry].items() if name not in names}
    channels = watermark["merge"]["channels"]
    left["merge"] = {
        **watermark["merge"],
        "channels": {name: value for name, value in channels.items() if name not in names},
    }
    if newest > NONE:
        left["largest"][ONE_PARTITION] = max(newest, left["largest"].get(ONE_PARTITION, NONE))
    return left
