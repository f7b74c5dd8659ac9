"""Inspection of a harness: states, timers, buffers, watermarks and statuses. Inspecting changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
from cojoin.engine.values.rows import Row, decode_rows
from cojoin.testing.checks import found_partition, input_number, key_values
from cojoin.testing.events import Timer
from cojoin.testing.state_tables import WAITING, opened, waiting_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.time.watermarks import Status

__all__ = ["Inspection"]


class Inspection:
    """The part of a harness that inspects its operators."""

    _operators: list[Operator]
    _inputs: tuple[InputSpec, InputSpec]
    _create: Callable[[], Operator]

    def state(self, key: Any) -> dict[str, Any]:
        """Return the state of a key.

        Args:
            key: The value of the key column; a tuple if there are several key columns.

        Returns:
            For a function, the content of each keyed state by its name; a state that is empty or has expired is
            absent. For a join, the key's rows by the name of the state table, such as ``versions``.

        Raises:
            HarnessError: The key's value does not fit its column.
        """
        wanted = key_values(key, self._inputs[0])
        found: dict[str, Any] = {}
        for operator in self._operators:
            if isinstance(operator, KeyedCoProcessOperator):
                with opened(self._to_look_at(operator)) as backend:
                    found.update(backend.state_of(key))
            else:
                found.update(self._rows_of(operator, wanted))
        return found

    def _to_look_at(self, operator: KeyedCoProcessOperator) -> KeyedCoProcessOperator:
        """Return the operator, or a copy if its function was not opened yet and inspecting would declare states."""
        if operator._opened:  # noqa: SLF001
            return operator
        copied = self._create()
        copied.restore(operator.snapshot())
        return cast("KeyedCoProcessOperator", copied)

    def _rows_of(self, operator: Operator, wanted: tuple[Any, ...]) -> dict[str, list[Row]]:
        found = {}
        for name, table in operator.state_tables().items():
            spec = self._inputs[name not in WAITING[0]]
            rows = decode_rows(table.select(spec.schema.names))
            keys = decode_rows(spec.keys(table))
            if mine := [row for row, each in zip(rows, keys, strict=True) if tuple(each) == wanted]:
                found[name] = mine
        return found

    def state_entries(self) -> dict[str, int]:
        """Return the number of entries of each state over all keys, including expired entries not yet removed.

        For a function it counts the keys in each keyed state, by the state's name; for a join the rows in each state
        table, by the table's name.
        """
        counts: dict[str, int] = {}
        for operator in self._operators:
            if isinstance(operator, KeyedCoProcessOperator):
                sizes = operator.state_backend.sizes()
                rows = {n.removeprefix("state:"): size["rows"] for n, size in sizes.items() if n.startswith("state:")}
            else:
                rows = {name: table.num_rows for name, table in operator.state_tables().items()}
            for name, count in rows.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def timers(self, key: Any = None) -> list[Timer]:
        """Return the registered timers of a key or of all keys, sorted by domain, timestamp and key; a join has none.

        Args:
            key: The value of the key column; a tuple if there are several key columns; None is all keys.

        Raises:
            HarnessError: The key's value does not fit its column.
        """
        if key is not None:
            key_values(key, self._inputs[0])
        found = [
            Timer(*timer)
            for operator in self._operators
            if isinstance(operator, KeyedCoProcessOperator)
            for timer in operator.state_backend.timers_of(key)
        ]
        return sorted(found, key=lambda timer: (timer.time_domain, timer.timestamp, repr(timer.key)))

    def buffered(self, number: Literal[1, 2]) -> list[Row]:
        """Return the rows of an input that wait for the watermark or for matching rows, in total order."""
        return decode_rows(waiting_table(self._operators, input_number(number) - 1))

    def current_watermark(self) -> int:
        """Return the operator's watermark in epoch milliseconds; ``-2**63`` until every input has one."""
        return self._operators[0].watermark.current()

    def input_watermark(self, number: Literal[1, 2], *, partition: str | tuple[Any, ...] | None = None) -> int:
        """Return the watermark of an input, or of one of its source partitions, in epoch milliseconds.

        Raises:
            HarnessError: The input or the partition does not exist.
        """
        watermark = self._operators[0].watermark.inputs[input_number(number) - 1]
        known = watermark.partitions()
        return watermark.current() if partition is None else known[found_partition(partition, known, number)]

    def status(self, number: Literal[1, 2] | None = None, *, partition: str | tuple[Any, ...] | None = None) -> Status:
        """Return the status of an input, of one of its source partitions, or of both inputs together.

        Args:
            number: 1 or 2; None is both inputs together.
            partition: A source partition of the input.

        Returns:
            ``"active"``, ``"idle"`` or ``"finished"``.

        Raises:
            HarnessError: The input or the partition does not exist.
        """
        if number is None and partition is None:
            return self._operators[0].watermark.status()
        watermark = self._operators[0].watermark.inputs[input_number(number) - 1]
        known = watermark.statuses()
        return watermark.status() if partition is None else known[found_partition(partition, known, number or 0)]

    def processing_time_wakeup(self) -> int | None:
        """Return the time of the earliest processing-time timer of all keys in epoch milliseconds, or None."""
        stores = [each.state_backend for each in self._operators if isinstance(each, KeyedCoProcessOperator)]
        return min((timer for store in stores if (timer := store.earliest_timers()[1]) is not None), default=None)
