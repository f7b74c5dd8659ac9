"""Debezium's envelope as rows: which columns of it are read, and Spark's expressions that make versions and deletes.

The row of a create, an update or a snapshot read is ``after``, that of a delete is ``before``. An update that moves a
row to another key is two rows: a delete of ``before`` and a version. (Debezium itself writes two events where the
table's own primary key changes; a join's key may be another column.) An event of another kind, or one without its row,
has a fault.

PostgreSQL does not log a large value that an update leaves as it is, unless the table's replica identity is full, and
Debezium writes a placeholder for it. A row with a placeholder is rejected, or gets nulls instead and is counted, as the
user chooses. Of a delete only the key is needed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from functools import reduce
from hashlib import md5
from operator import and_, or_
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import ChangeFeed
from cojoin.engine.time.control_rows import UNAVAILABLE
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

__all__ = [
    "CHANGED_AT",
    "FEED",
    "ChangeRow",
    "Placeholder",
    "Unavailable",
    "change_row",
    "change_sides",
    "envelope_of",
    "payload_of",
    "row_of",
]

Unavailable: TypeAlias = Literal["reject", "null"]
"""The treatment of a row with a value that Debezium could not read.

- *reject*: it goes to the ``rejected`` output as ``unavailable_value``, with the names of its columns.
- *null*: the value is null, and the row is counted as ``unavailable``. A key is rejected all the same.
"""

CHANGED_AT = "_source_timestamp"
"""The column with the time of the change in the database, beside the row's own and ``DELETED``."""

FEED = ChangeFeed(CHANGED_AT)
"""The events as a change feed. Their order is that of their offsets."""

_SOURCE = pa.struct([("ts_ms", pa.int64())])
_VERSIONS = ("c", "u", "r")
_ROW, _FORMER = "__cojoin_row", "__cojoin_former"


def envelope_of(row: pa.StructType) -> pa.StructType:
    """Return the envelope of a row, so far as it is read."""
    return pa.struct([("before", row), ("after", row), ("op", pa.string()), ("source", _SOURCE)])


def payload_of(envelope: pa.StructType) -> pa.StructType:
    """Return the type of JSON that is an envelope, or has it in ``payload``."""
    return pa.struct([*envelope, ("payload", envelope)])


def row_of(envelope: pa.StructType, what: str) -> tuple[pa.StructType, pa.StructType]:
    """Return what is read of an envelope, and the row's columns.

    Raises:
        SchemaError: It is no envelope of Debezium's.
    """
    types = {field.name: field.type for field in envelope}
    row = types.get("after")
    if row is None or not pa.types.is_struct(row) or types.get("op") != pa.string():
        names = ", ".join(types) or "none"
        msg = f"{what}: expected Debezium's envelope with before, after, op and source, got the fields {names}"
        raise SchemaError(msg)
    before, source = types.get("before"), types.get("source")
    if before is None or not before.equals(row):
        msg = f"{what}: expected Debezium's envelope, whose before has the fields of after, got {before}"
        raise SchemaError(msg)
    fields = {each.name: each.type for each in source} if source is not None and pa.types.is_struct(source) else {}
    if fields.get("ts_ms") != pa.int64():
        msg = f"{what}: expected Debezium's envelope with source.ts_ms, a bigint, got {source}"
        raise SchemaError(msg)
    return envelope_of(row), row


@dataclass(frozen=True)
class Placeholder:
    """The value that Debezium writes where the database's log has none, in each type that has a form of it.

    Attributes:
        text: The connector's setting ``unavailable.value.placeholder``.
        instead: What happens to a row that has one.
    """

    text: str = "__debezium_unavailable_value"
    instead: Unavailable = "reject"

    def stands_in(self, value: Column, dtype: pa.DataType) -> Column | None:  # noqa: PLR0911 - one for each form
        """Return whether a value, or a part of a struct, is a placeholder; None where its type has no form of one."""
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
        """Return why a row with placeholders is rejected, as a text.

        Args:
            columns: The names of the columns that have one.
            of_key: Whether they are of the key, which can't be null.
        """
        advice = "" if of_key else ', or read it with debezium(..., unavailable="null")'
        cure = f"; set REPLICA IDENTITY FULL for the table (PostgreSQL){advice}"
        return F.concat(F.lit("column "), columns, F.lit(f": the database's log does not hold its value{cure}"))


class ChangeRow(NamedTuple):
    """The expressions of a change event.

    Attributes:
        row: The row, as a struct.
        deleted: Whether it is a delete; null where there is no event.
        changed_at: The time of the change in the database.
        problem: What is wrong with the event, as a text; null where nothing is.
        former: The row before an update, as a struct; null for other events.
        missing: Why a value that is needed is unavailable, as a text; null where all are there.
        has_nulls: Whether values of the row are null because they are unavailable.
        key: The key columns of the row.
    """

    row: Column
    deleted: Column
    changed_at: Column
    problem: Column
    former: Column
    missing: Column
    has_nulls: Column
    key: Sequence[str]

    def rows(self, *, is_good: Column) -> Column:
        """Return an array of the event's rows, each a struct of ``row``, ``deleted`` and ``note``.

        An update that moves the row to another key deletes the former key's, where ``before`` has that key. A row whose
        unavailable values are null is followed by one with only a note, which is counted.

        Args:
            is_good: Whether the event can be decoded.
        """
        nothing = F.lit(None).cast("string").alias("note")
        one = F.struct(self.row.alias("row"), self.deleted.alias("deleted"), nothing)
        found = F.array(one)
        if self.key:
            before = [self.former.getField(name) for name in self.key]
            moved = reduce(or_, (was != self.row.getField(name) for was, name in zip(before, self.key, strict=True)))
            # Where the new key is null, the comparison is also null; the row has left its key there.
            moved = reduce(and_, (was.isNotNull() for was in before), is_good & F.coalesce(moved, F.lit(True)))
            deletion = F.struct(self.former.alias("row"), F.lit(True).alias("deleted"), nothing)
            found = F.when(moved, F.array(deletion, one)).otherwise(found)
        note = F.struct(self.row.alias("row"), self.deleted.alias("deleted"), F.lit(UNAVAILABLE).alias("note"))
        return F.when(is_good & self.has_nulls, F.concat(found, F.array(note))).otherwise(found)


def change_sides(event: Column, *, may_be_wrapped: bool) -> dict[str, Column]:
    """Return the columns that ``change_row`` needs besides the event: the row, and the row before an update.

    They are columns because each is used for each of the row's columns.

    Args:
        event: The envelope, as a struct.
        may_be_wrapped: Whether the envelope may be in its field ``payload``.
    """
    op, before, after = (_part(event, name, may_be_wrapped) for name in ("op", "before", "after"))
    row = F.when(op == F.lit("d"), before).when(op.isin(*_VERSIONS), after)
    return {_ROW: row, _FORMER: F.when(op == F.lit("u"), before)}


def _part(event: Column, name: str, may_be_wrapped: bool) -> Column:
    own = event.getField(name)
    return F.coalesce(event.getField("payload").getField(name), own) if may_be_wrapped else own


def change_row(
    event: Column, columns: pa.StructType, key: Sequence[str], placeholder: Placeholder, *, may_be_wrapped: bool
) -> ChangeRow:
    """Return the expressions that make an event a row.

    Args:
        event: The envelope, as a struct, beside which there are the columns of ``change_sides``.
        columns: The row's columns.
        key: The key columns, as the user has named them; others than the row's are the same before and after.
        placeholder: What stands for values that are unavailable.
        may_be_wrapped: Whether the envelope may be in its field ``payload``.
    """
    wanted = {each.lower() for each in key}
    own = [field.name for field in columns if field.name.lower() in wanted]
    op, row, former = _part(event, "op", may_be_wrapped), F.col(_ROW), F.col(_FORMER)
    millis = _part(event, "source", may_be_wrapped).getField("ts_ms")
    # Spark's timestamp_millis would end the query at a number that is not a time.
    micros = F.try_multiply(millis, F.lit(1000))
    problem = (
        F.when(event.isNull(), F.lit(None).cast("string"))
        .when(op.isNull(), F.lit("it has no op: expected Debezium's envelope"))
        .when(~op.isin("d", *_VERSIONS), F.concat(F.lit("its op is no c, u, r or d: got "), op))
        .when(
            millis.isNotNull() & micros.isNull(),
            F.concat(F.lit("its source.ts_ms is not a time in milliseconds: got "), millis.cast("string")),
        )
        .when(row.isNull(), F.concat(F.lit("it has no row: op "), op, F.lit(", and before or after is null")))
    )
    changed_at, deleted, nulls = F.timestamp_micros(micros), op == F.lit("d"), placeholder.instead == "null"
    everywhere = _standing(row, columns, placeholder, None)
    of_sides = [F.nullif(_standing(side, columns, placeholder, own), F.lit("")) for side in (row, former)]
    of_key = F.concat_ws(" and ", *of_sides)
    is_missing = (everywhere != F.lit("")) & ~deleted & F.lit(not nulls)
    missing = F.when(of_key != F.lit(""), placeholder.why(of_key, of_key=True)).when(
        is_missing, placeholder.why(everywhere, of_key=False)
    )
    has_nulls = F.coalesce((everywhere != F.lit("")) & ~deleted, F.lit(False)) & F.lit(nulls)
    without = [_without(side, columns, placeholder) for side in (row, former)]
    return ChangeRow(without[0], deleted, changed_at, problem, without[1], missing, has_nulls, own)


def _standing(row: Column, columns: pa.StructType, placeholder: Placeholder, names: Sequence[str] | None) -> Column:
    """Return the names of a row's columns that have a placeholder, in a text, which is empty where none has.

    Args:
        row: The row, as a struct.
        columns: Its columns.
        placeholder: What stands for values that are unavailable.
        names: The columns that are looked at; None looks at all.
    """
    found = [
        F.when(stands, F.lit(repr(field.name)))
        for field in columns
        if (names is None or field.name in names)
        and (stands := placeholder.stands_in(row.getField(field.name), field.type)) is not None
    ]
    return F.concat_ws(" and ", *found) if found else F.lit("")


def _without(row: Column, columns: pa.StructType, placeholder: Placeholder) -> Column:
    """Return a row whose placeholders are null."""
    parts = []
    for field in columns:
        value = row.getField(field.name)
        stands = placeholder.stands_in(value, field.type)
        kept = value if stands is None else F.when(~F.coalesce(stands, F.lit(False)), value)
        parts.append(kept.alias(field.name))
    return F.when(row.isNotNull(), F.struct(*parts))
