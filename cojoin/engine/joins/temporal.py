"""The temporal join: each left row with the version of the right that was in force at its event time, deletes included.

It keeps left rows until the watermark passes them, and of each key's versions the newest at or below the watermark. It
emits each left row once, when the watermark reaches the row's timestamp.

A version is in force from its own microsecond until the next version of its key. A *tombstone* (``deletes``,
``null_payload_deletes``) ends the version before it and matches nothing. Of several versions in one microsecond, the
last in the total order is in force, whether it is a tombstone or not. Where neither the source's sequence nor a commit
orders them, tombstones come last. A state that an earlier release has written, which ordered them by their content,
keeps that order: its header has no ``"deletes"``.

It forgets a left row when the row is emitted, and a version when a newer one is in force. It forgets a tombstone in
force at once, since a key without any version matches nothing either. With ``retention``, it forgets every version once
the watermark is that far after the version's event time; a row later than that does not match the version, whether it
was forgotten or not.

A late left row is rejected. A late version is applied, since it is valid for every row to come. If it is older than a
forgotten tombstone, it brings its key back, except with ``retention``: then a tombstone is kept as long as any version
that it ends could match.

Where versions have known times (``known_time``), a version is in force from its effective time on, until one with a
later event time is effective. A tombstone is then kept like a version, since a version before it may become known after
it, which costs a row of state for each deleted key, or with ``retention`` for those of its span.

It costs a sort of the batch's rows, a merge with the versions kept, and then a binary search for each left row, or for
each version where these are fewer; no Python for each row. (Flink's event-time temporal table join, ``FOR SYSTEM_TIME
AS OF``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.joins.output_columns import Suffixes, allows_no_time, check_how, joined_schema, left_order
from cojoin.engine.joins.search import at
from cojoin.engine.joins.versioned import Decision, VersionedJoinOperator
from cojoin.engine.row_changes import EARLIEST
from cojoin.engine.values.arguments import Duration, check_flag, microseconds
from cojoin.engine.values.tables import event_millis
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.ordering import Ranks
    from cojoin.engine.time.operator_watermark import TimePolicy

TemporalHow: TypeAlias = Literal["left", "inner"]
"""What happens to a left row for whose key no version is in force.

- *left*: it is emitted with nulls for the right's columns.
- *inner*: it is not emitted, and counted as done.
"""

_ORDER, _LAST = "deletes", "last"
"""In a state's header: where tombstones come among rows of one microsecond that nothing else orders."""


@dataclass(frozen=True)
class TemporalJoin:
    """The configuration of a temporal join.

    Attributes:
        how: What happens to a left row for whose key no version is in force.
        deletes: The right's boolean column that is true in a tombstone: from the row's event time on, its key has no
            version. Null means false. The result leaves the column out. None means that no column marks tombstones. For
            a right whose rows are versions and deletes (``row_changes``) it is their own column.
        null_payload_deletes: Whether a right row is a tombstone if all its columns are null except its key, event time,
            partition and sequence (and ``deletes``), as in a compacted Kafka topic.
        retention: How long after its event time a version stays in force, itself included, such as ``"90 days"``; it
            bounds the state by the keys of that time. None means until the next version.
        suffixes: The suffixes for names that the left and the right both have; None refuses such names.

    Raises:
        ConfigurationError: A value is invalid.

    >>> TemporalJoin("inner", deletes="closed", retention="1 day").describe()["retention_us"]
    86400000000
    """

    how: TemporalHow = "left"
    deletes: str | None = None
    null_payload_deletes: bool = False
    retention: Duration | None = None
    suffixes: Suffixes | None = None

    def __post_init__(self) -> None:
        check_how(self.how, get_args(TemporalHow))
        if self.deletes is not None and (not isinstance(self.deletes, str) or not self.deletes):
            msg = f"deletes: expected the name of a boolean column of the right input, got {self.deletes!r}"
            raise ConfigurationError(msg)
        check_flag("null_payload_deletes", self.null_payload_deletes)
        if self.retention is not None:
            microseconds(self.retention, "retention")

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the result: the left's, then the right's without its key and the ``deletes`` column."""
        self._check_changes(left, right)
        if self.deletes is not None:
            self._check_deletes(self.deletes, right)
        if self.null_payload_deletes and not self.payload(right):
            msg = (
                f"null_payload_deletes: input {right.name!r} has no columns but its key, event time, partition and "
                f"sequence, so all of its rows would be tombstones; name a boolean column with deletes= instead"
            )
            raise SchemaError(msg)
        timeless = allows_no_time(right, None if self.retention is None else "retention")
        return joined_schema(
            left,
            right,
            self.suffixes,
            how=self.how,
            deletes=self.deletes,
            timeless_right=timeless,
            knows_right=True,
        )

    def output_order(self, left: InputSpec, right: InputSpec) -> tuple[str, ...] | None:
        """Return the columns by which rows are emitted in order over all batches; None for another order."""
        return left_order(left, self.output_schema(left, right))

    def without(self, right: InputSpec) -> tuple[str, ...]:
        """Return the right's columns that the result leaves out, besides its key."""
        return (*(() if self.deletes is None else (self.deletes,)), *right.technical)

    def payload(self, right: InputSpec) -> list[str]:
        """Return the right's columns that are all null in a tombstone of ``null_payload_deletes``."""
        times = {right.event_time, *(() if right.known is None else (right.known.column,))}
        others = {*right.key, *times, right.row_number, *right.source_order, *self.without(right)}
        return [name for name in right.schema.names if name not in others]

    def tombstones(self, table: pa.Table, right: InputSpec) -> NDArray[np.bool_]:
        """Return which rows of the right are tombstones."""
        dead = np.zeros(table.num_rows, dtype=bool)
        if self.null_payload_deletes:
            nulls = [table.column(name).is_null().to_numpy() for name in self.payload(right)]
            dead |= np.logical_and.reduce(nulls)
        if self.deletes is not None:
            dead |= pc.fill_null(table.column(self.deletes), False).to_numpy()
        return dead

    def ranks(self, right: InputSpec) -> Ranks | None:
        """Return the ranks of the right's rows of one microsecond; None if only their order at the source decides."""
        orders_itself = right.changes is not None and right.changes.orders_deletes
        if orders_itself or (self.deletes is None and not self.null_payload_deletes):
            return right.ranks

        def ranks(table: pa.Table) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
            dead = self.tombstones(table, right).astype(np.int8)
            # Without a sequence the source's order is only that of the partitions' names.
            return (dead * 0 if right.sequence else dead), dead

        return ranks

    def _check_changes(self, left: InputSpec, right: InputSpec) -> None:
        """Check that the join accepts the deletes that its inputs mark themselves."""
        if left.changes is not None:
            msg = (
                f"temporal_join: the rows of input {left.name!r} are versions and deletes of a table, to which rows "
                f"are joined; make it the right input"
            )
            raise ConfigurationError(msg)
        if right.changes is None:
            return
        if self.deletes != right.deletes:
            msg = (
                f"deletes: input {right.name!r} marks its deletes itself, in its column {right.deletes!r}; got "
                f"{self.deletes!r}; leave deletes= out of temporal_join"
            )
            raise ConfigurationError(msg)
        if self.retention is not None and right.changes.begins_with_the_first:
            msg = (
                f"retention: the rows of input {right.name!r} that its table has at the start are valid from the "
                f"beginning of time, so each would be too old; leave retention= out, or name a column of the table as "
                f"event_time="
            )
            raise ConfigurationError(msg)

    def _check_deletes(self, column: str, right: InputSpec) -> None:
        if column not in right.schema.names:
            near = did_you_mean(column, right.schema.names)
            msg = f"deletes: input {right.name!r} has no column {column!r}{near}"
            raise SchemaError(msg)
        if not pa.types.is_boolean(right.schema.field(column).type):
            msg = (
                f"deletes: expected a boolean column, got {column!r} of input {right.name!r}, which is "
                f"{right.schema.field(column).type}; add one that is true for a tombstone"
            )
            raise SchemaError(msg)
        if column in right.key:
            msg = f"deletes: expected a column outside the key of input {right.name!r}, got {column!r}"
            raise SchemaError(msg)

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> TemporalJoinOperator:
        """Return the operator of one key group."""
        return TemporalJoinOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must stay the same for a checkpoint to be used again, as JSON values."""
        return {
            "operator": "temporal_join",
            "how": self.how,
            "deletes": self.deletes,
            "null_payload_deletes": self.null_payload_deletes,
            "retention_us": None if self.retention is None else microseconds(self.retention, "retention"),
        }


class TemporalJoinOperator(VersionedJoinOperator):
    """The operator that runs a temporal join for one key group."""

    def __init__(self, join: TemporalJoin, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> None:
        self._join = join
        self._retention = None if join.retention is None else microseconds(join.retention, "retention")
        self._deletes_last = True
        schema, inner = join.output_schema(left, right), join.how == "inner"
        super().__init__((left, right), schema, time, inner=inner, age=self._retention, deletes=join.deletes)

    def _due_at_once(self, spec: InputSpec) -> int:
        # What is valid from the beginning of time need not wait in a buffer, where it would be copied in each batch.
        known = spec.changes is not None and spec.changes.begins_with_the_first
        return EARLIEST // 1_000 if known else super()._due_at_once(spec)

    def _decide(self, left: SortedRows, right: SortedRows) -> Decision:
        matches = self._behind(left, right, self._retention, exact=True)
        deleted = at(self._tombstones(right), matches).astype(bool)
        spec = self.inputs[1]
        if spec.known is not None and spec.known.valid_to is not None:
            deleted |= at(spec.ends(right.table)[right.order], matches) <= left.micros
        return Decision(np.where(deleted, -1, matches), event_millis(left.micros))

    def _retainable(self, right: SortedRows) -> NDArray[np.bool_]:
        """Return which versions to keep: no tombstone, unless a version to come that it ends could still match."""
        if self._retention is None and self.inputs[1].known is None:
            return ~self._tombstones(right)
        return super()._retainable(right)

    def _tombstones(self, right: SortedRows) -> NDArray[np.bool_]:
        """Return which of the sorted versions are tombstones."""
        return self._join.tombstones(right.table, self.inputs[1])[right.order]

    def _right_ranks(self) -> Ranks | None:
        return self._join.ranks(self.inputs[1]) if self._deletes_last else super()._right_ranks()

    def _header(self) -> dict[str, Any]:
        return {**super()._header(), **({_ORDER: _LAST} if self._deletes_last else {})}

    def load(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Restore what ``parts`` returned, and with it the order of tombstones."""
        super().load(header, tables)
        self._deletes_last = header.get(_ORDER) == _LAST
