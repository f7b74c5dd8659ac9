"""Value, list and map state: what a function remembers for the current key.

An entry is deleted when it is cleared, and by its time-to-live (``timed``). A handle serves the key that is current;
where none is, in ``open`` and ``close``, every method raises ``FunctionError``. A value is checked against the declared
type and copied when it is set; changing a value that was read does not change the state. Names and methods are
PyFlink's (``pyflink.datastream.state``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.state.keyed import KeyedState, SingleState
from cojoin.engine.values.encoding import coercer, has_mutable_parts
from cojoin.engine.values.rows import hashable, needs_freezing
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.engine.state.descriptors import StateDescriptor
    from cojoin.engine.values.encoding import Coercer
    from cojoin.engine.values.keys import KeyContext

__all__ = ["ListState", "MapState", "ValueState"]


class ValueState(SingleState):
    """One value for the current key, as PyFlink's ``ValueState``."""

    def value(self) -> Any:
        """Return the value, or None where there is none; a struct is an immutable row."""
        value = self._entries.get(self._key_context.code)
        return self._coerce(value) if self._copies else value

    def update(self, value: Any) -> None:
        """Set the value; None clears it.

        Raises:
            FunctionError: The value does not fit the declared type.
        """
        if value is None:
            self.clear()
        else:
            self._entries[self._key_context.code] = self._coerce(value)


class ListState(KeyedState):
    """A list for the current key, as PyFlink's ``ListState``."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        self._coerce: Coercer = coercer(self._held_type.value_type, self.what)
        self._copies = has_mutable_parts(self._held_type.value_type)
        # Converts an element to what is stored.
        self._element = self._coerce

    def get(self) -> list[Any]:
        """Return the elements, oldest first, as a new list; an empty one where there are none."""
        elements = self._entries.get(self._key_context.code, ())
        return [self._coerce(element) for element in elements] if self._copies else list(elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        """Append an element.

        Raises:
            FunctionError: It does not fit the declared type.
        """
        element = self._element(value)
        self._entries.setdefault(self._key_context.code, []).append(element)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements.

        Raises:
            FunctionError: An element does not fit the declared type, or the argument is not a list of elements.
        """
        for value in self._several(values):
            self.add(value)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the whole list; an empty one clears it.

        Raises:
            FunctionError: As ``add_all``.
        """
        self._replace([self._element(value) for value in self._several(values)])

    def _several(self, values: Iterable[Any]) -> Iterable[Any]:
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            msg = (
                f"{self.what}: expected a list of elements, got {values!r} ({type(values).__name__}); add(...) adds one"
            )
            raise FunctionError(msg)
        return values

    def _replace(self, elements: list[Any]) -> None:
        if elements:
            self._entries[self._key_context.code] = elements
        else:
            self.clear()


class MapState(KeyedState):
    """A map for the current key, as PyFlink's ``MapState``.

    As in PyFlink, ``state[key]`` is ``get``, which returns None where there is nothing, and ``del state[key]`` is
    ``remove``, which ignores a key that does not exist. As in Spark's maps, all NaN are one user key, also within
    structs and arrays, and so are 0.0 and -0.0; the zero that was put first is the one that is read.
    """

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        held = self._held_type
        self._coerce_key: Coercer = coercer(held.key_type, f"{self.what}, map key")
        self._coerce_value: Coercer = coercer(held.item_type, f"{self.what}, map value")
        self._copies = has_mutable_parts(held.item_type)
        # Converts a value to what is stored.
        self._item = self._coerce_value
        # Most plain keys are looked up as they are. A struct may be given as a dict, an array as a list, bytes as a
        # bytearray; a float is rounded to what is stored, and a NaN is another object each time.
        converts = needs_freezing(held.key_type) or pa.types.is_binary(held.key_type)
        self._find: Coercer = self._converted if converts else lambda key: key

    def get(self, key: Any) -> Any:
        """Return the value of a user key, or None where there is none.

        Raises:
            FunctionError: The key does not fit its declared type, so nothing can be there.
        """
        value = self._map().get(self._find(key))
        if value is None:
            self._check(key)
        return self._shown(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a user key.

        Raises:
            FunctionError: The key is None, or one of them does not fit its declared type.
        """
        stored_key, stored_value = self._key(key), self._item(value)
        self._entries.setdefault(self._key_context.code, {})[stored_key] = stored_value

    def put_all(self, values: dict[Any, Any]) -> None:
        """Set several user keys."""
        for key, value in values.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Delete a user key; one that does not exist is ignored. With the last user key the entry is deleted."""
        entry = self._map()
        if entry.pop(self._find(key), None) is None:
            self._check(key)
        if not entry:
            self.clear()

    def contains(self, key: Any) -> bool:
        """Return whether a user key is there.

        Raises:
            FunctionError: The key does not fit its declared type, so it can't be there.
        """
        if self._find(key) in self._map():
            return True
        self._check(key)
        return False

    def is_empty(self) -> bool:
        """Return whether there is no user key."""
        return not self._map()

    def keys(self) -> list[Any]:
        """Return the user keys, in the order of insertion, as a new list."""
        return list(self._map())

    def values(self) -> list[Any]:
        """Return the values, in the order of insertion, as a new list."""
        return [self._shown(value) for value in self._map().values()]

    def items(self) -> list[tuple[Any, Any]]:
        """Return the pairs, in the order of insertion, as a new list."""
        return [(key, self._shown(value)) for key, value in self._map().items()]

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def _check(self, key: Any) -> None:
        """Raise an error if a user key that was not found does not fit its declared type; None is accepted."""
        if key is not None:
            self._key(key)

    def _converted(self, key: Any) -> Any:
        """Return a user key as it is stored; None, which is never there, stays None."""
        return None if key is None else self._key(key)

    def _key(self, key: Any) -> Any:
        if key is None:
            msg = f"{self.what}: a map key must not be None"
            raise FunctionError(msg)
        return hashable(self._coerce_key(key))

    def _map(self) -> dict[Any, Any]:
        return self._entries.get(self._key_context.code) or {}

    def _shown(self, value: Any) -> Any:
        return self._coerce_value(value) if self._copies else value
