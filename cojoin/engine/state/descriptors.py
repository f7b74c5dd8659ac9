"""State descriptors: the name, type and time-to-live of each state that a function declares.

Types are Spark DDL, an Arrow type or a PySpark ``DataType``. A checkpoint identifies a state by its name, and restores
it only as a type that the stored one can become. Names are PyFlink's (``pyflink.datastream.state``); in place of its
``enable_time_to_live`` every descriptor has ``ttl=``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from cojoin.engine.state.ttl import StateTtlConfig, check_ttl, timed_type
from cojoin.engine.values.types import parse_type
from cojoin.errors import ConfigurationError

ReduceFunction: TypeAlias = Callable[[Any, Any], Any]
"""Combines the value so far with a new one; or an object whose method ``reduce`` does, as in PyFlink."""


class AggregateFunction(ABC):
    """Aggregates values in an accumulator, as PyFlink's ``pyflink.datastream.functions.AggregateFunction``.

    An accumulator must fit the state's ``accumulator_type``. ``add`` and ``get_result`` receive it as the state returns
    it, so a struct is an immutable row. They may change lists and dicts in it, because these are copies or no longer
    used.

    >>> class Mean(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return (0.0, 0)
    ...     def add(self, value, accumulator):
    ...         return accumulator.total + value, accumulator.count + 1
    ...     def get_result(self, accumulator):
    ...         return accumulator.total / accumulator.count
    >>> AggregatingStateDescriptor("mean", Mean(), "total double, count long").name
    'mean'
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return an accumulator without values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with one more value."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result for an accumulator, of any type."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return the accumulator of both; keyed states never call it, but PyFlink's functions have it."""
        raise NotImplementedError


@dataclass(frozen=True)
class StateDescriptor:
    """The name of a state and, for all kinds, its time-to-live.

    Raises:
        ConfigurationError: The name is not a string or empty, or the time-to-live is not a ``StateTtlConfig``.
    """

    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            msg = (
                f"{type(self).__name__}: name: expected a name that is not empty, got {self.name!r}; a checkpoint "
                f"finds the state by it"
            )
            raise ConfigurationError(msg)
        check_ttl(self.ttl, self._label)

    @property
    def _label(self) -> str:
        return f"state {self.name!r}"


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """One value for each key.

    >>> ValueStateDescriptor("customer", "tier string, since timestamp", ttl=StateTtlConfig("30 days")).name
    'customer'
    """

    value_type: Any


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """A list of elements for each key; a time-to-live applies to each element.

    >>> ListStateDescriptor("trades", "amount double, at timestamp").name
    'trades'
    """

    element_type: Any


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor):
    """A map from user keys to values for each key, in the order of insertion; a time-to-live applies to each user key.

    >>> MapStateDescriptor("totals", "string", "double").name
    'totals'
    """

    key_type: Any
    value_type: Any


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value for each key, reduced from all that were added.

    Raises:
        ConfigurationError: The function can't be called.

    >>> ReducingStateDescriptor("total", lambda total, amount: total + amount, "double").name
    'total'
    """

    reduce_function: ReduceFunction | Any
    value_type: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if reducer(self) is None:
            msg = (
                f"{self._label}: reduce_function: expected a function of two values, or an object with a method "
                f"reduce, got {self.reduce_function!r}"
            )
            raise ConfigurationError(msg)


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator for each key, of all values that were added.

    Raises:
        ConfigurationError: The function is not an ``AggregateFunction``.
    """

    aggregate_function: AggregateFunction
    accumulator_type: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.aggregate_function, AggregateFunction):
            hint = "; make an instance of it" if isinstance(self.aggregate_function, type) else ""
            msg = (
                f"{self._label}: aggregate_function: expected an instance of an AggregateFunction, "
                f"got {self.aggregate_function!r}{hint}"
            )
            raise ConfigurationError(msg)


def stored_type(descriptor: StateDescriptor) -> pa.DataType:
    """Return the Arrow type of one key's entry in a descriptor's state, including its last accesses."""

    def timed(declared: Any) -> pa.DataType:
        return timed_type(_arrow_type(declared, descriptor), descriptor.ttl)

    if isinstance(descriptor, ListStateDescriptor):
        return pa.list_(timed(descriptor.element_type))
    if isinstance(descriptor, MapStateDescriptor):
        return pa.map_(_arrow_type(descriptor.key_type, descriptor), timed(descriptor.value_type))
    if isinstance(descriptor, AggregatingStateDescriptor):
        return timed(descriptor.accumulator_type)
    assert isinstance(descriptor, (ValueStateDescriptor, ReducingStateDescriptor))
    return timed(descriptor.value_type)


def reducer(descriptor: ReducingStateDescriptor) -> ReduceFunction | None:
    """Return the function of two values; None where ``reduce_function`` does not provide one."""
    function = descriptor.reduce_function
    # A ufunc is called, since its ``reduce`` means something else; a class with ``reduce`` should be an instance.
    if callable(function) and not (isinstance(function, type) and hasattr(function, "reduce")):
        return function
    return None if isinstance(function, type) else getattr(function, "reduce", None)


def _arrow_type(declared: Any, descriptor: StateDescriptor) -> pa.DataType:
    if isinstance(declared, pa.DataType):
        return declared
    # PySpark's types return their own DDL, so the engine accepts them without importing PySpark.
    spelled = declared.simpleString() if hasattr(declared, "simpleString") else declared
    return parse_type(spelled, label=f"state {descriptor.name!r}")
