"""Known times: a version matches rows from the moment on at which it was known, and not only from its event time on.

A version's *effective time* is the later of its event time and its known time, which is a column (``known_at``) or the
event time and a constant (``delay``). The engine's clock of such an input is the effective time: its watermark, what is
late, and what is too far ahead of processing time. So a correction that is loaded today is on time today, whatever day
its event time is of.

Of the versions of a key that are effective at a left row's time, the one with the greatest event time matches; of equal
event times the one known last, then the last in the total order. A version is never in force again once a greater one
is effective, so of the effective versions of a key one is kept.

Of a row with a span of validity the end is known with the row: where the greatest effective version has ended, nothing
matches, whichever rows came before it. So a correction has the begin of the row that it corrects, and replaces its end.

A delete of a change feed is known at its commit, which is its event time, too, unless the deleted row's is later. The
rows of a feed's initial snapshot are known at their event times where the known time is that of the commit, unless
``snapshot_known`` is ``"at_snapshot"``: when they were written is not known.

It keeps nothing, and costs a pass over the columns of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from cojoin.engine.time.time_axis import TimeAxis, is_moment, micros_of
from cojoin.engine.values.arguments import duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

SnapshotKnown: TypeAlias = Literal["at_event_time", "at_snapshot"]
"""When the rows of a change feed's initial snapshot were known, if changes are known at their commits.

- *at_event_time*: at their event times, since it is unknown when they were written.
- *at_snapshot*: at the commit that the snapshot is of, so no earlier left row matches them.
"""

_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class KnownTime:
    """The moment from which a row of an input was known; either a column or a constant distance.

    Attributes:
        column: The column with the moments; None where they are a constant distance after the event times.
        delay_us: That distance, in microseconds.
        axis: The meaning of the column's times without a zone, dates and whole numbers; None for timestamps.
        valid_to: The column with the ends of rows that have a span of validity; None for other rows.
        committed_at: The column with the times of commits, of a change feed; None for other rows.
        snapshot_known: When the rows of a feed's initial snapshot were known, if ``column`` is ``committed_at``.
    """

    column: str | None = None
    delay_us: int = 0
    axis: TimeAxis | None = None
    valid_to: str | None = None
    committed_at: str | None = None
    snapshot_known: SnapshotKnown = "at_event_time"

    @property
    def is_commit(self) -> bool:
        """Whether rows are known at their commits."""
        return self.column is not None and self.column == self.committed_at

    def micros(self, rows: pa.Table, micros: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the known times of rows in epoch microseconds; a null is 0."""
        if self.column is not None:
            return micros_of(rows, self.column, self.axis)
        return np.minimum(micros, _MOST - self.delay_us) + self.delay_us

    def effective(self, rows: pa.Table, micros: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the effective times of rows in epoch microseconds."""
        return np.maximum(micros, self.micros(rows, micros))

    def describe(self) -> dict[str, Any]:
        """Return the known time as JSON values, by the names of ``Input``'s arguments."""
        if self.column is None:
            return {"delay_us": self.delay_us}
        snapshot = {"snapshot_known": self.snapshot_known} if self.is_commit else {}
        return {"known_at": self.column, **snapshot, **({"valid_to": self.valid_to} if self.valid_to else {})}

    def spelled(self) -> str:
        """Return the known time in words, such as ``at loaded_at``."""
        if self.column is not None:
            of_snapshot = self.is_commit and self.snapshot_known == "at_event_time"
            return f"at {self.column}{', rows of the snapshot at their event time' if of_snapshot else ''}"
        return f"after {duration_text(self.delay_us)}"

    def arguments(self) -> dict[str, Any]:
        """Return the known time as ``Input``'s arguments."""
        if self.column is None:
            return {"delay": timedelta(microseconds=self.delay_us)}
        return {"known_at": self.column, **({"snapshot_known": self.snapshot_known} if self.is_commit else {})}

    @classmethod
    def read(cls, described: Mapping[str, Any], schema: pa.Schema, axis: TimeAxis | None) -> KnownTime | None:
        """Return the known time in the description of an input, whose times have an axis; None where it has none."""
        column, delay_us = described.get("known_at"), described.get("delay_us")
        feed = (described.get("changes") or {}).get("feed")
        of_feed: dict[str, Any] = {"committed_at": None if feed is None else feed["committed_at"]}
        if column is None:
            return None if delay_us is None else cls(delay_us=delay_us, **of_feed)
        of_feed |= {"snapshot_known": described.get("snapshot_known", "at_event_time")}
        return cls.of_column(column, schema.field(column).type, axis, valid_to=described.get("valid_to"), **of_feed)

    @classmethod
    def of_column(cls, column: str, dtype: pa.DataType, axis: TimeAxis | None, **others: Any) -> KnownTime:
        """Return the known time that is a column of a type; the axis of event times holds unless it is a timestamp."""
        return cls(column, axis=None if is_moment(dtype) else axis, **others)
