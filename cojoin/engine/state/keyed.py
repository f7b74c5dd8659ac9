"""What all kinds of keyed state share: the current key, and the entries of the keys that a micro-batch touches.

Each declared state is one Arrow table of (key columns, value). Only the touched keys' entries are decoded into Python
and encoded again, and only once the function uses the state, so a batch costs Python time for its own keys and Arrow
time for the rest. A state can't be used where no key is current, in ``open`` and ``close``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.state.ttl import split_type
from cojoin.engine.values.encoding import coercer, encode_entries, has_mutable_parts
from cojoin.engine.values.keys import NO_KEY, KeyContext
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.state.descriptors import StateDescriptor
    from cojoin.engine.values.encoding import Coercer

__all__ = ["KeyedState", "SingleState"]

Stored: TypeAlias = "Callable[[], tuple[list[int], pa.Array | pa.ChunkedArray]]"
"""A function that returns the stored entries of the touched keys: their codes, and their column."""


class KeyedState:
    """The base of all kinds of state: the entries of the touched keys, by key code."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        self._key_context = key_context
        self.descriptor = descriptor
        self.type = descriptor.stored_type()
        self._held_type, _ = split_type(self.type)
        self.what = f"{owner}: state {descriptor.name!r}"
        self._entries: Any
        self.unload()

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            msg = f"{self.what}: {name} is a method and can't be set; update(...), add(...) or put(...) sets a state"
            raise FunctionError(msg)
        super().__setattr__(name, value)

    def clear(self) -> None:
        """Delete the current key's entry; nothing of it remains.

        Raises:
            FunctionError: No key is current; all methods of all states raise this.
        """
        self._entries.pop(self._key_context.code, None)

    def load(self, stored: Stored) -> None:
        """Set the stored entries of the keys that this micro-batch touches; they are read once they are needed."""
        self._entries = _Unread(self._read, stored)

    def unload(self) -> None:
        """Drop the touched keys' entries, after they were dumped."""
        self.load(lambda: ([], pa.array([], self.type)))

    def _read(self, stored: Stored) -> dict[int, Any]:
        if self._key_context.code == NO_KEY:
            msg = f"{self.what}: no key is current; use it in process_element1, process_element2 and on_timer only"
            raise FunctionError(msg)
        codes, column = stored()
        self._entries = entries = dict(zip(codes, decode_column(column), strict=True))
        return entries

    def dump(self) -> tuple[list[int], pa.Array] | None:
        """Return the touched keys' entries: their codes and the column that stores them; None if they were not used.

        Raises:
            FunctionError: An entry that passed the check can't be stored, such as half a surrogate pair in a string.
        """
        if isinstance(self._entries, _Unread):
            return None
        try:
            return list(self._entries), encode_entries(list(self._entries.values()), self.type)
        except (pa.ArrowException, ValueError) as error:
            msg = f"{self.what}: an entry can't be stored as {type_to_ddl(self._held_type)}: {error}"
            raise FunctionError(msg) from error


class _Unread:
    """Stands for a state's entries until one of them is used, so that a state that is not used costs nothing."""

    __slots__ = ("_read", "_stored")

    def __init__(self, read: Callable[[Stored], dict[int, Any]], stored: Stored) -> None:
        self._read, self._stored = read, stored

    def get(self, code: int, default: Any = None) -> Any:
        return self._read(self._stored).get(code, default)

    def pop(self, code: int, default: Any) -> Any:
        return self._read(self._stored).pop(code, default)

    def setdefault(self, code: int, default: Any) -> Any:
        return self._read(self._stored).setdefault(code, default)

    def __setitem__(self, code: int, entry: Any) -> None:
        self._read(self._stored)[code] = entry


class SingleState(KeyedState):
    """The base of states with one value for each key."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        self._coerce: Coercer = coercer(self._held_type, self.what)
        self._copies = has_mutable_parts(self._held_type)

    def _peek(self) -> Any:
        """Return the value that a new one is combined with; None where there is none."""
        return self._entries.get(self._key_context.code)

    def _access(self) -> Any:
        """Return the value that a read finds; None where there is none."""
        return self._entries.get(self._key_context.code)

    def _keep(self, stored: Any) -> None:
        """Set the converted value."""
        self._entries[self._key_context.code] = stored

    def _shown(self, value: Any) -> Any:
        return self._coerce(value) if self._copies else value
