"""Values of Debezium's JSON events that can be read only by the event's own schema, as texts that Spark reads.

Kafka Connect writes a decimal as the base64 of its digits, and Debezium a time as a number, of days up to nanoseconds.
What they mean is in the event's ``schema``, as Connect's converter writes it by default. A value that its column can't
hold exactly is a fault. So is a number for a time that no schema explains, which Spark would take for seconds, and a
text for a decimal that is a number as well as base64, such as "1234"; any other text is only one of them. It costs some
50 microseconds an event with a schema, and nothing where the row has neither decimals nor times.
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

    from cojoin.kafka.formats.decoding import FramedJson, Heads

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
_AMBIGUOUS = re.compile(r"(?:[0-9eE+]{4})+")
"""A text that may be a number, and the base64 of one."""

_MAY_BE_AMBIGUOUS = re.compile(rb'"(?:[0-9eE+]{4})+"|\\u')
_IN_CONVERTER = "set schemas.enable=true in its converter, or "


def needs_schema(dtype: pa.DataType) -> bool:
    """Return whether only an event's schema explains some values of a type."""
    types = pa.types
    return _has(dtype, lambda each: bool(types.is_decimal(each) or types.is_timestamp(each) or types.is_date(each)))


def _has(dtype: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Return whether the predicate holds for a type or a type nested in it."""
    if pa.types.is_struct(dtype):
        return any(_has(field.type, is_one) for field in dtype)
    if pa.types.is_map(dtype):
        return _has(dtype.item_type, is_one)
    return _has(dtype.value_type, is_one) if pa.types.is_list(dtype) else is_one(dtype)


class _Number(str):
    """A number as JSON spells it."""

    __slots__ = ()


@dataclass(frozen=True)
class DebeziumJson:
    """Converts events that carry a schema into events that Spark reads; it is sent to the workers.

    Attributes:
        row: The row's columns.
        framed: Takes the events out of another format; None where the values are they. No schema is beside those.
    """

    row: pa.StructType
    framed: FramedJson | None = None

    @property
    def has_times(self) -> bool:
        """True if the row has times, which may be numbers."""
        return _has(self.row, lambda dtype: bool(pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)))

    @property
    def hint(self) -> str:
        """The cure of decimals that no schema explains, for messages."""
        if self.framed is not None:
            return "decimals in base64 are not read: set decimal.format=NUMERIC in its converter"
        return "decimals in base64 are read by the event's schema: set schemas.enable=true in its converter"

    @property
    def dtype(self) -> pa.DataType:
        """The type of JSON."""
        return pa.binary()

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the events; one with a value that its column can't hold is null and becomes a fault."""
        found = [*values] if self.framed is None else self.framed.decode(values, faults, heads).to_pylist()
        for at, value in enumerate(found):
            if value is None or not self._is_looked_at(value):
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

    def _is_looked_at(self, value: bytes) -> bool:
        # PostgreSQL's source has a field "schema", too.
        may_have_schema = b'"schema"' in value and b'"payload"' in value
        return self.has_times or may_have_schema or _MAY_BE_AMBIGUOUS.search(value) is not None

    def _explained(self, value: bytes) -> bytes:
        event = json.loads(value.decode(), parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        if not isinstance(event, dict):
            return value
        schemas = _fields(event.get("schema"))
        payload = event["payload"] if isinstance(event.get("payload"), dict) else event
        convert = _Conversion("" if self.framed is not None else _IN_CONVERTER)
        # Of an envelope in two places each field is read where it is.
        made, *_ = [
            {
                side: convert(holder[side], schemas.get(side, {}), self.row, "row")
                for side in _SIDES
                if isinstance(holder.get(side), dict)
            }
            for holder in ([event] if payload is event else [payload, event])
        ]
        return _spelled({"payload": {**payload, **made}}).encode() if schemas else value


def _fields(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of a struct's schema by name."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    listed = fields if isinstance(fields, list) else []
    return {str(each["field"]): each for each in listed if isinstance(each, dict) and "field" in each}


class _MisfitError(Exception):
    """A value is not what its schema says, or its column can't hold it."""


@dataclass(frozen=True)
class _Conversion:
    """Returns values in the form in which Spark reads them as a type.

    Attributes:
        cure: What gives events a schema, for messages.
    """

    cure: str

    def __call__(  # noqa: PLR0911 - one for each form
        self, value: Any, schema: dict[str, Any], dtype: pa.DataType, place: str
    ) -> Any:
        types, name = pa.types, str(schema.get("name"))
        if value is None:
            return None
        if types.is_struct(dtype) and isinstance(value, dict):
            parts, known = _fields(schema), {field.name: field.type for field in dtype}
            return {
                own: self(each, parts.get(own, {}), known[own], f"field {own!r}") if own in known else each
                for own, each in value.items()
            }
        if types.is_list(dtype) and isinstance(value, list):
            inner = _part(schema, "items")
            return [self(each, inner, dtype.value_type, f"an element of {place}") for each in value]
        if types.is_map(dtype) and isinstance(value, dict):
            inner = _part(schema, "values")
            return {own: self(each, inner, dtype.item_type, f"a value of {place}") for own, each in value.items()}
        if types.is_decimal(dtype) and name == _DECIMAL and not isinstance(value, _Number):
            return _decimal(value, _part(schema, "parameters").get("scale"), dtype, place)
        if types.is_decimal(dtype) and name == _VARIABLE and isinstance(value, dict):
            return _decimal(value.get("value"), value.get("scale"), dtype, place)
        if isinstance(value, _Number):
            is_time = types.is_timestamp(dtype) or types.is_date(dtype)
            return self._time(value, name, dtype, place) if is_time else value
        if types.is_decimal(dtype) and isinstance(value, str) and schema.get("type") != "string":
            self._check_text(value, place)
        return value

    def _time(self, value: _Number, name: str, dtype: pa.DataType, place: str) -> str:
        """Return a time as a text, in UTC: of a type without a zone Spark takes it as it stands."""
        is_date = pa.types.is_date(dtype)
        if name not in _MICROS and name not in _DAYS:
            msg = (
                f"{place} is the number {value:.40}, and no schema of the event says which time that is: {self.cure}"
                f"read it as a bigint and convert it"
            )
            raise _MisfitError(msg)
        if not _WHOLE.fullmatch(value) or (name in _DAYS) != is_date:
            msg = (
                f"{place} is the number {value:.40}, by its schema {name}: expected a whole number of "
                f"{'days' if is_date else 'milliseconds, microseconds or nanoseconds'}, for {type_to_ddl(dtype)}"
            )
            raise _MisfitError(msg)
        units, per_micro = (_DAY, 1) if is_date else _MICROS[name]
        try:
            moment = _EPOCH + timedelta(microseconds=int(value) * units // per_micro)
        except OverflowError:
            msg = f"{place} is a time beyond the years 1 to 9999"
            raise _MisfitError(msg) from None
        return moment.isoformat(timespec="microseconds")[: 10 if is_date else None]

    def _check_text(self, value: str, place: str) -> None:
        """Check that a text for a decimal is not both a number and base64."""
        if _AMBIGUOUS.fullmatch(value):
            msg = (
                f"{place} is the text {value!r:.40}, which is a number or the base64 of one, and no schema of the "
                f"event says which: {self.cure}read it as a string and convert it"
            )
            raise _MisfitError(msg)


def _part(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


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
