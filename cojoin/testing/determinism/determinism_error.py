"""``DeterminismError``, and its message: what the result depends on, why, what to do, and the smallest example.

The example shows the batches with their rows, and the two outputs, expected against got.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from textwrap import fill, indent
from typing import TYPE_CHECKING

from cojoin.engine.display import cells, format_table, format_time
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from cojoin.testing.determinism.deliveries import Delivery, MicroBatch
    from cojoin.testing.determinism.delivery_runner import DeliveryRunner, RowText, RunOutput
    from cojoin.testing.determinism.diagnosis import Diagnosis
    from cojoin.testing.determinism.laboratory import Run, Seen

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


_MOST_ROWS = 20


def rows_text(runner: DeliveryRunner, rows: Sequence[int]) -> str:
    """Return rows as a table for each input, each row after its name (``row_name``)."""
    parts = []
    for side, table in enumerate(runner.tables):
        own = [row for row in rows if (row >= runner.left) == bool(side)]
        if own:
            found = table.take([row - runner.left * side for row in own])
            values = map(cells, decode_rows(found, str))
            lines = [(row_name(runner, row), *line) for row, line in zip(own, values, strict=True)]
            parts.append(format_table(["row", *table.column_names], lines))
    return "\n\n".join(parts)


def row_name(runner: DeliveryRunner, row: int) -> str:
    """Return a row's name: its input, and its number there as given, from 0 on."""
    side = row >= runner.left
    return f"{runner.plan.inputs[side].name} {row - runner.left * side}"


def batches_text(runner: DeliveryRunner, delivery: Delivery) -> str:
    """Return the batches of a delivery, a line for each."""
    last = len(delivery.batches) - 1
    return "\n".join(
        f"batch {number + 1}: {_batch_text(runner, batch, first=number == 0, last=number == last)}"
        for number, batch in enumerate(delivery.batches)
    )


def _batch_text(runner: DeliveryRunner, batch: MicroBatch, *, first: bool, last: bool) -> str:
    parts = []
    if batch.restarts and not first:
        parts.append("after a restart")
    if (first or batch.restarts) and batch.key_groups > 1:
        parts.append(f"in {batch.key_groups} key groups")
    if batch.processing_time:
        parts.append(f"at processing time {format_time(batch.processing_time)}")
    parts.append(", ".join(row_name(runner, row) for row in batch.rows) or "no rows")
    if last:
        parts.append("then the inputs end")
    elif batch.watermarks != (NONE, NONE):
        left, right = map(format_time, batch.watermarks)
        names = [spec.name for spec in runner.plan.inputs]
        both = f"the watermark {left}" if left == right else f"the watermarks {left} ({names[0]}), {right} ({names[1]})"
        parts.append(f"then {both}")
    return "; ".join(parts)


def differences_text(runner: DeliveryRunner, seen: Seen) -> str:
    """Return the rows of each output and key that differ, expected against got, or the error."""
    for which, output in (("expected", seen.first), ("got", seen.second)):
        if output.error is not None:
            return f"The run that is {which} failed: {output.error}"
    return "\n".join(_differences(runner, seen.first, seen.second))


def _differences(runner: DeliveryRunner, first: RunOutput, second: RunOutput) -> Iterator[str]:
    outputs = runner.plan.outputs
    for output in dict.fromkeys([*first.rows, *second.rows]):
        one, two = first.rows.get(output, {}), second.rows.get(output, {})
        for key in dict.fromkeys([*one, *two]):
            expected, got = one.get(key, []), two.get(key, [])
            if expected != got:
                of_key = f" of key {key}" if key else ""
                order = ", the same rows in another order" if sorted(expected) == sorted(got) else ""
                name = "the main output" if output == OUTPUT else f"output {output!r}"
                table = _marked(_names(outputs[output][1], output), expected, got)
                yield f"In {name}{of_key}{order} (- is expected, + is got):\n{indent(table, '  ')}"


def _names(schema: pa.Schema, output: str) -> list[str]:
    return [name for name in schema.names if output != REJECTED or name != "watermark"]


def _marked(names: Sequence[str], expected: Sequence[RowText], got: Sequence[RowText]) -> str:
    lines: list[RowText] = []
    marks: list[str] = []
    for kind, start, stop, first, last in SequenceMatcher(None, expected, got, autojunk=False).get_opcodes():
        missing, extra = expected[start:stop], got[first:last]
        if kind == "equal":
            lines += missing
            marks += [" "] * len(missing)
        else:
            lines += [*missing, *extra]
            marks += ["-"] * len(missing) + ["+"] * len(extra)
    shown = format_table(names, lines[:_MOST_ROWS], marks[:_MOST_ROWS])
    return shown if len(lines) <= _MOST_ROWS else f"{shown}\n… and {len(lines) - _MOST_ROWS} more"
