"""The content of operators as tables: rows that wait, timers, and states or versions by key.

Reading changes nothing, except that it may call a function's ``open`` and ``close``: a state's time-to-live is known
only once ``open`` has declared it. It costs a pass over what is kept, and a sort.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cojoin.engine.keyed_process import KeyedCoProcessOperator
from cojoin.engine.keyed_state_backend import TouchedKeys
from cojoin.engine.ordering import OrderedPart, total_order
from cojoin.engine.values.tables import concat, take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.keyed_state_backend import KeyedStateBackend
    from cojoin.engine.operator import Operator, Sides

WAITING = (("waiting", "left"), ("right",))
"""The tables of a join's state that hold waiting rows, for each input."""

_VERSIONS = "versions"


class KeptTables:
    """The content of the operators of all key groups, between batches."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = operators

    @cached_property
    def waiting(self) -> Sides:
        """The rows of both inputs that wait for the watermark or for matching rows, in total order."""
        return waiting_table(self._operators, 0), waiting_table(self._operators, 1)

    @cached_property
    def timers(self) -> pa.Table:
        """The registered timers of all keys, by time, domain and key; a join has none.

        The table has the key columns under the left input's names, ``domain`` (``"event_time"`` or
        ``"processing_time"``) and ``timestamp`` in UTC, to the millisecond.
        """
        return _timer_table(self._operators)

    @cached_property
    def state(self) -> pa.Table:
        """The states or versions of each key, in the order of the keys.

        For a function one row for each key that has a state: the key columns, and a column for each state, null where
        the key has none or an expired one. For a join with versions, these with the right input's columns, each key's
        by event time. For other joins a table without rows.
        """
        return _state_table(self._operators)


@contextmanager
def opened(operator: KeyedCoProcessOperator) -> Iterator[KeyedStateBackend]:
    """Yield the states and timers of an operator that is not in a call, its function opened and its clock set."""
    service, was_open = operator.state_backend.timer_service, operator._opened  # noqa: SLF001
    service.watermark, service.processing_time = operator.watermark.current(), operator.processing_time
    operator._context._timestamp = None  # noqa: SLF001 - no row is current
    operator._open()  # noqa: SLF001
    try:
        yield operator.state_backend
    finally:
        if not was_open:
            operator.close()


def waiting_table(operators: Sequence[Operator], side: int) -> pa.Table:
    """Return an input's rows that wait for the watermark or for matches, in total order; 0 is the left."""
    spec, tables = operators[0].inputs[side], []
    for operator in operators:
        tables.append(operator.held_rows()[side])
        if not isinstance(operator, KeyedCoProcessOperator):
            kept = operator.state_tables()
            tables += [kept[name].select(spec.schema.names) for name in WAITING[side] if name in kept]
    return _in_order(pa.concat_tables(tables), spec)


def _timer_table(operators: Sequence[Operator]) -> pa.Table:
    spec = operators[0].inputs[0]
    names = [_apart(name, "timer", spec.key) for name in ("domain", "timestamp")]
    pieces = [spec.key_schema.empty_table()]
    domains, times = [pa.array([], pa.string())], [pa.array([], pa.int64())]
    for operator in operators:
        if isinstance(operator, KeyedCoProcessOperator):
            for domain, table in operator.state_backend.timer_tables().items():
                pieces.append(table.select(list(spec.key)))
                domains.append(pa.array([domain] * table.num_rows, pa.string()))
                times += table.column(table.num_columns - 1).chunks
    table = pa.concat_tables(pieces)
    table = table.append_column(names[0], pa.chunked_array(domains))
    table = table.append_column(names[1], pa.chunked_array(times).cast(pa.timestamp("ms", "UTC")))
    return table.sort_by([(name, "ascending") for name in (names[1], names[0], *spec.key)])


def _state_table(operators: Sequence[Operator]) -> pa.Table:
    left, right = operators[0].inputs
    if any(isinstance(each, KeyedCoProcessOperator) for each in operators):
        return _states(operators, left)
    pieces = [each.state_tables().get(_VERSIONS, right.schema.empty_table()) for each in operators]
    versions = _in_order(pa.concat_tables(pieces), right)
    return versions.sort_by([(name, "ascending") for name in right.key]) if right.key else versions


def _states(operators: Sequence[Operator], spec: InputSpec) -> pa.Table:
    pieces: dict[str, list[pa.Table]] = {}
    for operator in operators:
        assert isinstance(operator, KeyedCoProcessOperator)
        with opened(operator) as backend:
            for name, table in backend.entries().items():
                pieces.setdefault(name, []).append(table)
    entries = {name: concat(tables) for name, tables in pieces.items()}
    names = list(spec.key)
    touched = TouchedKeys([spec.key_schema.empty_table(), *(table.select(names) for table in entries.values())])
    whole = touched.keys
    for (name, table), codes in zip(entries.items(), touched.codes[1:], strict=True):
        places = np.full(len(touched), -1)
        places[codes] = np.arange(table.num_rows)
        values = table.column(table.num_columns - 1).take(pa.array(places, mask=places < 0))
        whole = whole.append_column(_apart(name, "state:", names), values)
    return whole.sort_by([(name, "ascending") for name in names])


def _apart(name: str, prefix: str, taken: Sequence[str]) -> str:
    """Return a column's name that no key column has."""
    while name in taken:
        name = f"{prefix}{name}"
    return name


def _in_order(table: pa.Table, spec: InputSpec) -> pa.Table:
    one_key = np.zeros(table.num_rows, dtype=np.int64)
    order = total_order([OrderedPart(one_key, spec.micros(table), 0, table, spec.source_order, ranks=spec.ranks)])
    return take_rows(table, order)
