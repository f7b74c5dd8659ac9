"""Values, rows, tables and objects as texts for people, and as HTML in notebooks.

An object shows itself from one description of both (``Display``). Showing runs nothing, reads no rows and never fails:
what can't be found out at the moment is left out. Times are times in UTC. Equal values give equal cells of a table, so
outputs are compared as cells (``difference``); ``cojoin.testing.parse_table`` reads them.
"""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import Row, decode_column, show_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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


def short_value(value: Any) -> str:
    """Return a value as text for a label or a cell of a table: a float by six digits, but its whole part and two more.

    >>> short_value(0.1 + 0.2), short_value(14.319999999999999), short_value(2.0), short_value(12345678.254)
    ('0.3', '14.32', '2.0', '12345678.25')
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return show_value(value)
    digits = max(6, len(str(abs(int(value)))) + 2)
    return min(repr(value), repr(float(f"{value:.{digits}g}")), key=len)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as an aligned table; the first row is the header, and numbers are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = _numeric_columns(rows)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _numeric_columns(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return for each column whether all its cells below the header are whole numbers, and there are any."""
    return [
        len(rows) > 1 and all(row[column].replace(",", "").removeprefix("-").isdigit() for row in rows[1:])
        for column in range(len(rows[0]))
    ]


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
    actual: Sequence[tuple[str, ...]],
    context: int | None = None,
) -> str | None:
    """Return a table of the rows in which two outputs differ; None if they are equal.

    Missing rows get the mark ``-``, and extra ones ``+``. ``context`` is how many equal rows are shown before and after
    each difference; None shows all.

    >>> print(difference(["tier"], [("gold",), ("silver",), ("none",)], [("gold",), ("silver",)], context=1))
      tier
      ---------------
      ... 1 equal row
      silver
    - none
    """
    if list(actual) == list(wanted):
        return None
    lines: list[tuple[str, ...]] = []
    marks: list[str] = []
    pieces = SequenceMatcher(None, wanted, actual, autojunk=False).get_opcodes()
    for place, (kind, start, stop, first, last) in enumerate(pieces):
        if kind == "equal":
            kept = _shortened(wanted[start:stop], context, place > 0, place < len(pieces) - 1)
            lines += kept
            marks += [" "] * len(kept)
        else:
            lines += [*wanted[start:stop], *actual[first:last]]
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
    note = (f"... {left_out} equal row{'s' if left_out > 1 else ''}", *[""] * (width - 1))
    return [*rows[:head], note, *rows[len(rows) - tail :]]


class Section(NamedTuple):
    """A title, the rows of a table (the first is the header; none is a title alone), and how many rows are left out."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    left_out: int = 0

    @classmethod
    def of(cls, title: str, table: pa.Table, most_rows: int, *, millis: Sequence[str] = ()) -> Section:
        """Return the section of a table's first rows; the arguments are those of ``text_rows``."""
        return cls(title, text_rows(table, most_rows, millis=millis), max(table.num_rows - most_rows, 0))


@dataclass(frozen=True)
class Display:
    """The description of an object for people: a headline, a table (its first row is the header), notes, sections.

    ``share`` is how much of something is done, from 0 to 1, which HTML shows as a bar; None shows none.

    >>> print(Display("Two inputs", [("input", "rows"), ("trades", "1,000"), ("customers", "20")]).text())
    Two inputs
    input       rows
    ---------  -----
    trades     1,000
    customers     20
    """

    head: str
    table: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    share: float | None = None
    sections: Sequence[Section] = ()

    def text(self) -> str:
        """Return it as lines of text; where there are sections, blank lines separate them, the head and the table."""
        lines = [self.head, *([""] if self.sections else []), *([text_table(self.table)] if self.table else [])]
        lines += self.notes
        for title, rows, left_out in self.sections:
            lines += ["", title, *(f"  {line}" for line in (text_table(rows).splitlines() if rows else ()))]
            lines += [f"  ... and {left_out:,} more"] if left_out else []
        return show_text("\n".join(lines))

    def html(self) -> str:
        """Return it as HTML."""
        bar = "" if self.share is None else f' <progress value="{min(max(self.share, 0), 1):.4f}"></progress>'
        notes = "".join(f"<p>{html_text(note)}</p>" for note in self.notes)
        page = f"<p><b>{html_text(self.head)}</b>{bar}</p>{html_table(self.table)}{notes}"
        for title, rows, left_out in self.sections:
            more = f" (and {left_out:,} more)" if left_out else ""
            page += f"<p>{html_text(title)}{more}</p>{html_table(rows)}"
        return page


def html_text(text: str) -> str:
    """Return a text as HTML, with nothing in it taken for a tag.

    >>> html_text("a < b")
    'a &lt; b'
    """
    return html.escape(show_text(text)).replace("\n", "<br>")


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as an HTML table; the first row is the header, if any, and numbers are right-aligned.

    >>> html_table([("input", "rows"), ("a<b", "20")])
    '<table><thead><tr><th style="text-align:left">input</th><th style="text-align:right">rows</th></tr></thead><tbody>\
<tr><td style="text-align:left">a&lt;b</td><td style="text-align:right">20</td></tr></tbody></table>'
    """
    if not rows:
        return ""
    numeric = _numeric_columns(rows)

    def cells(row: Sequence[str], tag: str) -> str:
        sides = ("right" if number else "left" for number in numeric)
        made = (
            f'<{tag} style="text-align:{side}">{html_text(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells(row, "td") for row in rows[1:])
    header = f"<thead>{cells(rows[0], 'th')}</thead>" if any(rows[0]) else ""
    return f"<table>{header}<tbody>{body}</tbody></table>"


def display_of(build: Callable[[], Display], kind: str) -> Display:
    """Return the built description; if that fails, as where a session has stopped, a headline with the class's name."""
    try:
        return build()
    except Exception:  # noqa: BLE001 - an object that can't show itself hides the error that matters
        return Display(f"{kind} (it can't be shown at the moment)")


class Shown:
    """An object that shows itself by its ``_display``: as text, and as HTML in a notebook."""

    def __repr__(self) -> str:
        return display_of(self._display, type(self).__name__).text()

    def _repr_html_(self) -> str:
        return display_of(self._display, type(self).__name__).html()

    def _display(self) -> Display:
        raise NotImplementedError


_MOST_CHARACTERS = 100


def text_rows(table: pa.Table, most_rows: int, *, millis: Sequence[str] = ()) -> list[Sequence[str]]:
    """Return a table's names and at most so many first rows as texts.

    The columns ``millis`` hold epoch milliseconds; those of the type ``timestamp[ms, UTC]``, as of timers, are shown
    alike.

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
    return [cut(short_value(each)) for each in decode_column(column, str)]


def cut(text: str) -> str:
    """Return a text as one line, whose end is left out where it is long."""
    line = one_line(text)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."


def one_line(text: str) -> str:
    """Return a text whose line breaks are escaped, as in a cell of a table."""
    return text.replace("\n", "\\n").replace("\r", "\\r")
