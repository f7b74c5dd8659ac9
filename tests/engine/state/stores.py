"""A store of one text key that is driven by hand: for the tests of states, their times-to-live and snapshots."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.keyed_state_backend import KeyedStateBackend
from cojoin.engine.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cojoin.engine.values import codec

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("customer", pa.string())])


def handle(store: KeyedStateBackend, descriptor: Any) -> Any:
    """Ask for a state by its descriptor's kind."""
    get: dict[type, Any] = {
        ValueStateDescriptor: store.get_state,
        ListStateDescriptor: store.get_list_state,
        MapStateDescriptor: store.get_map_state,
        ReducingStateDescriptor: store.get_reducing_state,
        AggregatingStateDescriptor: store.get_aggregating_state,
    }
    return get[type(descriptor)](descriptor)


class HandClock:
    """A clock that stands where it is put, in both domains; an access may be stamped with another time."""

    def __init__(self) -> None:
        self.time = 0
        self.stamp: int | None = None

    def now(self, time_domain: str) -> int:
        return self.time

    def access_time(self, time_domain: str) -> int:
        return self.time if self.stamp is None else self.stamp


class HandStore:
    """One state of one store: ``with hand.key("a") as state``, then ``hand.restore()``."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor
        self.clock = HandClock()
        self._open({})

    @contextmanager
    def key(self, key: str = "a") -> Iterator[Any]:
        """Make a key the current one, in a batch of its own."""
        table = pa.table({"customer": [key]}, schema=SCHEMA)
        (code,), _ = self.store.begin([table, table.slice(0, 0)])
        self.store.key_context.code = code
        yield self.state
        self.store.end()

    def snapshot(self) -> bytes:
        return codec.encode({}, self.store.tables())

    def restore(self, snapshot: bytes | None = None) -> None:
        """Go on from a snapshot, or from one that is taken now."""
        _, tables = codec.decode(self.snapshot() if snapshot is None else snapshot)
        self._open(tables)

    def _open(self, tables: dict[str, pa.Table]) -> None:
        self.store = KeyedStateBackend(SCHEMA, "F", self.clock)
        if tables:
            self.store.load_tables(tables)
        self.state = handle(self.store, self.descriptor)

    def stored(self) -> pa.Table:
        """Return the state's table at rest, as it is."""
        return self.store.segmented_tables()[f"state:{self.descriptor.name}"].memtable
