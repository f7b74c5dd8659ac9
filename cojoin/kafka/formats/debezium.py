"""Debezium's envelope as rows: the fields that are read, expressions for versions and deletes, and JSON by its schema.

The row of a create, an update or a snapshot read is ``after``, that of a delete is ``before``. An update that moves a
row to another key is two rows: a delete of ``before`` and a version. (Debezium itself writes two events where the
table's own primary key changes; a join's key may be another column.) An event of another kind, or one without its row,
has a fault.

Where rows have known times, an update that moves the event time back is a fault (``moved_back``), as in a Delta table's
feed; it is noticed only if the event has the row before it. Rows that Debezium has read in its initial snapshot are
known from the beginning of time then (``EARLIEST``), unless they are to be known at the snapshot. Those of an
incremental snapshot, which is taken in the midst of the changes, are known when they were read.

PostgreSQL does not log a large value that an update leaves as it is, unless the table's replica identity is full, and
Debezium writes a placeholder for it. A row with a placeholder is rejected, or gets nulls instead and is counted, as the
user chooses. A delete needs only its key.

In JSON, Kafka Connect writes a decimal as the base64 of its digits, and Debezium a time as a number, of days up to
nanoseconds. What they mean is in the event's ``schema``, as Connect's converter writes it by default; such values
become texts that Spark reads. A value that its column can't hold exactly is a fault; only nanoseconds are cut to
microseconds. Without a schema, a number for a time is a fault, since Spark would read it as seconds. So is a text for a
decimal that is both a number and base64, such as "1234". It costs some 50 microseconds an event with a schema, and
nothing where the row has neither decimals nor times.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from hashlib import md5
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import EARLIEST, ChangeFeed
from cojoin.engine.time.control_rows import UNAVAILABLE
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.wire_format import undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column

    from cojoin.kafka.formats.decoding import FramedJson, Heads


Unavailable: TypeAlias = Literal["reject", "null"]
"""The treatment of a row with a value that Debezium could not read.

- *reject*: it goes to the ``rejected`` output as ``unavailable_value``, with the names of its columns.
- *null*: the value is null, and the row is counted as ``unavailable``. A key is rejected all the same.
"""

CHANGED_AT = "_source_timestamp"
"""The column with the time of the change in the database, next to the row's own and ``DELETED``."""

FEED = ChangeFeed(CHANGED_AT)
"""The events as a change feed. Their order is that of their offsets."""

_MILLIS, _SNAPSHOT = pa.field("ts_ms", pa.int64()), pa.field("snapshot", pa.string())
_SOURCE = pa.struct([_MILLIS, _SNAPSHOT])
_VERSIONS = ("c", "u", "r")
_ROW, _FORMER = "__cojoin_row", "__cojoin_former"


@dataclass(frozen=True)
class ChangeReading:
    """The reading of the events for one input.

    Attributes:
        key: The input's key columns. Those that are not in the row do not change with an update.
        event_time: The column of the event time, where rows have known times; None elsewhere, or if it is computed.
        snapshot_first: Whether the rows of the initial snapshot are known from the beginning of time.
        max_ahead_ms: By how much event times may be ahead of the clock; None without a limit. A row beyond it was
            rejected, so an update of it moves nothing back.
    """

    key: tuple[str, ...] = ()
    event_time: str | None = None
    snapshot_first: bool = False
    max_ahead_ms: int | None = None

    def own(self, columns: pa.StructType) -> list[str]:
        """Return the key columns that are in the row."""
        wanted = {each.lower() for each in self.key}
        return [field.name for field in columns if field.name.lower() in wanted]

    def moved_back(self, row: Column, former: Column, columns: pa.StructType) -> Column:
        """Return a text if an update has moved the row's event time back within its key; else null."""
        nothing, wanted = F.lit(None).cast("string"), (self.event_time or "").lower()
        name = next((field.name for field in columns if field.name.lower() == wanted), None)
        if name is None:
            return nothing
        was, now = former.getField(name), row.getField(name)
        same = [former.getField(each).eqNullSafe(row.getField(each)) for each in self.own(columns)]
        if self.max_ahead_ms is not None:
            # The time of the batch, which is the same when it is run again.
            same.append(F.unix_millis(was) <= F.unix_millis(F.current_timestamp()) + F.lit(self.max_ahead_ms))
        # As JSON in UTC, so that the text does not depend on the session's time zone.
        times = F.to_json(F.struct(was.alias("before"), now.alias("after")), {"timeZone": "UTC"})
        why = F.lit("; by known times the new row would never match, since the former one is later")
        return F.when(
            reduce(and_, same, now < was), F.concat(F.lit(f"an update has moved {name!r} back: "), times, why)
        )


def envelope_of(row: pa.StructType, source: pa.StructType = _SOURCE) -> pa.StructType:
    """Return the type of a row's envelope, with only the fields that are read."""
    return pa.struct([("before", row), ("after", row), ("op", pa.string()), ("source", source)])


def payload_of(envelope: pa.StructType) -> pa.StructType:
    """Return the type of JSON that is an envelope, or has it in ``payload``."""
    return pa.struct([*envelope, ("payload", envelope)])


def row_of(envelope: pa.StructType, label: str) -> tuple[pa.StructType, pa.StructType]:
    """Return the envelope's type with only the fields that are read, and the row's; raise SchemaError for others."""
    types = {field.name: field.type for field in envelope}
    row = types.get("after")
    if row is None or not pa.types.is_struct(row) or types.get("op") != pa.string():
        names = ", ".join(types) or "none"
        msg = f"{label}: expected Debezium's envelope with before, after, op and source, got the fields {names}"
        raise SchemaError(msg)
    before, source = types.get("before"), types.get("source")
    if before is None or not before.equals(row):
        msg = f"{label}: expected Debezium's envelope, whose before has the fields of after, got {before}"
        raise SchemaError(msg)
    fields = {each.name: each.type for each in source} if source is not None and pa.types.is_struct(source) else {}
    if fields.get(_MILLIS.name) != _MILLIS.type:
        msg = f"{label}: expected Debezium's envelope with source.ts_ms, a bigint, got {source}"
        raise SchemaError(msg)
    return envelope_of(row, _SOURCE if fields.get(_SNAPSHOT.name) == _SNAPSHOT.type else pa.struct([_MILLIS])), row


@dataclass(frozen=True)
class Placeholder:
    """The value that Debezium writes where the database's log has none, in each type that has a form of it.

    ``text`` is the connector's setting ``unavailable.value.placeholder``, ``instead`` the treatment of a row that has
    one.
    """

    text: str = "__debezium_unavailable_value"
    instead: Unavailable = "reject"

    def stands_in(self, value: Column, dtype: pa.DataType) -> Column | None:  # noqa: PLR0911 - one for each form
        """Return whether a value, or a field of a struct, is a placeholder; None if its type has no placeholder."""
        types, content = pa.types, self.text.encode()
        texts = [self.text, b64encode(content).decode(), json.dumps({self.text: self.text}, separators=(",", ":"))]
        if types.is_string(dtype):
            return value.isin(*texts)
        if types.is_binary(dtype):
            return value == F.lit(content)
        if types.is_struct(dtype):
            parts = (self.stands_in(value.getField(each.name), each.type) for each in dtype)
            known = [F.coalesce(each, F.lit(False)) for each in parts if each is not None]
            return reduce(or_, known) if known else None
        if types.is_map(dtype) and types.is_string(dtype.key_type):
            return F.coalesce(F.map_keys(value) == F.array(F.lit(self.text)), F.lit(False))
        if not types.is_list(dtype):
            return None
        if types.is_string(dtype.value_type):
            one = UUID(bytes=md5(content, usedforsecurity=False).digest(), version=3)
            return (F.size(value) == 1) & F.get(value, F.lit(0)).isin(*texts, str(one))
        if types.is_binary(dtype.value_type):
            return (F.size(value) == 1) & (F.get(value, F.lit(0)) == F.lit(content))
        if types.is_integer(dtype.value_type):
            return value == F.array(*map(F.lit, content)).cast(type_to_ddl(dtype))
        return None

    def why(self, columns: Column, *, of_key: bool) -> Column:
        """Return the reason why a row is rejected; ``columns`` is the text of the columns that have placeholders.

        Key columns (``of_key``) can't be read as null instead.
        """
        advice = "" if of_key else ', or read it with debezium(..., unavailable="null")'
        cure = f"; set REPLICA IDENTITY FULL for the table (PostgreSQL){advice}"
        return F.concat(F.lit("column "), columns, F.lit(f": the database's log does not hold its value{cure}"))


class ChangeRow(NamedTuple):
    """The expressions of a change event: its row, whether it is a delete, and the time of the change in the database.

    ``deleted`` is null without an event. ``problem`` is a text; null if the event is valid. ``missing`` is a text: the
    reason why a needed value is unavailable, or null. ``moved_back`` is a text where an update has moved the event time
    back, or null. ``former`` is the row before an update; null for other events. ``has_nulls`` is true if values of the
    row are null because they are unavailable. ``key`` has the row's key columns.
    """

    row: Column
    deleted: Column
    changed_at: Column
    problem: Column
    former: Column
    missing: Column
    moved_back: Column
    has_nulls: Column
    key: Sequence[str]

    def rows(self, *, is_good: Column) -> Column:
        """Return an array of the event's rows, each a struct of ``row``, ``deleted`` and ``note``.

        An update that moves the row to another key also deletes the former key's row, if ``before`` has that key. A row
        whose unavailable values are null is followed by its copy with a note, which is counted. ``is_good`` is false
        for an event with a fault.
        """
        nothing = F.lit(None).cast("string").alias("note")
        one = F.struct(self.row.alias("row"), self.deleted.alias("deleted"), nothing)
        changes = F.array(one)
        if self.key:
            before = [self.former.getField(name) for name in self.key]
            moved = reduce(or_, (was != self.row.getField(name) for was, name in zip(before, self.key, strict=True)))
            # Where the new key is null, the comparison is also null; the row has left its key there.
            moved = reduce(and_, (was.isNotNull() for was in before), is_good & F.coalesce(moved, F.lit(True)))
            deletion = F.struct(self.former.alias("row"), F.lit(True).alias("deleted"), nothing)
            changes = F.when(moved, F.array(deletion, one)).otherwise(changes)
        note = F.struct(self.row.alias("row"), self.deleted.alias("deleted"), F.lit(UNAVAILABLE).alias("note"))
        return F.when(is_good & self.has_nulls, F.concat(changes, F.array(note))).otherwise(changes)


def change_sides(event: Column, *, may_be_wrapped: bool) -> dict[str, Column]:
    """Return the columns that ``change_row`` needs besides the event: the row, and the row before an update.

    As columns of the frame they are computed once, although each column of the row uses them. The envelope may be in
    the event's ``payload`` if it ``may_be_wrapped``.
    """
    op, before, after = (_envelope_part(event, name, may_be_wrapped) for name in ("op", "before", "after"))
    row = F.when(op == F.lit("d"), before).when(op.isin(*_VERSIONS), after)
    return {_ROW: row, _FORMER: F.when(op == F.lit("u"), before)}


def _envelope_part(event: Column, name: str, may_be_wrapped: bool) -> Column:
    own = event.getField(name)
    return F.coalesce(event.getField("payload").getField(name), own) if may_be_wrapped else own


def change_row(
    event: Column,
    envelope: pa.StructType,
    columns: pa.StructType,
    reading: ChangeReading,
    placeholder: Placeholder,
    *,
    may_be_wrapped: bool,
) -> ChangeRow:
    """Return the expressions that convert an event to a row; the frame must have the columns of ``change_sides``.

    The envelope may be in the event's ``payload`` if it ``may_be_wrapped``.
    """
    own = reading.own(columns)
    op, row, former = _envelope_part(event, "op", may_be_wrapped), F.col(_ROW), F.col(_FORMER)
    source = _envelope_part(event, "source", may_be_wrapped)
    millis = source.getField(_MILLIS.name)
    # Spark's timestamp_millis would end the query at a number that is not a time.
    micros = F.try_multiply(millis, F.lit(1000))
    problem = (
        F.when(event.isNull(), F.lit(None).cast("string"))
        .when(op.isNull(), F.lit("it has no op: expected Debezium's envelope"))
        .when(~op.isin("d", *_VERSIONS), F.concat(F.lit("its op is not c, u, r or d: got "), op))
        .when(
            millis.isNotNull() & micros.isNull(),
            F.concat(F.lit("its source.ts_ms is not a time in milliseconds: got "), millis.cast("string")),
        )
        .when(row.isNull(), F.concat(F.lit("it has no row: op "), op, F.lit(", and its before (d) or after is null")))
    )
    changed_at, deleted, nulls = F.timestamp_micros(micros), op == F.lit("d"), placeholder.instead == "null"
    everywhere = _standing([row], columns, placeholder, None)
    of_key = _standing([row, former], columns, placeholder, own)
    is_missing = (everywhere != F.lit("")) & ~deleted & F.lit(not nulls)
    missing = F.when(of_key != F.lit(""), placeholder.why(of_key, of_key=True)).when(
        is_missing, placeholder.why(everywhere, of_key=False)
    )
    has_nulls = F.coalesce((everywhere != F.lit("")) & ~deleted, F.lit(False)) & F.lit(nulls)
    if reading.snapshot_first:
        is_initial = op == F.lit("r")
        if _SNAPSHOT in envelope.field("source").type:
            is_initial &= F.coalesce(source.getField(_SNAPSHOT.name) != F.lit("incremental"), F.lit(True))
        changed_at = F.when(is_initial & changed_at.isNotNull(), F.timestamp_micros(F.lit(EARLIEST))).otherwise(
            changed_at
        )
    without = [_without(side, columns, placeholder) for side in (row, former)]
    moved_back = reading.moved_back(row, former, columns)
    return ChangeRow(without[0], deleted, changed_at, problem, without[1], missing, moved_back, has_nulls, own)


def _standing(
    rows: Sequence[Column], columns: pa.StructType, placeholder: Placeholder, names: Sequence[str] | None
) -> Column:
    """Return a text of those columns of ``names`` (None: all) that have a placeholder in a row; it may be empty."""
    standing = []
    for field in columns:
        if names is None or field.name in names:
            of_rows = (placeholder.stands_in(row.getField(field.name), field.type) for row in rows)
            if known := [stands for stands in of_rows if stands is not None]:
                standing.append(F.when(reduce(or_, known), F.lit(repr(field.name))))
    return F.concat_ws(" and ", *standing) if standing else F.lit("")


def _without(row: Column, columns: pa.StructType, placeholder: Placeholder) -> Column:
    parts = []
    for field in columns:
        value = row.getField(field.name)
        stands = placeholder.stands_in(value, field.type)
        kept = value if stands is None else F.when(~F.coalesce(stands, F.lit(False)), value)
        parts.append(kept.alias(field.name))
    return F.when(row.isNotNull(), F.struct(*parts))


_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_MICROS = {
    "org.apache.kafka.connect.data.Timestamp": (1_000, 1),
    "io.debezium.time.Timestamp": (1_000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1_000),
}
"""For each type of times, the factor and the divisor that convert its numbers to microseconds."""

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
    return _has(dtype, lambda leaf: bool(types.is_decimal(leaf) or types.is_timestamp(leaf) or types.is_date(leaf)))


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

    ``framed`` decodes events that are wrapped in another format, and have no schemas; None if the values are the
    events.
    """

    row: pa.StructType
    framed: FramedJson | None = None

    @property
    def has_times(self) -> bool:
        """True if the row has times, which may be numbers."""
        return _has(self.row, lambda dtype: bool(pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)))

    @property
    def hint(self) -> str:
        """Advice for messages about decimals that no schema explains."""
        if self.framed is not None:
            return "decimals in base64 are not read: set decimal.format=NUMERIC in its converter"
        return "decimals in base64 are read by the event's schema: set schemas.enable=true in its converter"

    @property
    def dtype(self) -> pa.DataType:
        """The type of the decoded events, which are JSON."""
        return pa.binary()

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the events; an event with a value that its column can't hold is null, and its fault is set."""
        events = [*values] if self.framed is None else self.framed.decode(values, faults, heads).to_pylist()
        for at, value in enumerate(events):
            if value is None or not self._is_looked_at(value):
                continue
            try:
                events[at] = self._explained(value)
            except _ValueMisfitError as error:
                events[at], faults[at] = None, undecodable(f"the value's {error}")
            except ValueError as error:
                events[at], faults[at] = None, undecodable(f"the value is not JSON: {error}")
            except RecursionError:
                events[at], faults[at] = None, undecodable("the value is nested too deeply to be read")
        return pa.array(events, pa.binary())

    def _is_looked_at(self, value: bytes) -> bool:
        # "schema" alone is not enough: the source block of PostgreSQL's events has a field of that name.
        may_have_schema = b'"schema"' in value and b'"payload"' in value
        return self.has_times or may_have_schema or _MAY_BE_AMBIGUOUS.search(value) is not None

    def _explained(self, value: bytes) -> bytes:
        event = json.loads(value.decode(), parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        if not isinstance(event, dict):
            return value
        schemas = _fields(event.get("schema"))
        payload = event["payload"] if isinstance(event.get("payload"), dict) else event
        convert = _Conversion("" if self.framed is not None else _IN_CONVERTER)
        # The fields of an envelope may be in the payload and in the event.
        beside = {name: part for name, part in event.items() if name not in ("schema", "payload")}
        holders = [payload] if payload is event else [payload, beside]
        inner, *outer = [
            holder
            | {
                side: convert(holder[side], schemas.get(side, {}), self.row, "row")
                for side in _SIDES
                if isinstance(holder.get(side), dict)
            }
            for holder in holders
        ]
        return _spelled({**(outer[0] if outer else {}), "payload": inner}).encode() if schemas else value


def _fields(schema: Any) -> dict[str, dict[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    listed = fields if isinstance(fields, list) else []
    return {str(each["field"]): each for each in listed if isinstance(each, dict) and "field" in each}


class _ValueMisfitError(Exception):
    """A value does not fit its schema, or its column can't hold it."""


@dataclass(frozen=True)
class _Conversion:
    """Converts values to the form that Spark reads as a type; ``cure`` is the advice for events without a schema."""

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
                own: self(part, parts.get(own, {}), known[own], f"field {own!r}") if own in known else part
                for own, part in value.items()
            }
        if types.is_list(dtype) and isinstance(value, list):
            inner = _schema_part(schema, "items")
            return [self(part, inner, dtype.value_type, f"an element of {place}") for part in value]
        if types.is_map(dtype) and isinstance(value, dict):
            inner = _schema_part(schema, "values")
            return {own: self(part, inner, dtype.item_type, f"a value of {place}") for own, part in value.items()}
        if types.is_decimal(dtype) and name == _DECIMAL and not isinstance(value, _Number):
            return _decimal(value, _schema_part(schema, "parameters").get("scale"), dtype, place)
        if types.is_decimal(dtype) and name == _VARIABLE and isinstance(value, dict):
            return _decimal(value.get("value"), value.get("scale"), dtype, place)
        if isinstance(value, _Number):
            is_time = types.is_timestamp(dtype) or types.is_date(dtype)
            return self._time(value, name, dtype, place) if is_time else value
        if types.is_decimal(dtype) and isinstance(value, str) and schema.get("type") != "string":
            self._check_text(value, place)
        return value

    def _time(self, value: _Number, name: str, dtype: pa.DataType, place: str) -> str:
        """Return a time as a text in UTC; for a type without a zone, Spark reads the text unchanged."""
        is_date = pa.types.is_date(dtype)
        if name not in _MICROS and name not in _DAYS:
            msg = (
                f"{place} is the number {value:.40}, and the event has no schema that defines the time: {self.cure}"
                f"read it as a bigint and convert it"
            )
            raise _ValueMisfitError(msg)
        if not _WHOLE.fullmatch(value) or (name in _DAYS) != is_date:
            msg = (
                f"{place} is the number {value:.40}, by its schema {name}: expected a whole number of "
                f"{'days' if is_date else 'milliseconds, microseconds or nanoseconds'}, for {type_to_ddl(dtype)}"
            )
            raise _ValueMisfitError(msg)
        units, per_micro = (_DAY, 1) if is_date else _MICROS[name]
        try:
            moment = _EPOCH + timedelta(microseconds=int(value) * units // per_micro)
        except OverflowError:
            msg = f"{place} is a time beyond the years 1 to 9999"
            raise _ValueMisfitError(msg) from None
        return moment.isoformat(timespec="microseconds")[: 10 if is_date else None]

    def _check_text(self, value: str, place: str) -> None:
        """Check that a text for a decimal is not both a number and base64."""
        if _AMBIGUOUS.fullmatch(value):
            msg = (
                f"{place} is the text {value!r:.40}, which is a number or the base64 of one, and the event has no "
                f"schema that defines it: {self.cure}read it as a string and convert it"
            )
            raise _ValueMisfitError(msg)


def _schema_part(schema: dict[str, Any], name: str) -> dict[str, Any]:
    part = schema.get(name)
    return part if isinstance(part, dict) else {}


def _decimal(value: Any, scale: Any, dtype: pa.DataType, place: str) -> _Number:
    if not isinstance(value, str) or isinstance(value, _Number) or not _WHOLE.fullmatch(str(scale)):
        msg = f"{place}: expected the base64 of a decimal and its scale, got {value!r:.40} and {scale!r:.40}"
        raise _ValueMisfitError(msg)
    try:
        digits = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    except ValueError:
        msg = f"{place}: expected the base64 of a decimal, got {value!r:.40}"
        raise _ValueMisfitError(msg) from None
    shift = int(scale)
    if abs(shift) > _MOST_DIGITS or digits.bit_length() > 3 * _MOST_DIGITS:
        msg = f"{place} has too many digits for {type_to_ddl(dtype)}"
        raise _ValueMisfitError(msg)
    sign, text = "-" if digits < 0 else "", str(abs(digits))
    number = Decimal(f"{sign}{text}E{-shift}")
    whole = number.as_integer_ratio()
    shifted = whole[0] * 10**dtype.scale
    if shifted % whole[1] or abs(shifted // whole[1]) >= 10**dtype.precision:
        msg = f"{place} is {number}, which {type_to_ddl(dtype)} can't hold"
        raise _ValueMisfitError(msg)
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
