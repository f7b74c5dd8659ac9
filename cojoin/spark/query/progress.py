"""The progress of a query as users see it: a line while a program waits for the query, and the query's own display.

In a terminal the line is one that tqdm redraws in place, and in a notebook's cell one output that IPython updates.
Elsewhere, and where ``TERM`` is ``dumb``, it is shown only on request, as a plain line every few seconds after new
batches. The last line stays visible. Four times a second, the waiting thread reads the newest report.

The share that is done is that of the operator's watermark within the run's range of event time, or that of the rows
read where only their total is known. A run with neither is live, as is one whose watermark has caught up with a range
whose end still advances: it has no goal, and its distance to the newest timestamp is measured instead. A live run gets
a goal again only when it has fallen back by more than a tenth of the range and more than ten minutes.

After the bar come each input's watermark, the pace, the input that holds time back, and the buffered rows, the most
important first. Times are UTC. The day is shown once if both watermarks are on the same day, but not today, and at each
watermark if their days differ. The year is left out, so that both watermarks mostly fit into 80 columns.

The display shows only what is in this process: it reads neither Spark's status nor the checkpoint.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from tqdm import tqdm
from tqdm.utils import disp_len

from cojoin.engine.batch_report import furthest_of_idle
from cojoin.engine.display import Display, format_span, format_time
from cojoin.engine.plan import describe_operation
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan
    from cojoin.spark.query.query import Query

_LAST_BATCHES, _LULL_SECONDS = 5, 30.0
_CAUGHT_UP, _CAUGHT_UP_MS = 0.995, 60_000
_FALLEN_BACK, _FALLEN_BACK_MS = 0.9, 600_000


class Goal(NamedTuple):
    """A run's goal, and how much of it is done; ``unit`` is ``"time"`` (event time in milliseconds) or ``"rows"``."""

    unit: str
    done: int
    total: int


class Figures:
    """The figures of a run, as of the last call of ``look``.

    Args:
        now: The time at the start, in seconds of a clock that never goes back.
        report: The newest report at the start; its rows are not counted, so that a restart counts only its own.
        total: How many rows both inputs hold, where that is known.

    Attributes:
        report: The newest batch's report; None before a checkpoint's first batch.
        batches: How many batches the run has finished.
        rows: How many rows of both inputs the run has read.
        rate: Rows a second over the last batches, in the final figures over the whole wait; None without new rows.
        goal: How much is done; None where the run is live, and before the first report.
        behind: Milliseconds from the watermark to the newest timestamp; only where ``goal`` is None.
        is_final: Whether these are the last figures that are shown.
    """

    def __init__(self, now: float, report: BatchReport | None, *, total: int | None = None) -> None:
        self._began, self._before, self._total = now, _rows(report), total
        self._points = deque([(now, 0)], maxlen=1 + _LAST_BATCHES)
        self._span: tuple[int, int] | None = None
        self._grows = self._live = False
        self.look(now, report, 0, None)

    def look(
        self, now: float, report: BatchReport | None, batches: int, span: tuple[int, int] | None, *, final: bool = False
    ) -> None:
        """Update the figures from the newest report and the current range of event time, in epoch milliseconds."""
        self.report, self.batches, self.is_final = report, batches, final
        self.rows = _rows(report) - self._before
        if self.rows > self._points[-1][1]:
            if len(self._points) == 2 and not self._points[0][1]:
                # From the second batch on, the pace leaves out the time that the query took to start.
                self._points.popleft()
            self._points.append((now, self.rows))
        self.rate = self.rows / max(now - self._began, 0.001) or None if final else self._last_rate(now)
        self.goal = None if report is None else self._find_goal(report, span)
        self.behind = None if report is None or self.goal is not None else self._find_behind(report)

    def _last_rate(self, now: float) -> float | None:
        (first, before), (last, rows) = self._points[0], self._points[-1]
        if rows == before or now - last > max(_LULL_SECONDS, 2 * (last - self._points[-2][0])):
            return None
        return (rows - before) / max(last - first, 0.001)

    def _find_goal(self, report: BatchReport, span: tuple[int, int] | None) -> Goal | None:
        if span is None:
            self._span, self._live = None, False
            return Goal("rows", min(_rows(report), self._total), self._total) if self._total else None
        self._grows = self._grows or (self._span is not None and span[1] > self._span[1])
        self._span, (begin, end) = span, span
        total = max(1, end - begin)
        if report.watermark == END_OF_TIME or (report.watermark >= end and not self._grows):
            return Goal("time", total, total)
        done = 0 if report.watermark == NONE else min(max(report.watermark, begin), end) - begin
        left = end - begin - done
        caught_up = self._grows and (done >= _CAUGHT_UP * total or left <= _CAUGHT_UP_MS)
        stays = self._live and (done >= _FALLEN_BACK * total or left <= _FALLEN_BACK_MS)
        self._live = caught_up or stays
        return None if self._live else Goal("time", done, total)

    def _find_behind(self, report: BatchReport) -> int | None:
        if report.watermark in {NONE, END_OF_TIME}:
            return None
        newest = [each.max_timestamp for each in report.inputs]
        newest += [self._span[1]] if self._span is not None and self._grows else []
        return max(0, max(newest) - report.watermark)


def _rows(report: BatchReport | None) -> int:
    return 0 if report is None else sum(each.rows_in for each in report.inputs)


_YEAR = len("2026-")
_NO_TIME = {NONE: "no watermark yet", END_OF_TIME: "at the end"}


def postfix_parts(figures: Figures) -> list[str]:
    """Return the parts of the postfix with their separators; all characters are printable."""
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
    for counts, (day, moment) in zip(report.inputs, moments, strict=True):
        parts.append(f", {once}{_printable(counts.name)} {day[_YEAR:] if differ else ''}{moment}")
        once = ""
        if counts.snapshot_rows is not None:
            read, total = counts.snapshot_rows
            parts.append(f" ({read:,} of {total:,} rows of the snapshot read)")
        parts += [] if counts.table is None else [f" (version {counts.table['version']})"]
        late = counts.rejected.get("late", 0) + counts.late_applied
        parts += [f" ({late:,} late)"] if late else []
        parts += [" (idle)"] if counts.status == "idle" else []
    return parts


def _held(report: BatchReport, *, is_live: bool) -> list[str]:
    """Return a part that names the input that holds the watermark back, and the setting that causes it.

    It is empty where both inputs have the same watermark, except where a silent partition holds a live run back, or
    rows wait while all inputs are idle.
    """
    if furthest_of_idle(report) is not None and any(each.buffered for each in report.inputs):
        return [", held while all are idle (when_all_idle)"]
    holding = next((each for each in report.inputs if each.name == report.holding_input), None)
    if holding is None or not (len({each.watermark for each in report.inputs}) > 1 or (is_live and holding.held_by)):
        return []
    who = _printable(holding.name if holding.holder is None else f"{holding.holder} of {holding.name}")
    if holding.held_by is not None:
        return [f", held by silent {who}{' (max_drift)' if holding.held_by == 'max_drift' else ''}"]
    return [f", held by {who}{' (timestamps beyond max_drift)' if holding.source_agrees is False else ''}"]


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _moment(watermark: int) -> tuple[str, str]:
    """Return a watermark's day, with a space after it, and its time; the day is empty without a watermark."""
    if watermark in _NO_TIME:
        return "", _NO_TIME[watermark]
    text = format_time(watermark)
    # A time outside of the years 1 to 9999 is shown as milliseconds.
    return ("", text) if text.endswith("ms") else (text[:11], text[11:19])


def _span(millis: int) -> str:
    return format_span(round(millis, -2))


def _is_notebook() -> bool:
    """Return whether standard output is a notebook's cell."""
    return type(sys.stdout).__module__.startswith("ipykernel")


class _NotebookCell:
    """An output of the running notebook cell; the first ``show`` creates it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show a text in the place of the one before."""
        from IPython.display import display  # noqa: PLC0415 - a kernel has it, others need not

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


_INTERVAL_SECONDS, _PLAIN_SECONDS = 0.25, 5.0
_LIVE = "{elapsed}{postfix}"


class _Nowhere:
    """A file that drops all text, for tqdm while its line is shown in another way, or not yet."""

    def write(self, text: str) -> None:
        """Drop a text."""


class ProgressLine:
    """Draws progress while a query is waited for.

    Args:
        query: Has ``progress``, a ``BatchReport`` or None, and ``batches``.
        enabled: None decides by the output: a terminal or a notebook shows it.
        total: How many rows both inputs hold, if known; without a range, the bar shows the share of them that is read.
        span: Returns the run's range of event time, begin and end in epoch milliseconds, or None while it isn't known.
            The bar shows the watermark's position in it, and its end may advance. The function is called at every
            drawing, several times a second: it must be cheap, and must not raise.
    """

    def __init__(
        self,
        query: Any,
        *,
        enabled: bool | None = None,
        total: int | None = None,
        span: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._query, self._span = query, span
        self._figures = Figures(time.monotonic(), query.progress, total=total)
        self._cell = _NotebookCell() if _is_notebook() else None
        self._stream: TextIO = sys.stderr
        is_terminal = self._cell is None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._redraws = self._cell is not None or is_terminal
        self._enabled = self._redraws if enabled is None else enabled
        self._bar: tqdm[Any] | None = None
        self._unit, self._shown = "", ""
        self._written_at, self._written_batches = time.monotonic(), 0

    def __enter__(self) -> ProgressLine:  # noqa: PYI034 - Self needs Python 3.11
        if self._enabled:
            bar: tqdm[Any] = tqdm(
                file=self._stream if self._redraws and self._cell is None else _Nowhere(),
                bar_format=_LIVE,
                postfix="starting",
                miniters=1,
                mininterval=0,
                dynamic_ncols=self._redraws,
                ascii=None if self._cell is None else False,
            )
            # TQDM_DISABLE turns it off.
            self._bar = None if bar.disable else bar
            known = bar.format_dict
            if self._redraws and (self._cell or min(known["ncols"] or 0, known["nrows"] or 0) < 2):
                # tqdm shows nothing in a terminal that doesn't know its size and reports 0.
                bar.dynamic_ncols, bar.ncols, bar.nrows = False, 120 if self._cell else 79, 24
        return self

    def __exit__(self, *raised: object) -> None:
        self.draw(final=True)

    def wait(self, ended: threading.Event, timeout: float | None) -> bool:
        """Wait for an event, drawing meanwhile; return whether it came."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not ended.wait(max(0.0, min(_INTERVAL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            self.draw()
        return True

    def draw(self, *, final: bool = False) -> None:
        """Show the newest figures; a line that can't be redrawn is written only every few seconds, and at the end."""
        if self._bar is None:
            return
        self._update(self._bar, final=final)
        if final:
            self._bar.close()
        if self._redraws:
            if str(self._bar) != self._shown:
                self._shown = str(self._bar)
                if self._cell is None:
                    self._bar.refresh()
                else:
                    self._cell.show(self._shown)
            return
        now, batches = time.monotonic(), self._query.batches
        if final or (now - self._written_at >= _PLAIN_SECONDS and batches != self._written_batches):
            self._written_at, self._written_batches = now, batches
            self._stream.write(f"{self._bar}\n".lstrip())
            self._stream.flush()

    def _update(self, bar: tqdm[Any], *, final: bool) -> None:
        """Set the bar to the newest figures, without drawing it: tqdm itself would draw it before its parts are new."""
        span = None if self._span is None else self._span()
        self._figures.look(time.monotonic(), self._query.progress, self._query.batches, span, final=final)
        goal = self._figures.goal
        draws, bar.sp = bar.sp, _Nowhere().write
        if goal is None:
            self._unit, bar.total, bar.bar_format = "", None, _LIVE
        else:
            if goal.unit != self._unit:
                # A speed in another unit, or from when the run was live, does not predict when this goal is reached.
                began, self._unit = bar.start_t, goal.unit
                bar.reset()
                bar.start_t, bar.initial, bar.n, bar.last_print_n = began, goal.done, goal.done, goal.done
            shape = "|{bar:10}| " if self._redraws else " "
            shape += "{elapsed}{postfix}" if final else "{elapsed}<{remaining}{postfix}"
            bar.total, bar.bar_format = goal.total, "{percentage:3.0f}%" + shape
            bar.update(goal.done - bar.n)
        bar.sp = draws
        bar.set_postfix_str(self._postfix(bar.format_dict), refresh=False)

    def _postfix(self, known: Mapping[str, Any]) -> str:
        """Return the parts for which the line has room: tqdm itself would cut in the middle of a number."""
        encoding, kept = ("utf-8" if self._cell else self._stream.encoding or "utf-8"), ""
        for part in postfix_parts(self._figures):
            longer = kept + part.encode(encoding, "replace").decode(encoding)
            line = tqdm.format_meter(**{**known, "ncols": None, "postfix": longer})
            if known["ncols"] and disp_len(line) > known["ncols"]:
                break
            kept = longer
        return kept


def query_display(query: Query, plan: Plan, checkpoint: str) -> Display:
    """Return the display of a query."""
    left, right = plan.inputs
    report, error = query.progress, query.exception()
    state = "running" if query.is_active else "ended" if error is None else "failed"
    head = f"Query: {describe_operation(plan.operation)} of {left.name!r} with {right.name!r}, {state}"
    batches = f"{query.batches:,} batch{'es' * (query.batches != 1)} in this run"
    notes = [f"{batches}; checkpoint {without_login(checkpoint)}"]
    if report is None:
        return Display(f"{head}, before the first batch", notes=[*_failure(error), *notes])
    notes = [report.headline() + ".", *report.loading(), *report.readings(), *notes]
    if error is None and not query.is_active:
        notes.insert(0, report.ending(before=query.progress_before))
    return Display(head, report.table_rows(), [*_failure(error), *notes], _share(query))


def _share(query: Query) -> float | None:
    """Return the share of its range of event time that a running query has done; None if it has ended or is live."""
    if not query.is_active or query.span is None:
        return None
    figures = Figures(time.monotonic(), None)
    figures.look(time.monotonic(), query.progress, query.batches, query.span)
    return None if figures.goal is None else figures.goal.done / figures.goal.total


def _failure(error: BaseException | None) -> list[str]:
    return [] if error is None else [f"{type(error).__name__}: {without_login(str(error))}"]
