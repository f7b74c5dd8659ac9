"""The temporal join: each left row with the version of the right that was in force at its event time, deletes included.

Keeps: left rows until the watermark passes them; of each key's versions the newest at or below the watermark. Emits: a
left row when the watermark reaches its timestamp, once. A version is in force from its own microsecond on until the
next one of its key; a *tombstone* (``deletes``, ``null_payload_deletes``) ends the one before it and matches nothing.
Forgets: a left row when emitted; a version when a newer one is in force; a tombstone in force at once, since a key
without any version matches nothing, too; with ``retention`` every version once the watermark is that far after its
event time, and a row later than that does not match it whether it was forgotten or not. Ties: of versions of one
microsecond the last in the total order is in force, a tombstone or not. Late: a left row is rejected; a late version
is applied, being the truth for every row to come; one older than a forgotten tombstone brings its key back, unless
there is a ``retention``: then the tombstone is kept as long as any version that it ends could match. Costs: a sort of
the batch's rows and of the versions kept, then a binary search a left row; no Python per row. (Flink's event-time
temporal table join, ``FOR SYSTEM_TIME AS OF``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.joins.output_columns import Suffixes, joined_schema
from cojoin.engine.joins.search import Neighbours, at
from cojoin.engine.joins.versioned import Decision, VersionedJoinOperator
from cojoin.engine.time.durations import Duration, microseconds
from cojoin.engine.values.choices import check_flag, check_word
from cojoin.engine.values.tables import event_millis
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["TemporalHow", "TemporalJoin", "TemporalJoinOperator"]

TemporalHow: TypeAlias = Literal["left", "inner"]
"""What becomes of a left row for whose key no version is in force.

- *left*: it is emitted with nulls for the right's columns.
- *inner*: it is not emitted, and counted as done.
"""


@dataclass(frozen=True)
class TemporalJoin:
    """The configuration of a temporal join.

    Attributes:
        how: What becomes of a left row for whose key no version is in force.
        deletes: The right's boolean column that is true where a row is a tombstone: from its event time on its key has
            no version. A null is false. The result leaves the column out. None: no column says so.
        null_payload_deletes: Whether a right row is a tombstone whose columns are all null but for its key, event
            time, partition and sequence (and ``deletes``), as in a compacted Kafka topic.
        retention: For how long after its event time a version stays in force, itself included, such as ``"90 days"``;
            it bounds the state by the keys of that time. None: until the next version.
        suffixes: What is appended to equal names of the left and the right; None refuses equal names.

    Raises:
        ConfigurationError: A value that is not one of these.

    >>> TemporalJoin("inner", deletes="closed", retention="1 day").describe()["retention_us"]
    86400000000
    """

    how: TemporalHow = "left"
    deletes: str | None = None
    null_payload_deletes: bool = False
    retention: Duration | None = None
    suffixes: Suffixes | None = None

    def __post_init__(self) -> None:
        check_word("how", self.how, get_args(TemporalHow))
        if self.deletes is not None and (not isinstance(self.deletes, str) or not self.deletes):
            msg = f"deletes: expected the name of a boolean column of the right input, got {self.deletes!r}"
            raise ConfigurationError(msg)
        check_flag("null_payload_deletes", self.null_payload_deletes)
        if self.retention is not None:
            microseconds(self.retention, "retention")

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the result: the left's, then the right's without its key and the ``deletes`` column.

        Raises:
            SchemaError: A ``deletes`` column that is missing, not boolean, or part of the key; no column whose null
                could tell a tombstone; an input without event time; names that collide.
        """
        if self.deletes is not None:
            self._check_deletes(self.deletes, right)
        if self.null_payload_deletes and not self.payload(right):
            msg = (
                f"null_payload_deletes: input {right.name!r} has no columns but its key, event time, partition and "
                f"sequence, so all of its rows would be tombstones; name a boolean column with deletes= instead"
            )
            raise SchemaError(msg)
        return joined_schema(left, right, self.suffixes, without=self.without)

    @property
    def without(self) -> tuple[str, ...]:
        """The right's columns that the result leaves out, besides its key."""
        return () if self.deletes is None else (self.deletes,)

    def payload(self, right: InputSpec) -> list[str]:
        """Return the right's columns that are all null in a tombstone of ``null_payload_deletes``."""
        others = {*right.key, right.event_time, *right.source_order, self.deletes}
        return [name for name in right.schema.names if name not in others]

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
            msg = f"deletes: expected a column beside the key, got {column!r}, which is part of input {right.name!r}'s"
            raise SchemaError(msg)

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> TemporalJoinOperator:
        """Make the operator of one key group."""
        return TemporalJoinOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return what makes two temporal joins the same query, as JSON values."""
        return {
            "operator": "temporal_join",
            "how": self.how,
            "deletes": self.deletes,
            "null_payload_deletes": self.null_payload_deletes,
            "retention_us": None if self.retention is None else microseconds(self.retention, "retention"),
        }


class TemporalJoinOperator(VersionedJoinOperator):
    """Runs a temporal join for one key group."""

    def __init__(self, join: TemporalJoin, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> None:
        self._join = join
        self._retention = None if join.retention is None else microseconds(join.retention, "retention")
        schema, inner = join.output_schema(left, right), join.how == "inner"
        super().__init__((left, right), schema, time, inner=inner, age=self._retention, without=join.without)

    def _decide(self, left: SortedRows, right: SortedRows) -> Decision:
        matches = Neighbours(left, right, self._retention, exact=True).behind()
        deleted = at(self._tombstones(right), matches).astype(bool)
        return Decision(np.where(deleted, -1, matches), event_millis(left.micros))

    def _memorable(self, right: SortedRows) -> NDArray[np.bool_]:
        """Keep no tombstone, unless a late version that it ends could still match."""
        if self._retention is None:
            return ~self._tombstones(right)
        return super()._memorable(right)

    def _tombstones(self, right: SortedRows) -> NDArray[np.bool_]:
        """Tell which of the sorted versions are tombstones."""
        table, join = right.table, self._join
        dead = np.zeros(len(right), dtype=bool)
        if join.null_payload_deletes:
            nulls = [table.column(name).is_null().to_numpy() for name in join.payload(self.inputs[1])]
            dead |= np.logical_and.reduce(nulls)
        if join.deletes is not None:
            dead |= pc.fill_null(table.column(join.deletes), False).to_numpy()
        return dead[right.order]
