"""One key of a snapshot: its part of the state's tables, and the time of the snapshot.

Spark's hash of a key names its key group, so of the snapshot's content only that key group's is read, and of this only
the key's rows leave the task. It costs one small job for all key groups' headers and one for the key group's content.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.checkpoint import find_snapshot, open_files
from cojoin.checkpoints.identity import described_at, read_query
from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, STATE, KeyState, key_state
from cojoin.checkpoints.inspect.query_state import QueryState
from cojoin.checkpoints.inspect.read import stored_inputs
from cojoin.checkpoints.inspect.state_rows import as_key, find
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.debugging.recorded_batches import RecordedBatch
from cojoin.engine import rescaling
from cojoin.engine.state.ttl import without_accesses
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.rows import back_quoted
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.packing import key_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.checkpoints.inspect.state_rows import Values
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.storage.store import Store

__all__ = ["LoadedKey", "load_key", "near_keys", "nothing_of"]

_NEAR = 3


@dataclass(frozen=True, eq=False)
class LoadedKey:
    """One key of a snapshot.

    Attributes:
        spark: The session.
        files: The checkpoint.
        stored: The description of the checkpoint's query, with its ``sources``.
        state: The query's whole state, for further questions.
        values: The key's values, by the left input's column names.
        key_hash: Spark's hash of the key.
        key_group: The number of its key group.
        tables: The key's rows in each table of the state.
        batch: The snapshot's batch.
    """

    spark: SparkSession
    files: Store
    stored: Mapping[str, Any]
    state: QueryState
    values: Values
    key_hash: int
    key_group: int
    tables: Mapping[str, pa.Table]
    key_state: KeyState
    batch: RecordedBatch

    @property
    def inputs(self) -> tuple[InputSpec, InputSpec]:
        """Both inputs, as the checkpoint describes them."""
        return self.state.inputs

    @property
    def header(self) -> dict[str, Any]:
        """The header of all key groups together."""
        return rescaling.merged_header(self.state.stored.headers)

    @property
    def is_empty(self) -> bool:
        """Whether the snapshot has nothing of the key."""
        return not any(each.num_rows for each in self.tables.values())

    @cached_property
    def waiting(self) -> Sides:
        """The rows of both inputs that wait for the watermark or for a match."""
        found: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for name, (side, _) in BUFFERS.items():
            if name in self.tables:
                columns = self.inputs[side].schema.names
                found[side].append(self.tables[name].select(range(len(columns))))
        left, right = (
            pa.concat_tables([spec.schema.empty_table(), *tables], promote_options="permissive")
            for spec, tables in zip(self.inputs, found, strict=True)
        )
        return left, right

    @cached_property
    def timers(self) -> pa.Table:
        """The key's timers, by time: the key columns, ``domain``, and ``timestamp`` in UTC."""
        pieces = [pa.table({"domain": pa.array([], pa.string()), "timestamp": pa.array([], pa.timestamp("ms", "UTC"))})]
        for name, domain in DOMAINS.items():
            if name in self.tables:
                times = self.tables[name].column(self.tables[name].num_columns - 1)
                domains = pa.array([domain] * len(times), pa.string())
                pieces.append(pa.table({"domain": domains, "timestamp": times.cast(pa.timestamp("ms", "UTC"))}))
        return self._with_key(pa.concat_tables(pieces).sort_by([("timestamp", "ascending"), ("domain", "ascending")]))

    @cached_property
    def kept(self) -> pa.Table:
        """A function's states, one row with a column for each; or the rows of the right input that rows can match."""
        if "versions" in self.tables:
            return self.tables["versions"]
        states = {
            name.removeprefix(STATE): without_accesses(table.column(table.num_columns - 1))
            for name, table in self.tables.items()
            if name.startswith(STATE) and table.num_rows
        }
        return self._with_key(pa.table(states)) if states else self._keys(0)

    def _keys(self, count: int) -> pa.Table:
        spec = self.inputs[0]
        columns = {
            name: encode_entries([value] * count, spec.schema.field(name).type) for name, value in self.values.items()
        }
        return pa.table(columns)

    def _with_key(self, table: pa.Table) -> pa.Table:
        key = self._keys(table.num_rows)
        for name, column in zip(table.column_names, table.columns, strict=True):
            free = name
            while free in key.column_names:
                free = f"_{free}"
            key = key.append_column(free, column)
        return key


def load_key(spark: SparkSession, checkpoint: Checkpoint, key: Any) -> LoadedKey:
    """Read one key of a snapshot.

    Args:
        spark: The session.
        checkpoint: The checkpoint, at one snapshot.
        key: A value; where the key has several columns, a tuple, or a dict by column.

    Raises:
        ConfigurationError: The key has other columns.
        FunctionError: A value of the key is not of its column's type.
        CheckpointError: It is no checkpoint, it has no such snapshot, or the snapshot is damaged.
    """
    files = open_files(spark, checkpoint.path)
    described = read_query(files)
    snapshot = find_snapshot(files, checkpoint.at)
    query = described_at(described, snapshot.batch_id)
    described = {**described, "query": query}
    inputs = stored_inputs(query)
    values = as_key(key, inputs[0])
    # Its rows are read by several jobs, and a query that runs may remove the snapshot between them.
    stored = StoredState.of_snapshot(StateTable(spark, files).pinned(snapshot), snapshot)
    report = snapshot.manifest.report
    state = QueryState(checkpoint.path, snapshot.batch_id, "snapshot", inputs, query, report, stored)
    key_hash, group = _hashed(spark, values, inputs[0], int(query["key_groups"]))
    wanted = {name: state.key_values(name, key) for name in stored.tables}
    found = find(stored, wanted, None, key_group=group)
    tables = {name: each.rows for name, each in found.items()}
    shown, batch = key_state(state, values, found), RecordedBatch.of_manifest(snapshot.manifest)
    return LoadedKey(spark, files, described, state, values, key_hash, group, tables, shown, batch)


def near_keys(loaded: LoadedKey) -> list[Any]:
    """Return a few keys of the same key group that are near to one that is not there: values, or dicts by column."""
    names = {name: rescaling.key_columns(name, loaded.inputs) for name in loaded.tables}
    opener, values = loaded.state.stored.opener, list(loaded.values.values())
    spec = loaded.inputs[0]
    schema = pa.schema([spec.schema.field(name) for name in spec.key])

    def keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[tuple[Any, ...], None] = {}
        for tables in opener(batches):
            for name, table in tables.items():
                if name in names and table.num_rows:
                    columns = [table.column(each).to_pylist() for each in names[name]]
                    # Rows with a null key are of no key.
                    found.update(dict.fromkeys(key for key in zip(*columns, strict=True) if None not in key))
        near = _nearest(list(found), tuple(values))
        rows = [dict(zip(schema.names, each, strict=True)) for each in near]
        yield from pa.Table.from_pylist(rows, schema).to_batches()

    contents = loaded.state.stored.contents.where(F.col("key_group") == loaded.key_group)
    rows = contents.mapInArrow(for_workers(keys), spark_schema(schema)).collect()
    return [row[0] if len(row) == 1 else row.asDict() for row in rows]


def nothing_of(key: Any, batch: RecordedBatch, near: Sequence[Any]) -> str:
    """Return the sentence that says that a snapshot has nothing of a key, and what to do.

    Args:
        key: The key, as the user named it.
        batch: The snapshot's batch.
        near: Keys that the snapshot has.
    """
    told = f"the snapshot of batch {batch.batch_id} has nothing of key {key!r}"
    if batch.drained:
        return f"{told}: the query was drained with this batch, so no state is left; take an earlier snapshot, with at="
    return f"{told}; keys that it has are, for example, {', '.join(map(repr, near))}" if near else told


def _nearest(found: list[tuple[Any, ...]], wanted: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if len(wanted) == 1 and isinstance(wanted[0], int):
        return sorted(found, key=lambda each: abs(each[0] - wanted[0]))[:_NEAR]
    in_order = sorted(found)
    place = max(0, bisect_left(in_order, wanted) - 1)
    return in_order[place : place + _NEAR]


def _hashed(spark: SparkSession, values: Values, spec: InputSpec, key_groups: int) -> tuple[int, int]:
    """Return Spark's hash of a key, and the number of its key group."""
    fields = [spec.schema.field(name) for name in values]
    columns = [encode_entries([value], field.type) for value, field in zip(values.values(), fields, strict=True)]
    frame = spark.createDataFrame(pa.Table.from_arrays(columns, schema=pa.schema(fields)))
    keys = [F.col(back_quoted(name)) for name in values]
    row = frame.select(F.xxhash64(*keys).alias("hash"), key_group(keys, key_groups).alias("group")).collect()[0]
    return int(row["hash"]), int(row["group"])
