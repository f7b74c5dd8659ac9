"""``DeterminismError``, and its message: what the result depends on, why, what to do, and the smallest example."""

from __future__ import annotations

from textwrap import fill, indent
from typing import TYPE_CHECKING

from cojoin.engine.formats import format_time
from cojoin.testing.determinism.example_text import batches_text, differences_text, rows_text
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from cojoin.testing.determinism.delivery_runner import DeliveryRunner
    from cojoin.testing.determinism.diagnosis import Diagnosis
    from cojoin.testing.determinism.laboratory import Run

__all__ = ["DeterminismError", "determinism_error"]


_WIDTH = 100


class DeterminismError(HarnessError):
    """A result that depends on more than the rows.

    Attributes:
        seed: The seed that failed.
        depends_on: What the result depends on, in a few words each; the example shows the first.
        rows: How many rows the example has.
    """

    def __init__(self, message: str, *, seed: int, depends_on: tuple[str, ...], rows: int) -> None:
        super().__init__(message)
        self.seed, self.depends_on, self.rows = seed, depends_on, rows


def determinism_error(name: str, seed: int, diagnosis: Diagnosis, runner: DeliveryRunner) -> DeterminismError:
    """Return the error that explains a diagnosis.

    Args:
        name: The name of the function's or join's class.
        seed: The seed that failed.
        diagnosis: What was found.
        runner: Has the rows and the names of the inputs.
    """
    seen, (cause, *others) = diagnosis.example, diagnosis.causes
    failed = [output.error for output in (seen.first, seen.second) if output.error is not None]
    what = "whether it fails depends on" if failed else "its result depends on"
    also = f", and on {' and '.join(other.name for other in others)}" if others else ""
    rows = seen.contrast.rows
    runs = (seen.contrast.first, seen.contrast.second)
    same = runs[0].delivery == runs[1].delivery
    lines = [
        f"{name}: {what} {cause.name}{also} (found by seed {seed})",
        "",
        fill(f"Usual cause: {cause.usually}", _WIDTH),
        fill(f"Cure: {cause.cure}", _WIDTH),
        "",
        f"The smallest example found has {len(rows)} of {len(runner.all_rows)} rows:",
        indent(rows_text(runner, rows), "  "),
        "",
        f"Expected ({_label(cause.first, runs[0], runs[1])}):",
        indent(batches_text(runner, runs[0].delivery), "  "),
        f"Got ({_label(cause.second, runs[1], runs[0])}):",
        "  the same" if same else indent(batches_text(runner, runs[1].delivery), "  "),
        "",
        differences_text(runner, seen),
        "",
        f"To run this seed again: check_determinism(joined, seeds=1, first_seed={seed})",
    ]
    return DeterminismError(
        "\n".join(lines), seed=seed, depends_on=tuple(each.name for each in diagnosis.causes), rows=len(rows)
    )


def _label(text: str, run: Run, other: Run) -> str:
    """Return what a run is, with its hash seed or its clock where the other run has another one."""
    words = [text]
    if run.hash_seed != other.hash_seed:
        words.append("in this process" if run.hash_seed is None else f"PYTHONHASHSEED={run.hash_seed}")
    elif run.clock != other.clock and run.clock.at is not None:
        words.append(format_time(run.clock.at * 1_000))
    return ", ".join(words)
