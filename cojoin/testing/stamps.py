"""Which event time each row that comes out has: engine outputs are tables without timestamps, a test wants them.

Of a function: the list in which the operator gathers what the callbacks yield is replaced by one that looks at the
context whenever a callback's rows are added. Of a join: the columns of the result tell.
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
    """What callbacks yield, and to which output and with which timestamp each of them did.

    Args:
        context: What the callbacks get.
        stamps: Where the output and the timestamp of each row go, in the order of the yields.
    """

    def __init__(self, context: Context, stamps: list[tuple[str, int | None]]) -> None:
        super().__init__()
        self.stamps = stamps
        self._context = context
        self._stamped = 0
        self._timestamp: int | None = None

    @property
    def extend(self) -> Callable[[Iterable[Any]], None]:
        """Stamp what was added before, and give the list's own method.

        So no frame of ours stands between the operator and a callback that fails: its message stays the same.
        """
        self._stamp()
        by_clock = self._context._domain is TimeDomain.PROCESSING_TIME  # noqa: SLF001
        self._timestamp = None if by_clock else self._context.timestamp()
        return super().extend

    def clear(self) -> None:
        """Empty the list; the stamps stay."""
        self._stamp()
        self._stamped = 0
        super().clear()

    def _stamp(self) -> None:
        for item in self[self._stamped :]:
            is_beside = type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag)
            self.stamps.append((item[0].tag_id if is_beside else OUTPUT, self._timestamp))
        self._stamped = len(self)


def joined_timestamps(operation: Any, left: InputSpec, right: InputSpec, table: pa.Table) -> list[int | None]:
    """Return the event times of a join's rows, in epoch milliseconds: the left row's, of an interval join the later."""
    taken = {name.lower() for name in left.schema.names}
    own = str(right.event_time)
    of_right = own if own.lower() not in taken else f"{right.name}_event_time"
    # The left's columns come first, whatever they are called.
    columns = [table.column(left.schema.names.index(str(left.event_time)))]
    if isinstance(operation, IntervalJoin):
        columns.append(table.column(of_right))
    millis = [_millis(column) for column in columns]
    return [max((each for each in row if each is not None), default=None) for row in zip(*millis, strict=True)]


def _millis(column: pa.ChunkedArray) -> list[int | None]:
    micros = column.cast(pa.int64()).combine_chunks()
    floored = event_millis(micros.fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    return [each if known else None for each, known in zip(floored, micros.is_valid().to_pylist(), strict=True)]
