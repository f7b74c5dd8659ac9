"""The difference of two versions, as people see it: counts, the differing rows, and examples that are explained.

It shows itself as text in a terminal, and as HTML in a notebook; times are in UTC.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.display import Display, html_table, html_text, show_row, show_value, text_table
from cojoin.engine.values.rows import decode_column, show_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cojoin.comparison.comparison import ComparedOutput


_SHOWN = 3
"""The number of examples that a difference shows by itself."""


@dataclass(frozen=True)
class Counts:
    """The numbers of equal and of differing rows of an output.

    Attributes:
        a: The rows of version a.
        b: The rows of version b.
        equal: The rows that are equal in both; a row that occurs twice in both counts twice.
        only_in_a: The rows that version b lacks.
        only_in_b: The rows that version a lacks.
        changed: The rows that both versions have, with different values.
        changed_by_column: In how many of the changed rows each column differs; only columns that do.
    """

    a: int
    b: int
    equal: int
    only_in_a: int
    only_in_b: int
    changed: int
    changed_by_column: Mapping[str, int]

    @property
    def differing(self) -> int:
        """The number of rows that differ; a changed row counts once."""
        return self.only_in_a + self.only_in_b + self.changed


@dataclass(frozen=True)
class Example:
    """A row that differs, with its values in each version.

    Attributes:
        output: The name of the output: ``"output"``, ``"rejected"`` or a side output's tag id.
        a: The row's values by column in version a; None if only b has it.
        b: The row's values by column in version b; None if only a has it.
        columns: The columns that differ, if both versions have the row.
        identity: The columns that identify the row; none if rows are only compared as a whole.
        explanation: The reasons, one sentence a line: for a join the match of each version and the rows of the key
            around it, for a function the rows of the key that each version emits around it.
    """

    output: str
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None
    columns: tuple[str, ...]
    identity: tuple[str, ...] = ()
    explanation: str = ""

    def __str__(self) -> str:
        return example_text(self)


@dataclass(frozen=True)
class OutputDifference:
    """The difference of two versions in one output.

    Attributes:
        name: ``"output"``, ``"rejected"`` or a side output's tag id.
        counts: The numbers of rows.
        identity: The columns by which a row of version a is the same row as one of version b. None means that rows are
            compared as a whole, and none is ``changed``.
    """

    name: str
    counts: Counts
    identity: tuple[str, ...]
    _rows: DifferingRows = field(repr=False, compare=False)

    @property
    def equal(self) -> bool:
        """Whether both versions have the same rows, each equally often."""
        return not self.counts.differing

    @property
    def only_in_a(self) -> Any:
        """The rows that version b lacks: an Arrow table, or a DataFrame of Spark's."""
        return self._rows.only_in("a")

    @property
    def only_in_b(self) -> Any:
        """The rows that version a lacks: an Arrow table, or a DataFrame of Spark's."""
        return self._rows.only_in("b")

    @property
    def changed(self) -> Any:
        """The rows that both versions have and that differ: an Arrow table, or a DataFrame of Spark's.

        It has the columns of the identity, each other column in both versions (``tier_a``, ``tier_b``), and
        ``differs``, the list of the columns that differ.
        """
        return self._rows.changed()


@dataclass(frozen=True)
class Difference:
    """The difference of two versions of a join or function over one history, made by ``diff``.

    Attributes:
        outputs: The differences by the output's name: ``"output"``, ``"rejected"``, and side outputs' tag ids.
        settings: The settings of the two versions that differ, each as text in a and in b. Of a function these are its
            attributes with plain values, without secrets; its code is not among them.
        examples: Some of the rows that differ, explained.
    """

    outputs: Mapping[str, OutputDifference]
    settings: Mapping[str, tuple[str, str]]
    examples: tuple[Example, ...]

    @property
    def equal(self) -> bool:
        """Whether all compared outputs have the same rows in both versions."""
        return all(each.equal for each in self.outputs.values())

    @property
    def counts(self) -> Counts:
        """The counts of the main output; of the only one if another one was compared."""
        return self._first.counts

    @property
    def only_in_a(self) -> Any:
        """The main output's rows that version b lacks; see ``OutputDifference``."""
        return self._first.only_in_a

    @property
    def only_in_b(self) -> Any:
        """The main output's rows that version a lacks; see ``OutputDifference``."""
        return self._first.only_in_b

    @property
    def changed(self) -> Any:
        """The main output's rows that differ between the versions; see ``OutputDifference``."""
        return self._first.changed

    @property
    def _first(self) -> OutputDifference:
        return next(iter(self.outputs.values()))

    def __repr__(self) -> str:
        return difference_text(self, _SHOWN)

    def _repr_html_(self) -> str:
        return difference_html(self)


def sum_counts(
    output: ComparedOutput, counts: Iterable[Mapping[str, int]], by_column: Iterable[Mapping[str, int]]
) -> Counts:
    """Return the sum of the counts of all key groups."""
    total: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for pieces in counts:
        total.update(pieces)
    for pieces in by_column:
        changed.update(pieces)
    return Counts(
        a=total["a"],
        b=total["b"],
        equal=total["a"] - total["only_in_a"] - total["changed"],
        only_in_a=total["only_in_a"],
        only_in_b=total["only_in_b"],
        changed=total["changed"],
        changed_by_column={name: changed[name] for name in output.columns.names if changed[name]},
    )


def examples_of(output: ComparedOutput, rows: pa.Table, limit: int) -> list[Example]:
    """Return explained rows as at most ``limit`` examples: changed ones first, then those that only one version has."""
    explained = [
        Example(
            output.name,
            None if a is None else a.as_dict(),
            None if b is None else b.as_dict(),
            tuple(differs or ()),
            output.identity,
            explanation or "",
        )
        for a, b, differs, explanation in zip(
            *(cast("Sequence[Any]", decode_column(rows.column(name), str)) for name in rows.column_names), strict=True
        )
    ]
    explained.sort(key=lambda example: (example.b is None) + 2 * (example.a is None))
    return explained[:limit]


_HEADER = ("output", "rows in a", "rows in b", "equal", "changed", "only in a", "only in b")


def difference_text(difference: Difference, examples: int | None = None) -> str:
    """Return a difference as lines: the verdict, the settings that differ, the counts, and some or all examples."""
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
    """Return an example as lines of text: its row, the values that differ, and the explanation."""
    lines = [f"{_kind(example)}: {_which(example)}"]
    lines += [f"  {name}: {one} in a, {other} in b" for name, one, other in _values(example)]
    lines += [f"  {line}" for line in example.explanation.splitlines()]
    return "\n".join(lines)


def difference_html(difference: Difference) -> str:
    """Return a difference as HTML with tables."""
    notes = [*_settings(difference), *_notes(difference)]
    parts = [Display(_verdict(difference), _counts(difference), notes).html()]
    for number, example in enumerate(difference.examples, start=1):
        title = f"Example {number}: {_kind(example)}: {_which(example)}"
        values = [("column", "a", "b"), *_values(example)]
        table = html_table(values) if example.columns else ""
        reason = f"<pre>{html_text(example.explanation)}</pre>" if example.explanation else ""
        is_open = " open" if number == 1 else ""
        parts.append(f"<details{is_open}><summary>{html_text(title)}</summary>{table}{reason}</details>")
    return f"<div>{''.join(parts)}</div>"


def _verdict(difference: Difference) -> str:
    if difference.equal:
        rows = sum(output.counts.a for output in difference.outputs.values())
        return f"No difference: both versions have the same {rows:,} rows."
    parts = []
    for output in difference.outputs.values():
        counts = output.counts
        kinds = (("changed", counts.changed), ("only in a", counts.only_in_a), ("only in b", counts.only_in_b))
        shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count)
        if shown:
            parts.append(f"{output.name}: {shown}")
    return f"The versions differ. Rows of {'; '.join(parts)}."


def _settings(difference: Difference) -> Iterator[str]:
    for name, (one, other) in difference.settings.items():
        yield f"{name}: {one} in a, {other} in b"


def _counts(difference: Difference) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [_HEADER]
    for output in difference.outputs.values():
        counts = output.counts
        numbers = (counts.a, counts.b, counts.equal, counts.changed, counts.only_in_a, counts.only_in_b)
        rows.append((output.name, *(f"{number:,}" for number in numbers)))
    return rows


def _notes(difference: Difference) -> Iterator[str]:
    for output in difference.outputs.values():
        if output.counts.changed_by_column:
            listed = ", ".join(f"{name} ({count:,})" for name, count in output.counts.changed_by_column.items())
            yield f"Columns of {output.name!r} that changed: {listed}."
        if output.equal:
            continue
        if output.identity:
            yield f"Rows of {output.name!r} are versions of one row if these are equal: {', '.join(output.identity)}."
        elif output.name == "rejected":
            yield "Rows of 'rejected' are compared as a whole."
        else:
            yield (
                f"Rows of {output.name!r} are compared as a whole; name the columns that identify a row with "
                f"keys=[...] to see which columns changed."
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


class DifferingRows(Protocol):
    """The differing rows of one output, in memory or on Spark."""

    def only_in(self, which: Literal["a", "b"]) -> Any:
        """Return the rows that only one version has, as a table or DataFrame."""

    def changed(self) -> Any:
        """Return the rows that both versions have and that differ, with the columns of ``changed_columns``."""


@dataclass(frozen=True)
class ArrowRows:
    """Differing rows of an output in memory, in the schema of ``ComparedOutput.differing``."""

    output: ComparedOutput
    rows: pa.Table

    def only_in(self, which: Literal["a", "b"]) -> pa.Table:
        """Return the rows that only one version has."""
        other = {"a": "b", "b": "a"}[which]
        rows = self.rows.filter(pc.is_null(self.rows.column(other)))
        columns = [_field(rows.column(which), name) for name in self.output.columns.names]
        return pa.table(columns, names=self.output.columns.names)

    def changed(self) -> pa.Table:
        """Return the rows that both versions have and that differ."""
        rows = self.rows.filter(pc.is_valid(self.rows.column("differs")))
        columns = {}
        for name, path in changed_columns(self.output):
            column = rows.column(path[0])
            columns[name] = column if len(path) == 1 else _field(column, path[1])
        return pa.table(list(columns.values()), names=list(columns))


def changed_columns(output: ComparedOutput) -> list[tuple[str, Sequence[str]]]:
    """Return the columns of changed rows: those of the identity, then each other one in a and in b, then ``differs``.

    Each is a name and a path in ``ComparedOutput.differing``. A column ``tier`` becomes ``tier_a`` and ``tier_b``, with
    more underscores where such a name is taken.
    """
    kept = [name for name in output.columns.names if name in output.identity]
    others = [name for name in output.columns.names if name not in output.identity]
    line = "_"
    while True:
        names = [*kept, *(f"{name}{line}{which}" for name in others for which in "ab"), f"differs{line[1:]}"]
        if len({name.lower() for name in names}) == len(names):
            break
        line += "_"
    paths = [*(("a", name) for name in kept), *((which, name) for name in others for which in "ab"), ("differs",)]
    return list(zip(names, paths, strict=True))


def _field(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    position = column.type.get_field_index(name)
    return pa.chunked_array(
        [pc.struct_field(chunk, [position]) for chunk in column.chunks], column.type.field(position).type
    )
