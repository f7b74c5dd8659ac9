"""Time-to-live of states: what has not been accessed for long enough expires.

What was last accessed at a time a is expired when ``now >= a + ttl``; this holds for each value, element of a list and
entry of a map on its own. It is removed by the read that finds it, and for all keys of a key group at the end of each
micro-batch in which the function was opened there; no user code is called. The last access is stored with the value,
in a struct whose second field is named after the clock, so that a checkpoint can't be read with another clock. (Flink:
``StateTtlConfig``, ``TtlUtils.expired``. Here ``a + ttl`` has no upper bound, where Flink's stops at
``Long.MAX_VALUE``; and the clock may be event time.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cojoin.engine.time.timers import TimerService

UpdateType: TypeAlias = Literal["on_create_and_write", "on_read_and_write"]
"""What counts as an access. (Flink's ``OnCreateAndWrite`` and ``OnReadAndWrite``; its ``Disabled`` is ``ttl=None``.)"""

StateVisibility: TypeAlias = Literal["never_return_expired", "return_expired_if_not_cleaned_up"]
"""What a read that finds something expired returns: nothing, or the expired value this last time."""

TtlTimeDomain: TypeAlias = Literal["processing_time", "event_time"]
"""The clock of a time-to-live."""

_VALUE = "@value"
_MIN_TIMESTAMP = -(1 << 63)


@dataclass(frozen=True)
class StateTtlConfig:
    """The time-to-live of a state's entries; the ``ttl`` of a descriptor, as PyFlink's ``StateTtlConfig``.

    Attributes:
        ttl: How long, such as ``"7 days"`` or a ``timedelta``; more than zero, in whole milliseconds.
        update_type: Whether reads prolong it as writes do.
        state_visibility: Whether a read that finds something expired returns it this last time.
        time_domain: The clock: the micro-batch's own processing time, as in Flink, or event time.

    Raises:
        ConfigurationError: The duration is not positive, a word is unknown, or expired values are to be returned in
            event time: the result would depend on when they were cleaned up, so on how batches were cut.

    >>> StateTtlConfig("7 days", update_type="on_read_and_write").milliseconds
    604800000
    """

    ttl: Duration
    update_type: UpdateType = "on_create_and_write"
    state_visibility: StateVisibility = "never_return_expired"
    time_domain: TtlTimeDomain = "processing_time"

    def __post_init__(self) -> None:
        if not milliseconds(self.ttl, "ttl"):
            msg = f"ttl: must be longer than zero, got {self.ttl!r}; leave ttl out to keep entries forever"
            raise ConfigurationError(msg)
        for name, words in (
            ("update_type", get_args(UpdateType)),
            ("state_visibility", get_args(StateVisibility)),
            ("time_domain", get_args(TtlTimeDomain)),
        ):
            word = getattr(self, name)
            if word not in words:
                msg = f"{name}: expected {' or '.join(map(repr, words))}, got {word!r}{did_you_mean(str(word), words)}"
                raise ConfigurationError(msg)
        if self.time_domain == "event_time" and self.state_visibility != "never_return_expired":
            msg = (
                f"state_visibility: {self.state_visibility!r} needs time_domain='processing_time': in event time the "
                f"result would depend on when expired values were cleaned up, so on how the micro-batches were cut"
            )
            raise ConfigurationError(msg)

    @property
    def milliseconds(self) -> int:
        """The time to live in milliseconds."""
        return milliseconds(self.ttl, "ttl")


def check_ttl(ttl: Any, label: str) -> None:
    """Raise an error unless a time-to-live is None or a ``StateTtlConfig``."""
    if ttl is not None and not isinstance(ttl, StateTtlConfig):
        msg = f"{label}: ttl: expected a StateTtlConfig, got {ttl!r}; write ttl=StateTtlConfig('7 days')"
        raise ConfigurationError(msg)


class Clock(Protocol):
    """The clock of a time-to-live; all times are epoch milliseconds."""

    def now(self, time_domain: str) -> int:
        """Return the time with which last accesses are compared."""

    def access_time(self, time_domain: str) -> int:
        """Return the time that is stored as the last access."""


class ServiceClock:
    """The clock of a timer service: the batch's processing time, or the watermark."""

    def __init__(self, service: TimerService) -> None:
        self._service = service

    def now(self, time_domain: str) -> int:
        """Return the time with which last accesses are compared."""
        return self._service.watermark if time_domain == "event_time" else self._service.processing_time

    access_time = now


class Expiry:
    """The time-to-live of one state in use: what has expired, and which time an access stores."""

    __slots__ = ("_clock", "_domain", "_ttl", "renews", "returns_expired")

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self._clock, self._domain, self._ttl = clock, config.time_domain, config.milliseconds
        self.renews = config.update_type == "on_read_and_write"
        self.returns_expired = config.state_visibility == "return_expired_if_not_cleaned_up"

    def cutoff(self) -> int:
        """Return the greatest last access that has expired, in epoch milliseconds."""
        return self._clock.now(self._domain) - self._ttl

    def stamp(self) -> int:
        """Return the last access to store now, in epoch milliseconds."""
        return self._clock.access_time(self._domain)


def timed_type(dtype: pa.DataType, ttl: StateTtlConfig | None) -> pa.DataType:
    """Return the type that stores a value with its last access; without a time-to-live, the value's own type."""
    return dtype if ttl is None else pa.struct([(_VALUE, dtype), (f"@{ttl.time_domain}", pa.int64())])


def split_type(stored: pa.DataType) -> tuple[pa.DataType, str | None]:
    """Return a stored type without its last accesses, and their clock; None where it has no last accesses.

    >>> split_type(pa.list_(timed_type(pa.string(), StateTtlConfig("1 day"))))
    (ListType(list<item: string>), 'processing_time')
    """
    inner = stored
    if pa.types.is_list(stored):
        inner = stored.value_type
    elif pa.types.is_map(stored):
        inner = stored.item_type
    if not pa.types.is_struct(inner) or inner.num_fields != 2 or inner.field(0).name != _VALUE:
        return stored, None
    dtype, domain = inner.field(0).type, inner.field(1).name.removeprefix("@")
    if pa.types.is_list(stored):
        dtype = pa.list_(dtype)
    elif pa.types.is_map(stored):
        dtype = pa.map_(stored.key_type, dtype)
    return dtype, domain


def without_accesses(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the last column of a state's table without the last accesses; the same column where it stores none."""
    if split_type(column.type)[1] is None:
        return column
    entries = column.combine_chunks()
    if pa.types.is_map(entries.type):
        plain = pa.MapArray.from_arrays(entries.offsets, entries.keys, entries.items.field(0))
    elif pa.types.is_list(entries.type):
        plain = pa.ListArray.from_arrays(entries.offsets, entries.values.field(0))
    else:
        plain = entries.field(0)
    return pa.chunked_array([plain])


def without_expired(table: pa.Table, cutoff: int) -> pa.Table:
    """Return a state's table without what was last accessed up to a time, and without keys that are left empty."""
    column = table.column(table.num_columns - 1)
    oldest = [pc.min(_accesses(chunk)).as_py() for chunk in column.chunks]
    if cutoff < _MIN_TIMESTAMP or not any(each is not None and each <= cutoff for each in oldest):
        return table
    entries = pa.concat_arrays(column.chunks)
    keep: NDArray[np.bool_] = _accesses(entries).to_numpy() > cutoff
    if not pa.types.is_struct(entries.type):
        entries, keep = _without_parts(entries, keep)
        table = table.set_column(table.num_columns - 1, table.schema.field(table.num_columns - 1), entries)
    return table.filter(pa.array(keep))


def _accesses(entries: pa.Array) -> pa.Array:
    """Return the last accesses; for lists or maps those of all parts, including those before and after a slice."""
    if pa.types.is_map(entries.type):
        return entries.items.field(1)
    return (entries.values if pa.types.is_list(entries.type) else entries).field(1)


def _without_parts(entries: pa.Array, keep: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return lists or maps without the parts that are not kept, and for each whether it still has any."""
    offsets = entries.offsets.to_numpy()
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    bounds, mask = kept_before[offsets].astype(np.int32), pa.array(keep)
    if pa.types.is_map(entries.type):
        parts = pa.MapArray.from_arrays(bounds, entries.keys.filter(mask), entries.items.filter(mask))
    else:
        parts = pa.ListArray.from_arrays(bounds, entries.values.filter(mask))
    return (parts if parts.type == entries.type else parts.cast(entries.type)), np.diff(bounds) > 0
