"""Describes rows and keys of a state in sentences: what waits, for which time, and what holds that time back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cojoin.checkpoints.inspect.findings import Finding
from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, PAIRED, STATE
from cojoin.checkpoints.inspect.waits import Wait, wait_for_clock, wait_for_watermark
from cojoin.engine.display import format_time, show_row, show_value
from cojoin.engine.joins.search import shift
from cojoin.engine.keyed_state_backend import entry_of
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.rows import Row, decode_rows
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.inspect.state_rows import Found
    from cojoin.engine.input_spec import InputSpec

__all__ = ["Since", "describe_row", "state_findings"]

_LONGEST = 200


class Since(NamedTuple):
    """The batch since which a row has been waiting."""

    batch_id: int
    """The first of the known batches after which the row waited."""

    exact: bool
    """Whether the row is known not to have waited after the batch before that one."""

    def __str__(self) -> str:
        return f" since batch {self.batch_id}{'' if self.exact else ' or longer'}"


def state_findings(state: QueryState, found: Mapping[str, Found], since: Since | None, limit: int) -> Iterator[Finding]:
    """Yield a finding for each row that was found in the tables of a state.

    Args:
        state: The state.
        found: The rows found, by table.
        since: The batch since which the row waits, where the question is about a single row.
        limit: The most rows of a table to describe.
    """
    for name in (*BUFFERS, "versions", *(each for each in found if each.startswith(STATE)), *DOMAINS):
        if name in found and found[name].rows.num_rows:
            yield from _of_table(state, name, found[name].rows.slice(0, limit), since)


def describe_row(name: str, values: Mapping[str, Any]) -> str:
    """Return a row of an input as the subject of a sentence."""
    text = show_row(values)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"The row {shown} of {name!r}"


def _of_table(state: QueryState, name: str, rows: pa.Table, since: Since | None) -> Iterator[Finding]:
    if name in BUFFERS:
        yield from _waiting(state, name, rows, since)
    elif name == "versions":
        yield from _versions(state, rows)
    elif name in DOMAINS:
        yield from _timers(state, name, rows)
    else:
        value, shown = entry_of(rows), name.removeprefix(STATE)
        yield Finding("state", f"State {shown!r} is {show_value(value)}.", values={"name": shown, "value": value})


def _waiting(state: QueryState, name: str, rows: pa.Table, since: Since | None) -> Iterator[Finding]:
    side, _ = BUFFERS[name]
    spec, flags = state.inputs[side], [None] * rows.num_rows
    if name in PAIRED:
        flags = rows.column(rows.num_columns - 1).to_pylist()
        rows = rows.select(rows.column_names[:-1])
    for row, until, matched in zip(decode_rows(rows, beyond=str), _untils(state, name, spec, rows), flags, strict=True):
        wait = wait_for_watermark(state, until)
        what, whom = describe_row(spec.name, row.as_dict()), state.inputs[1 - side].name
        told = f"{what} is buffered{since or ''}: {_fate(state, name, wait, whom)}"
        if matched is not None:
            told += " It has been paired already." if matched else " It has no pair yet."
        batch_id = None if since is None else since.batch_id
        yield Finding("buffered", told, spec.name, values=row.as_dict(), batch_id=batch_id, wait=wait)


def _untils(state: QueryState, name: str, spec: InputSpec, rows: pa.Table) -> list[int]:
    """Return the watermark at which each row is released or dropped, or its match is final, in epoch milliseconds."""
    micros, query = spec.micros(rows), state.query
    if name == "left":
        micros = np.maximum(micros, shift(micros, query["upper_us"]))
    elif name == "right":
        micros = np.maximum(micros, shift(micros, -query["lower_us"]))
    elif name == "waiting":
        if query["tolerance_us"] is None:
            return [END_OF_TIME] * rows.num_rows
        micros = shift(micros, query["tolerance_us"])
    untils: list[int] = event_millis(micros).tolist()
    return untils


def _fate(state: QueryState, name: str, wait: Wait, other: str) -> str:
    when = f"when the watermark reaches {format_time(wait.until)}; {wait}."
    operator = state.query["operator"]
    if name in PAIRED:
        return f"it is kept for rows of {other!r} until the watermark reaches {format_time(wait.until)}; {wait}."
    if name == "waiting":
        if wait.until == END_OF_TIME:
            return f"its match is open until a later row of {other!r} comes and the watermark passes it; {wait}."
        return f"its match is open, at the longest until the watermark reaches {format_time(wait.until)}; {wait}."
    verbs = {"process": "the function gets it", "interval_join": "it is joined"}
    verb = "it takes effect" if name == "held2" else "it comes out"
    if name == "held1" and state.query.get("direction", "backward") != "backward":
        verb = "its match is looked for"
    return f"{verbs.get(operator, verb)} {when}"


def _versions(state: QueryState, rows: pa.Table) -> Iterator[Finding]:
    spec = state.inputs[1]
    for row in decode_rows(rows, beyond=str):
        since = "" if spec.event_time is None else _shown_time(row, spec.event_time)
        text = f"{describe_row(spec.name, row.as_dict())} is in force{since}: rows to come can match it."
        yield Finding("version", text, spec.name, values=row.as_dict())


def _shown_time(row: Row, column: str) -> str:
    return f" from {show_value(row[column])} on"


def _timers(state: QueryState, name: str, rows: pa.Table) -> Iterator[Finding]:
    domain = DOMAINS[name]
    for timestamp in sorted(rows.column(rows.num_columns - 1).to_pylist()):
        if domain == "event_time":
            wait = wait_for_watermark(state, timestamp)
            text = f"An event-time timer fires when the watermark reaches {format_time(timestamp)}; {wait}."
        else:
            wait = wait_for_clock(state, timestamp)
            text = f"A processing-time timer fires in the first batch from {format_time(timestamp)} on; {wait}."
        yield Finding("timer", text, values={"domain": domain, "timestamp": timestamp}, wait=wait)
