"""The keyed states and timers of one key group, between Arrow at rest and Python at work.

Keeps: per state a table (key columns, ``@value``), and one of timers (key columns, ``@timestamp``). ``begin`` decodes
the entries of the keys that a batch touches, ``end`` puts them back beside the untouched ones; a key without entry and
timer leaves nothing behind. States are known once the function's ``open`` asks for them; a stored state that it no
longer asks for is kept as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.errors import CheckpointError, FunctionError
from cojoin.functions import RuntimeContext
from cojoin.keys import encode_keys
from cojoin.operator import concat, take_rows
from cojoin.rows import decode_column, decode_rows, describe_columns
from cojoin.state import (
    Cursor,
    KeyedState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
    check_stored_type,
    create_state,
)
from cojoin.timers import Timers, TimerService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["KeyedStore"]

_TIMERS, _STATE = "timers", "state:"
# No column of a DataFrame that a person writes begins like this, so none collides with a key's.
_TIMESTAMP, _VALUE = "@timestamp", "@value"


class KeyedStore(RuntimeContext):
    """Holds what a function remembers; it is also the context that ``open`` gets.

    Args:
        key_schema: The key columns, under the left input's names.
        owner: The function's name, for messages.
    """

    def __init__(self, key_schema: pa.Schema, owner: str) -> None:
        self._key_schema = key_schema
        self._owner = owner
        self.cursor = Cursor()
        self._at_rest: dict[str, pa.Table] = {_TIMERS: _with(key_schema, _TIMESTAMP, pa.int64()).empty_table()}
        self.timers = Timers(self.cursor, owner)
        self.timer_service = TimerService(self.timers)
        self._states: dict[str, KeyedState] = {}
        self._touched_keys = key_schema.empty_table()
        self._key_values: dict[int, Any] = {}
        self._rest_codes: dict[str, NDArray[np.int64]] = {}
        self._touched: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Give the handle of a value state."""
        return self._get(descriptor, ValueStateDescriptor)  # type: ignore[return-value]

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Give the handle of a list state."""
        return self._get(descriptor, ListStateDescriptor)  # type: ignore[return-value]

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Give the handle of a map state."""
        return self._get(descriptor, MapStateDescriptor)  # type: ignore[return-value]

    def _get(self, descriptor: Any, expected: type[StateDescriptor]) -> KeyedState:
        if not isinstance(descriptor, expected):
            msg = f"{self._owner}: expected a {expected.__name__}, got {descriptor!r}"
            raise FunctionError(msg)
        name = descriptor.name
        state: KeyedState = create_state(descriptor, self.cursor, self._owner)
        known = self._states.get(name)
        if known is not None:
            if (type(known), known.type) != (type(state), state.type):
                msg = f"{self._owner}: state {name!r} is declared twice, as {known.descriptor} and {descriptor}"
                raise FunctionError(msg)
            return known
        stored = self._at_rest.get(_STATE + name)
        if stored is None:
            self._at_rest[_STATE + name] = _with(self._key_schema, _VALUE, state.type).empty_table()
        else:
            check_stored_type(state, stored.schema.field(_VALUE).type)
        self._states[name] = state
        self._load(name)
        return state

    def has_due_timers(self, watermark: int) -> bool:
        """Tell whether any key has a timer at or below the watermark."""
        timestamps = self._at_rest[_TIMERS].column(_TIMESTAMP)
        earliest = pc.min(timestamps).as_py()
        return earliest is not None and earliest <= watermark

    def timer_count(self) -> int:
        """Count the timers that wait."""
        return int(self._at_rest[_TIMERS].num_rows)

    def begin(self, row_keys: Sequence[pa.Table], watermark: int) -> tuple[list[int], list[NDArray[np.int64]]]:
        """Decode what the touched keys have: those of the due rows and of the timers that are due.

        Args:
            row_keys: The key columns of the due rows, a table an input.
            watermark: Up to which time timers are due.

        Returns:
            The codes of the touched keys, and the codes of each table's rows.
        """
        names = list(self._at_rest)
        at_rest = [self._at_rest[name].select(self._key_schema.names) for name in names]
        codes, _ = encode_keys([*row_keys, *at_rest])
        row_codes = codes[: len(row_keys)]
        self._rest_codes = dict(zip(names, codes[len(row_keys) :], strict=True))
        due = self._at_rest[_TIMERS].column(_TIMESTAMP).to_numpy() <= watermark
        origin = np.concatenate([*row_codes, self._rest_codes[_TIMERS][due]])
        self._touched, first = np.unique(origin, return_index=True)
        due_timers = self._at_rest[_TIMERS].filter(pa.array(due)).select(self._key_schema.names)
        named = [table.rename_columns(self._key_schema.names).cast(self._key_schema) for table in row_keys]
        self._touched_keys = take_rows(pa.concat_tables([*named, due_timers]), first)
        values = _decode_keys(self._touched_keys)
        touched = self._touched.tolist()
        self._key_values = dict(zip(touched, values, strict=True))
        mine = np.isin(self._rest_codes[_TIMERS], self._touched)
        timestamps = self._at_rest[_TIMERS].column(_TIMESTAMP).to_numpy()[mine]
        self.timers.load(self._rest_codes[_TIMERS][mine].tolist(), timestamps.tolist())
        for name in self._states:
            self._load(name)
        return touched, row_codes

    def key_of(self, code: int) -> Any:
        """Give a touched key as functions see it."""
        return self._key_values[code]

    def _load(self, name: str) -> None:
        codes = self._rest_codes.get(_STATE + name)
        if codes is None:
            return
        mine = np.isin(codes, self._touched)
        column = self._at_rest[_STATE + name].filter(pa.array(mine)).column(_VALUE)
        self._states[name].load(codes[mine].tolist(), column)

    def end(self) -> None:
        """Put the touched keys' entries back beside the untouched ones."""
        codes, timestamps = self.timers.dump()
        self._put_back(_TIMERS, codes, timestamps)
        for name, state in self._states.items():
            entry_codes, values = state.dump()
            self._put_back(_STATE + name, np.array(entry_codes, dtype=np.int64), values)
        self._rest_codes, self._key_values = {}, {}
        self.timers.unload()

    def _put_back(self, name: str, codes: NDArray[np.int64], values: pa.Array) -> None:
        table = self._at_rest[name]
        rest_codes = self._rest_codes.get(name, np.empty(0, dtype=np.int64))
        untouched = table.filter(pa.array(~np.isin(rest_codes, self._touched))) if len(rest_codes) else table
        keys = take_rows(self._touched_keys, np.searchsorted(self._touched, codes))
        touched = pa.Table.from_arrays([*keys.columns, values], schema=table.schema)
        self._at_rest[name] = concat([untouched, touched])

    def tables(self) -> dict[str, pa.Table]:
        """Give the states and timers at rest."""
        return dict(self._at_rest)

    def load_tables(self, tables: dict[str, pa.Table]) -> None:
        """Take what ``tables`` gave.

        Raises:
            CheckpointError: They are kept by other key columns.
        """
        for table in tables.values():
            stored = pa.schema([table.schema.field(position) for position in range(table.num_columns - 1)])
            if not stored.equals(self._key_schema):
                msg = (
                    f"{self._owner}: the checkpoint's states have the key {describe_columns(stored)}, the query's "
                    f"input has {describe_columns(self._key_schema)}; keep them, or start with a new checkpoint"
                )
                raise CheckpointError(msg)
        self._at_rest = dict(tables)


def _with(key_schema: pa.Schema, name: str, dtype: pa.DataType) -> pa.Schema:
    return key_schema.append(pa.field(name, dtype))


def _decode_keys(table: pa.Table) -> list[Any]:
    """Give keys as functions see them: the value of a single column, else a row."""
    return decode_column(table.column(0)) if table.num_columns == 1 else decode_rows(table)
