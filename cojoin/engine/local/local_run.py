"""``LocalRun``: a plan run in this process, one micro-batch after the other, over any number of key groups.

Steps of a stream, runs to the end of time, the harness, checks of determinism, captures and comparisons are its users.
Each batch's rows are split by key group, each key group's operator runs its part, and every row is accounted for.

As on Spark, each batch runs in new operators with new copies of the function, restored from the encoded states after
the batch before, so what a function keeps in its attributes is lost; and a batch that fails changes nothing. It keeps
the states as bytes, and a batch costs what its rows cost and a pass over the states. With ``keeps_operators`` the
operators stay from batch to batch, as in Flink, and nothing is encoded; after a failed batch only a restore is
possible.

Results do not depend on the number of key groups. A restore into another number merges the states and splits them by
key again (``rescaling``).
"""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cojoin.engine.batch_report import BatchReport, merge_reports
from cojoin.engine.keyed_process import KeyedCoProcessOperator
from cojoin.engine.local.key_group import (
    GroupOutput,
    KeyGroup,
    RowNotes,
    check_conservation,
    watch,
    without_garbage_collection,
)
from cojoin.engine.operator import Batch
from cojoin.engine.rescaling import assemble, cut, merged_header
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values import codec
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CodecError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from cojoin.engine.local.key_group import Observer
    from cojoin.engine.operator import Operator, Sides
    from cojoin.engine.plan import Plan


@dataclass(frozen=True)
class BatchOutput:
    """The emissions of a batch, by key group."""

    plan: Plan
    groups: Sequence[GroupOutput]

    def tables(self) -> dict[str, pa.Table]:
        """Return each output's rows by its name: ``"output"``, ``"rejected"`` and the side outputs' tag ids."""
        pieces = {name: [schema.empty_table()] for name, (_, schema) in self.plan.outputs.items()}
        for group in self.groups:
            for emission in group.emissions:
                pieces[emission.kind].append(emission.table)
        return {name: pa.concat_tables(tables) for name, tables in pieces.items()}


class LocalRun:
    """Runs a plan in this process; the end of a ``with`` block closes the operators that it keeps.

    With ``keeps_operators`` the operators, and the function, stay from batch to batch. With ``notes_rows`` the output,
    event time and key of a function's rows are noted, for ``GroupOutput.rows``; else an ``observer`` may see its
    callbacks.

    Attributes:
        watermark: The watermarks of the operator and of its inputs, equal in all key groups; read only.
        failed: Whether a batch failed half way, so that the operators that are kept can't continue.
    """

    def __init__(
        self,
        plan: Plan,
        key_groups: int = 1,
        *,
        keeps_operators: bool = False,
        notes_rows: bool = False,
        observer: Observer | None = None,
    ) -> None:
        if type(key_groups) is not int or key_groups < 1:
            msg = f"key_groups: expected a whole number above zero, got {key_groups!r}"
            raise ConfigurationError(msg)
        self.plan, self.failed = plan, False
        self._count, self._keeps = key_groups, keeps_operators
        self._notes_rows, self._observer = notes_rows, observer
        self._groups: list[KeyGroup] = []
        self._take(self._new_groups(), resumed=False)

    def process(
        self,
        rows: Sides,
        controls: Sequence[Control] = (),
        *,
        processing_time: int = 0,
        end_of_input: bool = False,
        holds: Mapping[int, int] | None = None,
        snapshots: Mapping[int, int] | None = None,
        plan: Plan | None = None,
    ) -> BatchOutput:
        """Run one micro-batch; the arguments are those of ``Batch``, for all key groups.

        The numbers of rows in the controls are not used: each key group counts its own. ``plan`` is what new operators
        run in this batch, instead of the run's own.
        """
        shared = Batch(
            rows,
            end_of_input=end_of_input,
            processing_time=processing_time,
            resumed=self._resumed,
            holds=holds or {},
            snapshots=snapshots or {},
        )
        with ExitStack() as stack:
            groups = self._groups if self._keeps else self._restored(plan or self.plan, stack)
            self.failed = self._keeps
            with without_garbage_collection():
                batches = _split(self.plan, shared, controls, self._count)
                outputs = [self._run(group, batch) for group, batch in zip(groups, batches, strict=True)]
            self._take(groups, resumed=False)
        self.failed = False
        return BatchOutput(self.plan, outputs)

    def _run(self, group: KeyGroup, batch: Batch) -> GroupOutput:
        if group.notes is not None:
            group.notes.clear()
        emissions = list(group.process(batch))
        check_conservation(group.operator)
        return GroupOutput(self.plan, emissions, None if group.notes is None else RowNotes(group.notes))

    def _new_groups(self, plan: Plan | None = None) -> list[KeyGroup]:
        groups = [KeyGroup(plan or self.plan, number) for number in range(self._count)]
        for group in groups:
            if isinstance(group.operator, KeyedCoProcessOperator):
                if self._notes_rows:
                    group.notes = RowNotes()
                    watch(group.operator, group.notes.add)
                elif self._observer is not None:
                    watch(group.operator, self._observer)
        return groups

    def _restored(self, plan: Plan, stack: ExitStack) -> list[KeyGroup]:
        groups = self._new_groups(plan)
        for group, state in zip(groups, self._states, strict=True):
            stack.enter_context(group)
            group.operator.restore(state)
        return groups

    def _take(self, groups: list[KeyGroup], *, resumed: bool) -> None:
        """Continue with what the operators have after a batch or a restore."""
        states = [] if self._keeps else [group.operator.snapshot() for group in groups]
        self._reports = [group.report() for group in groups]
        self._groups, self._states = groups if self._keeps else [], states
        self._inspected: list[Operator] | None = None
        self.watermark, self._resumed = groups[0].operator.watermark, resumed

    @property
    def operators(self) -> list[Operator]:
        """The operators after the last batch, for inspection: those that are kept, or restored ones."""
        if self._keeps:
            return [group.operator for group in self._groups]
        if self._inspected is None:
            self._inspected = [self.plan.create_operator() for _ in self._states]
            _restore_states(self._inspected, self._states)
        return self._inspected

    @property
    def output_delay_ms(self) -> int:
        """The most that an emitted row's event time may be behind the watermark, in milliseconds."""
        return int(self._reports[0]["output_delay_ms"])

    def states(self) -> list[bytes]:
        """Return the state of each key group."""
        return [group.operator.snapshot() for group in self._groups] if self._keeps else self._states

    def report(self, batch_id: int, *, with_sizes: bool = True) -> BatchReport:
        """Return the counts and watermarks after the last batch; operators that are kept are encoded for sizes."""
        sizes = [len(state) for state in self.states()] if with_sizes else [0] * self._count
        groups = [{**report, "state_bytes": size} for report, size in zip(self._reports, sizes, strict=True)]
        return merge_reports(batch_id, (self.plan.left.name, self.plan.right.name), groups)

    def restore(self, states: Sequence[bytes], *, resumed: bool = True, checks_states: bool = False) -> None:
        """Continue from the states of a run with the same or another number of key groups; a failure changes nothing.

        The function may have changed, and inputs may have more columns. With ``resumed`` the next batch is the first
        one after a pause, so that idleness starts again. With ``checks_states`` the function is opened, and the states
        are checked against those that it declares.
        """
        groups = self._new_groups()
        _restore_states([group.operator for group in groups], states)
        self._continue(groups, resumed=resumed, checks_states=checks_states)

    def restore_parts(
        self, header: Mapping[str, Any], tables: Mapping[str, pa.Table], *, keeps_counts: bool, resumed: bool
    ) -> None:
        """Continue from a checkpoint's state, or a part of it, which is checked; otherwise as ``restore``.

        ``header`` is that of all key groups together (``rescaling.merged_header``); a missing table is empty. With
        ``keeps_counts`` the counters of rows done and rejected continue.
        """
        groups = self._new_groups()
        _restore_parts([group.operator for group in groups], header, tables, keeps_counts=keeps_counts)
        self._continue(groups, resumed=resumed, checks_states=True)

    def _continue(self, groups: list[KeyGroup], *, resumed: bool, checks_states: bool) -> None:
        with ExitStack() as stack:
            for group in groups:
                if not self._keeps:
                    stack.enter_context(group)
                if checks_states:
                    group.operator.check_states()
            self.close()
            self._take(groups, resumed=resumed)
        self.failed = False

    def close(self) -> None:
        """Close the operators that are kept; the states stay."""
        for group in self._groups:
            group.operator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for group in self._groups:
            group.__exit__(kind, *error)


def epoch_millis(value: Any, label: str, *, clock: bool = False) -> int:
    """Return a watermark, or a processing time (``clock``), which is never negative, as epoch milliseconds."""
    index = getattr(value, "__index__", None)
    least = 0 if clock else NONE
    if index is None or isinstance(value, bool) or not least <= index() <= END_OF_TIME:
        bounds = " of 64 bits" + (" from 0 on" if clock else "")
        msg = f"{label}: expected a whole number of epoch milliseconds{bounds}, got {value!r} ({type(value).__name__})"
        raise ConfigurationError(msg)
    return int(index())


def _split(plan: Plan, batch: Batch, controls: Sequence[Control], count: int) -> list[Batch]:
    """Return each key group's part of a micro-batch; the group that gets a row counts it."""
    groups = [_groups_of(spec.keys(table), count) for spec, table in zip(plan.inputs, batch.rows, strict=True)]
    parts = []
    for group in range(count):
        left, right = (
            table if count == 1 else table.filter(pa.array(numbers == group))
            for table, numbers in zip(batch.rows, groups, strict=True)
        )
        parts.append(replace(batch, rows=(left, right), controls=_controls_of(controls, (left, right), group)))
    return parts


def _controls_of(controls: Sequence[Control], rows: Sides, group: int) -> list[Control]:
    """Return one key group's controls: all times, its own rows, and for the first group what was not a row."""
    times = [replace(each, rows=0, faults=each.faults if group == 0 else ()) for each in controls]
    counts = enumerate((table.num_rows for table in rows), start=1)
    return [*times, *(Control(number, rows=count) for number, count in counts if count)]  # type: ignore[arg-type]


class SavedStates(NamedTuple):
    """A snapshot of a harness or of a stepper."""

    states: list[bytes]
    """The state of each key group."""

    processing_time: int
    """The clock, in epoch milliseconds; 0 if it is unknown."""

    batch_id: int
    """The last micro-batch's number, as a stepper counts them; -1 before the first one, and in a harness."""


def _groups_of(keys: pa.Table, count: int) -> NDArray[np.int64]:
    """Return the key group of each row of key columns: a hash of the key that is the same in every run."""
    if count == 1:
        return np.zeros(keys.num_rows, dtype=np.int64)
    numbers = [zlib.crc32(repr(tuple(key)).encode()) % count for key in decode_rows(keys, str)]
    return np.array(numbers, dtype=np.int64)


def encode_states(states: Sequence[bytes], processing_time: int, batch_id: int = -1) -> bytes:
    """Return the states of all key groups as one snapshot; the arguments are the parts of ``SavedStates``."""
    table = pa.table({"state": pa.array(states, pa.binary())})
    header = {"harness": 1, "processing_time": processing_time, "batch_id": batch_id}
    return codec.encode(header, {"states": table})


def decode_states(data: bytes) -> SavedStates:
    """Return the parts of a snapshot."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        msg = f"restore: expected the bytes that snapshot() of a harness or stepper returned, got {data!r}"
        raise CodecError(msg)
    header, tables = codec.decode(data)
    if "harness" not in header:
        msg = "restore: expected the bytes of snapshot() of a harness or stepper, got the state of a single operator"
        raise CodecError(msg)
    states = tables["states"].column(0).to_pylist()
    return SavedStates(states, header["processing_time"], header.get("batch_id", -1))


def restored_operators(plan: Plan, snapshot: bytes) -> list[Operator]:
    """Return new operators, one for each key group of a snapshot, restored from it."""
    states = decode_states(snapshot).states
    operators = [plan.create_operator() for _ in states]
    _restore_states(operators, states)
    return operators


def _restore_states(operators: Sequence[Operator], states: Sequence[bytes]) -> None:
    """Restore new operators from the states of the same or another number of key groups."""
    if len(states) == len(operators):
        for operator, state in zip(operators, states, strict=True):
            operator.restore(state)
        return
    headers, tables = zip(*map(codec.decode, states), strict=True)
    _restore_parts(operators, merged_header(headers), assemble(tables))


def _restore_parts(
    operators: Sequence[Operator],
    header: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    *,
    keeps_counts: bool = True,
) -> None:
    """Restore new operators of all key groups from a whole state; ``LocalRun.restore_parts`` has the arguments."""
    count = len(operators)
    pieces = cut(tables, operators[0].inputs, lambda keys: _groups_of(keys, count), count)
    for group, (operator, piece) in enumerate(zip(operators, pieces, strict=True)):
        operator.load_parts(header, piece, keeps_counts=keeps_counts and group == 0)
