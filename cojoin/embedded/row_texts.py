"""The first rows of an Arrow table as texts, for people: times are times in UTC, and long values are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.formats import format_time, show_value
from cojoin.engine.values.rows import decode_column

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["text_rows"]

_MOST_CHARACTERS = 100


def text_rows(table: pa.Table, most_rows: int, *, millis: Sequence[str] = ()) -> list[Sequence[str]]:
    """Return a table's names and first rows as texts.

    Args:
        table: The rows.
        most_rows: How many of them at most.
        millis: The columns of integers that are epoch milliseconds. Columns of the type ``timestamp[ms, tz=UTC]``, as
            of timers and watermarks, are shown alike.

    >>> text_rows(pa.table({"id": [7, None], "tier": ["gold", None]}), 1)
    [['id', 'tier'], ('7', 'gold')]
    """
    shown = table.slice(0, most_rows)
    named = zip(table.column_names, shown.columns, strict=True)
    columns = [_texts(column, is_millis=name in millis) for name, column in named]
    return [table.column_names, *zip(*columns, strict=True)]


def _texts(column: pa.ChunkedArray, *, is_millis: bool) -> list[str]:
    if is_millis or column.type == pa.timestamp("ms", "UTC"):
        return ["none" if each is None else format_time(each) for each in column.cast(pa.int64()).to_pylist()]
    return [_cut(show_value(each)) for each in decode_column(column, str)]


def _cut(text: str) -> str:
    one_line = text.replace("\n", "\\n").replace("\r", "\\r")
    return one_line if len(one_line) <= _MOST_CHARACTERS else f"{one_line[: _MOST_CHARACTERS - 3]}..."
