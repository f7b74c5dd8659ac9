"""Keyed state: what a function remembers for the current key.

Keeps: per declared state one Arrow table of (key columns, value); only the keys that a micro-batch touches are decoded
into Python and encoded again, so a batch costs Python time for its own keys and Arrow time for the rest. Forgets: an
entry when it is cleared, and nothing else. Names and methods are PyFlink's (``pyflink.datastream.state``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.converters import coercer, has_mutable_parts
from cojoin.encoding import encode_column
from cojoin.errors import CheckpointError, FunctionError
from cojoin.rows import decode_column, hashable
from cojoin.types import parse_type, type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.converters import Coercer

__all__ = [
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "StateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
]


@dataclass(frozen=True)
class StateDescriptor(ABC):
    """The name and type of a state; types are Spark DDL, an Arrow type or a PySpark ``DataType``."""

    name: str

    @abstractmethod
    def stored_type(self) -> pa.DataType:
        """Give the Arrow type of one key's entry."""

    def _parse(self, declared: Any) -> pa.DataType:
        return _arrow_type(declared, f"state {self.name!r}")


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """One value for each key.

    >>> ValueStateDescriptor("customer", "tier string, since timestamp").name
    'customer'
    """

    value_type: Any

    def stored_type(self) -> pa.DataType:
        """Give the Arrow type of one key's entry: the value's own."""
        return self._parse(self.value_type)


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """A list of elements for each key.

    >>> ListStateDescriptor("trades", "amount double, at timestamp").name
    'trades'
    """

    element_type: Any

    def stored_type(self) -> pa.DataType:
        """Give the Arrow type of one key's entry: a list."""
        return pa.list_(self._parse(self.element_type))


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor):
    """A map from user keys to values for each key, in the order of insertion.

    >>> MapStateDescriptor("totals", "string", "double").name
    'totals'
    """

    key_type: Any
    value_type: Any

    def stored_type(self) -> pa.DataType:
        """Give the Arrow type of one key's entry: a map."""
        return pa.map_(self._parse(self.key_type), self._parse(self.value_type))


class Cursor:
    """The key that is being processed, shared by the contexts, the states and the timers of one call."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code = -1


class KeyedState:
    """What all kinds of state share: the entries of the touched keys, by key code."""

    def __init__(self, descriptor: StateDescriptor, cursor: Cursor, owner: str) -> None:
        self._cursor = cursor
        self._entries: dict[int, Any] = {}
        self.descriptor = descriptor
        self.type = descriptor.stored_type()
        self.what = f"{owner}: state {descriptor.name!r}"

    def clear(self) -> None:
        """Forget the current key's entry; nothing of it stays behind."""
        self._entries.pop(self._cursor.code, None)

    def load(self, codes: Iterable[int], column: pa.Array | pa.ChunkedArray) -> None:
        """Take the stored entries of the keys that this micro-batch touches."""
        self._entries = dict(zip(codes, decode_column(column), strict=True))

    def dump(self) -> tuple[list[int], pa.Array]:
        """Give the touched keys' entries: their codes and the column that stores them.

        Raises:
            FunctionError: An entry that passed the check can't be stored, such as half a surrogate pair in a string.
        """
        try:
            return list(self._entries), encode_column(list(self._entries.values()), self.type)
        except (pa.ArrowException, ValueError) as error:
            msg = f"{self.what}: an entry can't be stored as {type_to_ddl(self.type)}: {error}"
            raise FunctionError(msg) from error


class ValueState(KeyedState):
    """One value for the current key, as PyFlink's ``ValueState``."""

    def __init__(self, descriptor: ValueStateDescriptor, cursor: Cursor, owner: str) -> None:
        super().__init__(descriptor, cursor, owner)
        self._coerce: Coercer = coercer(self.type, self.what)
        self._copies = has_mutable_parts(self.type)

    def value(self) -> Any:
        """Give the value, or None where there is none; a struct comes as an immutable row."""
        value = self._entries.get(self._cursor.code)
        return self._coerce(value) if self._copies else value

    def update(self, value: Any) -> None:
        """Set the value; None clears it.

        Raises:
            FunctionError: The value does not fit the declared type.
        """
        if value is None:
            self.clear()
        else:
            self._entries[self._cursor.code] = self._coerce(value)


class ListState(KeyedState):
    """A list for the current key, as PyFlink's ``ListState``."""

    def __init__(self, descriptor: ListStateDescriptor, cursor: Cursor, owner: str) -> None:
        super().__init__(descriptor, cursor, owner)
        self._coerce = coercer(self.type.value_type, self.what)
        self._copies = has_mutable_parts(self.type.value_type)

    def get(self) -> list[Any]:
        """Give the elements, oldest first, as a new list; an empty one where there are none."""
        elements = self._entries.get(self._cursor.code, ())
        return [self._coerce(element) for element in elements] if self._copies else list(elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        """Append an element.

        Raises:
            FunctionError: It does not fit the declared type.
        """
        element = self._coerce(value)
        self._entries.setdefault(self._cursor.code, []).append(element)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        for value in values:
            self.add(value)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the whole list; an empty one clears it."""
        elements = [self._coerce(value) for value in values]
        if elements:
            self._entries[self._cursor.code] = elements
        else:
            self.clear()


class MapState(KeyedState):
    """A map for the current key, as PyFlink's ``MapState``."""

    def __init__(self, descriptor: MapStateDescriptor, cursor: Cursor, owner: str) -> None:
        super().__init__(descriptor, cursor, owner)
        self._coerce_key = coercer(self.type.key_type, f"{self.what}, map key")
        self._coerce_value = coercer(self.type.item_type, f"{self.what}, map value")
        self._copies = has_mutable_parts(self.type.item_type)
        # A plain key is found as it is; a struct may be given as a dict, and an array as a list.
        self._find: Coercer = self._key if pa.types.is_nested(self.type.key_type) else lambda key: key

    def get(self, key: Any) -> Any:
        """Give the value of a user key, or None."""
        return self._shown(self._map().get(self._find(key)))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a user key.

        Raises:
            FunctionError: The key is None, or one of them does not fit its declared type.
        """
        stored_key, stored_value = self._key(key), self._coerce_value(value)
        self._entries.setdefault(self._cursor.code, {})[stored_key] = stored_value

    def put_all(self, values: dict[Any, Any]) -> None:
        """Set several user keys."""
        for key, value in values.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Forget a user key; one that is not there is passed over. With the last one the entry itself goes."""
        entry = self._map()
        entry.pop(self._find(key), None)
        if not entry:
            self.clear()

    def contains(self, key: Any) -> bool:
        """Tell whether a user key is there."""
        return self._find(key) in self._map()

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def is_empty(self) -> bool:
        """Tell whether there is no user key."""
        return not self._map()

    def keys(self) -> list[Any]:
        """Give the user keys, in the order of insertion, as a new list."""
        return list(self._map())

    def values(self) -> list[Any]:
        """Give the values, in the order of insertion, as a new list."""
        return [self._shown(value) for value in self._map().values()]

    def items(self) -> list[tuple[Any, Any]]:
        """Give the pairs, in the order of insertion, as a new list."""
        return [(key, self._shown(value)) for key, value in self._map().items()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def _key(self, key: Any) -> Any:
        if key is None:
            msg = f"{self.what}: a map key must not be None"
            raise FunctionError(msg)
        return hashable(self._coerce_key(key))

    def _map(self) -> dict[Any, Any]:
        return self._entries.get(self._cursor.code) or {}

    def _shown(self, value: Any) -> Any:
        return self._coerce_value(value) if self._copies else value


def create_state(descriptor: StateDescriptor, cursor: Cursor, owner: str) -> KeyedState:
    """Make the handle that a function gets for its descriptor."""
    if isinstance(descriptor, ListStateDescriptor):
        return ListState(descriptor, cursor, owner)
    if isinstance(descriptor, MapStateDescriptor):
        return MapState(descriptor, cursor, owner)
    assert isinstance(descriptor, ValueStateDescriptor)
    return ValueState(descriptor, cursor, owner)


def check_stored_type(state: KeyedState, stored: pa.DataType) -> None:
    """Refuse a stored state whose type is not the one that the function declares now.

    Raises:
        CheckpointError: The types differ.
    """
    if stored != state.type:
        msg = (
            f"{state.what}: the checkpoint holds it as {type_to_ddl(stored)}, the function declares "
            f"{type_to_ddl(state.type)}; declare the stored type, or give the new state another name"
        )
        raise CheckpointError(msg)


def _arrow_type(declared: Any, what: str) -> pa.DataType:
    if isinstance(declared, pa.DataType):
        return declared
    # PySpark's types can spell themselves, so the engine takes them without importing PySpark.
    spelled = declared.simpleString() if hasattr(declared, "simpleString") else declared
    return parse_type(spelled, what=what)
