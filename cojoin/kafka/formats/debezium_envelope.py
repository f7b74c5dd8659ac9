"""Debezium's envelope as rows: which columns of it are read, and Spark's expressions that make versions and deletes.

The row of a create, an update or a snapshot read is ``after``, that of a delete is ``before``. An update that moves a
row to another key is two rows: a delete of ``before`` and a version. (Debezium itself writes two events where the
table's own primary key changes; a join's key may be another column.) An event of another kind, or one without its row,
has a fault.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import ChangeFeed
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

__all__ = ["CHANGED_AT", "FEED", "ChangeRow", "change_row", "envelope_of", "payload_of", "row_of"]

CHANGED_AT = "_source_timestamp"
"""The column with the time of the change in the database, beside the row's own and ``DELETED``."""

FEED = ChangeFeed(CHANGED_AT)
"""The events as a change feed. Their order is that of their offsets."""

_SOURCE = pa.struct([("ts_ms", pa.int64())])
_VERSIONS = ("c", "u", "r")


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


class ChangeRow(NamedTuple):
    """The expressions of a change event.

    Attributes:
        row: The row, as a struct.
        deleted: Whether it is a delete; null where there is no event.
        changed_at: The time of the change in the database.
        problem: What is wrong with the event, as a text; null where nothing is.
        former: The row before an update, as a struct; null for other events.
    """

    row: Column
    deleted: Column
    changed_at: Column
    problem: Column
    former: Column

    def rows(self, names: Sequence[str], key: Sequence[str], *, is_good: Column) -> Column:
        """Return an array of the event's rows, each a struct of ``row`` and ``deleted``.

        An update that moves the row to another key deletes the former key's, where ``before`` has that key.

        Args:
            names: The row's columns.
            key: The key columns, as the user has named them; others than the row's are the same before and after.
            is_good: Whether the event can be decoded.
        """
        one = F.struct(self.row.alias("row"), self.deleted.alias("deleted"))
        wanted = {each.lower() for each in key}
        own = [name for name in names if name.lower() in wanted]
        if not own:
            return F.array(one)
        before = [self.former.getField(name) for name in own]
        moved = reduce(or_, (was != self.row.getField(name) for was, name in zip(before, own, strict=True)))
        # Where the new key is null, the comparison is, too, and the row has left the key all the same.
        moved = reduce(and_, (was.isNotNull() for was in before), is_good & F.coalesce(moved, F.lit(True)))
        deletion = F.struct(self.former.alias("row"), F.lit(True).alias("deleted"))
        return F.when(moved, F.array(deletion, one)).otherwise(F.array(one))


def change_row(event: Column, *, may_be_wrapped: bool) -> ChangeRow:
    """Return the expressions that make an event a row.

    Args:
        event: The envelope, as a struct.
        may_be_wrapped: Whether the envelope may be in its field ``payload``.
    """

    def part(name: str) -> Column:
        own = event.getField(name)
        return F.coalesce(event.getField("payload").getField(name), own) if may_be_wrapped else own

    op, before, after = part("op"), part("before"), part("after")
    row = F.when(op == F.lit("d"), before).when(op.isin(*_VERSIONS), after)
    problem = (
        F.when(event.isNull(), F.lit(None).cast("string"))
        .when(op.isNull(), F.lit("it has no op: expected Debezium's envelope"))
        .when(~op.isin("d", *_VERSIONS), F.concat(F.lit("its op is no c, u, r or d: got "), op))
        .when(row.isNull(), F.concat(F.lit("it has no row: op "), op, F.lit(", and before or after is null")))
    )
    former = F.when(op == F.lit("u"), before)
    return ChangeRow(row, op == F.lit("d"), F.timestamp_millis(part("source").getField("ts_ms")), problem, former)
