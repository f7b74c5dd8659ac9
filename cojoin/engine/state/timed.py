"""States with a time-to-live: the same handles, whose entries store when they were last accessed.

They keep pairs of a value and its last access: for a value, each element of a list and each entry of a map. A write is
an access; a read is one if the configuration says so. A read that finds something expired removes it, returns it this
last time if expired values may be returned, and never prolongs it. Adding to an expired value begins anew; where
expired values may be returned, it continues with the expired one. (Flink: ``TtlValueState``, ``TtlListState``,
``TtlMapState``, ``TtlReduceFunction``, ``TtlAggregateFunction``; but here ``get`` of a list returns each expired
element at most once, and ``is_empty`` of a map ignores expired entries that a read would not return.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.state.aggregating import AggregatingState, ReducingState
from cojoin.engine.state.keyed import SingleState
from cojoin.engine.state.kinds import ListState, MapState, ValueState
from cojoin.engine.state.ttl import Expiry

if TYPE_CHECKING:
    from cojoin.engine.state.descriptors import StateDescriptor
    from cojoin.engine.state.ttl import Clock
    from cojoin.engine.values.keys import KeyContext

__all__ = [
    "TimedAggregatingState",
    "TimedListState",
    "TimedMapState",
    "TimedReducingState",
    "TimedValueState",
]


class _TimedSingleState(SingleState):
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
        found = elements if self.expiry.returns_expired else live
        if self.expiry.renews:
            stamp = self.expiry.stamp()
            self._replace([(value, stamp) for value, _ in live])
        elif len(live) < len(elements):
            self._replace(live)
        return [self._coerce(value) if self._copies else value for value, _ in found]


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
        found = self._access([self._find(key)])
        if not found:
            self._check(key)
        return self._shown(found[0][1]) if found else None

    def contains(self, key: Any) -> bool:
        """Return whether a user key is there; this counts as a read, as in Flink."""
        found = bool(self._access([self._find(key)]))
        if not found:
            self._check(key)
        return found

    def is_empty(self) -> bool:
        """Return whether there is no user key; this is not a read, so it neither removes nor prolongs anything."""
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
        entry, found = self._map(), []
        cutoff, stamp = self.expiry.cutoff(), self.expiry.stamp()
        for key in list(entry) if keys is None else keys:
            pair = entry.get(key)
            if pair is None:
                continue
            value, accessed = pair
            if accessed > cutoff:
                found.append((key, value))
                if self.expiry.renews:
                    entry[key] = (value, stamp)
                continue
            del entry[key]
            if self.expiry.returns_expired:
                found.append((key, value))
        if not entry:
            self.clear()
        return found
