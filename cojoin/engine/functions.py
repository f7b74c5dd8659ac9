"""The contract of a user's function over two keyed inputs, with PyFlink's names (``pyflink.datastream``).

The callbacks of one key never overlap, and they see the key's rows and timers in the declared order. A function must
keep its data in states. A call processes one key group in one micro-batch, on a fresh copy of the function, so
attributes carry nothing over to the next call.

A callback yields ``row`` for the main output and ``(tag, row)`` for a side output, which has its own columns. Tags are
declared where the function is connected, so that every output has its schema and its sink before the query starts.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import pyarrow as pa  # noqa: TC002 - a dataclass names it

from cojoin.engine.time.timers import TimerService
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import as_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, FunctionError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cojoin.engine.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from cojoin.engine.time.timers import TimeDomain
    from cojoin.engine.values.rows import Row


_CALLBACKS = ("process_element1", "process_element2", "on_timer")

_OF_TIMERS = tuple(name for name in vars(TimerService) if not name.startswith("_"))

_NEARLY = 0.88

Order: TypeAlias = Literal["event_time", "arrival"]
"""The order in which a function sees its rows.

- *event_time*: rows wait until the watermark passes them. Keys are processed one after the other, each with its rows
  and timers in time order; one time order over all keys would cost two fifths of the speed. The result is
  deterministic, and late rows are rejected.
- *arrival*: the order of Flink. A micro-batch's rows are processed at once, late ones too unless the input rejects
  them. Then the watermark advances, and the timers of all keys of a key group fire by timestamp.
"""


class RuntimeContext(ABC):
    """The context that ``open`` gets: it returns the handles of the keyed states."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Return the handle of a value state."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the handle of a list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Return the handle of a map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the handle of a reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return the handle of an aggregating state."""


class OpenContext(RuntimeContext):
    """The context that ``open`` gets from an engine. It has only states, since no key, row or time is current."""

    __slots__ = ("_states",)

    def __init__(self, states: RuntimeContext) -> None:
        self._states = states

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self._states.get_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._states.get_list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Return the handle of a map state."""
        return self._states.get_map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the handle of a reducing state."""
        return self._states.get_reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return the handle of an aggregating state."""
        return self._states.get_aggregating_state(descriptor)

    def __getattr__(self, name: str) -> NoReturn:
        # Python calls this only for a name that does not exist.
        of_rows = [known for known in vars(Context) if not known.startswith("_")]
        if _as_in_python(name) in (*of_rows, *_OF_TIMERS):
            msg = (
                f"ctx.{name} can't be used in open, where no key, no row and no time is current; use it in "
                f"{', '.join(_CALLBACKS)}"
            )
        else:
            states = [known for known in vars(RuntimeContext) if known.startswith("get_")]
            msg = f"the context of open has no {name!r}{did_you_mean(_as_in_python(name), states)}"
        raise AttributeError(msg)


class Context:
    """The context that callbacks get: the current key, its time, and the timers.

    One object serves a whole call of a key group, so a callback must not keep it.
    """

    __slots__ = ("_domain", "_key", "_timer_service", "_timestamp")

    def __init__(self, timer_service: TimerService) -> None:
        self._timer_service = timer_service
        self._key: Any = None
        self._timestamp: int | None = 0
        self._domain: TimeDomain | None = None

    def timestamp(self) -> int:
        """Return the row's event time, or the timer's time, in epoch milliseconds (rounded down).

        For a row of an input without event time it is None. As in PyFlink, the declared type leaves this case out,
        so that a function may calculate with the result.
        """
        return self._timestamp  # type: ignore[return-value]

    def time_domain(self) -> TimeDomain:
        """Return the time domain of the timer that fires; only valid in ``on_timer``.

        Raises:
            FunctionError: The current element is a row.
        """
        if self._domain is None:
            msg = "ctx.time_domain() is only valid in on_timer: a row has no time domain"
            raise FunctionError(msg)
        return self._domain

    def get_current_key(self) -> Any:
        """Return the current key: its value, or a row where the key has several columns."""
        return self._key

    def timer_service(self) -> TimerService:
        """Return the service for timers and watermarks."""
        return self._timer_service

    def __getattr__(self, name: str) -> NoReturn:
        # Python calls this only for a name that does not exist.
        known = _as_in_python(name)
        if known.startswith("get_") and known.endswith("state"):
            msg = f"ctx.{name} can't be called in a callback: declare states in open(self, ctx), and keep them on self"
            raise FunctionError(msg)
        if name == "output":
            msg = "ctx.output does not exist: yield (tag, row) for a side output, as in PyFlink"
            raise FunctionError(msg)
        if known in _OF_TIMERS:
            msg = f"a context has no {name!r}: it is ctx.timer_service().{known}()"
        else:
            own = [each for each in vars(Context) if not each.startswith("_")]
            msg = f"a context has no {name!r}{did_you_mean(known, own)}"
        raise AttributeError(msg)


class KeyedCoProcessFunction:
    """A function over two keyed inputs with state and timers. Subclass it; every callback is optional.

    The callbacks return None or an iterable of rows; usually they are generators. A row is a tuple or a dict that fits
    the ``output_type``, or ``(OutputTag, row)`` for a side output. ``open`` and ``close`` emit no rows.

    >>> class Latest(KeyedCoProcessFunction):
    ...     def open(self, ctx):
    ...         self.customer = ctx.get_state(ValueStateDescriptor("customer", "tier string"))
    ...     def process_element1(self, trade, ctx):
    ...         yield trade.trade_id, self.customer.value()
    ...     def process_element2(self, customer, ctx):
    ...         self.customer.update({"tier": customer.tier})
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states. It is called once in each call of a key group, before the first element."""

    def process_element1(self, value: Row, ctx: Context) -> Iterable[Any] | None:
        """Process a row of the first (left) input."""

    def process_element2(self, value: Row, ctx: Context) -> Iterable[Any] | None:
        """Process a row of the second (right) input."""

    def on_timer(self, timestamp: int, ctx: Context) -> Iterable[Any] | None:
        """Process a timer that fires.

        Args:
            timestamp: The timer's time in epoch milliseconds.
            ctx: The context; ``ctx.time_domain()`` returns the timer's time domain.
        """

    def close(self) -> None:
        """Release what ``open`` acquired. It is called at the end of each call, also after an error."""


def check_callbacks(function: KeyedCoProcessFunction) -> None:
    """Refuse a method with almost the name of a missing callback, such as ``on_timers``: nothing would call it."""
    kind = type(function)
    lacking = [name for name in _CALLBACKS if getattr(kind, name) is getattr(KeyedCoProcessFunction, name)]
    for name in dir(kind):
        if name in _CALLBACKS or name.startswith("_") or not _takes_two(getattr(kind, name)):
            continue
        likeness = {each: difflib.SequenceMatcher(None, _as_in_python(name), each).ratio() for each in _CALLBACKS}
        nearest = [each for each in _CALLBACKS if likeness[each] == max(likeness.values()) >= _NEARLY]
        if nearest and all(each in lacking for each in nearest):
            msg = (
                f"{kind.__name__}.{name} would never be called; did you mean {' or '.join(nearest)}? If not, "
                f"rename it, since the names are too similar"
            )
            raise ConfigurationError(msg)


def own_copy(function: KeyedCoProcessFunction) -> KeyedCoProcessFunction:
    """Return a copy of a function for one call, so that its attributes carry nothing over to the next call."""
    try:
        return copy.deepcopy(function)
    except Exception as error:
        msg = (
            f"{type(function).__name__} can't be copied ({type(error).__name__}: {error}), and every call of a key "
            f"group has its own copy; open files and connections in open(), and close them in close()"
        )
        raise FunctionError(msg) from error


def _takes_two(member: Any) -> bool:
    """Return whether a method can be called with two values, as the callbacks are."""
    try:
        inspect.signature(member).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return inspect.isfunction(member)


def _as_in_python(name: str) -> str:
    """Return a name in PyFlink's spelling: Flink's ``currentWatermark`` becomes ``current_watermark``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_RESERVED = ("main", "output", "rejected", "progress", "control", "manifest", "spark", "state", "execute", "calls")


@dataclass(frozen=True)
class OutputTag:
    """The name of a side output and its columns.

    Attributes:
        tag_id: Its name: letters, digits, ``-`` and ``_``, beginning with a letter. Without a sink, the output is
            written to the checkpoint's folder ``side_outputs/<tag_id>``.
        output_type: Its columns, as DDL, a ``StructType`` or an Arrow schema.
        schema: Its columns as an Arrow schema.

    Raises:
        ConfigurationError: The name is invalid or reserved.
        SchemaError: The columns do not parse.

    >>> OutputTag("unknown-customers", "trade_id long, customer_id string").schema.names
    ['trade_id', 'customer_id']
    """

    tag_id: str
    output_type: Any = field(compare=False, repr=False)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tag_id, str) or not _NAME.fullmatch(self.tag_id) or self.tag_id in _RESERVED:
            msg = (
                f"OutputTag: expected a name of letters, digits, '-' and '_' that begins with a letter and is none of "
                f"{', '.join(_RESERVED)}, got {self.tag_id!r}"
            )
            raise ConfigurationError(msg)
        object.__setattr__(self, "schema", as_schema(self.output_type, f"side output {self.tag_id!r}"))


def check_tags(tags: Any, label: str) -> tuple[OutputTag, ...]:
    """Return the tags that a function declares, after checking them."""
    is_one = isinstance(tags, (OutputTag, str, bytes)) or not hasattr(tags, "__iter__")
    declared = (tags,) if is_one else tuple(tags)
    for tag in declared:
        if not isinstance(tag, OutputTag):
            msg = f"{label}: side_outputs: expected OutputTags, got {tag!r}"
            raise ConfigurationError(msg)
    names = [tag.tag_id.lower() for tag in declared]
    if len(set(names)) < len(names):
        msg = (
            f"{label}: side_outputs: two tags have the same name, apart from upper and lower case, in "
            f"{', '.join(tag.tag_id for tag in declared)}"
        )
        raise ConfigurationError(msg)
    return declared


def encode_outputs(
    yielded: list[Any], main: pa.Schema, tags: Sequence[OutputTag], owner: str
) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the rows that a function yielded as one table for each output: the side outputs, then the main output.

    The main output has the name None. A side output without rows is left out.
    """
    rows = yielded
    if tags:
        rows, beside = _split(yielded, tags, owner)
        for tag in tags:
            if beside[tag.tag_id]:
                yield tag.tag_id, encode_rows(beside[tag.tag_id], tag.schema, f"{owner}, side output {tag.tag_id!r}")
    try:
        table = encode_rows(rows, main, owner)
    except FunctionError:
        _split(rows, tags, owner)
        raise
    yield None, table


def _split(yielded: list[Any], tags: Sequence[OutputTag], owner: str) -> tuple[list[Any], dict[str, list[Any]]]:
    main: list[Any] = []
    beside: dict[str, list[Any]] = {tag.tag_id: [] for tag in tags}
    for item in yielded:
        if type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag):
            tag, row = item
            if tag not in tags:
                if declared := [known.schema for known in tags if known.tag_id == tag.tag_id]:
                    columns, own = schema_to_ddl(declared[0]), schema_to_ddl(tag.schema)
                    msg = (
                        f'{owner}: yielded to the side output {tag.tag_id!r} with the columns "{own}", but it was '
                        f'declared with "{columns}"; make one OutputTag, and use it in both places'
                    )
                    raise FunctionError(msg)
                names = [known.tag_id for known in tags]
                near = did_you_mean(tag.tag_id, names)
                msg = (
                    f"{owner}: yielded to the side output {tag.tag_id!r}, which was not declared{near}; declare this "
                    f"tag: process(..., side_outputs=[...])"
                )
                raise FunctionError(msg)
            beside[tag.tag_id].append(row)
        else:
            main.append(item)
    return main, beside
