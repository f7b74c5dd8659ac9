"""The findings of ``explain``: facts about a row or a key, each with its values and a sentence.

A row or a timer that waits has a ``Wait``: the time that must be reached, how far the watermark or clock is behind it,
and the input and source partition that hold the watermark back.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, PAIRED, STATE, plain
from cojoin.engine.display import Display, format_span, format_time, show_row, show_value
from cojoin.engine.joins.search import shift
from cojoin.engine.keyed_state_backend import entry_of
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.checkpoints.inspect.key_state import MatchingRows
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.engine.input_spec import InputSpec


FindingKind: TypeAlias = Literal["buffered", "version", "state", "timer", "emitted", "rejected", "unknown"]
"""The kind of a finding.

- *buffered*: a row that waits in the state.
- *version*: a row of the right input that later rows can match.
- *state*, *timer*: what a function keeps for the key.
- *emitted*: a row of an output.
- *rejected*: a row of the ``rejected`` output.
- *unknown*: nothing was found.
"""

_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One fact about a row or a key.

    Attributes:
        kind: The kind of finding.
        text: The finding in a sentence or two.
        input: The row's input.
        output: The output that has the row, such as ``"output"``.
        values: The row; for a state its name and value, for a timer its domain and timestamp.
        batch_id: The batch since which the row waits, or that wrote it; None where it is not known.
        watermark: The operator's watermark after that batch, for a rejected row before it, in epoch milliseconds.
        wait: The time that the row or timer waits for.
        matched: The row of the other input that it was joined with; None without a match.
        reason: Why the row was rejected.
    """

    kind: FindingKind
    text: str
    input: str | None = None
    output: str | None = None
    values: Mapping[str, Any] | None = None
    batch_id: int | None = None
    watermark: int | None = None
    wait: Wait | None = None
    matched: Mapping[str, Any] | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain Python values, for JSON."""
        return {
            "kind": self.kind,
            "text": self.text,
            "input": self.input,
            "output": self.output,
            "values": None if self.values is None else plain(dict(self.values)),
            "batch_id": self.batch_id,
            "watermark": self.watermark,
            "wait": None if self.wait is None else self.wait.as_dict(),
            "matched": None if self.matched is None else plain(dict(self.matched)),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Explanation:
    """The findings about a row or a key; ``explain`` returns it, and ``print`` shows it.

    Attributes:
        checkpoint: The checkpoint's directory, as the caller wrote it.
        question: The question, as text.
        batch_id: The batch whose state was read.
        watermark: The operator's watermark after that batch, in epoch milliseconds.
        findings: The findings.
        notes: Look-ups that failed, with their reasons.
    """

    checkpoint: str
    question: str
    batch_id: int
    watermark: int
    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    def of(self, kind: FindingKind) -> list[Finding]:
        """Return the findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain Python values, for JSON."""
        return {
            "checkpoint": self.checkpoint,
            "question": self.question,
            "batch_id": self.batch_id,
            "watermark": self.watermark,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        head, *texts = self._texts()
        wrapped = [
            textwrap.fill(
                text,
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for text in texts
        ]
        return "\n".join([head, *wrapped])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *texts = self._texts()
        return Display(head, notes=texts).html()

    def _texts(self) -> list[str]:
        """Return the headline, the findings and the notes."""
        head = f"{self.question}, after batch {self.batch_id} (watermark {format_time(self.watermark)})"
        return [
            head,
            *(finding.text for finding in self.findings),
            *(f"Not looked up: {note}." for note in self.notes),
        ]


_LONGEST = 200


class Since(NamedTuple):
    """The batch since which a row has been waiting."""

    batch_id: int
    """The first batch after which the row is known to have waited."""

    exact: bool
    """Whether the row is known not to have waited before; if not, it may have waited longer."""

    def __str__(self) -> str:
        return f" since batch {self.batch_id}{'' if self.exact else ' or longer'}"


def state_findings(
    state: QueryState, rows: Mapping[str, MatchingRows], since: Since | None, limit: int
) -> Iterator[Finding]:
    """Yield a finding for each row in the tables of a state, at most ``limit`` for each table.

    ``since`` is the batch since which the row waits; None if the question is about more than one row.
    """
    for name in (*BUFFERS, "versions", *(each for each in rows if each.startswith(STATE)), *DOMAINS):
        if name in rows and rows[name].rows.num_rows:
            yield from _of_table(state, name, rows[name].rows.slice(0, limit), since)


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
        subject, other = describe_row(spec.name, row.as_dict()), state.inputs[1 - side].name
        text = f"{subject} is buffered{since or ''}: {_fate(state, name, wait, other)}"
        if matched is not None:
            text += " It has been paired already." if matched else " It has no pair yet."
        batch_id = None if since is None else since.batch_id
        yield Finding("buffered", text, spec.name, values=row.as_dict(), batch_id=batch_id, wait=wait)


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
            return f"its match is open until a later row of {other!r} comes and the watermark passes that row; {wait}."
        return f"its match is open at most until the watermark reaches {format_time(wait.until)}; {wait}."
    verbs = {"process": "the function gets it", "interval_join": "it is joined"}
    verb = "it takes effect" if name == "held2" else "it is emitted"
    if name == "held1" and state.query.get("direction", "backward") != "backward":
        verb = "its match is looked for"
    return f"{verbs.get(operator, verb)} {when}"


def _versions(state: QueryState, rows: pa.Table) -> Iterator[Finding]:
    spec, deletes = state.inputs[1], state.query.get("deletes")
    for row in decode_rows(rows, beyond=str):
        since = "" if spec.event_time is None else f" from {show_value(row[spec.event_time])} on"
        if spec.known is not None and spec.known.column is not None and not spec.known.is_commit:
            since += f", known at {show_value(row[spec.known.column])}"
        text = f"{describe_row(spec.name, row.as_dict())} is in force{since}: later rows can match it."
        if deletes is not None and row[deletes]:
            text = f"{describe_row(spec.name, row.as_dict())} deletes its key{since}: no older row can match."
        yield Finding("version", text, spec.name, values=row.as_dict())


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


@dataclass(frozen=True)
class Wait:
    """The time that a row or a timer waits for; all times are in epoch milliseconds.

    Attributes:
        clock: ``"watermark"``, or ``"processing_time"`` for the batches' processing time.
        until: The time that must be reached; ``2**63 - 1`` for the end of all inputs.
        reached: The current watermark or processing time; ``-2**63`` before the first one.
        input: The input that holds the watermark back; None where no input does, or it is not known.
        partition: The source partition of that input that holds it back, where the input has several.
        is_holder_known: Whether it is known if an input holds the watermark back.

    >>> print(Wait("watermark", 5_000, -1_001, "customers", '["customers",3]'))
    it is at 1969-12-31 23:59:58.999, held by 'customers' partition ["customers",3], 6.001 s behind
    """

    clock: Literal["watermark", "processing_time"]
    until: int
    reached: int
    input: str | None = None
    partition: str | None = None
    is_holder_known: bool = True

    @property
    def behind_ms(self) -> int | None:
        """The distance of ``reached`` behind ``until``, in milliseconds.

        0 where it is reached; None before the first watermark, or where the wait is for the end of all inputs.
        """
        if self.reached == NONE or self.until == END_OF_TIME:
            return None
        return max(0, self.until - self.reached)

    @property
    def is_due(self) -> bool:
        """Whether the time has been reached, so that the wait ends with the next batch."""
        return self.reached >= self.until

    def as_dict(self) -> dict[str, Any]:
        """Return the wait as JSON values."""
        return {
            "clock": self.clock,
            "until": self.until,
            "reached": self.reached,
            "behind_ms": self.behind_ms,
            "input": self.input,
            "partition": self.partition,
        }

    def __str__(self) -> str:
        behind = "" if self.behind_ms is None else f", {format_span(self.behind_ms)} behind"
        if self.is_due:
            behind = ", so this happens in the next batch"
        if self.clock == "processing_time":
            if self.reached == NONE:
                return "the processing time of the last batch is not known"
            return f"the last batch was at {format_time(self.reached)}{behind}"
        if self.is_due:
            return f"the watermark has reached {format_time(self.reached)}{behind}"
        partition = f" partition {self.partition}" if self.partition else ""
        if self.reached == NONE:
            return "no watermark yet" + (f": input {self.input!r}{partition} has none" if self.input else "")
        if not self.is_holder_known:
            holder = "it is not known which input holds it back"
        elif self.input:
            holder = f"held by {self.input!r}{partition}"
        else:
            holder = "no active input holds it back"
        return f"it is at {format_time(self.reached)}, {holder}{behind}"


def wait_for_watermark(state: QueryState, until: int) -> Wait:
    """Return the wait until the watermark reaches a time in epoch milliseconds."""
    report = state.report
    holding = None if report is None else report.holding_input
    partition = None
    if report is not None:
        partition = next((each.holding_partition for each in report.inputs if each.name == holding), None)
    partition = None if partition == ONE_PARTITION else partition
    return Wait("watermark", until, state.watermark, holding, partition, report is not None)


def wait_for_clock(state: QueryState, until: int) -> Wait:
    """Return the wait until the batches' processing time reaches a time in epoch milliseconds."""
    taken_at = state.taken_at
    return Wait("processing_time", until, NONE if taken_at is None else int(1000 * taken_at.timestamp()))
