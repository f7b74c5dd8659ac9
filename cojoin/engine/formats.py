"""Times, spans of time, sizes, rows and tables as texts for people."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import Row, show_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["format_bytes", "format_span", "format_time", "show_row", "show_value", "text_table"]


def format_time(timestamp: int) -> str:
    """Return a watermark as text for people: in UTC, ``none`` or ``end of time``.

    >>> format_time(1_500)
    '1970-01-01 00:00:01.500'
    """
    if timestamp <= NONE:
        return "none"
    if timestamp == END_OF_TIME:
        return "end of time"
    try:
        moment = datetime.fromtimestamp(timestamp // 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp % 1000:03d}"


def format_span(millis: int) -> str:
    """Return a span of time in milliseconds as readable text.

    >>> format_span(6_001), format_span(90_000), format_span(7_200_000), format_span(200_000_000)
    ('6.001 s', '1 min 30 s', '2 h 0 min', '2 d 7 h')
    """
    seconds = millis // 1000
    if seconds < 60:
        return f"{millis / 1000:.3f}".rstrip("0").rstrip(".") + " s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"
    return f"{seconds // 86_400:,} d {seconds % 86_400 // 3_600} h"


def format_bytes(size: int) -> str:
    """Return a size in bytes as readable text.

    >>> format_bytes(512), format_bytes(2_500_000)
    ('512 B', '2.5 MB')
    """
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def show_row(values: Mapping[str, Any]) -> str:
    """Return a row's values as text.

    >>> show_row({"trade_id": 17, "tier": None})
    'trade_id=17, tier=null'
    """
    return ", ".join(f"{name}={show_value(value)}" for name, value in values.items())


def show_value(value: Any) -> str:
    """Return a value as text: times in UTC, a null as ``null``, other values as Python writes them."""
    if value is None:
        return "null"
    if hasattr(value, "isoformat"):
        return str(value).removesuffix("+00:00")
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Row):
        return f"({show_row(value.as_dict())})"
    return show_text(value) if isinstance(value, str) else repr(value)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as an aligned table; the first row is the header, and numbers are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = [
        all(row[column].replace(",", "").removeprefix("-").isdigit() for row in rows[1:])
        for column in range(len(rows[0]))
    ]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
