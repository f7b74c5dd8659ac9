"""The as-of join: each left row with the right row (version) nearest to its event time, backward, forward or both.

Keeps: left rows until their match is final; looking backward, of each key's versions the newest at or below the
watermark; looking forward only, no version. Emits: each left row once, when the watermark reaches its release.
*Backward*: its own timestamp. *Forward*: the timestamp of its match, or, where the ``tolerance`` runs out before one
comes, that moment, else the end of input. *Nearest*: the earlier of a nearer version's timestamp ahead and of the last
moment at which one ahead would still have been nearer than the one behind (or within tolerance, where none is behind).
Forgets: a left row when emitted; a version when a newer one is in force and no row waits for it, or once it is older
than the ``tolerance`` allows any row to come: so the tolerance is also how long a silent key's version is kept, and
what matches never depends on when it was cleaned up. Ties: of versions of one microsecond the last in the total order,
in every direction; at equal distance the one behind. Late: a left row is rejected (if applied, matched with what is
still there or comes); a late version is applied, being the truth for every row to come. Costs: a sort of the batch's
rows, of those that wait and of the versions kept, then a binary search or two a left row; no Python per row. (pandas
``merge_asof``; DuckDB ``ASOF JOIN``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from cojoin.engine.joins.output_columns import Suffixes, joined_schema
from cojoin.engine.joins.search import Neighbours, at, distance, shift
from cojoin.engine.joins.versioned import Decision, VersionedJoinOperator
from cojoin.engine.time.durations import Duration, microseconds
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.choices import check_flag, check_word
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["AsofHow", "AsofJoin", "AsofJoinOperator", "Direction"]

AsofHow: TypeAlias = Literal["left", "inner"]
"""What becomes of a left row without a match.

- *left*: it is emitted with nulls for the right's columns.
- *inner*: it is not emitted, and counted as done.
"""

Direction: TypeAlias = Literal["backward", "forward", "nearest"]
"""Where a left row looks for its version.

- *backward*: the newest at or before its event time.
- *forward*: the earliest at or after its event time; the row waits for it.
- *nearest*: the nearer of these two, the one behind at equal distance; the row waits until that is known.
"""


@dataclass(frozen=True)
class AsofJoin:
    """The configuration of an as-of join.

    Attributes:
        how: What becomes of a left row without a match.
        tolerance: How far from the row's event time a version may be to match, itself included, such as ``"1 hour"``;
            None means any distance. Looking backward it is also how long the version of a key that is never seen again
            is kept.
        allow_exact_matches: Whether a version of the row's own microsecond matches.
        suffixes: What is appended to equal names of the left and the right; None refuses equal names.
        direction: Where a left row looks for its version.

    Raises:
        ConfigurationError: A value that is not one of these.

    >>> AsofJoin(tolerance="5 seconds", direction="nearest").describe()["tolerance_us"]
    5000000
    """

    how: AsofHow = "left"
    tolerance: Duration | None = None
    allow_exact_matches: bool = True
    suffixes: Suffixes | None = None
    direction: Direction = "backward"

    def __post_init__(self) -> None:
        check_word("how", self.how, get_args(AsofHow))
        check_word("direction", self.direction, get_args(Direction))
        check_flag("allow_exact_matches", self.allow_exact_matches)
        if self.tolerance is not None:
            microseconds(self.tolerance, "tolerance")

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the result: the left's, then the right's without its key.

        Raises:
            SchemaError: An input without event time, or names that collide.
        """
        return joined_schema(left, right, self.suffixes)

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> AsofJoinOperator:
        """Make the operator of one key group."""
        return AsofJoinOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return what makes two as-of joins the same query, as JSON values."""
        tolerance = None if self.tolerance is None else microseconds(self.tolerance, "tolerance")
        return {
            "operator": "asof_join",
            "how": self.how,
            "tolerance_us": tolerance,
            "allow_exact_matches": self.allow_exact_matches,
            "direction": self.direction,
        }


class AsofJoinOperator(VersionedJoinOperator):
    """Runs an as-of join for one key group."""

    def __init__(self, join: AsofJoin, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> None:
        self._join = join
        self._tolerance = None if join.tolerance is None else microseconds(join.tolerance, "tolerance")
        waits = join.direction != "backward"
        super().__init__(
            (left, right),
            join.output_schema(left, right),
            time,
            inner=join.how == "inner",
            age=self._tolerance,
            keeps_versions=join.direction != "forward",
            waits=waits,
        )
        if waits:
            # A row comes out when its match does, as long after its own time as the tolerance lets it.
            self.output_delay_ms = END_OF_TIME if self._tolerance is None else -(-self._tolerance // 1_000)

    def _decide(self, left: SortedRows, right: SortedRows) -> Decision:
        near = Neighbours(left, right, self._tolerance, exact=self._join.allow_exact_matches)
        if self._join.direction == "backward":
            return Decision(near.behind(), event_millis(left.micros))
        ahead = near.ahead()
        ahead_micros = at(right.micros, ahead)
        if self._tolerance is None:
            expires = np.full(len(left), END_OF_TIME, dtype=np.int64)
        else:
            expires = event_millis(shift(left.micros, self._tolerance))
        if self._join.direction == "forward":
            return Decision(ahead, np.where(ahead >= 0, event_millis(ahead_micros), expires))
        behind = near.behind()
        past = distance(left.micros, at(right.micros, behind))
        is_ahead = (ahead >= 0) & ((behind < 0) | (distance(left.micros, ahead_micros) < past))
        # Only a version at a distance below that of the one behind could still win.
        settled = event_millis(shift(left.micros, np.maximum(past, np.uint64(1)) - np.uint64(1)))
        releases = np.where(is_ahead, event_millis(ahead_micros), np.where(behind >= 0, settled, expires))
        return Decision(np.where(is_ahead, ahead, behind), releases)
