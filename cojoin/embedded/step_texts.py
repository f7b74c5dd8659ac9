"""How a step shows itself: as a text, and as HTML in notebooks; times are times in UTC.

It shows the counts and watermarks, and below them only what there is: the rows that came in, each output, the rows that
wait, timers and states. Long tables and long values are cut, and the text says so. Of what is kept, a cut table shows
first what is new or has changed in the step.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from cojoin.engine.formats import format_time, show_value, text_table
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import REJECTED
from cojoin.engine.values.row_digest import row_hashes
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.tables import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cojoin.embedded.step import Step
    from cojoin.engine.local.kept_tables import KeptTables

__all__ = ["step_html", "step_text"]

_MOST_ROWS, _MOST_CHARACTERS = 10, 100


@dataclass(frozen=True)
class _Section:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: int = 0


def step_text(step: Step) -> str:
    """Return a step as a text of aligned tables."""
    lines = [_head(step), "", step.report.table()]
    for section in _sections(step):
        lines += ["", section.title]
        if section.rows:
            table = text_table([section.columns, *section.rows])
            lines += [f"  {line}" for line in table.splitlines()]
        if section.left_out:
            lines.append(f"  ... and {section.left_out:,} more")
    return "\n".join(lines)


def step_html(step: Step) -> str:
    """Return a step as HTML tables."""
    header, *counts = step.report.table_rows()
    parts = [f"<p><b>{html.escape(_head(step))}</b></p>", _html_table(header, counts)]
    for section in _sections(step):
        more = f" (and {section.left_out:,} more)" if section.left_out else ""
        parts.append(f"<p>{html.escape(section.title)}{more}</p>")
        if section.rows:
            parts.append(_html_table(section.columns, section.rows))
    return f"<div>{''.join(parts)}</div>"


def _head(step: Step) -> str:
    report = step.report
    clock = f"processing time {format_time(report.processing_time)}" if report.processing_time else "clock unknown"
    held = f" (held by {report.holding_input!r})" if report.holding_input else ""
    return f"step {report.batch_id}: watermark {format_time(report.watermark)}{held}, {clock}; times are in UTC"


def _sections(step: Step) -> Iterator[_Section]:
    plan = step.plan
    names = [spec.name for spec in plan.inputs]
    for name, table in zip(names, step.rows, strict=True):
        yield from _section(f"rows of {name!r} that came in", table)
    emitted = list(_section("output", step.output))
    yield from emitted or [_Section("output: no rows", (), ())]
    for tag, table in step.side_outputs.items():
        yield from _section(f"side output {tag.tag_id!r}", table)
    yield from _section(REJECTED, step.rejected)
    yield from _kept(f"rows of {names[0]!r} that wait", step, lambda kept: kept.waiting[0])
    yield from _kept(f"rows of {names[1]!r} that wait", step, lambda kept: kept.waiting[1])
    yield from _kept("timers", step, lambda kept: kept.timers)
    is_function = isinstance(plan.operation, KeyedCoProcess)
    yield from _kept("states" if is_function else f"rows of {names[1]!r} in force", step, lambda kept: kept.state)


def _kept(title: str, step: Step, read: Callable[[KeptTables], pa.Table]) -> Iterator[_Section]:
    """Yield a table of what is kept after a step; where it is cut, rows that were not kept before come first."""
    table = read(step._kept)  # noqa: SLF001 - its own texts
    if table.num_rows > _MOST_ROWS:
        known = np.isin(row_hashes(table), row_hashes(read(step._kept_before)))  # noqa: SLF001 - its own texts
        changed = int(np.count_nonzero(~known))
        if 0 < changed < table.num_rows:
            title = f"{title}; the {changed:,} that this step has added or changed come first"
        order = np.argsort(known, kind="stable")[:_MOST_ROWS]
        yield from _section(title, take_rows(table, order), table.num_rows - _MOST_ROWS)
    else:
        yield from _section(title, table)


def _section(title: str, table: pa.Table, left_out: int = 0) -> Iterator[_Section]:
    """Yield a table as texts, unless it has no rows; ``left_out`` rows are left out of it already."""
    if table.num_rows:
        shown = table.slice(0, _MOST_ROWS)
        texts = [
            _column(column, is_watermark=title == REJECTED and name == "watermark")
            for name, column in zip(table.column_names, shown.columns, strict=True)
        ]
        yield _Section(
            title, table.column_names, list(zip(*texts, strict=True)), left_out + table.num_rows - shown.num_rows
        )


def _column(column: pa.ChunkedArray, *, is_watermark: bool) -> list[str]:
    """Return a column's values as texts; watermarks and timers' timestamps are epoch milliseconds."""
    if is_watermark or column.type == pa.timestamp("ms", "UTC"):
        return ["none" if each is None else format_time(each) for each in column.cast(pa.int64()).to_pylist()]
    return [_cut(show_value(each)) for each in decode_column(column, str)]


def _cut(text: str) -> str:
    one_line = text.replace("\n", "\\n").replace("\r", "\\r")
    return one_line if len(one_line) <= _MOST_CHARACTERS else f"{one_line[: _MOST_CHARACTERS - 3]}..."


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    frame: pd.DataFrame = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=False, border=0, escape=True)
