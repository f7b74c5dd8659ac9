"""What is written after the bar: each input's watermark, the pace, and what waits, the most important first.

Times are UTC. The day is shown once where both watermarks are of one day that isn't today, and at each watermark where
their days differ. The year is left out, so that both watermarks mostly fit into 80 columns.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from tqdm import tqdm

from cojoin.engine.display import format_span, format_time
from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from cojoin.engine.batch_report import BatchReport
    from cojoin.spark.progress.figures import Figures

__all__ = ["postfix_parts"]

_YEAR = len("2026-")
_NO_TIME = {NONE: "no watermark yet", END_OF_TIME: "at the end"}


def postfix_parts(figures: Figures) -> list[str]:
    """Return the parts of the postfix with what separates them; all characters are printable."""
    report, has_begun = figures.report, bool(figures.batches) or figures.is_final
    pace = "no new rows" if figures.rate is None else tqdm.format_sizeof(figures.rate, " rows/s")
    parts = [] if figures.behind is None else [f", {_span(figures.behind)} behind the newest record"]
    parts += [] if report is None else _inputs(report)
    parts.append(f", {pace if has_begun else 'starting'}")
    if report is not None:
        parts += _held(report, is_live=figures.goal is None)
        if has_begun and figures.goal is None:
            parts += [f", {figures.batches:,} batch{'es' * (figures.batches != 1)}", f", {figures.rows:,} rows"]
        marks = [each.watermark for each in report.inputs]
        if not _NO_TIME.keys() & {*marks}:
            parts.append(f", drift {_span(max(marks) - min(marks))}")
        parts.append(f", buffered {sum(each.buffered for each in report.inputs):,}")
    return [parts[0].removeprefix(", "), *parts[1:]]


def _inputs(report: BatchReport) -> list[str]:
    moments = [_moment(each.watermark) for each in report.inputs]
    days = {day for day, _ in moments if day}
    differ = len(days) > 1
    today = f"{datetime.now(tz=timezone.utc):%Y-%m-%d} "
    once = "" if differ else "".join(days - {today})[_YEAR:]
    parts = []
    for each, (day, time) in zip(report.inputs, moments, strict=True):
        parts.append(f", {once}{_printable(each.name)} {day[_YEAR:] if differ else ''}{time}")
        once = ""
        if each.snapshot_rows is not None:
            read, total = each.snapshot_rows
            parts.append(f" ({read:,} of {total:,} rows of the snapshot read)")
        parts += [] if each.table is None else [f" (version {each.table['version']})"]
        late = each.rejected.get("late", 0) + each.late_applied
        parts += [f" ({late:,} late)"] if late else []
        parts += [" (idle)"] if each.status == "idle" else []
    return parts


def _held(report: BatchReport, *, is_live: bool) -> list[str]:
    """Return a part that names what holds time back, and the setting that makes it do so.

    Without one, both inputs are at one time; a live run still names a silent partition.
    """
    each = next((each for each in report.inputs if each.name == report.holding_input), None)
    if each is None or not (len({each.watermark for each in report.inputs}) > 1 or (is_live and each.held_by)):
        return []
    who = _printable(each.name if each.holder is None else f"{each.holder} of {each.name}")
    if each.held_by is not None:
        return [f", held by silent {who}{' (max_drift)' if each.held_by == 'max_drift' else ''}"]
    return [f", held by {who}{' (timestamps beyond max_drift)' if each.source_agrees is False else ''}"]


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _moment(watermark: int) -> tuple[str, str]:
    """Return a watermark's day, with a space after it, and its time; the day is empty where there is none."""
    if watermark in _NO_TIME:
        return "", _NO_TIME[watermark]
    text = format_time(watermark)
    # What no calendar holds is shown as milliseconds.
    return ("", text) if text.endswith("ms") else (text[:11], text[11:19])


def _span(millis: int) -> str:
    return format_span(round(millis, -2))
