"""The keyed states and timers of one key group: Arrow tables between batches, Python values during a batch.

It keeps for each state a table (key columns, ``@value``), and for each time domain a table of timers (key columns,
``@timestamp``). ``begin`` finds the entries of the keys that a batch touches, and ``end`` merges the used ones with the
untouched ones. A key without entries and timers takes no space. A state's entries may lie in segments
(``segmented_table``); timers never do. To look up a table costs some 20 to 60 ns a row, however few keys are touched;
nothing is copied, and a table that is not looked up costs nothing.

A state exists once the function's ``open`` asks for it, and then has the type that ``open`` declares. A stored state
that ``open`` does not ask for is kept unchanged, expired or not.

A time-to-live counts in processing time or in event time. In event-time order, expiry is judged at the row's or timer's
own time, so it does not depend on how rows were batched; in arrival order it is judged at the watermark. An access
counts at the element's own time, but not before the watermark.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.functions import RuntimeContext
from cojoin.engine.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from cojoin.engine.state.keyed_state import as_declared, create_state
from cojoin.engine.state.segmented_table import MAX_CHUNKS, Expired, SegmentedTable
from cojoin.engine.state.ttl import Clock, Expiry, ServiceClock, split_type, without_accesses, without_expired
from cojoin.engine.time.timers import TimeDomain, Timers, TimerService
from cojoin.engine.values.keys import NO_KEY, KeyContext, checked_key, encode_keys
from cojoin.engine.values.rows import decode_column, decode_rows, describe_columns
from cojoin.engine.values.schema_evolution import differences, evolve
from cojoin.engine.values.tables import concat, take_rows
from cojoin.errors import CheckpointError, FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.functions import Context
    from cojoin.engine.state.keyed_state import KeyedState


_TIMERS, _PROCESSING_TIMERS, _STATE = "timers", "processing_timers", "state:"


# These collide with no key column: ``KeyedCoProcess.output_schema`` refuses such names.
_TIMESTAMP, _VALUE = "@timestamp", "@value"


class KeyedStateBackend(RuntimeContext):
    """The keyed states and timers of one key group; also the context that ``open`` gets. Keys have the left's names."""

    def __init__(self, key_schema: pa.Schema, owner: str, clock: Clock | None = None) -> None:
        self._key_schema = key_schema
        self._owner = owner
        self.key_context = KeyContext()
        no_timers = key_schema.append(pa.field(_TIMESTAMP, pa.int64())).empty_table()
        self._stored_timers: dict[str, pa.Table] = {_TIMERS: no_timers, _PROCESSING_TIMERS: no_timers}
        self._tables: dict[str, SegmentedTable] = {}
        self.timers, self.processing_timers = Timers(self.key_context, owner), Timers(self.key_context, owner)
        self._domains = {_TIMERS: self.timers, _PROCESSING_TIMERS: self.processing_timers}
        self.timer_service = TimerService(self.timers, self.processing_timers)
        self.clock: Clock = ServiceClock(self.timer_service) if clock is None else clock
        self._states: dict[str, KeyedState] = {}
        # During a batch: its keys, in Arrow and as functions see them, and the tables that it read, with their codes.
        self._touched: TouchedKeys | None = None
        self._key_values: list[Any] = []
        self._taken: dict[str, tuple[pa.Table, NDArray[np.int64]]] = {}

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self._get(descriptor, ValueStateDescriptor)  # type: ignore[return-value]

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._get(descriptor, ListStateDescriptor)  # type: ignore[return-value]

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Return the handle of a map state."""
        return self._get(descriptor, MapStateDescriptor)  # type: ignore[return-value]

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the handle of a reducing state."""
        return self._get(descriptor, ReducingStateDescriptor)  # type: ignore[return-value]

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return the handle of an aggregating state."""
        return self._get(descriptor, AggregatingStateDescriptor)  # type: ignore[return-value]

    def _get(self, descriptor: Any, expected: type[StateDescriptor]) -> KeyedState:
        if not isinstance(descriptor, expected):
            msg = f"{self._owner}: expected a {expected.__name__}, got {descriptor!r}"
            raise FunctionError(msg)
        name = descriptor.name
        state = create_state(descriptor, self.key_context, self._owner, self.clock)
        known = self._states.get(name)
        if known is not None:
            if (type(known), known.type, known.descriptor.ttl) != (type(state), state.type, descriptor.ttl):
                msg = f"{self._owner}: state {name!r} is declared twice, as {known.descriptor} and {descriptor}"
                raise FunctionError(msg)
            return known
        stored = self._tables.get(_STATE + name)
        if stored is None:
            nothing = self._key_schema.append(pa.field(_VALUE, state.type)).empty_table()
            self._tables[_STATE + name] = self._keep(name, nothing)
        else:
            stored.convert_schema(partial(as_declared, state))
        self._states[name] = state
        if self._touched is not None:
            state.load(partial(self._stored, _STATE + name))
        return state

    def _keep(self, name: str, rows: pa.Table) -> SegmentedTable:
        return SegmentedTable(rows, self._key_schema.names, f"{self._owner}: state {name!r}")

    def has_due_timers(self, watermark: int | None, processing_time: int) -> bool:
        """Return whether a timer of any key is due at the watermark, if it is known, or at the processing time."""
        earliest = self.earliest_timers()
        return any(
            first is not None and now is not None and first <= now
            for first, now in zip(earliest, (watermark, processing_time), strict=True)
        )

    def earliest_timers(self) -> tuple[int | None, int | None]:
        """Return the earliest timer of all keys in event time and in processing time; None where there is none."""
        first, second = (pc.min(self._stored_timers[name].column(_TIMESTAMP)).as_py() for name in self._domains)
        return first, second

    def timer_count(self) -> int:
        """Return how many timers wait, in both domains."""
        return sum(int(self._stored_timers[name].num_rows) for name in self._domains)

    def timers_not_fired(self) -> int:
        """Return how many timers a drain left unfired."""
        return sum(timers.not_fired for timers in self._domains.values())

    def due_timers(self, watermark: int | None, processing_time: int) -> list[pa.Table]:
        """Return the keys of the due timers, those of event time first; None means that none of these are due."""
        return [
            self._keys_of(timers.filter(pc.less_equal(timers.column(_TIMESTAMP), pa.scalar(now, pa.int64()))))
            for timers, now in zip(self._stored_timers.values(), (watermark, processing_time), strict=True)
        ]

    def begin(
        self, row_keys: Sequence[pa.Table], timer_keys: Sequence[pa.Table] = ()
    ) -> tuple[list[int], list[NDArray[np.int64]]]:
        """Load the entries and timers of the touched keys: those with a due row or a due timer.

        ``row_keys`` are the key columns of the due rows, one table for each input, ``timer_keys`` those of the due
        timers. Return the codes of the touched keys, and for each table of rows the codes of its rows.
        """
        self._touched = TouchedKeys([self._as_keys(table) for table in [*row_keys, *timer_keys]])
        self._key_values = decode_keys(self._touched.keys)
        for name, timers in self._domains.items():
            codes, timestamps = self._stored(name)
            timers.load(codes, timestamps.to_pylist())
        for name, state in self._states.items():
            state.load(partial(self._stored, _STATE + name))
        return list(range(len(self._touched))), self._touched.codes[: len(row_keys)]

    def _keys_of(self, table: pa.Table) -> pa.Table:
        return table.select(self._key_schema.names)

    def _as_keys(self, table: pa.Table) -> pa.Table:
        return table.rename_columns(self._key_schema.names).cast(self._key_schema)

    def key_of(self, code: int) -> Any:
        """Return a touched key as functions see it."""
        return self._key_values[code]

    def _stored(self, name: str) -> tuple[list[int], pa.ChunkedArray]:
        """Return the codes of a table's rows that belong to touched keys, and their values in its last column."""
        assert self._touched is not None
        stored = self._tables.get(name)
        table = self._stored_timers[name] if stored is None else stored.take([self._touched.keys])
        codes = self._touched.find(table)
        self._taken[name] = table, codes
        mine = codes >= 0
        # As a table: pyarrow before 26 ends the process where a column of maps without chunks is filtered by itself.
        values = table.select([table.num_columns - 1]).filter(pa.array(mine))
        return codes[mine].tolist(), values.column(0)

    def end(self) -> None:
        """Merge the touched keys' entries with the untouched ones."""
        for name, timers in self._domains.items():
            codes, timestamps = timers.dump()
            self._put_back(name, codes, timestamps)
            timers.unload()
        for name, state in self._states.items():
            dumped = state.dump()
            if dumped is not None:
                entry_codes, values = dumped
                self._put_back(_STATE + name, np.array(entry_codes, dtype=np.int64), values)
            state.unload()
        self.key_context.code = NO_KEY
        self._touched, self._key_values, self._taken = None, [], {}

    def _put_back(self, name: str, codes: NDArray[np.int64], values: pa.Array) -> None:
        assert self._touched is not None
        table, places = self._taken[name]
        untouched = places < 0
        keys = self._touched.keys.take(pa.array(codes))
        touched = pa.Table.from_arrays([*keys.columns, values], schema=table.schema)
        whole = concat([table.filter(pa.array(untouched)), touched])
        if name in self._tables:
            origins = np.concatenate([np.flatnonzero(untouched), np.full(len(codes), -1)])
            self._tables[name].put_back(whole, origins)
        else:
            self._stored_timers[name] = whole.combine_chunks() if whole.column(0).num_chunks > MAX_CHUNKS else whole

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of timers and the states' memtables, after removing what has expired.

        This costs a scan of the last accesses of each state with a time-to-live, and a copy of the rest where something
        has expired.
        """
        for name, expiry in self._expiries().items():
            self._tables[name].expire(Expired(expiry.cutoff()))
        return {**self._stored_timers, **{name: table.memtable for name, table in self._tables.items()}}

    def segmented_tables(self) -> dict[str, SegmentedTable]:
        """Return the states' tables, whose rows may lie in segments, since a batch touches few of their keys."""
        return self._tables

    def _expiries(self) -> dict[str, Expiry]:
        expiries = {_STATE + name: getattr(state, "expiry", None) for name, state in self._states.items()}
        return {name: expiry for name, expiry in expiries.items() if expiry is not None}

    def load_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore what ``tables`` returned; a missing table is empty, and the key columns must fit the query's."""
        loaded, names = {}, self._key_schema.names
        for name, table in tables.items():
            *key, last = table.schema
            stored = pa.schema(key)
            if stored.equals(self._key_schema):
                loaded[name] = table
                continue
            if stored.names != names or differences(stored, self._key_schema, fixed=names):
                msg = (
                    f"{self._owner}: the checkpoint's states have the key {describe_columns(stored)}, the query's "
                    f"input has {describe_columns(self._key_schema)}; keep them, or start with a new checkpoint"
                )
                raise CheckpointError(msg)
            loaded[name] = evolve(table, self._key_schema.append(last), self._owner)
        no_timers = self._stored_timers[_TIMERS].schema.empty_table()
        self._stored_timers = {name: loaded.pop(name, no_timers) for name in self._stored_timers}
        self._tables = {name: self._keep(name.removeprefix(_STATE), table) for name, table in loaded.items()}

    def descriptors(self) -> dict[str, StateDescriptor]:
        """Return the descriptors of the states that ``open`` has asked for, by name."""
        return {name: state.descriptor for name, state in self._states.items()}

    def undeclared(self) -> list[str]:
        """Return the names of the stored states that ``open`` has not asked for."""
        stored = (name.removeprefix(_STATE) for name in self._tables)
        return [name for name in stored if name not in self._states]

    def state_of(self, key: Any) -> dict[str, Any]:
        """Return a key's entries by state name, between batches, without changing anything.

        The key is a value, or a tuple or row where it has several columns. An entry is a value, list or dict, or an
        aggregating state's accumulator, without times of last access. It is absent where the key has none, or an
        expired one that a read does not return.
        """
        entries = {}
        for name in self._tables:
            rows = self._unexpired(name, rows_of(self._tables[name].read_all(), self._key_schema, key, self._owner))
            if rows.num_rows:
                entries[name.removeprefix(_STATE)] = entry_of(rows)
        return entries

    def current_entries(self) -> dict[str, Any]:
        """Return what ``state_of`` returns for the current key, within a callback, without changing anything."""
        entries = {}
        for name, state in self._states.items():
            codes, values = state.dump() or self._stored(_STATE + name)
            rows = pa.table({_VALUE: values}).filter(pa.array(np.array(codes) == self.key_context.code, pa.bool_()))
            rows = self._unexpired(_STATE + name, rows)
            if rows.num_rows:
                entries[name] = entry_of(rows)
        return entries

    def current_timers(self) -> list[tuple[str, int]]:
        """Return the current key's timers within a callback, sorted: their domains, and their epoch milliseconds."""
        domains = (TimeDomain.EVENT_TIME.value, TimeDomain.PROCESSING_TIME.value)
        by_domain = zip(domains, self._domains.values(), strict=True)
        return sorted((domain, at) for domain, timers in by_domain for at in timers.of_key(self.key_context.code)[1])

    def entries(self) -> dict[str, pa.Table]:
        """Return by state name the key columns of all keys and, as the last column, their entries (``state_of``)."""
        entries = {}
        for name, stored in self._tables.items():
            table = self._unexpired(name, stored.read_all())
            values = without_accesses(table.column(table.num_columns - 1))
            entries[name.removeprefix(_STATE)] = self._keys_of(table).append_column(_VALUE, values)
        return entries

    def _unexpired(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows of a state without those that a read does not return."""
        expiry = self._expiries().get(name)
        return rows if expiry is None or expiry.returns_expired else without_expired(rows, expiry.cutoff())

    def timer_tables(self) -> dict[str, pa.Table]:
        """Return the timers that wait, between batches, by domain: the key columns and the epoch milliseconds."""
        domains = (TimeDomain.EVENT_TIME.value, TimeDomain.PROCESSING_TIME.value)
        return dict(zip(domains, (self._stored_timers[name] for name in self._domains), strict=True))

    def timers_of(self, key: Any = None) -> list[tuple[Any, str, int]]:
        """Return a key's timers between batches, or with None all, sorted: key, time domain and epoch milliseconds."""
        timers: list[tuple[Any, str, int]] = []
        for domain, table in self.timer_tables().items():
            rows = table if key is None else rows_of(table, self._key_schema, key, self._owner)
            keys, timestamps = decode_keys(self._keys_of(rows)), rows.column(_TIMESTAMP).to_pylist()
            timers += [(each, domain, timestamp) for each, timestamp in zip(keys, timestamps, strict=True)]
        return sorted(timers)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the timers and of each state: ``{"state:customer": {"rows": 2, "bytes": 80}, …}``.

        A row is one key's entry, or one timer. The bytes are those in memory and those of segment files
        (``segmented_table``).
        """
        timers = {name: size_of(table) for name, table in self._stored_timers.items()}
        return {**timers, **{name: {"rows": table.rows, "bytes": table.bytes} for name, table in self._tables.items()}}


class TouchedKeys:
    """The distinct keys of some tables of key columns, by code, and for each table the codes of its rows.

    >>> touched = TouchedKeys([pa.table({"id": ["a", "b", "a"]})])
    >>> touched.keys.to_pydict(), touched.find(pa.table({"id": ["c", "b"]})).tolist()
    ({'id': ['a', 'b']}, [-1, 1])
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self.codes, count = encode_keys(tables)
        row_of: NDArray[np.int64] = np.empty(count, dtype=np.int64)
        every = np.concatenate(self.codes)
        row_of[every] = np.arange(len(every))  # any row of a key gives the key
        self.keys = take_rows(pa.concat_tables(tables), row_of)
        self._distinct = [pc.unique(column.combine_chunks()) for column in self.keys.columns]
        # For each column but the first: the distinct combinations of values up to and including it, as sorted numbers.
        self._pairs: list[NDArray[np.int64]] = []
        codes = _places(self.keys.column(0), self._distinct[0])
        for position in range(1, self.keys.num_columns):
            codes = self._paired(codes, self.keys, position)
            known = np.unique(codes)
            self._pairs.append(known)
            codes = np.searchsorted(known, codes)
        # From a position in the only column's values, or in the last pairs, to the key's code.
        self._code_of = np.argsort(codes)

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def find(self, table: pa.Table) -> NDArray[np.int64]:
        """Return each row's code; -1 where its key is not touched. The table begins with the key columns."""
        codes = _places(table.column(0), self._distinct[0])
        for position, known in enumerate(self._pairs, start=1):
            codes = _look_up(self._paired(codes, table, position), known)
        return np.where(codes < 0, -1, self._code_of[codes]) if len(self) else codes

    def _paired(self, codes: NDArray[np.int64], table: pa.Table, position: int) -> NDArray[np.int64]:
        distinct = self._distinct[position]
        places = _places(table.column(position), distinct)
        return np.where((codes < 0) | (places < 0), -1, codes * len(distinct) + places)


def _places(column: pa.ChunkedArray, distinct: pa.Array) -> NDArray[np.int64]:
    """Return each value's position among the distinct values; -1 where it is not one of them."""
    return pc.fill_null(pc.index_in(column, value_set=distinct), -1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _look_up(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(known):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1)


def decode_keys(table: pa.Table) -> list[Any]:
    """Return keys as functions see them: the value of a single column, else a row."""
    return decode_column(table.column(0)) if table.num_columns == 1 else decode_rows(table)


def rows_of(table: pa.Table, key_schema: pa.Schema, key: Any, owner: str) -> pa.Table:
    """Return one key's rows of a state's or the timers' table."""
    wanted = zip(key_schema, checked_key(key, key_schema, f"{owner}: key"), strict=True)
    masks = [pc.equal(table.column(field.name), pa.scalar(value, field.type)) for field, value in wanted]
    return table.filter(reduce(pc.and_, masks))


def entry_of(rows: pa.Table) -> Any:
    """Return the one entry of a state in some rows, without its last accesses; None where no row is left."""
    if not rows.num_rows:
        return None
    column = rows.column(rows.num_columns - 1)
    (entry,) = decode_column(column)
    if split_type(column.type)[1] is None:
        return entry
    if isinstance(entry, dict):
        return {key: value for key, (value, _) in entry.items()}
    return _values(entry) if isinstance(entry, list) else _values([entry])[0]


def _values(pairs: Iterable[tuple[Any, int]]) -> list[Any]:
    return [value for value, _ in pairs]


def size_of(table: pa.Table) -> dict[str, int]:
    """Return how many rows a table has, and their size in memory in bytes."""
    return {"rows": table.num_rows, "bytes": table.nbytes}


class FunctionClock:
    """The clock by which the entries of a state expire, in epoch milliseconds."""

    def __init__(self, context: Context, service: TimerService, *, by_time: bool) -> None:
        self._context, self._service, self._by_time = context, service, by_time

    def now(self, time_domain: str) -> int:
        """Return the time at which expiry is judged: in event-time order the row's or timer's own."""
        if time_domain == "processing_time":
            return self._service.processing_time
        return self._event_time() if self._by_time else self._service.watermark

    def access_time(self, time_domain: str) -> int:
        """Return the time of an access."""
        if time_domain == "processing_time":
            return self._service.processing_time
        return self._event_time()

    def _event_time(self) -> int:
        timestamp, watermark = self._context.timestamp(), self._service.watermark
        # A processing-time timer's timestamp is not an event time.
        is_of_clock = self._context._domain is TimeDomain.PROCESSING_TIME  # noqa: SLF001 - a row has no time domain
        return watermark if timestamp is None or is_of_clock else max(timestamp, watermark)
