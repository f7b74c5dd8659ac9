"""Makes lines of a run's figures: two for a screen, one for a wide one, one plain line for a log, HTML for a notebook.

What doesn't fit is left out whole, the least important first: the bar, the time left and the watermarks stay longest.
Only what still doesn't fit is cut, so no line is ever wider than it may be, also where characters take two columns. A
day stands once where both watermarks are of it and it isn't today, and at each where they differ.
"""

from __future__ import annotations

import html
import unicodedata
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from cojoin.checkpoints.inspect.waits import format_span
from cojoin.engine.time.watermarks import END_OF_TIME, NONE, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.batch_report import InputReport
    from cojoin.spark.progress.figures import Figures

__all__ = ["as_html", "format_left", "lay_out", "plain_line"]

_ONE_LINE = 180
_GAP = "  "
_LONGEST_NAME = 32
_NO_TIME = {NONE: "no watermark yet", END_OF_TIME: "the end"}


class _Part(NamedTuple):
    """A piece of a line: the higher its rank, the sooner it is left out."""

    rank: int
    text: str
    gap: str = _GAP


def lay_out(figures: Figures, width: int) -> list[str]:
    """Return the one or two lines for a screen.

    Args:
        figures: The run.
        width: How many columns a line may take.

    >>> from cojoin.spark.progress.figures import Figures
    >>> lay_out(Figures(report=None, batches=0, seconds=3.2), 80)
    ['starting  3 s']
    """
    run, inputs = _run_parts(figures), _input_parts(figures)
    if figures.done is not None:
        run.insert(0, _Part(0, _bar(figures.done, 20 if width >= 100 else 10 if width >= 60 else 8)))
    groups = [[*run, *inputs]] if width >= _ONE_LINE else [run, inputs]
    return [_cut(_joined(_fit(group, width)), width) for group in groups if group]


def plain_line(figures: Figures) -> str:
    """Return one line of any length, without a bar."""
    return _joined([*_run_parts(figures), *_input_parts(figures)])


def as_html(figures: Figures) -> str:
    """Return it for a notebook's cell; every name is escaped."""
    bar = ""
    if figures.done is not None:
        bar = f'<progress value="{figures.done:.4f}" max="1" style="width: 20em; vertical-align: middle"></progress> '
    lines = [html.escape(_joined(parts)) for parts in (_run_parts(figures), _input_parts(figures)) if parts]
    return f'<div style="font-family: monospace; white-space: pre-wrap">{bar}{"<br>".join(lines)}</div>'


def format_left(seconds: float) -> str:
    """Return a time that is left, as roughly as it is known.

    >>> [format_left(seconds) for seconds in (0.2, 33, 170, 5_000, 90_000)]
    ['about 5 s left', 'about 35 s left', 'about 3 min left', 'about 1 h 20 min left', 'about 25 h left']
    """
    minutes = round(seconds / 60)
    if seconds <= 55:
        shown = f"{max(5, 5 * -(-int(seconds) // 5))} s"
    elif minutes < 60:
        shown = f"{max(1, minutes)} min"
    elif minutes < 600:
        shown = f"{minutes // 60} h" + (f" {minutes % 60 // 10 * 10} min" if minutes % 60 >= 10 else "")
    elif minutes < 2_880:
        shown = f"{round(minutes / 60)} h"
    else:
        shown = f"{round(minutes / 1_440):,} d"
    return f"about {shown} left"


def _run_parts(figures: Figures) -> list[_Part]:
    elapsed = _Part(4, format_span(1000 * int(figures.seconds)))
    if figures.report is None:
        return [_Part(0, "starting"), elapsed]
    has_begun = bool(figures.batches) or figures.is_final
    parts = []
    if figures.done is not None:
        parts.append(_Part(0, f"{_percent(figures.done):3d}%", " "))
    if not has_begun:
        parts.append(_Part(2, "starting"))
    elif figures.done is None:
        parts.append(_Part(3, f"{figures.batches:,} batch{'' if figures.batches == 1 else 'es'}"))
    if has_begun:
        parts.append(_Part(2, "no new rows" if figures.rate is None else f"{figures.rate:,.0f} rows/s"))
    if figures.left is not None:
        parts.append(_Part(1, format_left(figures.left)))
    if figures.behind is not None:
        parts.append(_Part(1, f"{_span(figures.behind)} behind"))
    return [*parts, _Part(3, f"buffered {figures.buffered:,}"), elapsed]


def _input_parts(figures: Figures) -> list[_Part]:
    if figures.report is None:
        return []
    times, day = _times(figures.inputs)
    parts = [_Part(2, day)] if day else []
    for each, moment in zip(figures.inputs, times, strict=True):
        rows = "" if figures.done is not None else f" {each.rows_in:,} to"
        parts.append(_Part(1, f"{_name(each.name)}{rows} {moment}"))
        late = each.rejected.get("late", 0) + each.late_applied
        parts += [_Part(2, f"({late:,} late)", " ")] if late else []
        parts += [_Part(3, note, " ") for note in _notes(each, figures)]
    return [*parts, *([] if figures.drift is None else [_Part(2, f"drift {_span(figures.drift)}")])]


def _notes(each: InputReport, figures: Figures) -> list[str]:
    """Return whether an input is idle, or holds time back where the other one does not."""
    assert figures.report is not None
    differ = len({one.watermark for one in figures.inputs}) > 1
    return ["(idle)"] if each.status == "idle" else ["(holds)"] * (differ and each.name == figures.report.holding_input)


def _times(inputs: Sequence[InputReport]) -> tuple[list[str], str]:
    """Return each watermark in its short form; and the day that they share, where it isn't today."""
    known = {format_time(each.watermark) for each in inputs if each.watermark not in _NO_TIME}
    # What no calendar holds is shown as milliseconds.
    days = {text[:10] for text in known if not text.endswith("ms")}
    begin = 11 if len(days) == 1 else 5 if len({text[:4] for text in days}) == 1 else 0
    times = [_time(each.watermark, begin) for each in inputs]
    today = f"{datetime.now(tz=timezone.utc):%Y-%m-%d}"
    return times, days.pop() if len(days) == 1 and days != {today} else ""


def _time(watermark: int, begin: int) -> str:
    if watermark in _NO_TIME:
        return _NO_TIME[watermark]
    text = format_time(watermark)
    return text if text.endswith("ms") else text[begin:19]


def _span(millis: int) -> str:
    """Return a span to a tenth of a second below 10 seconds, and to the second above."""
    step = 100 if millis < 10_000 else 1_000
    return format_span((millis + step // 2) // step * step)


def _percent(done: float) -> int:
    return int(100 * done + 0.5)


def _name(name: str) -> str:
    shown = "".join(each if each.isprintable() else "?" for each in name)
    return _cut(shown, _LONGEST_NAME)


def _bar(done: float, length: int) -> str:
    filled = length * _percent(done) // 100
    return "█" * filled + "░" * (length - filled)


def _fit(parts: Sequence[_Part], width: int) -> list[_Part]:
    """Leave out parts until the others fit, the least important first, and of equals the last."""
    kept = list(parts)
    while _columns(_joined(kept)) > width and max(part.rank for part in kept) > 1:
        lowest = max(part.rank for part in kept)
        del kept[max(index for index, part in enumerate(kept) if part.rank == lowest)]
    return kept


def _joined(parts: Sequence[_Part]) -> str:
    return "".join(part.gap + part.text for part in parts).strip()


def _columns(text: str) -> int:
    return sum(_column(each) for each in text)


def _column(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    kept, taken = "", 0
    for each in text:
        taken += _column(each)
        if taken > width - 1:
            break
        kept += each
    return kept + "…" if width > 0 else ""
