"""What came of a thing that was done to a query: all rows once, or a refusal that helps; else what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HEADER", "Verdict", "unfit_words"]

HEADER = ("phase", "to whom", "when", "what was there", "result")

_ADVICE = re.compile(
    r"\b(start|restart|run|restore|choose|name|give|use|make|put|set|delete|remove|stop|take|begin|drop|mend|"
    r"Make|Start|Stop)\b"
)
_STACK = re.compile(r"Traceback \(most recent|^\s+at [\w.$]+\(|JVM stacktrace|=== Streaming Query ===", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Attributes:
        phase: To what part of a query's life it was done.
        victim: Who or what met with it.
        moment: When.
        found: What was there after it.
        refusal: How it was refused; None where it went on.
        faults: What is wrong; nothing if all is well.
    """

    phase: str
    victim: str
    moment: str
    found: str
    refusal: str | None
    faults: Sequence[str]

    @property
    def result(self) -> str:
        """What it comes to, in a word."""
        if self.faults:
            return "DIFFERS"
        return "equal" if self.refusal is None else "refused"

    def cells(self) -> tuple[str, ...]:
        """Return its line of the table."""
        return self.phase, self.victim, self.moment, self.found, self.result

    def told(self) -> str:
        """Return all of it, as text of several lines."""
        lines = ["  ".join(self.cells()), *(f"    {fault}" for fault in self.faults)]
        return "\n".join([*lines, *([f"    refused: {self.refusal}"] if self.refusal else [])])


def unfit_words(refusal: str, *names: str) -> list[str]:
    """Return what is wrong with the words of a refusal: it names what it is about and says what to do, in plain text.

    Args:
        refusal: The error's kind, a colon and its message.
        names: Of these it must name one, such as the table's path or the checkpoint's.

    >>> unfit_words("CheckpointError: /lake/out is ahead of /lake/checkpoint; restore a newer copy", "/lake/out")
    []
    >>> unfit_words("KeyError: 'format'", "/lake/out")
    ["not an error of cojoin's: KeyError: 'format'", 'does not name /lake/out', 'does not say what to do']
    """
    kind, _, message = refusal.partition(": ")
    told = []
    if kind not in {"CheckpointError", "QueryFailedError", "ConfigurationError"}:
        told.append(f"not an error of cojoin's: {refusal}")
    if not any(name in message for name in names):
        told.append(f"does not name {' or '.join(names)}")
    if not _ADVICE.search(message):
        told.append("does not say what to do")
    if _STACK.search(message):
        told.append("shows a stack")
    return told
