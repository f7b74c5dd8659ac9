"""Rows as tables of aligned text, and the difference of two outputs as such a table.

Equal values give equal cells, so outputs are compared as cells. ``cojoin.testing.parse_table`` reads them.
"""

from __future__ import annotations

import json
import math
import re
from datetime import date, datetime
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cells", "difference", "format_table"]

_DAY_ZERO = date(1970, 1, 1)


def cells(row: Sequence[Any]) -> tuple[str, ...]:
    """Return a row's values as cells that ``parse_table`` reads; equal values give equal cells.

    >>> cells([None, "null", 2.0, "gold"])
    ('null', '"null"', '2.0', 'gold')
    """
    return tuple(map(_spell, row))


def _spell(value: Any) -> str:  # noqa: PLR0911 - one return per type
    if value is None:
        return "null"
    if isinstance(value, str):
        is_plain = value and value != "null" and value == value.strip() and not re.search(r'["|\n\r\\]', value)
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        fraction = "" if not value.microsecond else f".{value.microsecond:06d}"
        short = fraction.removesuffix("000") if len(fraction) == 7 else fraction
        day = "" if value.date() == _DAY_ZERO else f"{value:%Y-%m-%d} "
        return f"{day}{value:%H:%M:%S}{short}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return str(value)


def format_table(names: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[str] = ()) -> str:
    """Return a table of aligned cells under their column names, each row after its mark if marks are given.

    >>> print(format_table(["tier", "visits"], [("gold", "12"), ("null", "3")]))
    tier | visits
    -----+-------
    gold | 12
    null | 3
    """
    widths = [max(len(line[column]) for line in (names, *rows)) for column in range(len(names))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (names, *rows)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    if not marks:
        return "\n".join(lines)
    return "\n".join(f"{mark} {line}".rstrip() for mark, line in zip([" ", " ", *marks], lines, strict=True))


def difference(
    names: Sequence[str],
    wanted: Sequence[tuple[str, ...]],
    found: Sequence[tuple[str, ...]],
    context: int | None = None,
) -> str | None:
    """Return a table of the rows in which two outputs differ; None if they are equal.

    Args:
        names: The columns.
        wanted: The expected rows, as cells; those that are missing get the mark ``-``.
        found: The rows that came, as cells; those that are too much get the mark ``+``.
        context: How many equal rows are shown before and after each difference; None shows all.

    >>> print(difference(["tier"], [("gold",), ("silver",), ("none",)], [("gold",), ("silver",)], context=1))
      tier
      ---------------
      ... 1 equal row
      silver
    - none
    """
    if list(found) == list(wanted):
        return None
    lines: list[tuple[str, ...]] = []
    marks: list[str] = []
    pieces = SequenceMatcher(None, wanted, found, autojunk=False).get_opcodes()
    for place, (kind, start, stop, first, last) in enumerate(pieces):
        if kind == "equal":
            kept = _shortened(wanted[start:stop], context, place > 0, place < len(pieces) - 1)
            lines += kept
            marks += [" "] * len(kept)
        else:
            lines += [*wanted[start:stop], *found[first:last]]
            marks += ["-"] * (stop - start) + ["+"] * (last - first)
    return format_table(names, lines, marks)


def _shortened(
    rows: Sequence[tuple[str, ...]], context: int | None, after: bool, before: bool
) -> Sequence[tuple[str, ...]]:
    """Return equal rows that stand after or before a difference without those that are far from it."""
    if context is None:
        return rows
    head, tail = context if after else 0, context if before else 0
    left_out = len(rows) - head - tail
    if left_out <= 0:
        return rows
    width = len(rows[0])
    told = (f"... {left_out} equal row{'s' if left_out > 1 else ''}", *[""] * (width - 1))
    return [*rows[:head], told, *rows[len(rows) - tail :]]
