"""The result of ``explain``: findings, each with its values and a sentence."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.checkpoints.inspect.key_state import plain
from cojoin.engine.display import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.inspect.waits import Wait

__all__ = ["Explanation", "Finding", "FindingKind"]

FindingKind: TypeAlias = Literal["buffered", "version", "state", "timer", "emitted", "rejected", "unknown"]
"""The kind of a finding.

- *buffered*: a row that waits in the state.
- *version*: a row of the right input that later rows can match.
- *state*, *timer*: what a function keeps for the key.
- *emitted*: a row of an output.
- *rejected*: a row of the rejected rows.
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
        wait: What the row or timer waits for.
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
    """What is known of a row or a key; ``explain`` returns it, and ``print`` shows it.

    Attributes:
        checkpoint: The checkpoint's directory, as the caller wrote it.
        question: The question, as text.
        batch_id: The batch whose state was read.
        watermark: The operator's watermark after that batch, in epoch milliseconds.
        findings: What was found.
        notes: What could not be looked up, and why.
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
        head = f"{self.question}, after batch {self.batch_id} (watermark {format_time(self.watermark)})"
        texts = [finding.text for finding in self.findings]
        notes = [f"Not looked up: {note}." for note in self.notes]
        wrapped = [
            textwrap.fill(
                text,
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for text in (*texts, *notes)
        ]
        return "\n".join([head, *wrapped])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the explanation as HTML, for notebooks."""
        items = "".join(f"<li>{html.escape(finding.text)}</li>" for finding in self.findings)
        notes = "".join(f"<li><i>Not looked up: {html.escape(note)}.</i></li>" for note in self.notes)
        head = f"{self.question}, after batch {self.batch_id} (watermark {format_time(self.watermark)})"
        return f"<p>{html.escape(head)}</p><ul>{items}{notes}</ul>"
