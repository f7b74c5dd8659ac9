"""The report of a run on the command line: rows, watermarks and counts, as plain text that fits the terminal."""

from __future__ import annotations

import shutil
import textwrap
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import format_time, one_line, show_value, text_table
from cojoin.engine.values.rows import decode_column, show_text

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.cli.demo import Verdict
    from cojoin.engine.batch_report import BatchReport

_WIDEST_CELL = 32
_DIFFERENCES = 5
_NUMBERS = (int, float, Decimal)
_RARE = {
    "late_applied": "late, but applied",
    "tombstones": "done: tombstones after deletes",
    "unchanged": "done: in the former state",
    "unavailable": "nulls for unavailable values",
    "clock_changed": "in hours of a clock change",
}
"""The counts that are shown only where there are any."""


def say(text: str = "") -> None:
    """Print a line and flush it, so that it appears in order with the progress line."""
    print(show_text(text), flush=True)


def tell(text: str) -> None:
    """Print a sentence, wrapped to the width of the terminal."""
    say(textwrap.fill(text, max(40, min(_columns(), 100)), break_long_words=False, break_on_hyphens=False))


def ending(report: BatchReport, *, goes_on: bool = False, before: BatchReport | None = None) -> str:
    """Return a sentence on how a run ended, from its last report, and from the one before it."""
    sentence = report.ending(goes_on=goes_on, drain="--drain", before=before)
    return f"{sentence[0].upper()}{sentence[1:]}."


def rows(table: pa.Table, width: int | None = None) -> str:
    """Return all rows as a text table of a width in characters; None takes the terminal's.

    If all times are of one day, the date is shown once, below the table. Columns that do not fit are named there, too.
    """
    if not table.num_rows:
        return "(no rows)"
    columns = [decode_column(column, str) for column in table.columns]
    days = {value.date() for values in columns for value in values if isinstance(value, datetime)}
    shown: list[list[str]] = []
    room = width or _columns()
    for name, values in zip(table.column_names, columns, strict=True):
        cells = [name, *(_cell(value, short=len(days) == 1) for value in values)]
        widest = max(map(len, cells))
        if shown and widest > room:
            break
        room -= widest + 2
        is_number = any(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values)
        shown.append([cell.rjust(widest) for cell in cells] if is_number else cells)
    lines = [text_table(list(zip(*shown, strict=True)))]
    if hidden := table.column_names[len(shown) :]:
        lines.append(f"(no room for {', '.join(hidden)})")
    if len(days) == 1:
        lines.append(f"(times are UTC on {days.pop():%Y-%m-%d})")
    elif days:
        lines.append("(times are UTC)")
    return "\n".join(lines)


def watermarks(report: BatchReport) -> str:
    """Return the watermarks of the inputs and of the join as text, with the input that holds the join back."""
    names = [side.name for side in report.inputs]
    lines = [
        (f"  {side.name}", "finished" if side.status == "finished" else format_time(side.watermark))
        for side in report.inputs
    ]
    held = f", held back by {report.holding_input}" if report.holding_input in names else ""
    lines.append(("  the join", format_time(report.watermark) + held))
    widest = max(len(name) for name, _ in lines)
    return "\n".join(["Watermarks (UTC):", *(f"{name.ljust(widest)}  {shown}" for name, shown in lines)])


def counts(report: BatchReport) -> str:
    """Return the counts of the law of conservation as a text table, with one column for each input."""
    inputs = report.inputs
    reasons = sorted({reason for each in inputs for reason in each.rejected})
    rare = ((label, [getattr(each, name) for each in inputs]) for name, label in _RARE.items())
    lines: list[tuple[str, list[int]]] = [
        ("in", [each.rows_in for each in inputs]),
        ("= done", [each.done for each in inputs]),
        ("+ buffered", [each.buffered for each in inputs]),
        ("+ rejected", [sum(each.rejected.values()) for each in inputs]),
        *((f"    {reason}", [each.rejected.get(reason, 0) for each in inputs]) for reason in reasons),
        *((label, values) for label, values in rare if any(values)),
    ]
    header = ("rows since the first batch", *(each.name for each in inputs))
    return text_table([header, *((label, *(f"{value:,}" for value in values)) for label, values in lines)])


def conservation(report: BatchReport) -> str:
    """Return a sentence on whether the law of conservation holds."""
    if report.is_conserved:
        return "Nothing is lost: for both inputs, rows in = done + buffered + rejected."
    broken = []
    for part in report.inputs:
        unknown = part.rows_in - part.done - part.buffered - sum(part.rejected.values())
        if unknown:
            broken.append(f"{part.name} has {unknown:+,} rows unaccounted for")
    return f"ROWS ARE LOST: {' and '.join(broken)}. This is a bug in cojoin; please report it."


def verdict(compared: Verdict) -> str:
    """Return whether the output equals that of ``merge_asof``, as text with the first differences."""
    if compared.is_equal:
        return f"pandas' merge_asof over the same rows: equal, row for row, all {compared.expected:,}."
    sizes = f"it gives {compared.expected:,} rows, the output has {compared.got:,}"
    lines = [f"pandas' merge_asof over the same rows: NOT EQUAL; {sizes}."]
    for who, table in (("merge_asof", compared.missing), ("the output", compared.unexpected)):
        if table.num_rows:
            lines += [f"\nOnly {who} has {table.num_rows:,} rows; the first:\n", rows(table.slice(0, _DIFFERENCES))]
    return "\n".join(lines)


def _columns() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def _cell(value: Any, *, short: bool) -> str:
    if isinstance(value, datetime):
        return f"{value:%H:%M:%S.%f}" if short else f"{value:%Y-%m-%d %H:%M:%S.%f}"
    text = one_line(show_value(value))
    return text if len(text) <= _WIDEST_CELL else text[: _WIDEST_CELL - 1] + "…"
