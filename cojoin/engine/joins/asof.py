"""The as-of join: each left row with the right row (version) nearest to its event time, backward, forward or both.

It keeps left rows until their match is final. Looking backward, it keeps of each key's versions the newest at or below
the watermark; looking only forward, it keeps no version.

It emits each left row at most once, when the watermark reaches the row's *emission time*; ``inner`` drops rows without
a match.

* *Backward*: the emission time is the row's own timestamp.
* *Forward*: it is the time of the match. Without a match it is the row's time + ``tolerance``, or the end of input.
* *Nearest*: it is the time of the following version, if that is nearer than the preceding one. Otherwise it is the
  latest time at which a following version would still be nearer. Without a preceding version that is the row's time +
  ``tolerance``, or the end of input.

It removes a left row when the row is emitted. It removes a version when the key has a newer one and no row waits for
it, or once the version is older than the ``tolerance`` allows for any row to come. So the tolerance also limits how
long the version of a silent key is kept, and matches of rows that are not late never depend on when versions were
removed.

Of several versions with one event time, the last in the total order matches, in every direction; at equal distance, the
preceding version matches. A late left row is rejected. If it is applied, it is matched with the versions that are still
kept or still arrive, so its match depends on what was removed. A late version is applied: it can match waiting rows,
and later rows if it is the key's newest. Versions with a known time (``known_time``) match from their effective time
on; tolerance and exact matches compare event times.

It costs a sort of the batch's rows, a merge with the waiting rows and with the versions kept in memory, and then one or
two binary searches for each left row, or for each version where these are fewer; no Python for each row. Versions in
segments are read and sorted only for touched keys.

For rows with a key and an event time, whose versions have different times, the matches are those of pandas'
``merge_asof``, and backward those of DuckDB's ``ASOF JOIN``. Of versions with one event time, ``merge_asof`` takes the
last as given when it looks backward and the first when it looks forward, and DuckDB any. ``merge_asof`` matches null
keys with each other, and refuses null times and unsorted rows; DuckDB emits rows without a key or time without a match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from cojoin.engine.input_spec import refuse_known
from cojoin.engine.joins.output_columns import (
    Suffixes,
    allows_no_time,
    check_how,
    joined_schema,
    left_order,
    without_deletes,
)
from cojoin.engine.joins.search import Neighbours, at, distance, shift
from cojoin.engine.joins.versioned import Decision, VersionedJoinOperator
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.arguments import Duration, check_flag, check_word, microseconds
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.time.operator_watermark import TimePolicy

AsofHow: TypeAlias = Literal["left", "inner"]
"""What happens to a left row without a match.

- *left*: it is emitted with nulls for the right's columns.
- *inner*: it is not emitted, and counted as done.
"""

Direction: TypeAlias = Literal["backward", "forward", "nearest"]
"""Where the join searches for a left row's version.

- *backward*: the newest at or before its event time.
- *forward*: the earliest at or after its event time; the row waits for it.
- *nearest*: the nearer of these two, at equal distance the preceding one; the row waits until that is known.
"""


@dataclass(frozen=True)
class AsofJoin:
    """The configuration of an as-of join.

    Attributes:
        how: What happens to a left row without a match.
        tolerance: The largest distance between the event times of the row and of its version, itself included, such as
            ``"1 hour"``; None means any distance. Looking backward, it is also how long the version of a key is kept
            that never comes again.
        allow_exact_matches: Whether a version of the row's exact event time matches.
        suffixes: The suffixes for names that the left and the right both have; None refuses such names.
        direction: Where the join searches for a left row's version.

    Raises:
        ConfigurationError: A value is invalid.

    >>> AsofJoin(tolerance="5 seconds", direction="nearest").describe()["tolerance_us"]
    5000000
    """

    how: AsofHow = "left"
    tolerance: Duration | None = None
    allow_exact_matches: bool = True
    suffixes: Suffixes | None = None
    direction: Direction = "backward"

    def __post_init__(self) -> None:
        check_how(self.how, get_args(AsofHow))
        check_word("direction", self.direction, get_args(Direction))
        check_flag("allow_exact_matches", self.allow_exact_matches)
        if self.tolerance is not None:
            microseconds(self.tolerance, "tolerance")

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the result: the left's, then the right's without its key."""
        limit = "tolerance" if self.tolerance is not None else None if self.direction == "backward" else "direction"
        if self.direction != "backward":
            refuse_known(right, f"direction={self.direction!r}", "it waits for versions after a row")
        if right.known is not None and right.known.valid_to is not None:
            raise without_deletes(right)
        timeless = allows_no_time(right, limit)
        return joined_schema(left, right, self.suffixes, how=self.how, timeless_right=timeless, knows_right=True)

    def output_order(self, left: InputSpec, right: InputSpec) -> tuple[str, ...] | None:
        """Return the columns by which rows are emitted in order over all batches; None for another order."""
        return left_order(left, self.output_schema(left, right)) if self.direction == "backward" else None

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> AsofJoinOperator:
        """Return the operator of one key group."""
        return AsofJoinOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must stay the same for a checkpoint to be used again, as JSON values."""
        tolerance = None if self.tolerance is None else microseconds(self.tolerance, "tolerance")
        return {
            "operator": "asof_join",
            "how": self.how,
            "tolerance_us": tolerance,
            "allow_exact_matches": self.allow_exact_matches,
            "direction": self.direction,
        }


class AsofJoinOperator(VersionedJoinOperator):
    """The operator that runs an as-of join for one key group."""

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
            # A row is emitted when the watermark reaches its emission time, at most the tolerance after its own time.
            self.output_delay_ms = END_OF_TIME if self._tolerance is None else -(-self._tolerance // 1_000)

    def _decide(self, left: SortedRows, right: SortedRows) -> Decision:
        exact = self._join.allow_exact_matches
        if self._join.direction == "backward":
            matches = self._behind(left, right, self._tolerance, exact=exact)
            return Decision(matches, event_millis(left.micros))
        near = Neighbours(left, right, self._tolerance, exact=exact)
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
        # Only a following version that is nearer than the preceding one can still match.
        settled = event_millis(shift(left.micros, np.maximum(past, np.uint64(1)) - np.uint64(1)))
        emission_times = np.where(is_ahead, event_millis(ahead_micros), np.where(behind >= 0, settled, expires))
        return Decision(np.where(is_ahead, ahead, behind), emission_times)
