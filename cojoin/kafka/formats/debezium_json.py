"""Values of Debezium's JSON events that can be read only by the event's own schema, as texts that Spark reads.

Kafka Connect writes a decimal as the base64 of its digits, and Debezium a time as a number, of days up to nanoseconds.
What they mean is in the event's ``schema``, as Connect's converter writes it by default. A value that its column can't
hold exactly is a fault, and so is a number for a time that no schema explains, which Spark would take for seconds. It
costs some 50 microseconds an event with a schema, and nothing where the row has neither decimals nor times.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.kafka.formats.wire_format import undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.kafka.formats.decoding import Heads

__all__ = ["DebeziumJson", "needs_schema"]

_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_MICROS = {
    "org.apache.kafka.connect.data.Timestamp": (1_000, 1),
    "io.debezium.time.Timestamp": (1_000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1_000),
}
"""For a type of times, the factor and the divisor that make microseconds of its numbers."""

_DAYS = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a text without a zone is read as UTC
_SIDES = ("before", "after")
_MOST_DIGITS = 400
_WHOLE = re.compile(r"-?[0-9]{1,30}")


def needs_schema(dtype: pa.DataType) -> bool:
    """Return whether only an event's schema explains some values of a type."""
    types = pa.types
    return _has(dtype, lambda each: bool(types.is_decimal(each) or types.is_timestamp(each) or types.is_date(each)))


def _has(dtype: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Return whether the predicate holds for a type or a type nested in it."""
    if pa.types.is_struct(dtype):
        return any(_has(field.type, is_one) for field in dtype)
    return _has(dtype.value_type, is_one) if pa.types.is_list(dtype) else is_one(dtype)


class _Number(str):
    """A number as JSON spells it."""

    __slots__ = ()


@dataclass(frozen=True)
class DebeziumJson:
    """Converts events that carry a schema into events that Spark reads; it is sent to the workers.

    Attributes:
        row: The row's columns.
    """

    row: pa.StructType

    @property
    def has_times(self) -> bool:
        """True if the row has times, which may be numbers."""
        return _has(self.row, lambda dtype: bool(pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)))

    @property
    def dtype(self) -> pa.DataType:
        """The type of JSON."""
        return pa.binary()

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the events; one with a value that its column can't hold is null and becomes a fault."""
        del heads
        found: list[bytes | None] = [*values]
        has_times = self.has_times
        for at, value in enumerate(values):
            # PostgreSQL's source also has a field "schema".
            if value is None or not (has_times or (b'"schema"' in value and b'"payload"' in value)):
                continue
            try:
                found[at] = self._explained(value)
            except _MisfitError as error:
                found[at], faults[at] = None, undecodable(f"the value's {error}")
            except ValueError as error:
                found[at], faults[at] = None, undecodable(f"the value is no JSON: {error}")
            except RecursionError:
                found[at], faults[at] = None, undecodable("the value is nested too deeply to be read")
        return pa.array(found, pa.binary())

    def _explained(self, value: bytes) -> bytes:
        event = json.loads(value.decode(), parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        if not isinstance(event, dict):
            return value
        schemas = _fields(event.get("schema"))
        payload = event["payload"] if isinstance(event.get("payload"), dict) else event
        made = {
            side: _converted(payload[side], schemas.get(side, {}), self.row, "row")
            for side in _SIDES
            if isinstance(payload.get(side), dict)
        }
        return _spelled({"payload": {**payload, **made}}).encode() if schemas else value


def _fields(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of a struct's schema by name."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    listed = fields if isinstance(fields, list) else []
    return {str(each["field"]): each for each in listed if isinstance(each, dict) and "field" in each}


class _MisfitError(Exception):
    """A value is not what its schema says, or its column can't hold it."""


def _converted(  # noqa: PLR0911 - one for each form
    value: Any, schema: dict[str, Any], dtype: pa.DataType, place: str
) -> Any:
    """Return a value in the form in which Spark reads it as a type."""
    types, name = pa.types, str(schema.get("name"))
    if value is None:
        return None
    if types.is_struct(dtype) and isinstance(value, dict):
        parts, known = _fields(schema), {field.name: field.type for field in dtype}
        return {
            own: _converted(each, parts.get(own, {}), known[own], f"field {own!r}") if own in known else each
            for own, each in value.items()
        }
    if types.is_list(dtype) and isinstance(value, list):
        items = schema.get("items")
        inner = items if isinstance(items, dict) else {}
        return [_converted(each, inner, dtype.value_type, f"an element of {place}") for each in value]
    if types.is_decimal(dtype) and name == _DECIMAL and not isinstance(value, _Number):
        parameters = schema.get("parameters")
        return _decimal(value, parameters.get("scale") if isinstance(parameters, dict) else None, dtype, place)
    if types.is_decimal(dtype) and name == _VARIABLE and isinstance(value, dict):
        return _decimal(value.get("value"), value.get("scale"), dtype, place)
    if isinstance(value, _Number) and (types.is_timestamp(dtype) or types.is_date(dtype)):
        return _time(value, name, dtype, place)
    return value


def _time(value: _Number, name: str, dtype: pa.DataType, place: str) -> str:
    """Return a time as a text, in UTC: of a type without a zone Spark takes it as it stands."""
    if not _WHOLE.fullmatch(value) or name not in (_DAYS if pa.types.is_date(dtype) else _MICROS):
        msg = (
            f"{place} is the number {value:.40}, and no schema of the event says which time that is: set "
            f"schemas.enable=true in its converter, or read it as a bigint and convert it"
        )
        raise _MisfitError(msg)
    units, per_micro = (_DAY, 1) if pa.types.is_date(dtype) else _MICROS[name]
    try:
        moment = _EPOCH + timedelta(microseconds=int(value) * units // per_micro)
    except OverflowError:
        msg = f"{place} is a time beyond the years 1 to 9999"
        raise _MisfitError(msg) from None
    return moment.isoformat(timespec="microseconds")[: 10 if pa.types.is_date(dtype) else None]


def _decimal(value: Any, scale: Any, dtype: pa.DataType, place: str) -> _Number:
    if not isinstance(value, str) or isinstance(value, _Number) or not _WHOLE.fullmatch(str(scale)):
        msg = f"{place}: expected the base64 of a decimal and its scale, got {value!r:.40} and {scale!r:.40}"
        raise _MisfitError(msg)
    try:
        digits = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    except ValueError:
        msg = f"{place}: expected the base64 of a decimal, got {value!r:.40}"
        raise _MisfitError(msg) from None
    shift = int(scale)
    if abs(shift) > _MOST_DIGITS or digits.bit_length() > 3 * _MOST_DIGITS:
        msg = f"{place} has too many digits for {type_to_ddl(dtype)}"
        raise _MisfitError(msg)
    sign, text = "-" if digits < 0 else "", str(abs(digits))
    number = Decimal(f"{sign}{text}E{-shift}")
    whole = number.as_integer_ratio()
    shifted = whole[0] * 10**dtype.scale
    if shifted % whole[1] or abs(shifted // whole[1]) >= 10**dtype.precision:
        msg = f"{place} is {number}, which {type_to_ddl(dtype)} can't hold"
        raise _MisfitError(msg)
    return _Number(f"{number:f}")


def _spelled(value: Any) -> str:
    """Return JSON with numbers as they were spelled."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_spelled(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spelled, value)) + "]"
    return json.dumps(value)
