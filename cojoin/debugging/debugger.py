"""``debug`` takes one key of a checkpoint out of a snapshot, to step through the batches that followed in this process.

Spark's hash of a key names its key group, so only that key group's content is read, and only the key's rows leave the
task. It costs one small job for all key groups' headers and one for the key group's content.

A ``Debugger`` keeps the key's part of the state, and the key's rows of the batches that were looked at. Nothing of the
checkpoint changes. Each run begins at the snapshot again, so the same rows can be run through another function.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.api.joined import Joined
from cojoin.checkpoints.checkpoint import find_snapshot, open_files
from cojoin.checkpoints.identity import describe_query, described_at, read_query
from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, STATE, KeyState, as_key, find, key_state
from cojoin.checkpoints.inspect.query_state import QueryState, as_snapshot, stored_inputs
from cojoin.checkpoints.progress_rows import RecordedBatch
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.debugging.recorded_batches import ReplayedRows, Span, batches_after, header_at, with_recorded_time
from cojoin.debugging.row_steps import Callbacks, cuts_of, run_batch
from cojoin.embedded.steps import Stepper
from cojoin.engine import rescaling
from cojoin.engine.display import Display, Section
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import Plan
from cojoin.engine.state.ttl import without_accesses
from cojoin.engine.values.encoding import encode_entries, encode_rows
from cojoin.engine.values.rows import back_quoted, decode_column, decode_rows, free_name
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import active_session
from cojoin.spark.batch.packing import key_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.checkpoint import Moment, Snapshot
    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.debugging.row_steps import RowStep
    from cojoin.embedded.steps import Step
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.local.key_group import Observer
    from cojoin.engine.operator import Sides
    from cojoin.spark.bound_input import BoundInput
    from cojoin.storage.locations import Location
    from cojoin.storage.store import Store


By: TypeAlias = Literal["batch", "row"]
_MOST_ROWS = 60
"""The most rows of each table that a notebook shows."""

_WINDOW = 16
"""The most batches that are read together: each is a source in Spark's plan."""


class Debugger:
    """One key of a checkpoint after a snapshot; ``cojoin.debug`` returns it.

    Attributes:
        key: The key's values, by the left input's column names.
        batch_id: The snapshot's batch.
    """

    def __init__(self, loaded: LoadedKey, plan: Plan | None = None, replay: _Replay | None = None) -> None:
        self._loaded, self._plan, self._replay = loaded, plan, replay
        self.key, self.batch_id = dict(loaded.values), loaded.batch.batch_id

    @property
    def taken_at(self) -> datetime | None:
        """The processing time of the snapshot's batch, in UTC."""
        return self._loaded.state.taken_at

    @property
    def watermark(self) -> int:
        """The operator's watermark after the snapshot's batch, in epoch milliseconds; ``-2**63`` if there was none."""
        return self._loaded.state.watermark

    @property
    def input_watermarks(self) -> tuple[int, int]:
        """The watermarks of the left and of the right input, as ``watermark``."""
        left, right = self._loaded.batch.inputs
        return left.watermark, right.watermark

    @property
    def values(self) -> KeyState:
        """All that the snapshot has of the key, as Python values."""
        return self._loaded.key_state

    @property
    def state(self) -> pa.Table:
        """A function's states, in one row: the key columns, and a column for each state that the key has.

        For as-of and temporal joins the right input's rows that later rows can match.
        """
        return self._loaded.kept

    @property
    def timers(self) -> pa.Table:
        """A function's timers, by time: the key columns, ``domain``, and ``timestamp`` in UTC to the millisecond."""
        return self._loaded.timers

    @property
    def waiting(self) -> Sides:
        """The rows of the left and of the right input that wait for the watermark or for a match."""
        return self._loaded.waiting

    @property
    def batches(self) -> list[int]:
        """The batches with content that came next, as far as the query has come; the oldest first."""
        return [each.batch_id for each in self._replayed("batches").batches]

    @property
    def upcoming(self) -> dict[int, Sides]:
        """The key's rows in the batches that came next: of the left and of the right input, by batch.

        Batches in which the key had no row are left out. The rows are read from the query's sources, all at once.

        Raises:
            ConfigurationError: The debugger was made without the query's join.
            CheckpointError: A source no longer has the rows, or can't be read again.
        """
        replay = self._replayed("upcoming")
        return {batch.batch_id: rows for batch, rows in replay if rows[0].num_rows or rows[1].num_rows}

    @overload
    def steps(self, by: Literal["batch"] = "batch") -> Iterator[Step]: ...

    @overload
    def steps(self, by: Literal["row"]) -> Iterator[RowStep]: ...

    def steps(self, by: By = "batch") -> Iterator[Step] | Iterator[RowStep]:
        """Run the batches that came next in this process, from the snapshot on, with the key's rows only.

        Each batch has the processing time and the watermarks of the real run, so the same rows are late, the same
        timers fire, and the same output rows of the key are emitted in the same batches. Rows are read some batches
        at a time, as they are needed.

        Args:
            by: ``"batch"`` yields a ``Step`` for each batch, also for those without a row of the key. ``"row"`` yields
                a ``RowStep`` for each row and timer: a function's callbacks in their order; of a join each row as it
                comes, and then each advance of the watermark to the time of a row that waits.

        Raises:
            ConfigurationError: The debugger was made without the query's join, or ``by`` is another word.
            CheckpointError: A source no longer has the rows, or can't be read again.
            FunctionError: The function raised an error, or returned an invalid value.
        """
        if by not in ("batch", "row"):
            msg = f"by: expected 'batch' or 'row', got {by!r}"
            raise ConfigurationError(msg)
        replay = self._replayed("steps()")
        replay.rows.check_sources()
        return self._by_batch(replay) if by == "batch" else self._by_row(replay)

    def _by_batch(self, replay: _Replay) -> Iterator[Step]:
        stepper = self._stepper()
        for batch, rows in replay:
            yield run_batch(stepper, batch, rows)

    def _by_row(self, replay: _Replay) -> Iterator[RowStep]:
        assert self._plan is not None
        callbacks = Callbacks(self._plan)
        stepper = self._stepper(callbacks.note)
        small = callbacks.steps if isinstance(self._plan.operation, KeyedCoProcess) else cuts_of
        for batch, rows in replay:
            yield from small(stepper, batch, rows)

    def with_function(self, function: KeyedCoProcessFunction) -> Debugger:
        """Return a debugger of the same key and rows with another function, which begins at the same snapshot.

        Args:
            function: The function; it yields rows of the same output columns, and may declare further states.

        Raises:
            ConfigurationError: The query runs a join, the debugger was made without the query's join or function, or
                ``function`` is not a function.
            CheckpointError: The stored states can't become those that the function declares.
        """
        self._replayed("with_function()")
        assert self._plan is not None
        if not isinstance(self._plan.operation, KeyedCoProcess):
            operator = self._loaded.state.query["operator"]
            msg = f"with_function: the query runs {operator} and not a function; use with_join()"
            raise ConfigurationError(msg)
        return self._with(replace(self._plan, operation=replace(self._plan.operation, function=function)))

    def with_join(self, joined: Any) -> Debugger:
        """Return a debugger of the same key and rows with another join or function over the same inputs.

        Args:
            joined: A ``Joined`` over the query's inputs, such as the same function with other output columns.

        Raises:
            ConfigurationError: ``joined`` is not a ``Joined``, or the debugger was made without the query's own.
            CheckpointError: It can't continue from the checkpoint's state.
        """
        self._replayed("with_join()")
        plan = getattr(joined, "plan", None)
        if not isinstance(plan, Plan):
            msg = f"with_join: expected the Joined that the query ran, such as pair.asof_join(), got {joined!r}"
            raise ConfigurationError(msg)
        _check_plan(self._loaded, plan)
        return self._with(plan)

    def _with(self, plan: Plan) -> Debugger:
        made = Debugger(self._loaded, plan, self._replay)
        made._stepper()
        return made

    def _stepper(self, observer: Observer | None = None) -> Stepper:
        assert self._plan is not None
        stepper = Stepper(with_recorded_time(self._plan), observer=observer)
        header = header_at(self._loaded.header, self._loaded.batch)
        stepper.restore_parts(header, self._loaded.tables, batch_id=self.batch_id, keeps_counts=False, resumed=False)
        return stepper

    def _replayed(self, purpose: str) -> _Replay:
        if self._replay is None:
            msg = (
                f"{purpose} needs the join or function that the query ran, since a checkpoint does not keep it: "
                f"cojoin.debug(checkpoint, joined, key=...), with joined as it was started"
            )
            raise ConfigurationError(msg)
        return self._replay

    def __str__(self) -> str:
        lines = [str(self._loaded.key_state)]
        if self._replay is not None:
            lines.append(self._replay.summary())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left, right = (spec.name for spec in self._loaded.inputs)
        operator = str(self._loaded.state.query["operator"])
        tables = {
            f"{left} that wait": self.waiting[0],
            f"{right} that wait": self.waiting[1],
            "states" if operator == "process" else f"{right} in force": self.state,
            "timers": self.timers,
        }
        sections = [Section.of(name, table, _MOST_ROWS) for name, table in tables.items() if table.num_rows]
        notes = ([] if sections else ["it has nothing"]) + ([] if self._replay is None else [self._replay.summary()])
        return Display(str(self).partition("\n")[0], notes=notes, sections=sections).html()


class _Replay:
    """The batches after a snapshot with the key's rows, read some batches at a time and then kept."""

    def __init__(self, loaded: LoadedKey, rows: ReplayedRows) -> None:
        self._first, self.rows = loaded.batch, rows
        self.batches: Sequence[RecordedBatch] = batches_after(loaded.spark, loaded.files, loaded.batch.batch_id)
        self._known: dict[int, Sides] = {}

    def __iter__(self) -> Iterator[tuple[RecordedBatch, Sides]]:
        for position, batch in enumerate(self.batches):
            if batch.batch_id not in self._known:
                self._read(position, position + _WINDOW)
            yield batch, self._known[batch.batch_id]

    def _read(self, start: int, stop: int) -> None:
        before = [self._first, *self.batches]
        spans = [
            Span(batch.batch_id, begin.offsets, batch.offsets)
            for begin, batch in zip(before[start:stop], self.batches[start:stop], strict=False)
        ]
        self._known.update(self.rows.read(spans))

    def summary(self) -> str:
        """Return a line about the batches that came next."""
        if not self.batches:
            return "no batch came next: this is where the query is now"
        first, last = self.batches[0].batch_id, self.batches[-1].batch_id
        text = f"then came batch {first}" if first == last else f"then came batches {first} to {last}"
        if len(self._known) < len(self.batches):
            return f"{text}; their rows are read when steps() or upcoming needs them"
        count = sum(left.num_rows + right.num_rows for left, right in self._known.values())
        return f"{text} with {count:,} row{'' if count == 1 else 's'} of the key"


def _check_plan(loaded: LoadedKey, plan: Plan) -> None:
    """Check that a plan can continue from the state; its rows are written nowhere, so its outputs may be others."""
    stored = loaded.stored["query"]
    own = describe_query(plan.operation.describe(), plan.inputs, plan.output, int(stored["key_groups"]))
    kept = {name: stored[name] for name in ("output", "side_outputs") if name in stored}
    check_evolution(stored, {**own, **kept}, loaded.files.named)


def _check_sources(loaded: LoadedKey, bound: tuple[BoundInput, BoundInput]) -> None:
    for side, known in zip(bound, loaded.stored["sources"], strict=True):
        if side.source is None or known is None:
            continue
        if not side.source.is_known_as(loaded.spark, known):
            own = side.source.identity(loaded.spark)
            msg = (
                f"debug: input {side.spec.name!r} read {known['format']} {known['location']} in the query that wrote "
                f"the checkpoint, and this one reads {own['format']} {own['location']}; give debug the same join"
            )
            raise CheckpointError(msg)


_NEAR = 3


@dataclass(frozen=True, eq=False)
class LoadedKey:
    """One key of a snapshot: its values by the left input's column names, and its rows in each table of the state.

    ``stored`` is the description of the checkpoint's query, with its ``sources``; ``state`` is the query's whole state.
    The hash is Spark's (``xxhash64``), the batch the snapshot's.
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
        pieces: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for name, (side, _) in BUFFERS.items():
            if name in self.tables:
                columns = self.inputs[side].schema.names
                pieces[side].append(self.tables[name].select(range(len(columns))))
        left, right = (
            pa.concat_tables([spec.schema.empty_table(), *tables], promote_options="permissive")
            for spec, tables in zip(self.inputs, pieces, strict=True)
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
            key = key.append_column(free_name(name, key.column_names), column)
        return key


def _debugger_of(loaded: LoadedKey, plan: Plan | None, bound: tuple[BoundInput, BoundInput] | None) -> Debugger:
    """Return the debugger of a key, of the same query as the plan; without one it only shows the loaded state."""
    if plan is None or bound is None:
        return Debugger(loaded)
    _check_plan(loaded, plan)
    _check_sources(loaded, bound)
    values = (dict(zip(spec.key, as_key(dict(loaded.values), plan.left).values(), strict=True)) for spec in plan.inputs)
    left, right = values
    rows = ReplayedRows(loaded.spark, loaded.files, bound, (left, right), loaded.key_hash)
    made = Debugger(loaded, plan, _Replay(loaded, rows))
    made._stepper()  # noqa: SLF001 - its own module
    return made


def load_key(spark: SparkSession, checkpoint: Snapshot, key: Any) -> LoadedKey:
    """Read one key of a snapshot: a value, or where the key has several columns a tuple, or a dict by column."""
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
    rows = find(stored, wanted, inputs, None, key_group=group)
    tables = {name: each.rows for name, each in rows.items()}
    shown, batch = key_state(state, values, rows), RecordedBatch.of_report(report, snapshot.manifest.offsets)
    return LoadedKey(spark, files, described, state, values, key_hash, group, tables, shown, batch)


def near_keys(loaded: LoadedKey) -> list[Any]:
    """Return a few keys of the key group that are near to a missing one: values, or dicts by column."""
    names = {name: rescaling.key_columns(name, loaded.inputs) for name in loaded.tables}
    opener, values = loaded.state.stored.opener, list(loaded.values.values())
    spec = loaded.inputs[0]
    schema = spec.key_schema

    def keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen: dict[tuple[Any, ...], None] = {}
        for content in opener(batches):
            for name, key in names.items():
                for piece in content.pieces(name):
                    columns = [decode_column(piece.column(each)) for each in key]
                    # Rows with a null key are of no key.
                    seen.update(dict.fromkeys(key for key in zip(*columns, strict=True) if None not in key))
        yield from encode_rows(_nearest(list(seen), tuple(values)), schema, "keys").to_batches()

    contents = loaded.state.stored.contents.where(F.col("key_group") == loaded.key_group)
    rows = decode_rows(contents.mapInArrow(for_workers(keys), spark_schema(schema)).toArrow())
    return [row[0] if len(row) == 1 else row.as_dict() for row in rows]


def nothing_of(key: Any, batch: RecordedBatch, near: Sequence[Any]) -> str:
    """Return the message about a snapshot that has nothing of a key, which the user named, but has the near ones."""
    sentence = f"the snapshot of batch {batch.batch_id} has nothing of key {key!r}"
    if batch.drained:
        advice = "the query was drained with this batch, so no state is left; take an earlier snapshot, with at="
        return f"{sentence}: {advice}"
    return f"{sentence}; keys that it has are, for example, {', '.join(map(repr, near))}" if near else sentence


def _nearest(keys: list[tuple[Any, ...]], wanted: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if len(wanted) == 1 and isinstance(wanted[0], int):
        return sorted(keys, key=lambda key: abs(key[0] - wanted[0]))[:_NEAR]
    in_order = sorted(keys)
    position = max(0, bisect_left(in_order, wanted) - 1)
    return in_order[position : position + _NEAR]


def _hashed(spark: SparkSession, values: Values, spec: InputSpec, key_groups: int) -> tuple[int, int]:
    """Return Spark's hash of a key, and the number of its key group."""
    frame = spark.createDataFrame(encode_rows([values], spec.key_schema, "key"))
    keys = [F.col(back_quoted(name)) for name in values]
    row = frame.select(F.xxhash64(*keys).alias("hash"), key_group(keys, key_groups).alias("group")).collect()[0]
    return int(row["hash"]), int(row["group"])


def debug(checkpoint: Location | Snapshot, joined: Joined | None = None, *, key: Any, at: Moment = None) -> Debugger:
    """Load one key of a snapshot, to step through the batches that came next, in this process.

    The checkpoint is only read, and its query may be running. The steps have the time of the real run, and give the
    key's output rows of the real run.

    Args:
        checkpoint: The query's checkpoint directory, or a ``Snapshot``.
        joined: The join or function that the query ran, as it was started, with sources of cojoin's; a checkpoint does
            not keep it. None only shows what the snapshot has of the key.
        key: The key: a value; a tuple where it has several columns, or a dict by the left input's columns.
        at: The snapshot: a batch's number; a datetime with a time zone, for the last snapshot at or before it; None for
            the newest, after which few batches have come.

    Returns:
        The key's ``state``, ``timers`` and ``waiting`` rows, the ``watermark``, the rows ``upcoming``, and ``steps()``.

    Raises:
        ConfigurationError: No Spark session is active, or an argument is invalid.
        FunctionError: A value of the key is not of its column's type.
        CheckpointError: The directory is not a checkpoint, it has no such snapshot (the message lists those that it
            has), or ``joined`` is another query.

    Warns:
        UserWarning: The snapshot has nothing of the key.

    Example:
        >>> debugger = debug("/lake/_cojoin/enriched", joined, key=17, at=12)  # doctest: +SKIP
        >>> for step in debugger.steps():  # doctest: +SKIP
        ...     print(step.batch_id, step.output)
    """
    spark = active_session()
    if spark is None:
        msg = "debug: reading the checkpoint needs an active Spark session; make one with cojoin.spark_session()"
        raise ConfigurationError(msg)
    bound = None
    if joined is not None:
        if not isinstance(joined, Joined):
            msg = f"debug: joined: expected the Joined that the query ran, such as pair.asof_join(), got {joined!r}"
            raise ConfigurationError(msg)
        bound = joined._spark("debug").bound  # noqa: SLF001
    loaded = load_key(spark, as_snapshot(checkpoint, at), key)
    debugger = _debugger_of(loaded, None if joined is None else joined.plan, bound)
    if loaded.is_empty:
        warnings.warn(f"debug: {nothing_of(key, loaded.batch, near_keys(loaded))}", stacklevel=2)
    return debugger
