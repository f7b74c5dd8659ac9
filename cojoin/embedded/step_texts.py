"""How a step shows itself: as a text, and as HTML in notebooks; times are times in UTC.

It shows the counts and watermarks, and below them only what there is: the rows that came in, each output, the rows that
wait, timers and states. Long tables and long values are cut, and the text says so. Of what is kept, a cut table shows
first what is new or has changed in the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cojoin.embedded.row_texts import text_rows
from cojoin.engine.display import html_table, html_text
from cojoin.engine.formats import format_time, text_table
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import REJECTED
from cojoin.engine.values.hashes import row_hashes
from cojoin.engine.values.tables import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from cojoin.embedded.step import Step
    from cojoin.engine.local.kept_tables import KeptTables

__all__ = ["step_html", "step_text"]

_MOST_ROWS = 10


@dataclass(frozen=True)
class _Section:
    title: str
    rows: Sequence[Sequence[str]] = ()
    """The names of its columns, and its rows; none where there is nothing."""
    left_out: int = 0


def step_text(step: Step) -> str:
    """Return a step as a text of aligned tables."""
    lines = [_head(step), "", step.report.table()]
    for section in _sections(step):
        lines += ["", section.title]
        if section.rows:
            lines += [f"  {line}" for line in text_table(section.rows).splitlines()]
        if section.left_out:
            lines.append(f"  ... and {section.left_out:,} more")
    return "\n".join(lines)


def step_html(step: Step) -> str:
    """Return a step as HTML tables."""
    parts = [f"<p><b>{html_text(_head(step))}</b></p>", html_table(step.report.table_rows())]
    for section in _sections(step):
        more = f" (and {section.left_out:,} more)" if section.left_out else ""
        parts.append(f"<p>{html_text(section.title)}{more}</p>{html_table(section.rows)}")
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
    yield from emitted or [_Section("output: no rows")]
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
        millis = ["watermark"] if title == REJECTED else []
        yield _Section(
            title, text_rows(table, _MOST_ROWS, millis=millis), left_out + max(table.num_rows - _MOST_ROWS, 0)
        )
