"""The due rows of a micro-batch as Python rows: key after key, and each key's rows in the declared order.

In the order ``"event_time"`` a key's rows come in total order. In the order ``"arrival"`` its left rows come before its
right ones, each by source sequence and content (``ordering``). The Arrow tables are decoded in chunks of whole keys, so
only about one chunk of Python rows is in memory at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.ordering import OrderedPart, arrival_order, total_order
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import event_millis, take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Sides

__all__ = ["DueRows"]

_CHUNK_ROWS = 50_000


class DueRows:
    """The due rows of both inputs in one micro-batch.

    Args:
        due: The rows of both inputs.
        inputs: Both inputs.
    """

    def __init__(self, due: Sides, inputs: tuple[InputSpec, InputSpec]) -> None:
        self._due, self._inputs = due, inputs

    def by_key(
        self, touched: Sequence[int], row_codes: Sequence[NDArray[np.int64]], *, by_time: bool
    ) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Yield each touched key's code with its rows in order: (timestamp, whether of the second input, row).

        Args:
            touched: The codes of the keys that have a due row or a due timer, ascending.
            row_codes: The code of each row's key, for each input.
            by_time: Whether the declared order is ``"event_time"``; otherwise it is ``"arrival"``.
        """
        due = self._due
        micros = [spec.micros(table) for spec, table in zip(self._inputs, due, strict=True)]
        # In the order of arrival, a table's rows come before the rows that look them up.
        places = (0, 1) if self._inputs[1].static and not by_time else (1, 0)
        parts = [
            OrderedPart(codes, times, rank, table, spec.source_order, ranks=spec.ranks)
            for codes, times, table, spec, rank in zip(row_codes, micros, due, self._inputs, places, strict=True)
        ]
        order = total_order(parts) if by_time else arrival_order(parts)
        codes = np.concatenate(row_codes)[order]
        millis = event_millis(np.concatenate(micros))[order]
        starts = np.searchsorted(codes, touched, "left").tolist()
        stops = np.searchsorted(codes, touched, "right").tolist()
        for first, last in pairwise(_chunk_bounds(stops)):
            begin, end = starts[first], stops[last - 1]
            columns = self._decode(order[begin:end], millis[begin:end])
            for position in range(first, last):
                rows = slice(starts[position] - begin, stops[position] - begin)
                yield touched[position], zip(*(column[rows] for column in columns), strict=True)

    def _decode(self, positions: NDArray[np.int64], millis: NDArray[np.int64]) -> tuple[list[Any], ...]:
        """Return the times, sides and rows at some positions, which count the left rows first, then the right ones."""
        count = self._due[0].num_rows
        from_right = positions >= count
        flags: list[bool] = from_right.tolist()
        left = decode_rows(take_rows(self._due[0], positions[~from_right]))
        right = decode_rows(take_rows(self._due[1], positions[from_right] - count))
        rows: list[Any] = list(left or right)
        if left and right:
            sides = iter(left), iter(right)
            rows = [next(sides[flag]) for flag in flags]
        times: list[Any] = millis.tolist()
        if any(spec.event_time is None for spec in self._inputs):
            timed = [spec.event_time is not None for spec in self._inputs]
            times = [time if timed[flag] else None for time, flag in zip(times, flags, strict=True)]
        return times, flags, rows


def _chunk_bounds(stops: list[int]) -> list[int]:
    """Return the bounds of runs of keys of about ``_CHUNK_ROWS`` rows each, given where each key's rows end."""
    bounds, limit = [0], _CHUNK_ROWS
    for position, stop in enumerate(stops, start=1):
        if stop >= limit or position == len(stops):
            bounds.append(position)
            limit = stop + _CHUNK_ROWS
    return bounds
