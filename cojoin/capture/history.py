"""The rows of a run in the order of their arrival: cut into micro-batches, each with the watermarks after it.

They come from a join's inputs, from the steps of a stream, or from a query's checkpoint:

- The inputs of a join, in memory or of Spark, are one micro-batch to the end of time, so no row is late. Of Spark's
  inputs only the wanted keys' rows are collected, in one read with a limit; a stream of ``cojoin.sources`` is read from
  its beginning to its present end.
- The steps of ``Joined.steps`` keep their cuts, watermarks and processing times.
- Of a checkpoint each key's state at the snapshot is taken, and the key's rows in the batches that followed, with the
  watermarks of the real run (``cojoin.debug``).

Rows whose key has a null are left out; the watermarks that they have moved stay.

Equal values of a masked column get equal pseudonyms, numbered in the order of the captured rows: ``name-1``,
``name-2``. A masked key column is masked in both inputs alike. The expected rows are made from the masked rows; but a
function that compares a masked column with a constant, or sorts by it, takes other branches than with the real rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_, eq, or_
from os import PathLike
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.api.joined import Joined
from cojoin.capture.captured_keys import CapturedBatch
from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.embedded.steps import Step
from cojoin.engine.input_spec import controls_of, has_null_key, reject_reasons
from cojoin.engine.local.local_run import restored_operators
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.json_values import row_to_json
from cojoin.engine.values.keys import encode_keys, plain_key
from cojoin.engine.values.rows import back_quoted, decode_column, decode_rows
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput


Span = tuple[datetime, datetime]
"""A span of event time: the first moment in it, and the first moment after it, both with a time zone."""


@dataclass(frozen=True)
class History:
    """The rows of a run, left input first, in the order in which they came; ``places`` has each row's micro-batch.

    The plan's inputs make no watermarks, the batches have no rows, and the origin describes the source without secrets.
    The state is that before the first micro-batch, as a stepper's snapshot; None if there was none.
    """

    plan: Plan
    rows: Sides
    places: tuple[NDArray[np.int64], NDArray[np.int64]]
    batches: tuple[CapturedBatch, ...]
    origin: str
    state: bytes | None = None

    def keys(self) -> tuple[list[NDArray[np.int64]], int]:
        """Return the code of each row's key, for both inputs, and how many keys there are."""
        return encode_keys([spec.keys(table) for spec, table in zip(self.plan.inputs, self.rows, strict=True)])

    def only(self, left: NDArray[Any], right: NDArray[Any]) -> History:
        """Return the history of some of the left and of the right rows, which are positions or a mask."""
        chosen = [np.flatnonzero(each) if each.dtype == bool else each for each in (left, right)]
        first, second = (table.take(pa.array(each)) for table, each in zip(self.rows, chosen, strict=True))
        batches = self.places[0][chosen[0]], self.places[1][chosen[1]]
        return replace(self, rows=(first, second), places=batches)

    def within(self, span: Span | None) -> History:
        """Return the history of the rows in a span of event time, which must have a row."""
        if span is None:
            return self
        start, end = _micros_of(span)
        masks = []
        for spec, table in zip(self.plan.inputs, self.rows, strict=True):
            if spec.event_time is None:
                msg = f"span: input {spec.name!r} has no event time; leave out span="
                raise ConfigurationError(msg)
            micros = spec.micros(table)
            masks.append(~has_null_key(table, [spec.event_time]) & (micros >= start) & (micros < end))
        if not any(mask.any() for mask in masks):
            names = " and ".join(repr(spec.name) for spec in self.plan.inputs)
            msg = f"span: inputs {names} have no row from {span[0].isoformat()} to before {span[1].isoformat()}"
            raise ConfigurationError(msg)
        return self.only(*masks)

    def of_batch(self, number: int) -> Sides:
        """Return the rows of one micro-batch."""
        left, right = (
            table.slice(start, stop - start)
            for table, (start, stop) in zip(
                self.rows, (np.searchsorted(batches, [number, number + 1]) for batches in self.places), strict=True
            )
        )
        return left, right

    def captured_batches(self, starts: Collection[int] | None = None) -> tuple[CapturedBatch, ...]:
        """Return the micro-batches with their rows.

        All but those of ``starts`` are merged into the one before them; None merges only those without rows. A row with
        a moment beyond the years 1 to 9999 can't be written and is an error.
        """
        merged: list[CapturedBatch] = []
        for number, batch in enumerate(self.batches):
            left, right = (
                _json_rows(spec.schema, table)
                for spec, table in zip(self.plan.inputs, self.of_batch(number), strict=True)
            )
            merges = not (left or right) if starts is None else number not in starts
            if merged and merges and merged[-1].last_event is None and (starts is not None or not any(merged[-1].rows)):
                before = merged.pop().rows
                merged.append(replace(batch, rows=([*before[0], *left], [*before[1], *right])))
            else:
                merged.append(replace(batch, rows=(left, right)))
        return tuple(merged)

    def rejected(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the rows of each input that are rejected for another reason than lateness."""
        now = np.array([batch.processing_time for batch in self.batches], dtype=np.int64)
        masks: list[NDArray[np.bool_]] = []
        for spec, table, batches in zip(self.plan.inputs, self.rows, self.places, strict=True):
            masks.append(reject_reasons(table, replace(spec, max_ahead_ms=None), 0) > 0)
            if spec.max_ahead_ms is not None:
                masks[-1] |= spec.millis(table) > now[batches] + spec.max_ahead_ms
        return masks[0], masks[1]

    def late(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the rows of each input that are late, rejected or applied."""
        before = np.array([NONE, *(min(each.watermarks) for each in self.batches)], dtype=np.int64)
        if self.state is not None:
            before[0] = restored_operators(self.plan, self.state)[0].watermark.current()
        left, right = (
            (spec.timestamps(table) <= before[batches]) & ~others & (spec.event_time is not None)
            for spec, table, batches, others in zip(
                self.plan.inputs, self.rows, self.places, self.rejected(), strict=True
            )
        )
        return left, right


def history_of_run(plan: Plan, rows: Sides, origin: str) -> History:
    """Return the history of a run over all rows to the end of time."""
    batch = CapturedBatch(watermarks=_reached(plan, None, rows, 0))
    seen = [time for each in controls_of(rows, _limited(plan, 0).inputs) for time in each.partitions.values()]
    return _history(plan, [(rows, batch)], replace(batch, last_event=max(seen, default=NONE)), origin)


def history_of_steps(steps: Sequence[Step], origin: str, state: bytes | None = None) -> History:
    """Return the history of a stream's steps: all of one run, in their order.

    With a state, which is a stepper's snapshot before the first step, the steps' time was recorded.
    """
    numbers = [step.batch_id for step in steps]
    is_whole = state is not None or numbers == list(range(len(steps)))
    if not steps or not is_whole or any(step.plan is not steps[0].plan for step in steps):
        msg = (
            f"steps: expected all steps of one run from the first on, got those of batches "
            f"{', '.join(map(str, numbers[:10])) or 'none'}; the rows before them would be missing in the test"
        )
        raise ConfigurationError(msg)
    plan, parts, end = steps[0].plan, [], None
    reached, kept = (NONE, NONE), state
    for step in steps:
        ends = step.watermark == END_OF_TIME
        if not ends:
            reached = _agreed(step.input_watermarks, step.watermark)
        elif state is None:
            # The report has only the end of time, but rows and timers have seen the watermark that the rows moved.
            reached = _reached(plan, kept, step.rows, step.processing_time)
        batch = CapturedBatch(watermarks=reached, processing_time=step.processing_time)
        if ends:
            end = replace(batch, last_event=max(each.max_timestamp for each in step.report.inputs))
        if not ends or any(table.num_rows for table in step.rows):
            parts.append((step.rows, batch))
        kept = step.snapshot
    return _history(plan, parts, end, origin, state)


def _history(
    plan: Plan,
    parts: Sequence[tuple[Sides, CapturedBatch]],
    end: CapturedBatch | None,
    origin: str,
    state: bytes | None = None,
) -> History:
    batches = [batch for _, batch in parts] + ([] if end is None else [end])
    silent = WatermarkStrategy.no_watermarks()
    has_clock = all(each.processing_time for each in batches)
    left, right = (
        replace(
            spec,
            watermark=silent,
            partition=(),
            sequence=spec.source_order,
            max_ahead_ms=spec.max_ahead_ms if has_clock else None,
        )
        for spec in plan.inputs
    )
    tables, batch_numbers = [], []
    for side, spec in enumerate(plan.inputs):
        table = pa.concat_tables([spec.schema.empty_table(), *(rows[side].cast(spec.schema) for rows, _ in parts)])
        numbers = np.repeat(np.arange(len(parts), dtype=np.int64), [rows[side].num_rows for rows, _ in parts])
        known = ~has_null_key(table, spec.key)
        tables.append(table if known.all() else table.filter(pa.array(known)))
        batch_numbers.append(numbers[known])
    silent_plan = replace(plan, left=left, right=right, key_groups=1, time=TimePolicy())
    return History(
        silent_plan, (tables[0], tables[1]), (batch_numbers[0], batch_numbers[1]), tuple(batches), origin, state
    )


def _reached(plan: Plan, before: bytes | None, rows: Sides, processing_time: int) -> tuple[int, int]:
    """Return both inputs' watermarks after some rows that follow a snapshot."""
    operator = plan.create_operator() if before is None else restored_operators(plan, before)[0]
    try:
        watermark = operator.watermark
        watermark.begin(processing_time)
        watermark.fold(controls_of(rows, _limited(plan, processing_time).inputs, processing_time))
        watermark.tick(processing_time)
        left, right = watermark.inputs
        return _agreed((left.current(), right.current()), watermark.current())
    finally:
        operator.close()


def _limited(plan: Plan, processing_time: int) -> Plan:
    """Return a plan for a processing time; while the clock is unknown, no row is too far ahead of it."""
    return plan if processing_time else plan.with_inputs(max_ahead_ms=None)


def _agreed(inputs: tuple[int, int], operator: int) -> tuple[int, int]:
    """Return both inputs' watermarks; the operator's twice where it is not their minimum, as with an idle input."""
    return inputs if min(inputs) == operator else (operator, operator)


def _micros_of(span: Any) -> tuple[int, int]:
    pair = tuple(span) if isinstance(span, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(each, datetime) and each.tzinfo is not None for each in pair):
        msg = f"span: expected a start and an end as datetimes with a time zone, got {span!r}"
        raise ConfigurationError(msg)
    start, end = (pa.scalar(each, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py() for each in pair)
    if start >= end:
        msg = f"span: expected a start before the end, got {pair[0].isoformat()} and {pair[1].isoformat()}"
        raise ConfigurationError(msg)
    return start, end


def _json_rows(schema: pa.Schema, table: pa.Table) -> list[dict[str, Any]]:
    if not table.num_rows:
        return []
    try:
        return [row_to_json(row, schema) for row in decode_rows(table)]
    except OverflowError as error:
        msg = (
            f"a captured row has a moment beyond the years 1 to 9999 ({error}), which a test can't hold; leave its "
            f"column out with columns=, or choose other keys"
        )
        raise ConfigurationError(msg) from error


def is_checkpoint(source: Any) -> bool:
    """Return whether a source is a checkpoint: its directory, or a ``Snapshot``."""
    return isinstance(source, (str, PathLike)) or type(source).__name__ == "Snapshot"


def opened(source: Any, joined: Joined | None) -> tuple[Any, Plan]:
    """Return a source, with lazy steps as a list, and its plan; a checkpoint needs its join."""
    if is_checkpoint(source):
        if not isinstance(joined, Joined):
            msg = f"joined: a checkpoint does not keep its join; give it as it was started, got {joined!r}"
            raise ConfigurationError(msg)
        return source, joined.plan
    if joined is not None:
        msg = "joined: only a checkpoint needs it; leave it out"
        raise ConfigurationError(msg)
    if isinstance(source, Joined):
        return source, source.plan
    steps = list(source) if hasattr(source, "__iter__") else []
    if not steps and isinstance(source, GeneratorType):
        msg = "capture: the iterator of steps is exhausted; call joined.steps(...) again"
        raise ConfigurationError(msg)
    if not steps or not all(isinstance(each, Step) for each in steps):
        msg = (
            f"capture: expected a join or function such as pair.process(...), the steps of joined.steps(...), or a "
            f"checkpoint, got {source!r}"
        )
        raise ConfigurationError(msg)
    return steps, steps[0].plan


def history_of(source: Joined | list[Step], keys: Sequence[tuple[Any, ...]] | None, span: Span | None) -> History:
    """Return the history of a join's inputs, or of the steps of a stream.

    Rows of other keys and of other times than the wanted ones may be in it, too; None wants all.
    """
    plan = source.plan if isinstance(source, Joined) else source[0].plan
    names = f"the inputs {plan.left.name!r} and {plan.right.name!r}"
    if not isinstance(source, Joined):
        count = f"{len(source)} micro-batches" if len(source) > 1 else "one micro-batch"
        return history_of_steps(source, f"{count} of {names}")
    execution = source._execution  # noqa: SLF001 - it has the rows
    if isinstance(execution, EmbeddedExecution):
        return history_of_run(plan, execution.rows, f"{names} in memory")
    left, right = (_collected(bound, keys, span) for bound in source._spark("capture").bound)  # noqa: SLF001
    return history_of_run(plan, (left, right), f"{names}, read by Spark")


def key_histories(source: Any, joined: Joined, keys: Sequence[Any]) -> list[History]:
    """Return the history of each key, a tuple of its columns' values, since a checkpoint's snapshot."""
    from cojoin.debugging.debugger import debug  # noqa: PLC0415 - rows in memory need no Spark

    histories = []
    for key in keys:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            debugger = debug(source, joined, key=plain_key(key))
        steps = list(debugger.steps())
        has_rows = any(table.num_rows for step in steps for table in step.rows)
        if not has_rows and caught:
            msg = f"keys: {caught[0].message}; and the batches that followed have no row of it"
            raise ConfigurationError(msg)
        if not steps:
            msg = (
                f"keys: no batch came after the snapshot of batch {debugger.batch_id}, so there is nothing to replay; "
                f"take an older snapshot: Snapshot(path, at=...)"
            )
            raise ConfigurationError(msg)
        state = debugger._stepper().snapshot()  # noqa: SLF001 - the key's state as a harness reads it
        first, last = steps[0].batch_id, steps[-1].batch_id
        batches = f"batch {first}" if first == last else f"batches {first} to {last}"
        name = str(getattr(source, "path", source)).rstrip("/").rpartition("/")[2]
        origin = f"{batches} of the query with the checkpoint {name!r}, and its state before them"
        histories.append(history_of_steps(steps, origin, state))
    return histories


_MOST_ROWS = 1_000_000
"""The largest number of rows of an input that are collected."""


def _collected(bound: BoundInput, keys: Sequence[tuple[Any, ...]] | None, span: Span | None) -> pa.Table:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - rows in memory need no Spark

    from cojoin.engine.values.tables import as_spark_column  # noqa: PLC0415

    spec = bound.spec
    frame = bound.static_frame(
        stream="a streaming DataFrame, whose rows can't be read again: declare it with one of cojoin.sources, connect "
        "a static DataFrame of the same rows, or capture from the query's checkpoint",
        need="a test needs rows that end",
    )
    columns = [F.col(back_quoted(name)) for name in spec.key]
    if keys is not None:
        frame = frame.where(reduce(or_, [reduce(and_, map(eq, columns, map(F.lit, key))) for key in keys]))
    if span is not None and spec.event_time is not None:
        time = F.col(back_quoted(spec.event_time))
        frame = frame.where((time >= F.lit(span[0])) & (time < F.lit(span[1])))
    chosen = frame.select(*(F.col(back_quoted(name)).alias(f"c{at}") for at, name in enumerate(spec.schema.names)))
    table: pa.Table = chosen.limit(_MOST_ROWS + 1).toArrow()
    if table.num_rows > _MOST_ROWS:
        which = "" if keys is None else f" of the {len(keys)} keys"
        msg = (
            f"input {spec.name!r} has more than {_MOST_ROWS:,} rows{which}, too many for a test: "
            f"{'name keys=, or ' if keys is None else ''}take a shorter time with span=(start, end)"
        )
        raise ConfigurationError(msg)
    arrays = [as_spark_column(column, f"input {spec.name!r}") for column in table.columns]
    return table.from_arrays(arrays, names=spec.schema.names).cast(spec.schema)


def select_columns(history: History, columns: Mapping[str, Sequence[str]] | None) -> History:
    """Return a history with the named columns of each input; keys, event times and sequences are always kept."""
    if columns is None:
        return history
    names = [spec.name for spec in history.plan.inputs]
    if not isinstance(columns, Mapping) or not all(map(_are_names, columns.values())):
        msg = (
            f"columns: expected lists of the columns to keep by input, such as {{{names[0]!r}: [...]}}, got "
            f"{columns!r}; an input that is not named keeps all columns"
        )
        raise ConfigurationError(msg)
    for name in columns:
        if name not in names:
            msg = f"columns: the join has no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
    specs, tables = [], []
    for spec, table in zip(history.plan.inputs, history.rows, strict=True):
        kept = spec.schema.names if spec.name not in columns else list(columns[spec.name])
        for name in kept:
            if name not in spec.schema.names:
                msg = f"columns: input {spec.name!r} has no column {name!r}{did_you_mean(str(name), spec.schema.names)}"
                raise ConfigurationError(msg)
        needed = {*kept, *spec.key, *spec.source_order, spec.event_time}
        remaining = [name for name in spec.schema.names if name in needed]
        specs.append(replace(spec, schema=pa.schema([spec.schema.field(name) for name in remaining])))
        tables.append(table.select(remaining))
    plan = replace(history.plan, left=specs[0], right=specs[1])
    plan.operation.output_schema(plan.left, plan.right)
    return replace(history, plan=plan, rows=(tables[0], tables[1]))


def _are_names(value: Any) -> bool:
    # A collection, since the check would use up an iterator.
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    return is_list and all(isinstance(name, str) for name in value)


def mask_columns(history: History, mask: Sequence[str]) -> History:
    """Return a history in which pseudonyms replace the values of some columns of both inputs."""
    if isinstance(mask, str):
        msg = f"mask: expected a list of columns, got {mask!r}; write [{mask!r}]"
        raise ConfigurationError(msg)
    tables = list(history.rows)
    for name in dict.fromkeys(mask):
        pseudonyms: dict[Any, Any] = {}
        for side, column in _same(history.plan.inputs, name):
            spec, table = history.plan.inputs[side], tables[side]
            made = _masked(table.column(column), name, f"mask: column {column!r} of input {spec.name!r}", pseudonyms)
            tables[side] = table.set_column(table.column_names.index(column), spec.schema.field(column), made)
    return replace(history, rows=(tables[0], tables[1]))


def _same(inputs: tuple[InputSpec, InputSpec], name: str) -> list[tuple[int, str]]:
    """Return the columns of both inputs, each with the input's position, that are masked together."""
    columns = {(side, name) for side, spec in enumerate(inputs) if name in spec.schema.names}
    if not columns:
        known = [each for spec in inputs for each in spec.schema.names]
        msg = f"mask: neither input has a column {name!r}{did_you_mean(str(name), known)}"
        raise ConfigurationError(msg)
    for side, _ in sorted(columns):
        if name in inputs[side].key:
            position = inputs[side].key.index(name)
            columns |= {(0, inputs[0].key[position]), (1, inputs[1].key[position])}
    for side, column in sorted(columns):
        if column == inputs[side].event_time:
            subject = f"mask: {column!r} is the event time of input {inputs[side].name!r}"
            msg = f"{subject}, by which its rows are sorted; leave it out"
            raise ConfigurationError(msg)
    return sorted(columns)


def _masked(column: pa.ChunkedArray, name: str, subject: str, pseudonyms: dict[Any, Any]) -> pa.Array:
    dtype = column.type
    make: Callable[[int], Any]
    if pa.types.is_string(dtype):
        make = f"{name}-{{}}".format
    elif pa.types.is_binary(dtype):
        make = lambda number: f"{name}-{number}".encode()  # noqa: E731
    elif pa.types.is_integer(dtype):
        make = int
    else:
        msg = (
            f"{subject} is {type_to_ddl(dtype)}; only string, binary and integer columns have pseudonyms: leave it out"
        )
        raise ConfigurationError(msg)
    made = []
    for value in decode_column(column):
        if value is not None and value not in pseudonyms:
            pseudonyms[value] = make(len(pseudonyms) + 1)
        made.append(None if value is None else pseudonyms[value])
    try:
        return pa.array(made, dtype)
    except (pa.ArrowInvalid, OverflowError) as error:
        msg = f"{subject} ({type_to_ddl(dtype)}) has more values than it has pseudonyms: {error}; choose fewer keys"
        raise ConfigurationError(msg) from error
