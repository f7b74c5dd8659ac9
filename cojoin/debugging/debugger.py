"""``Debugger``: one key of a checkpoint after a snapshot, and the way from there through the batches that came next.

It keeps the key's part of the state, and the key's rows of the batches that were looked at. Nothing of the checkpoint
changes. Each run begins at the snapshot again, so the same rows can be run through another function.
"""

from __future__ import annotations

import html
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from cojoin.checkpoints.identity import describe_query
from cojoin.checkpoints.inspect.state_rows import as_key
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.debugging.recorded_batches import batches_after
from cojoin.debugging.recorded_time import header_at, with_recorded_time
from cojoin.debugging.replayed_rows import ReplayedRows, Span
from cojoin.debugging.row_steps import WatchedProcess, callbacks_of, cuts_of, run_batch
from cojoin.embedded.steps import Stepper
from cojoin.engine.display import html_table, text_rows
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import Plan
from cojoin.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    from cojoin.checkpoints.inspect.key_state import KeyState
    from cojoin.debugging.loaded_key import LoadedKey
    from cojoin.debugging.recorded_batches import RecordedBatch
    from cojoin.debugging.row_steps import RowStep
    from cojoin.embedded.steps import Step
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.operator import Sides
    from cojoin.spark.bound_input import BoundInput

__all__ = ["Debugger"]

By: TypeAlias = Literal["batch", "row"]
_MOST_ROWS = 60
"""How many rows of each table a notebook shows."""

_WINDOW = 16
"""How many batches are read together: each is a source of its own in Spark's plan."""


class Debugger:
    """One key of a checkpoint after a snapshot; ``cojoin.debug`` returns it.

    Attributes:
        key: The key's values, by the left input's column names.
        batch_id: The snapshot's batch.
    """

    def __init__(self, loaded: LoadedKey, plan: Plan | None = None, replay: _Replay | None = None) -> None:
        self._loaded, self._plan, self._replay = loaded, plan, replay
        self.key, self.batch_id = dict(loaded.values), loaded.batch.batch_id

    @classmethod
    def of(cls, loaded: LoadedKey, plan: Plan | None, bound: tuple[BoundInput, BoundInput] | None) -> Debugger:
        """Return the debugger of a key.

        Args:
            loaded: The key.
            plan: What the query ran; None shows only what was loaded.
            bound: The query's inputs.

        Raises:
            CheckpointError: The plan is that of another query, or reads other sources.
        """
        if plan is None or bound is None:
            return cls(loaded)
        _check_plan(loaded, plan)
        _check_sources(loaded, bound)
        values = (
            dict(zip(spec.key, as_key(dict(loaded.values), plan.left).values(), strict=True)) for spec in plan.inputs
        )
        left, right = values
        rows = ReplayedRows(loaded.spark, loaded.files, bound, (left, right), loaded.key_hash)
        made = cls(loaded, plan, _Replay(loaded, rows))
        made._stepper()
        return made

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
        found = self._replayed("upcoming").all()
        return {number: rows for number, rows in found.items() if rows[0].num_rows or rows[1].num_rows}

    @overload
    def steps(self, by: Literal["batch"] = "batch") -> Iterator[Step]: ...

    @overload
    def steps(self, by: Literal["row"]) -> Iterator[RowStep]: ...

    def steps(self, by: By = "batch") -> Iterator[Step] | Iterator[RowStep]:
        """Run the batches that came next in this process, from the snapshot on, with the key's rows only.

        Each batch has the processing time and the watermarks of the real run, so the same rows are late, the same
        timers fire, and the same output rows of the key come out in the same batches. Rows are read some batches at a
        time, as they are needed.

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
        replay.check()
        return self._by_batch(replay) if by == "batch" else self._by_row(replay)

    def _by_batch(self, replay: _Replay) -> Iterator[Step]:
        stepper = self._stepper()
        for batch, rows in replay:
            yield run_batch(stepper, batch, rows)

    def _by_row(self, replay: _Replay) -> Iterator[RowStep]:
        stepper = self._stepper(watched=True)
        small = callbacks_of if isinstance(stepper.plan.operation, WatchedProcess) else cuts_of
        for batch, rows in replay:
            yield from small(stepper, batch, rows)

    def with_function(self, function: KeyedCoProcessFunction) -> Debugger:
        """Return a debugger of the same key and rows with another function, which begins at the same snapshot.

        Args:
            function: The function; it yields rows of the same output columns, and may declare further states.

        Raises:
            ConfigurationError: The query runs a join, the debugger was made without it, or it is no function.
            CheckpointError: The stored states can't become those that the function declares.
        """
        self._replayed("with_function()")
        assert self._plan is not None
        if not isinstance(self._plan.operation, KeyedCoProcess):
            msg = f"with_function: the query runs {self._loaded.state.query['operator']}, no function; use with_join()"
            raise ConfigurationError(msg)
        return self._with(replace(self._plan, operation=replace(self._plan.operation, function=function)))

    def with_join(self, joined: Any) -> Debugger:
        """Return a debugger of the same key and rows with another join or function over the same inputs.

        Args:
            joined: A ``Joined`` over the query's inputs, such as the same function with other output columns.

        Raises:
            ConfigurationError: It is no ``Joined``, or the debugger was made without the query's own.
            CheckpointError: It can't go on with the checkpoint's state.
        """
        self._replayed("with_join()")
        plan = plan_of(joined, "with_join")
        _check_plan(self._loaded, plan)
        return self._with(plan)

    def _with(self, plan: Plan) -> Debugger:
        made = Debugger(self._loaded, plan, self._replay)
        made._stepper()
        return made

    def _stepper(self, *, watched: bool = False) -> Stepper:
        assert self._plan is not None
        plan = with_recorded_time(self._plan)
        if watched and isinstance(plan.operation, KeyedCoProcess):
            plan = replace(plan, operation=WatchedProcess.of(plan.operation))
        stepper = Stepper(plan)
        header = header_at(self._loaded.header, self._loaded.batch)
        stepper.restore_parts(header, self._loaded.tables, batch_id=self.batch_id, keeps_counts=False, resumed=False)
        return stepper

    def _replayed(self, what: str) -> _Replay:
        if self._replay is None:
            msg = (
                f"{what} needs the join or function that the query ran, since a checkpoint does not keep it: "
                f"cojoin.debug(checkpoint, joined, key=...), with joined as it was started"
            )
            raise ConfigurationError(msg)
        return self._replay

    def __str__(self) -> str:
        lines = [str(self._loaded.key_state)]
        if self._replay is not None:
            lines.append(self._replay.told())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what was loaded as HTML tables, for notebooks."""
        left, right = (spec.name for spec in self._loaded.inputs)
        operator = str(self._loaded.state.query["operator"])
        head = html.escape(str(self).partition("\n")[0])
        tables = {
            f"{left} that wait": self.waiting[0],
            f"{right} that wait": self.waiting[1],
            "states" if operator == "process" else f"{right} in force": self.state,
            "timers": self.timers,
        }
        shown = [
            f"<h4>{html.escape(name)}{_left_out(table)}</h4>{html_table(text_rows(table, _MOST_ROWS))}"
            for name, table in tables.items()
            if table.num_rows
        ] or ["<p>it has nothing</p>"]
        end = "" if self._replay is None else f"<p>{html.escape(self._replay.told())}</p>"
        return f"<p>{head}</p>{''.join(shown)}{end}"


def _left_out(table: pa.Table) -> str:
    more = table.num_rows - _MOST_ROWS
    return f" (and {more:,} more)" if more > 0 else ""


class _Replay:
    """The batches after a snapshot with the key's rows, read some batches at a time and then kept."""

    def __init__(self, loaded: LoadedKey, rows: ReplayedRows) -> None:
        self._first, self._rows = loaded.batch, rows
        self.batches: Sequence[RecordedBatch] = batches_after(loaded.spark, loaded.files, loaded.batch.batch_id)
        self._known: dict[int, Sides] = {}

    def __iter__(self) -> Iterator[tuple[RecordedBatch, Sides]]:
        for place, batch in enumerate(self.batches):
            if batch.batch_id not in self._known:
                self._read(place, place + _WINDOW)
            yield batch, self._known[batch.batch_id]

    def check(self) -> None:
        """Raise an error if an input's rows can't be read again, before anything is read."""
        self._rows.check_sources()

    def all(self) -> dict[int, Sides]:
        """Return the rows of all batches, by batch."""
        return {batch.batch_id: rows for batch, rows in self}

    def _read(self, start: int, stop: int) -> None:
        before = [self._first, *self.batches]
        spans = [
            Span(batch.batch_id, begin.offsets, batch.offsets)
            for begin, batch in zip(before[start:stop], self.batches[start:stop], strict=False)
        ]
        self._known.update(self._rows.read(spans))

    def told(self) -> str:
        """Return a line about the batches that came next."""
        if not self.batches:
            return "no batch came next: this is where the query is now"
        first, last = self.batches[0].batch_id, self.batches[-1].batch_id
        text = f"then came batch {first}" if first == last else f"then came batches {first} to {last}"
        if len(self._known) < len(self.batches):
            return f"{text}; their rows are read when steps() or upcoming needs them"
        count = sum(left.num_rows + right.num_rows for left, right in self._known.values())
        return f"{text} with {count:,} row{'' if count == 1 else 's'} of the key"


def plan_of(joined: Any, what: str) -> Plan:
    """Return the plan of a ``Joined``.

    Raises:
        ConfigurationError: It is something else.
    """
    plan = getattr(joined, "plan", None)
    if not isinstance(plan, Plan):
        msg = f"{what}: expected the Joined that the query ran, such as pair.asof_join(), got {joined!r}"
        raise ConfigurationError(msg)
    return plan


def _check_plan(loaded: LoadedKey, plan: Plan) -> None:
    """Check that a plan can go on with the state; what it emits is written nowhere, so its outputs may be others."""
    stored = loaded.stored["query"]
    asked = describe_query(plan.operation.describe(), plan.inputs, plan.output, int(stored["key_groups"]))
    kept = {name: stored[name] for name in ("output", "side_outputs") if name in stored}
    check_evolution(stored, {**asked, **kept}, loaded.files.root)


def _check_sources(loaded: LoadedKey, bound: tuple[BoundInput, BoundInput]) -> None:
    for each, known in zip(bound, loaded.stored["sources"], strict=True):
        if each.source is None or known is None:
            continue
        own = each.source.identity(loaded.spark)
        if {name: known.get(name) for name in own} != own:
            msg = (
                f"debug: input {each.spec.name!r} read {known['format']} {known['location']} in the query that wrote "
                f"the checkpoint, and reads {own['format']} {own['location']} here; give debug the same join"
            )
            raise CheckpointError(msg)
