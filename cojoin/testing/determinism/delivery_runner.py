"""Runs deliveries on the operators of a plan, and returns each output's rows by key, as texts that compare.

A row of a function's output belongs to the key whose callback yielded it, which a list that the operator fills notes.
A row of a join belongs to the key in its columns. Watermarks come from the delivery, so the inputs' strategies are
replaced by one that makes none.

It costs some milliseconds for each micro-batch and key group.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
from cojoin.engine.operator import OUTPUT, REJECTED, Batch
from cojoin.engine.side_outputs import OutputTag
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CojoinError
from cojoin.testing.determinism.deliveries import RowTimes
from cojoin.testing.harness_key_groups import groups_of, restore_states
from cojoin.testing.harness_tables import cells
from cojoin.testing.runner import check_conservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from cojoin.engine.functions import Context
    from cojoin.engine.operator import Operator, Sides
    from cojoin.engine.plan import Plan
    from cojoin.testing.determinism.deliveries import Delivery, MicroBatch

__all__ = ["DeliveryRunner", "RowText", "RunOutput"]

RowText: TypeAlias = "tuple[str, ...]"
"""A row's cells, as ``harness_tables`` spells them."""

_ALL_HASHES = 1 << 32


@dataclass(frozen=True)
class RunOutput:
    """What a run emitted.

    Attributes:
        rows: The rows by output and key, in the order in which they were emitted. Rejected rows are sorted, under the
            key ``""``, without the watermark that they met.
        error: The error that ended the run, or None.
    """

    rows: dict[str, dict[str, list[RowText]]] = field(default_factory=dict)
    error: str | None = None

    def of_key(self, key: str) -> RunOutput:
        """Return what was emitted for one key."""
        own = {output: {key: keys[key]} for output, keys in self.rows.items() if key in keys}
        return RunOutput(own, self.error)

    def differs(self, other: RunOutput, *, ordered: bool) -> bool:
        """Return whether two runs emitted different rows; two that both failed do not differ.

        Args:
            other: The other run's output.
            ordered: Whether the order of a key's rows counts.
        """
        if self.error is not None or other.error is not None:
            return (self.error is None) != (other.error is None)
        if self.rows == other.rows or ordered:
            return self.rows != other.rows
        return self._sorted() != other._sorted()

    def _sorted(self) -> dict[str, dict[str, list[RowText]]]:
        return {output: {key: sorted(rows) for key, rows in keys.items()} for output, keys in self.rows.items()}


class DeliveryRunner:
    """Runs deliveries of the rows of two inputs.

    Args:
        plan: The operation and its inputs.
        rows: The rows of both inputs.
    """

    def __init__(self, plan: Plan, rows: Sides) -> None:
        left, right = (replace(spec, watermark=WatermarkStrategy.no_watermarks()) for spec in plan.inputs)
        self.plan = replace(plan, left=left, right=right)
        self.tables: Sides = (rows[0].combine_chunks(), rows[1].combine_chunks())
        self.left = rows[0].num_rows
        known: list[int | None] = []
        for spec, table in zip(self.plan.inputs, self.tables, strict=True):
            millis = spec.timestamps(table).tolist()
            valid = [False] * len(millis)
            if spec.event_time is not None:
                valid = table.column(spec.event_time).is_valid().to_pylist()
            known += [time if is_known else None for time, is_known in zip(millis, valid, strict=True)]
        self.times = RowTimes(known, self.left)

    @property
    def all_rows(self) -> range:
        """The numbers of all rows."""
        return range(len(self.times.times))

    @cached_property
    def keys(self) -> list[str]:
        """The key of each row, as the outputs name it."""
        tables = zip(self.plan.inputs, self.tables, strict=True)
        return [_key_text(key) for spec, table in tables for key in decode_rows(spec.keys(table), str)]

    @cached_property
    def _hashes(self) -> NDArray[np.int64]:
        tables = zip(self.plan.inputs, self.tables, strict=True)
        return np.concatenate([groups_of(spec.keys(table), _ALL_HASHES) for spec, table in tables])

    def run(self, delivery: Delivery) -> RunOutput:
        """Return what a delivery emits, or the error of the function."""
        try:
            return self.run_or_raise(delivery)
        except CojoinError as error:
            return RunOutput(error=str(error))

    def run_or_raise(self, delivery: Delivery) -> RunOutput:
        """Return what a delivery emits.

        Raises:
            FunctionError: The function raised an error, or returned an invalid value.
            HarnessError: A row was lost or counted twice.
        """
        found: dict[str, dict[str, list[RowText]]] = defaultdict(lambda: defaultdict(list))
        states: list[bytes] = []
        groups: list[_Group] = []
        with ExitStack() as stack:
            for number, batch in enumerate(delivery.batches):
                if number == 0 or batch.restarts:
                    states = [group.operator.snapshot() for group in groups]
                    stack.close()
                    groups = [stack.enter_context(_Group(self.plan, found)) for _ in range(batch.key_groups)]
                    if states:
                        restore_states([group.operator for group in groups], states)
                ends = number == len(delivery.batches) - 1
                for group, engine_batch in zip(groups, self._batches(delivery, batch, len(groups), ends), strict=True):
                    group.process(engine_batch)
        # ``defaultdict``s compare and iterate as dicts do, but would grow when they are read.
        rows = {output: dict(keys) for output, keys in found.items()}
        if REJECTED in rows:
            rows[REJECTED] = {"": sorted(rows[REJECTED][""])}
        return RunOutput(rows)

    def _batches(self, delivery: Delivery, batch: MicroBatch, groups: int, ends: bool) -> Iterator[Batch]:
        rows = np.array(batch.rows, dtype=np.int64)
        own = self._hashes[rows] % groups if groups > 1 else np.zeros(len(rows), dtype=np.int64)
        of_left = rows < self.left
        for group in range(groups):
            mine = own == group
            left, right = rows[mine & of_left], rows[mine & ~of_left] - self.left
            yield Batch(
                (self.tables[0].take(pa.array(left)), self.tables[1].take(pa.array(right))),
                [self._control(delivery, batch, side, len(part), ends) for side, part in enumerate((left, right))],
                end_of_input=ends,
                processing_time=batch.processing_time,
            )

    def _control(self, delivery: Delivery, batch: MicroBatch, side: int, count: int, ends: bool) -> Control:
        number: Literal[1, 2] = 2 if side else 1
        mark, last = batch.watermarks[side], delivery.last_events[side]
        return Control(
            number,
            # The drain must know the last event; with this mark it does not move the watermark.
            partitions={ONE_PARTITION: last} if ends and last > NONE else {},
            marks={ONE_PARTITION: NONE},
            rows=count,
            watermarks={ONE_PARTITION: mark} if mark > NONE else {},
        )


class _Group:
    """One key group's operator, from its start or restart until the next restart."""

    def __init__(self, plan: Plan, found: dict[str, dict[str, list[RowText]]]) -> None:
        self.operator: Operator = plan.create_operator()
        self._found = found
        self._key_width = len(plan.left.key)
        self._key_places = [plan.left.schema.names.index(name) for name in plan.left.key]
        self._yields: list[tuple[str, str]] = []
        if isinstance(self.operator, KeyedCoProcessOperator):
            self.operator.gather(lambda context: _KeyedYields(context, self._yields))

    def process(self, batch: Batch) -> None:
        """Run a batch and add its rows to what was found."""
        tables: dict[str, list[pa.Table]] = defaultdict(list)
        for emission in self.operator.process(batch):
            tables[emission.kind].append(emission.table)
        check_conservation(self.operator)
        rows = {kind: decode_rows(pa.concat_tables(pieces), str) for kind, pieces in tables.items()}
        for row in rows.pop(REJECTED, ()):
            spelled = {name: value for name, value in row.as_dict().items() if name != "watermark"}
            self._found[REJECTED][""].append(cells(list(spelled.values())))
        if isinstance(self.operator, KeyedCoProcessOperator):
            sources = {kind: iter(values) for kind, values in rows.items()}
            keyed: Iterable[tuple[str, str, Any]] = [(kind, key, next(sources[kind])) for kind, key in self._yields]
            self._yields.clear()
        else:
            places = self._key_places
            keyed = [
                (kind, _key_text([row[place] for place in places]), row)
                for kind, values in rows.items()
                for row in values
            ]
        for kind, key, row in keyed:
            self._found[kind][key].append(cells(row))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # A function that has failed already may fail again when it is closed, and the first error counts.
        with suppress(*([] if kind is None else [CojoinError])):
            self.operator.close()


class _KeyedYields(list[Any]):
    """The list of rows that callbacks yield, which also notes each row's output and key."""

    def __init__(self, context: Context, noted: list[tuple[str, str]]) -> None:
        super().__init__()
        self._context, self._noted = context, noted
        self._done, self._key = 0, ""

    @property
    def extend(self) -> Callable[[Iterable[Any]], None]:
        """Note the rows added before, and return the list's own ``extend``; a property adds no frame to errors."""
        self._note()
        key = self._context.get_current_key()
        self._key = _key_text(key if isinstance(key, tuple) else (key,))
        return super().extend

    def clear(self) -> None:
        """Empty the list and keep the notes."""
        self._note()
        self._done = 0
        super().clear()

    def _note(self) -> None:
        for item in self[self._done :]:
            is_beside = type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag)
            self._noted.append((item[0].tag_id if is_beside else OUTPUT, self._key))
        self._done = len(self)


def _key_text(key: Sequence[Any]) -> str:
    """Return a key as text: its only value, or the tuple of its columns' values."""
    return repr(key[0] if len(key) == 1 else tuple(key))
