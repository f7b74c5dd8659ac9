"""One key group's operator from its creation to its close; whatever runs an operator runs it as a ``KeyGroup``.

A call of a stream on Spark makes one for each key group and micro-batch, and a call on static inputs one for all rows.
In this process ``local_run`` has one for each key group. It adds a step of a generator to each emitted table, and
nothing to a row.

Tools ask for the emitted rows with their output, event time and key, which the operator's tables lack; that costs some
microseconds a row. A function's rows are in the order in which its callbacks yielded them, over all outputs. Their
times and keys are those of the callbacks, which are observed one by one (``watch``) while the operator runs as it
always does. A join's rows are in the order of its tables, and have times and keys in their columns. The rejected rows
are apart, since a batch emits them before all others.
"""

from __future__ import annotations

import gc
import json
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
from cojoin.engine.joins import IntervalJoin
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import event_millis
from cojoin.errors import CojoinError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from cojoin.engine.functions import Context
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.keyed_process import KeyedCoProcessOperator
    from cojoin.engine.keyed_state_backend import KeyedStateBackend
    from cojoin.engine.operator import Batch, Emission, Operator
    from cojoin.engine.plan import Plan


class ConservationError(CojoinError):
    """An operator that lost a row, or counted one twice; this is a defect of cojoin."""


class KeyGroup:
    """One key group's operator, new and not yet restored; the end of a ``with`` block closes it.

    If a batch has failed, an error of ``close`` does not replace the batch's own. ``emitted`` counts the rows of the
    last batch by output. ``notes`` are those about a function's rows in it; None where none are taken.
    """

    def __init__(self, plan: Plan, number: int = 0) -> None:
        self.operator: Operator = plan.create_operator()
        self.number = number
        self.emitted: Counter[str] = Counter()
        self.notes: RowNotes | None = None

    def process(self, batch: Batch) -> Iterator[Emission]:
        """Run a batch and yield what it emits; exhaust the iterator before taking a report or a state."""
        self.emitted = Counter()
        for emission in self.operator.process(batch):
            self.emitted[emission.kind] += emission.table.num_rows
            yield emission

    def report(self, state_bytes: int = 0) -> dict[str, Any]:
        """Return the key group's part of a batch report, as ``merge_reports`` takes it."""
        return {
            "key_group": self.number,
            "state_bytes": state_bytes,
            "emitted": dict(self.emitted),
            **self.operator.report(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with suppress(*([] if kind is None else [CojoinError])):
            self.operator.close()


def check_conservation(operator: Operator) -> None:
    """Check that every row of an operator is accounted for: rows in = done + buffered + rejected."""
    for spec, counts in zip(operator.inputs, operator.report()["inputs"], strict=True):
        rejected = sum(counts["rejected"].values())
        if counts["rows_in"] != counts["done"] + counts["buffered"] + rejected:
            msg = (
                f"input {spec.name!r}: rows were lost, or counted twice: {counts['rows_in']} in, but {counts['done']} "
                f"done + {counts['buffered']} buffered + {rejected} rejected"
            )
            raise ConservationError(msg)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in a ``with`` block: scanning the rows of a batch would take a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class GroupOutput:
    """The emissions of one key group in one batch, with the notes about a function's rows, if any were taken."""

    plan: Plan
    emissions: list[Emission] = field(default_factory=list)
    notes: RowNotes | None = None

    def rejected_tables(self) -> list[pa.Table]:
        """Return the tables of rejected rows."""
        return [each.table for each in self.emissions if each.kind == REJECTED]

    def rejected(self) -> list[Rejected]:
        """Return the rejected rows."""
        return [row for table in self.rejected_tables() for row in _rejected_rows(table)]

    def rows(self, beyond: Callable[[str], Any] | None = None) -> Iterator[EmittedRow]:
        """Yield the rows of all outputs in order, but not the rejected ones; ``beyond`` is as in ``decode_rows``."""
        others = [emission for emission in self.emissions if emission.kind != REJECTED]
        if self.notes is None:
            for emission in others:
                yield from self._of_join(emission.table, beyond)
            return
        values: dict[str, list[Any]] = defaultdict(list)
        for emission in others:
            values[emission.kind] += decode_rows(emission.table, beyond)
        sources = {kind: iter(rows) for kind, rows in values.items()}
        for output, timestamp, key in self.notes:
            yield EmittedRow(output, next(sources[output]), timestamp, key)

    def _of_join(self, table: pa.Table, beyond: Callable[[str], Any] | None) -> Iterator[EmittedRow]:
        left, right = self.plan.inputs
        # The left's columns come first; the result may have renamed them.
        places = [left.schema.names.index(name) for name in left.key]
        rows, times = decode_rows(table, beyond), _joined_times(self.plan.operation, left, right, table)
        for row, timestamp in zip(rows, times, strict=True):
            yield EmittedRow(OUTPUT, row, timestamp, tuple(row[place] for place in places))


@dataclass(frozen=True)
class Rejected:
    """A rejected row.

    Attributes:
        input: The name of its input.
        reason: ``"late"``, ``"null_key"``, ``"null_event_time"``, ``"too_far_ahead"``, ``"time_beyond_python"`` or
            ``"ends_before_it_begins"``.
        row: Its columns, as JSON values.
        timestamp: Its event time in epoch milliseconds; None if it has none.
        watermark: The operator's watermark before the row's batch, in epoch milliseconds; None if there was none yet.
    """

    input: str
    reason: str
    row: Mapping[str, Any]
    timestamp: int | None = None
    watermark: int | None = None


class EmittedRow(NamedTuple):
    """A row of the main output or of a side output.

    Attributes:
        output: ``"output"``, or a side output's tag id.
        value: The row.
        timestamp: The event time in epoch milliseconds. In a function it is the time of the input row or event-time
            timer whose callback yielded the row; None if that row has no event time, and for rows of a processing-time
            timer. In an as-of or temporal join it is the left row's time, in an interval join the later of both times.
        key: The values of its key columns.
    """

    output: str
    value: Any
    timestamp: int | None
    key: tuple[Any, ...]


class RowNotes(list["tuple[str, int | None, tuple[Any, ...]]"]):
    """The output, event time and key of each row that a function's callbacks yielded; its ``add`` is an observer."""

    def add(self, callback: Callback, context: Context) -> None:
        """Note the rows of a callback."""
        if callback.yielded:
            by_clock = callback.side is None and context.time_domain() is TimeDomain.PROCESSING_TIME
            timestamp = None if by_clock else context.timestamp()
            key = context.get_current_key()
            key = key if isinstance(key, tuple) else (key,)
            self += [(_output_of(item), timestamp, key) for item in callback.yielded]


def _output_of(item: Any) -> str:
    has_tag = type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag)
    return item[0].tag_id if has_tag else OUTPUT


def _rejected_rows(table: pa.Table) -> list[Rejected]:
    micros = table.column("event_time").cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("input", "reason", "row", "watermark")]
    return [
        Rejected(name, reason, json.loads(row), None if time is None else time // 1_000, watermark)
        for name, reason, row, watermark, time in zip(*columns, micros, strict=True)
    ]


def _joined_times(operation: Any, left: InputSpec, right: InputSpec, table: pa.Table) -> list[int | None]:
    taken = {name.lower() for name in left.schema.names}
    own = str(right.event_time)
    of_right = own if own.lower() not in taken else f"{right.name}_event_time"
    columns = [(table.schema.names[left.schema.names.index(str(left.event_time))], left.axis)]
    if isinstance(operation, IntervalJoin):
        columns.append((of_right, right.axis))
    millis = [_millis(table, name, axis) for name, axis in columns]
    return [max((each for each in row if each is not None), default=None) for row in zip(*millis, strict=True)]


def _millis(table: pa.Table, column: str, axis: TimeAxis | None) -> list[int | None]:
    floored = event_millis(micros_of(table, column, axis)).tolist()
    is_known = table.column(column).is_valid().to_pylist()
    return [time if known else None for time, known in zip(floored, is_known, strict=True)]


class Callback(NamedTuple):
    """One callback: its side (None for a timer), its row or timer's epoch milliseconds, what it yielded, the states."""

    side: int | None
    value: Any
    yielded: list[Any]
    backend: KeyedStateBackend


Observer: TypeAlias = "Callable[[Callback, Context], None]"
"""A function that is called after each callback, with the callback's context."""


def watch(operator: KeyedCoProcessOperator, observer: Observer) -> None:
    """Have an operator's function observed; call this before its first batch."""

    def watched(function: KeyedCoProcessFunction) -> KeyedCoProcessFunction:
        # Messages name the function's class.
        kind: type[_Watched] = type(type(function).__name__, (_Watched,), {})
        return kind(function, observer, operator.state_backend)

    operator.watch(watched)


class _Watched(KeyedCoProcessFunction):
    def __init__(self, function: KeyedCoProcessFunction, observer: Observer, backend: KeyedStateBackend) -> None:
        self._function, self._observer, self._backend = function, observer, backend

    def open(self, ctx: Any) -> Any:
        return self._function.open(ctx)

    def close(self) -> Any:
        return self._function.close()

    def process_element1(self, value: Any, ctx: Context) -> Any:
        return self._observed(0, value, self._function.process_element1(value, ctx), ctx)

    def process_element2(self, value: Any, ctx: Context) -> Any:
        return self._observed(1, value, self._function.process_element2(value, ctx), ctx)

    def on_timer(self, timestamp: int, ctx: Context) -> Any:
        return self._observed(None, timestamp, self._function.on_timer(timestamp, ctx), ctx)

    def _observed(self, side: int | None, value: Any, result: Any, ctx: Context) -> Any:
        if result is not None and not hasattr(result, "__iter__"):
            return result
        yielded = [] if result is None else list(result)
        self._observer(Callback(side, value, yielded, self._backend), ctx)
        return yielded
