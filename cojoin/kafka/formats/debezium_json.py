"""Values of Debezium's JSON events that only the schema beside them explains, as texts that Spark reads.

Kafka Connect writes a decimal as the base64 of its digits, and Debezium a time as a number, of days up to nanoseconds.
What they mean is in the event's ``schema``, as Connect's converter writes it by default. Events without a schema go on
as they are, and so do events whose row has no column of these types, and those without any such field. A value that its
column can't hold exactly is a fault. It costs some 50 microseconds an event that has a schema and such a field.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.kafka.formats.wire_format import undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.kafka.formats.decoding import Heads

__all__ = ["DebeziumJson", "needs_schema"]

_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_MICROS = {
    "org.apache.kafka.connect.data.Timestamp": (1_000, 1),
    "io.debezium.time.Timestamp": (1_000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1_000),
}
"""How many microseconds so many units of a time are."""

_DAYS = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
_SIGNS = [name.encode() for name in (_DECIMAL, _VARIABLE, *_MICROS, *_DAYS)]
_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a text without a zone is read as UTC
_SIDES = ("before", "after")
_MOST_DIGITS = 400


def needs_schema(dtype: pa.DataType) -> bool:
    """Return whether only an event's schema explains some values of a type."""
    types = pa.types
    if types.is_struct(dtype):
        return any(needs_schema(field.type) for field in dtype)
    if types.is_list(dtype):
        return needs_schema(dtype.value_type)
    return bool(types.is_decimal(dtype) or types.is_timestamp(dtype) or types.is_date(dtype))


class _Number(str):
    """A number as JSON spells it."""

    __slots__ = ()


@dataclass(frozen=True)
class DebeziumJson:
    """Makes events whose values have a schema beside them events that Spark reads; it is sent to the workers.

    Attributes:
        row: The row's columns.
    """

    row: pa.StructType

    @property
    def dtype(self) -> pa.DataType:
        """The type of JSON."""
        return pa.binary()

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the events; one with a value that its column can't hold is null and becomes a fault."""
        del heads
        found: list[bytes | None] = [*values]
        for at, value in enumerate(values):
            if value is None or b'"schema"' not in value or not any(sign in value for sign in _SIGNS):
                continue
            try:
                found[at] = self._explained(value)
            except _MisfitError as error:
                found[at], faults[at] = None, undecodable(f"the value's {error}")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                pass  # What is no such event is left to Spark, which tells what it is.
        return pa.array(found, pa.binary())

    def _explained(self, value: bytes) -> bytes:
        event = json.loads(value.decode(), parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        payload, schemas = event["payload"], {each["field"]: each for each in event["schema"]["fields"]}
        for side in _SIDES:
            if isinstance(payload.get(side), dict):
                payload[side] = _converted(payload[side], schemas[side], self.row, "")
        return _spelled({"payload": payload}).encode()


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
        parts = {each["field"]: each for each in schema.get("fields", ())}
        known = {field.name: field.type for field in dtype}
        return {
            own: _converted(each, parts[own], known[own], f"field {own!r}") if own in known and own in parts else each
            for own, each in value.items()
        }
    if types.is_list(dtype) and isinstance(value, list):
        return [_converted(each, schema.get("items", {}), dtype.value_type, f"an element of {place}") for each in value]
    if types.is_decimal(dtype) and name == _DECIMAL and not isinstance(value, _Number):
        return _decimal(value, int(schema["parameters"]["scale"]), dtype, place)
    if types.is_decimal(dtype) and name == _VARIABLE:
        return _decimal(value["value"], int(value["scale"]), dtype, place)
    if types.is_timestamp(dtype) and name in _MICROS and isinstance(value, _Number):
        units, per_micro = _MICROS[name]
        return _moment(int(value) * units // per_micro, place)
    if types.is_date(dtype) and name in _DAYS and isinstance(value, _Number):
        return _moment(int(value) * _DAY, place)[:10]
    return value


def _moment(micros: int, place: str) -> str:
    """Return a time as a text, in UTC: of a type without a zone Spark takes it as it stands."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    except OverflowError:
        msg = f"{place} is a time beyond the years 1 to 9999"
        raise _MisfitError(msg) from None


def _decimal(value: Any, scale: int, dtype: pa.DataType, place: str) -> _Number:
    if not isinstance(value, str):
        msg = f"{place}: expected the base64 of a decimal, got {value!r:.40}"
        raise _MisfitError(msg)
    try:
        digits = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    except ValueError:
        msg = f"{place}: expected the base64 of a decimal, got {value!r:.40}"
        raise _MisfitError(msg) from None
    if abs(scale) > _MOST_DIGITS or digits.bit_length() > 3 * _MOST_DIGITS:
        msg = f"{place} has too many digits for {type_to_ddl(dtype)}"
        raise _MisfitError(msg)
    sign, text = "-" if digits < 0 else "", str(abs(digits))
    number = Decimal(f"{sign}{text}E{-scale}")
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
