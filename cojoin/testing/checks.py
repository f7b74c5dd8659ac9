"""Checks of the arguments of a harness before anything runs: input numbers, times, keys and partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from cojoin.engine.local import local_run
from cojoin.engine.values.encoding import coercer
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, FunctionError, SchemaError, did_you_mean
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.time.operator_watermark import InputWatermark

__all__ = [
    "Partition",
    "check_inputs",
    "check_instance",
    "epoch_millis",
    "found_partition",
    "input_number",
    "key_values",
    "partition_name",
    "refuse_finished",
    "unfinished",
]

Partition: TypeAlias = str | tuple[Any, ...] | None
"""A source partition: its name, or a tuple of its columns' values. Each method says what None means."""


def check_instance(operation: Any) -> None:
    """Raise an error if the operation is a class and not an instance.

    Raises:
        ConfigurationError: It is a class.
    """
    if isinstance(operation, type):
        msg = f"operation: expected an instance such as {operation.__name__}(), got the class {operation.__name__}"
        raise ConfigurationError(msg)


def check_inputs(left: InputSpec, right: InputSpec) -> None:
    """Check that two inputs have different names and comparable keys.

    Raises:
        ConfigurationError: The inputs have the same name.
        SchemaError: The types of their key columns differ.
    """
    if left.name == right.name:
        msg = (
            f"input1, input2: both are named {left.name!r}; give them different names, by which messages and rejected "
            f"rows tell them apart"
        )
        raise ConfigurationError(msg)
    first, second = ([(name, type_to_ddl(spec.schema.field(name).type)) for name in spec.key] for spec in (left, right))
    if [kind for _, kind in first] != [kind for _, kind in second]:
        shown = " and ".join(
            f"{', '.join(f'{name} {kind}' for name, kind in columns)} in input {spec.name!r}"
            for columns, spec in ((first, left), (second, right))
        )
        msg = f"key: expected the same types in both inputs, got {shown}; declare the columns alike, or cast one"
        raise SchemaError(msg)


def input_number(number: Any) -> Literal[1, 2]:
    """Return the number of an input, checked.

    Raises:
        HarnessError: It is neither 1 nor 2.
    """
    if isinstance(number, bool) or number not in (1, 2):
        msg = f"expected input 1 or 2, got {number!r}"
        raise HarnessError(msg)
    return cast("Literal[1, 2]", number)


def epoch_millis(value: Any, what: str, *, clock: bool = False) -> int:
    """Return a watermark or a processing time as an int, in epoch milliseconds.

    Args:
        value: A whole number.
        what: What the number is, for the message.
        clock: Whether it is a processing time, which must not be negative.

    Raises:
        HarnessError: It is not a whole number of 64 bits, or is negative as a processing time.
    """
    try:
        return local_run.epoch_millis(value, what, clock=clock)
    except ConfigurationError as error:
        raise HarnessError(str(error)) from None


def key_values(key: Any, spec: InputSpec) -> tuple[Any, ...]:
    """Return the values of the key columns as a tuple.

    Args:
        key: The value of the key column; a tuple or row if there are several key columns.
        spec: The input whose key columns these are.

    Raises:
        HarnessError: The values do not fit the key columns.
    """
    fields = [spec.schema.field(name) for name in spec.key]
    values = (key,) if len(fields) == 1 else key
    if not isinstance(values, tuple) or len(values) != len(fields):
        msg = f"key: expected a tuple of {', '.join(spec.key)}, got {key!r}"
        raise HarnessError(msg)
    for field, value in zip(fields, values, strict=True):
        kind = type_to_ddl(field.type)
        try:
            fits = value is not None and coercer(field.type, "")(value) == value
        except FunctionError:
            fits = False
        if not fits:
            msg = f"key column {field.name!r}: expected {kind}, got {value!r} ({type(value).__name__})"
            raise HarnessError(msg)
    return values


def partition_name(partition: Any) -> str:
    """Return a source partition's name, as the map side spells it: the JSON of its columns' values; "" for None.

    Raises:
        HarnessError: The partition is neither a name nor a tuple of values.

    >>> partition_name(("trades", 0))
    '["trades", 0]'
    """
    if partition is None:
        return ""
    if isinstance(partition, str):
        return partition
    if isinstance(partition, (tuple, list)):
        return json.dumps(list(partition), default=str)
    msg = f"partition: expected its name, or a tuple of its columns' values such as ({partition!r},), got {partition!r}"
    raise HarnessError(msg)


def unfinished(watermark: InputWatermark) -> list[str]:
    """Return the names of an input's source partitions that are not finished."""
    return [name for name, status in watermark.statuses().items() if status != "finished"]


def refuse_finished(watermark: InputWatermark, what: str, partition: str | None = None) -> None:
    """Raise an error if an input, or the named one of its source partitions, is finished.

    Args:
        watermark: The input's watermark.
        what: The input, for the message.
        partition: The name of the source partition; None checks only the input.

    Raises:
        HarnessError: The input or the partition is finished.
    """
    if "finished" in (watermark.status(), partition is not None and watermark.statuses().get(partition)):
        named = f", partition {partition!r}" if partition else ""
        msg = f"{what}{named}: it is finished, and that is for good: nothing comes from it any more"
        raise HarnessError(msg)


def found_partition(partition: Any, known: Mapping[str, Any], number: int) -> str:
    """Return the name of a known source partition.

    Args:
        partition: Its name, or a tuple of its columns' values.
        known: The known partitions, by name.
        number: The input's number, for the message.

    Raises:
        HarnessError: The partition is not known.
    """
    name = partition_name(partition)
    if name not in known:
        there = f"known are {', '.join(map(repr, known))}" if known else "it has none yet"
        msg = f"input {number} has no source partition {name!r}; {there}{did_you_mean(name, known)}"
        raise HarnessError(msg)
    return name
