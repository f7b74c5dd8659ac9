"""A difference as text for the terminal, and as HTML for a notebook; times are in UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.engine.display import html_table, html_text
from cojoin.engine.formats import show_row, show_value, text_table
from cojoin.engine.values.texts import show_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.comparison.difference import Difference, Example

__all__ = ["difference_html", "difference_text", "example_text"]

_HEADER = ("output", "rows in a", "rows in b", "equal", "changed", "only in a", "only in b")


def difference_text(difference: Difference, examples: int | None = None) -> str:
    """Return a difference as lines of text: the verdict, what is set differently, the counts, and the examples.

    Args:
        difference: The difference.
        examples: How many examples are shown; None shows all.
    """
    lines = [_verdict(difference), *_settings(difference), "", text_table(_counts(difference))]
    notes = [*_notes(difference)]
    lines += ["", *notes] if notes else []
    shown = difference.examples if examples is None else difference.examples[:examples]
    for number, example in enumerate(shown, start=1):
        lines += ["", f"Example {number}: {example_text(example)}"]
    if len(shown) < len(difference.examples):
        lines += ["", f"({len(difference.examples) - len(shown)} more in .examples)"]
    return show_text("\n".join(lines))


def example_text(example: Example) -> str:
    """Return an example as lines of text: which row it is, the values that differ, and the explanation."""
    lines = [f"{_kind(example)}: {_which(example)}"]
    lines += [f"  {name}: {one} in a, {other} in b" for name, one, other in _values(example)]
    lines += [f"  {line}" for line in example.explanation.splitlines()]
    return "\n".join(lines)


def difference_html(difference: Difference) -> str:
    """Return a difference as HTML with tables."""
    parts = [
        f"<b>{html_text(_verdict(difference))}</b>",
        *(f"<div>{html_text(each)}</div>" for each in _settings(difference)),
    ]
    parts.append(html_table(_counts(difference)))
    parts += [f"<div>{html_text(each)}</div>" for each in _notes(difference)]
    for number, example in enumerate(difference.examples, start=1):
        title = f"Example {number}: {_kind(example)}: {_which(example)}"
        values = [("column", "a", "b"), *_values(example)]
        table = html_table(values) if example.columns else ""
        told = f"<pre>{html_text(example.explanation)}</pre>" if example.explanation else ""
        is_open = " open" if number == 1 else ""
        parts.append(f"<details{is_open}><summary>{html_text(title)}</summary>{table}{told}</details>")
    return f"<div>{''.join(parts)}</div>"


def _verdict(difference: Difference) -> str:
    if difference.equal:
        rows = sum(each.counts.a for each in difference.outputs.values())
        return f"No difference: both versions have the same {rows:,} rows."
    told = []
    for each in difference.outputs.values():
        counts = each.counts
        kinds = (("changed", counts.changed), ("only in a", counts.only_in_a), ("only in b", counts.only_in_b))
        shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count)
        if shown:
            told.append(f"{each.name}: {shown}")
    return f"The versions differ. Rows of {'; '.join(told)}."


def _settings(difference: Difference) -> Iterator[str]:
    for name, (one, other) in difference.settings.items():
        yield f"{name}: {one} in a, {other} in b"


def _counts(difference: Difference) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [_HEADER]
    for each in difference.outputs.values():
        counts = each.counts
        numbers = (counts.a, counts.b, counts.equal, counts.changed, counts.only_in_a, counts.only_in_b)
        rows.append((each.name, *(f"{number:,}" for number in numbers)))
    return rows


def _notes(difference: Difference) -> Iterator[str]:
    for each in difference.outputs.values():
        if each.counts.changed_by_column:
            listed = ", ".join(f"{name} ({count:,})" for name, count in each.counts.changed_by_column.items())
            yield f"Columns of {each.name!r} that changed: {listed}."
        if each.equal:
            continue
        if each.identity:
            yield f"Rows of {each.name!r} are versions of one row if these are equal: {', '.join(each.identity)}."
        elif each.name == "rejected":
            yield "Rows of 'rejected' are compared as a whole."
        else:
            yield (
                f"Rows of {each.name!r} are compared as a whole; name the columns that identify a row with keys=[...] "
                f"to see which columns changed."
            )


def _kind(example: Example) -> str:
    if example.a is not None and example.b is not None:
        return f"{example.output}, changed"
    return f"{example.output}, only in {'a' if example.b is None else 'b'}"


def _which(example: Example) -> str:
    row = example.b if example.a is None else example.a
    assert row is not None
    both = example.a is not None and example.b is not None
    return show_row({name: value for name, value in row.items() if not both or name in example.identity})


def _values(example: Example) -> list[tuple[str, str, str]]:
    if example.a is None or example.b is None:
        return []
    return [(name, show_value(example.a[name]), show_value(example.b[name])) for name in example.columns]
