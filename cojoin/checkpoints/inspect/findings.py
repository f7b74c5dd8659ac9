"""What ``explain`` answers: findings, each with its values and a sentence that can be read aloud."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.checkpoints.inspect.key_state import plain
from cojoin.engine.time.watermarks import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.inspect.waits import Wait

__all__ = ["Explanation", "Finding", "FindingKind"]

FindingKind: TypeAlias = Literal["buffered", "version", "state", "timer", "emitted", "rejected", "unknown"]
"""What was found.

- *buffered*: a row that waits.
- *version*: a row of the right that rows to come can match.
- *state*, *timer*: what a function keeps for the key.
- *emitted*: a row of an output.
- *rejected*: a row of the rejected rows.
- *unknown*: nothing of it is anywhere.
"""

_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One thing that is known.

    Attributes:
        kind: What it is.
        text: It as a sentence or two.
        input: The row's input.
        output: The output that has it, such as ``"output"``.
        values: The row; of a state its name and value, of a timer its domain and timestamp.
        batch_id: Since which batch it waits, or in which it was written; None where nobody can tell.
        watermark: The operator's watermark after that batch; of a rejected row the one before it. Epoch milliseconds.
        wait: What it waits for.
        matched: The row of the other input that it was joined with; None without a match.
        reason: Why it was rejected.
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
        """Return it as plain Python values, for JSON."""
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
    """What is known of a row or a key; ``explain`` gives it, ``print`` shows it.

    Attributes:
        checkpoint: The checkpoint's directory, as it was given.
        question: What was asked.
        batch_id: The batch of whose state it speaks.
        watermark: The operator's watermark then, in epoch milliseconds.
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
        """Return the findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain Python values, for JSON."""
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

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        items = "".join(f"<li>{html.escape(finding.text)}</li>" for finding in self.findings)
        notes = "".join(f"<li><i>Not looked up: {html.escape(note)}.</i></li>" for note in self.notes)
        head = f"{self.question}, after batch {self.batch_id} (watermark {format_time(self.watermark)})"
        return f"<p>{html.escape(head)}</p><ul>{items}{notes}</ul>"
