"""Keyed state: the handles with which a function reads and writes what it keeps for the current key.

Each declared state is one Arrow table of (key columns, value). Only the touched keys' entries are decoded into Python
and encoded again, and only once the function uses the state, so a batch costs Python time for its own keys and Arrow
time for the rest. A handle serves the key that is current; where none is, in ``open`` and ``close``, every method
raises ``FunctionError``. A value is checked against the declared type and copied when it is set; changing a value that
was read does not change the state. An error of a user's function that combines values becomes a ``FunctionError`` that
names it. Names and methods are PyFlink's (``pyflink.datastream.state``).

A state with a time-to-live keeps pairs of a value and its last access: for a value, each element of a list and each
entry of a map. A write is an access; a read is one if the configuration says so. A read that finds something expired
removes it, returns it this last time if expired values may be returned, and never prolongs it. Adding to an expired
value starts afresh; where expired values may be returned, it continues with the expired one. (Flink:
``TtlValueState``, ``TtlListState``, ``TtlMapState``, ``TtlReduceFunction``, ``TtlAggregateFunction``; but here ``get``
of a list returns each expired element at most once, and ``is_empty`` of a map ignores expired entries that a read would
not return.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    reducer,
    stored_type,
)
from cojoin.engine.state.ttl import Expiry, split_type
from cojoin.engine.values.encoding import coercer, encode_entries, has_mutable_parts, misfit
from cojoin.engine.values.keys import NO_KEY, KeyContext
from cojoin.engine.values.rows import decode_column, hashable, needs_freezing
from cojoin.engine.values.schema_evolution import differences, evolve
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cojoin.engine.state.descriptors import StateDescriptor
    from cojoin.engine.state.ttl import Clock
    from cojoin.engine.values.encoding import Coercer

Stored: TypeAlias = "Callable[[], tuple[list[int], pa.Array | pa.ChunkedArray]]"
"""A function that returns the stored entries of the touched keys: their codes, and their column."""


class KeyedState:
    """The base of all kinds of state: the entries of the touched keys, by key code."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        self._key_context = key_context
        self.descriptor = descriptor
        self.type = stored_type(descriptor)
        self._held_type, _ = split_type(self.type)
        self.label = f"{owner}: state {descriptor.name!r}"
        self._entries: Any
        self.unload()

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            msg = f"{self.label}: {name} is a method and can't be set; update(...), add(...) or put(...) sets a state"
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
            msg = f"{self.label}: no key is current; use it in process_element1, process_element2 and on_timer only"
            raise FunctionError(msg)
        codes, column = stored()
        self._entries = entries = dict(zip(codes, decode_column(column), strict=True))
        return entries

    def dump(self) -> tuple[list[int], pa.Array] | None:
        """Return the touched keys' entries: their codes and the column that stores them; None if they were not used."""
        if isinstance(self._entries, _Unread):
            return None
        try:
            return list(self._entries), encode_entries(list(self._entries.values()), self.type)
        except (pa.ArrowException, ValueError) as error:
            msg = f"{self.label}: an entry can't be stored as {type_to_ddl(self._held_type)}: {error}"
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


class _SingleState(KeyedState):
    """The base of states with one value for each key."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        self._coerce: Coercer = coercer(self._held_type, self.label)
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


class ValueState(_SingleState):
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
        self._coerce: Coercer = coercer(self._held_type.value_type, self.label)
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
                f"{self.label}: expected a list of elements, got {values!r} ({type(values).__name__}); "
                f"add(...) adds one"
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
        self._coerce_key: Coercer = coercer(held.key_type, f"{self.label}, map key")
        self._coerce_value: Coercer = coercer(held.item_type, f"{self.label}, map value")
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
            FunctionError: The key does not fit its declared type, so the map can't have it.
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
        """Return whether the map has a user key.

        Raises:
            FunctionError: The key does not fit its declared type, so the map can't have it.
        """
        if self._find(key) in self._map():
            return True
        self._check(key)
        return False

    def is_empty(self) -> bool:
        """Return whether the map has no user keys."""
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
        """Return a user key as it is stored; None, which no map has, stays None."""
        return None if key is None else self._key(key)

    def _key(self, key: Any) -> Any:
        if key is None:
            msg = f"{self.label}: a map key must not be None"
            raise FunctionError(msg)
        return hashable(self._coerce_key(key))

    def _map(self) -> dict[Any, Any]:
        return self._entries.get(self._key_context.code) or {}

    def _shown(self, value: Any) -> Any:
        return self._coerce_value(value) if self._copies else value


class _GatheringState(_SingleState):
    """The base of both kinds: calls of the user's functions, and checks of their results."""

    def _compile(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its name in its errors and its result checked against the declared type."""
        label = f"{self.label}, the result of {name}"
        call, coerce, dtype = self._named(name, function), coercer(self._held_type, label), self._held_type

        def checked(*values: Any) -> Any:
            result = coerce(call(*values))
            if result is None:
                raise misfit(result, dtype, label)
            return result

        return checked

    def _named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                msg = f"{self.label}: {name} raised {type(error).__name__}: {error}"
                raise FunctionError(msg) from error

        return call


class ReducingState(_GatheringState):
    """One value for the current key, reduced from all that were added, as PyFlink's ``ReducingState``."""

    def __init__(self, descriptor: ReducingStateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        self._reduce = self._compile("reduce_function", reducer(descriptor))  # type: ignore[arg-type]

    def get(self) -> Any:
        """Return the value, or None where nothing was added; a struct is an immutable row."""
        return self._shown(self._access())

    def add(self, value: Any) -> None:
        """Combine a value with what was added before; the first one is stored unchanged.

        None is refused. (It would clear Flink's heap state, and PyFlink passes it to the function; here a missing value
        must not delete a sum.)

        Raises:
            FunctionError: The value is None, it or the result does not fit the declared type, or the function raised.
        """
        if value is None:
            error = misfit(value, self._held_type, self.label)
            msg = f"{error}; omit what is missing, or call clear() to forget it"
            raise FunctionError(msg)
        value, before = self._coerce(value), self._peek()
        self._keep(value if before is None else self._reduce(before, value))


class AggregatingState(_GatheringState):
    """One accumulator for the current key, of all values that were added, as PyFlink's ``AggregatingState``."""

    def __init__(self, descriptor: AggregatingStateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        function = descriptor.aggregate_function
        name = type(function).__name__
        self._create = self._compile(f"{name}.create_accumulator", function.create_accumulator)
        self._add = self._compile(f"{name}.add", function.add)
        self._result = self._named(f"{name}.get_result", function.get_result)

    def get(self) -> Any:
        """Return the function's result for the accumulator, or None where nothing was added.

        Raises:
            FunctionError: The function raised.
        """
        accumulator = self._access()
        return None if accumulator is None else self._result(self._shown(accumulator))

    def add(self, value: Any) -> None:
        """Add a value, of any type, to the accumulator, which is created for the first value.

        Raises:
            FunctionError: An accumulator is None or does not fit the declared type, or the function raised.
        """
        accumulator = self._peek()
        self._keep(self._add(value, self._create() if accumulator is None else accumulator))


class _TimedSingleState(_SingleState):
    """A state of one pair for each key: a value and its last access."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str, clock: Clock) -> None:
        super().__init__(descriptor, key_context, owner)
        assert descriptor.ttl is not None
        self.expiry = Expiry(descriptor.ttl, clock)

    def _peek(self) -> Any:
        pair = self._entries.get(self._key_context.code)
        if pair is None:
            return None
        value, accessed = pair
        return value if accessed > self.expiry.cutoff() or self.expiry.returns_expired else None

    def _access(self) -> Any:
        pair = self._entries.get(self._key_context.code)
        if pair is None:
            return None
        value, accessed = pair
        if accessed <= self.expiry.cutoff():
            self.clear()
            return value if self.expiry.returns_expired else None
        if self.expiry.renews:
            self._keep(value)
        return value

    def _keep(self, stored: Any) -> None:
        self._entries[self._key_context.code] = (stored, self.expiry.stamp())


class TimedValueState(_TimedSingleState, ValueState):
    """A value state with a time-to-live."""

    def value(self) -> Any:
        """Return the value, or None where there is none."""
        return self._shown(self._access())

    def update(self, value: Any) -> None:
        """Set the value; None clears it."""
        if value is None:
            self.clear()
        else:
            self._keep(self._coerce(value))


class TimedReducingState(_TimedSingleState, ReducingState):
    """A reducing state with a time-to-live."""


class TimedAggregatingState(_TimedSingleState, AggregatingState):
    """An aggregating state with a time-to-live."""


class TimedListState(ListState):
    """A list state with a time-to-live for each element."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str, clock: Clock) -> None:
        super().__init__(descriptor, key_context, owner)
        assert descriptor.ttl is not None
        self.expiry = expiry = Expiry(descriptor.ttl, clock)
        coerce = self._coerce
        self._element = lambda value: (coerce(value), expiry.stamp())

    def get(self) -> list[Any]:
        """Return the elements, oldest first, as a new list; an empty one where there are none."""
        elements = self._entries.get(self._key_context.code)
        if not elements:
            return []
        cutoff = self.expiry.cutoff()
        live = [(value, accessed) for value, accessed in elements if accessed > cutoff]
        readable = elements if self.expiry.returns_expired else live
        if self.expiry.renews:
            stamp = self.expiry.stamp()
            self._replace([(value, stamp) for value, _ in live])
        elif len(live) < len(elements):
            self._replace(live)
        return [self._coerce(value) if self._copies else value for value, _ in readable]


class TimedMapState(MapState):
    """A map state with a time-to-live for each user key."""

    def __init__(self, descriptor: StateDescriptor, key_context: KeyContext, owner: str, clock: Clock) -> None:
        super().__init__(descriptor, key_context, owner)
        assert descriptor.ttl is not None
        self.expiry = expiry = Expiry(descriptor.ttl, clock)
        coerce = self._coerce_value
        self._item = lambda value: (coerce(value), expiry.stamp())

    def get(self, key: Any) -> Any:
        """Return the value of a user key, or None where there is none; it raises what ``MapState.get`` raises."""
        pairs = self._access([self._find(key)])
        if not pairs:
            self._check(key)
        return self._shown(pairs[0][1]) if pairs else None

    def contains(self, key: Any) -> bool:
        """Return whether the map has a user key; this counts as a read, as in Flink."""
        is_present = bool(self._access([self._find(key)]))
        if not is_present:
            self._check(key)
        return is_present

    def is_empty(self) -> bool:
        """Return whether the map has no user keys; this is not a read: it neither removes nor prolongs anything."""
        cutoff = self.expiry.cutoff()
        return not any(accessed > cutoff or self.expiry.returns_expired for _, accessed in self._map().values())

    def keys(self) -> list[Any]:
        """Return the user keys, in the order of insertion, as a new list."""
        return [key for key, _ in self._access()]

    def values(self) -> list[Any]:
        """Return the values, in the order of insertion, as a new list."""
        return [self._shown(value) for _, value in self._access()]

    def items(self) -> list[tuple[Any, Any]]:
        """Return the pairs, in the order of insertion, as a new list."""
        return [(key, self._shown(value)) for key, value in self._access()]

    def _access(self, keys: list[Any] | None = None) -> list[tuple[Any, Any]]:
        """Return the pairs that a read of these user keys, or of all, finds."""
        entry, pairs = self._map(), []
        cutoff, stamp = self.expiry.cutoff(), self.expiry.stamp()
        for key in list(entry) if keys is None else keys:
            pair = entry.get(key)
            if pair is None:
                continue
            value, accessed = pair
            if accessed > cutoff:
                pairs.append((key, value))
                if self.expiry.renews:
                    entry[key] = (value, stamp)
                continue
            del entry[key]
            if self.expiry.returns_expired:
                pairs.append((key, value))
        if not entry:
            self.clear()
        return pairs


_HANDLES: dict[type[StateDescriptor], tuple[Any, Any]] = {
    ValueStateDescriptor: (ValueState, TimedValueState),
    ListStateDescriptor: (ListState, TimedListState),
    MapStateDescriptor: (MapState, TimedMapState),
    ReducingStateDescriptor: (ReducingState, TimedReducingState),
    AggregatingStateDescriptor: (AggregatingState, TimedAggregatingState),
}
"""The class of each kind's handles, without and with a time-to-live, so that a state without one has no cost for it."""


def create_state(descriptor: StateDescriptor, key_context: KeyContext, owner: str, clock: Clock) -> KeyedState:
    """Return the handle that a function, whose name is ``owner``, gets for its descriptor."""
    for kind, (plain, timed) in _HANDLES.items():
        if isinstance(descriptor, kind):
            made: KeyedState = (
                plain(descriptor, key_context, owner)
                if descriptor.ttl is None
                else timed(descriptor, key_context, owner, clock)
            )
            return made
    raise AssertionError(descriptor)


def as_declared(state: KeyedState, stored: pa.Table) -> pa.Table:
    """Return a stored state as the function declares it now, if the stored type can become the declared one.

    The table has the key columns, then the entries. As in Flink, a time-to-live can't be added to a state or removed
    from it; its length may change.
    """
    last = stored.num_columns - 1
    field = stored.schema.field(last)
    if field.type.equals(state.type):
        return stored
    (held, clock), (declared, declared_clock) = split_type(field.type), split_type(state.type)
    if clock != declared_clock:
        difference = f"holds it {_described(clock)}, the function declares it {_described(declared_clock)}"
        action = "declare it as it is stored"
    elif reasons := differences(held, declared):
        difference = f"and the function differ in its type: {'; '.join(reasons)}"
        action = "declare the stored type"
    else:
        return evolve(stored, stored.schema.set(last, field.with_type(state.type)), state.label)
    msg = f"{state.label}: the checkpoint {difference}; {action}, or give the new state another name"
    raise CheckpointError(msg)


def _described(clock: str | None) -> str:
    return "without a time-to-live" if clock is None else f"with a time-to-live in {clock.replace('_', ' ')}"
