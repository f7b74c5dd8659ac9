"""The event time of each output row: the engine's outputs are tables without timestamps.

For a function, the operator gathers the rows that callbacks yield in a list that also records the context's timestamp
whenever the rows of a callback are added. For a join, the timestamps come from the columns of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.joins import IntervalJoin
from cojoin.engine.operator import OUTPUT
from cojoin.engine.side_outputs import OutputTag
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cojoin.engine.functions import Context
    from cojoin.engine.inputs import InputSpec

__all__ = ["StampedYields", "joined_timestamps"]


class StampedYields(list[Any]):
    """The list of rows that callbacks yield, which also records each row's output and timestamp.

    Args:
        context: The context of the callbacks.
        stamps: The list that receives the output and the timestamp of each row, in the order of the yields.
    """

    def __init__(self, context: Context, stamps: list[tuple[str, int | None]]) -> None:
        super().__init__()
        self.stamps = stamps
        self._context = context
        self._stamped = 0
        self._timestamp: int | None = None

    @property
    def extend(self) -> Callable[[Iterable[Any]], None]:
        """Record the rows added before, and return the list's own ``extend``.

        A property adds no stack frame between the operator and a failing callback, so the error message is unchanged.
        """
        self._stamp()
        by_clock = self._context._domain is TimeDomain.PROCESSING_TIME  # noqa: SLF001
        self._timestamp = None if by_clock else self._context.timestamp()
        return super().extend

    def clear(self) -> None:
        """Empty the list and keep the stamps."""
        self._stamp()
        self._stamped = 0
        super().clear()

    def _stamp(self) -> None:
        for item in self[self._stamped :]:
            is_beside = type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag)
            self.stamps.append((item[0].tag_id if is_beside else OUTPUT, self._timestamp))
        self._stamped = len(self)


def joined_timestamps(operation: Any, left: InputSpec, right: InputSpec, table: pa.Table) -> list[int | None]:
    """Return the event time of each row of a join's result, in epoch milliseconds.

    It is the left row's time; in an interval join it is the later of both rows' times.
    """
    taken = {name.lower() for name in left.schema.names}
    own = str(right.event_time)
    of_right = own if own.lower() not in taken else f"{right.name}_event_time"
    # The left's columns come first; the result may have renamed them.
    columns = [table.column(left.schema.names.index(str(left.event_time)))]
    if isinstance(operation, IntervalJoin):
        columns.append(table.column(of_right))
    millis = [_millis(column) for column in columns]
    return [max((each for each in row if each is not None), default=None) for row in zip(*millis, strict=True)]


def _millis(column: pa.ChunkedArray) -> list[int | None]:
    micros = column.cast(pa.int64()).combine_chunks()
    floored = event_millis(micros.fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    return [each if known else None for each, known in zip(floored, micros.is_valid().to_pylist(), strict=True)]
