"""The difference of two versions, as people see it: counts, the differing rows, and examples that are explained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from cojoin.comparison.difference_texts import difference_html, difference_text, example_text
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.rows import decode_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.comparison.comparison import ComparedOutput
    from cojoin.comparison.differing_rows import DifferingRows

__all__ = ["Counts", "Difference", "Example", "OutputDifference", "examples_of"]

_SHOWN = 3
"""How many examples a difference shows by itself."""


@dataclass(frozen=True)
class Counts:
    """How many rows of an output are equal, and how many differ in which way.

    Attributes:
        a: The rows of version a.
        b: The rows of version b.
        equal: The rows that are equal in both; a row that occurs twice in both counts twice.
        only_in_a: The rows that version b has not.
        only_in_b: The rows that version a has not.
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

    @classmethod
    def of(
        cls, output: ComparedOutput, counts: Iterable[Mapping[str, int]], by_column: Iterable[Mapping[str, int]]
    ) -> Counts:
        """Return the sum of the counts of all key groups."""
        total: Counter[str] = Counter()
        changed: Counter[str] = Counter()
        for each in counts:
            total.update(each)
        for each in by_column:
            changed.update(each)
        return cls(
            a=total["a"],
            b=total["b"],
            equal=total["a"] - total["only_in_a"] - total["changed"],
            only_in_a=total["only_in_a"],
            only_in_b=total["only_in_b"],
            changed=total["changed"],
            changed_by_column={name: changed[name] for name in output.columns.names if changed[name]},
        )

    @property
    def differing(self) -> int:
        """How many rows differ; a changed row counts once."""
        return self.only_in_a + self.only_in_b + self.changed


@dataclass(frozen=True)
class Example:
    """A row that differs, and what each version says of it.

    Attributes:
        output: The name of the output: ``"main"``, ``"rejected"`` or a side output's tag id.
        a: The row's values by column in version a; None if only b has it.
        b: The row's values by column in version b; None if only a has it.
        columns: The columns that differ, if both versions have the row.
        identity: The columns that say which row it is; none if rows are only compared as a whole.
        explanation: Sentences that say why, one a line: for a join the match of each version and the rows of the key
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
    """How one output of two versions differs.

    Attributes:
        name: ``"main"``, ``"rejected"`` or a side output's tag id.
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
        """The rows that version b has not: an Arrow table, or a DataFrame of Spark's."""
        return self._rows.only_in("a")

    @property
    def only_in_b(self) -> Any:
        """The rows that version a has not: an Arrow table, or a DataFrame of Spark's."""
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
    """How two versions of a join or function differ over the same history, made by ``diff``.

    Attributes:
        outputs: How each compared output differs, by its name: ``"main"``, ``"rejected"``, and side outputs' tag ids.
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
        """The main output's rows that version b has not; see ``OutputDifference``."""
        return self._first.only_in_a

    @property
    def only_in_b(self) -> Any:
        """The main output's rows that version a has not; see ``OutputDifference``."""
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

    @staticmethod
    def name_of(output: ComparedOutput) -> str:
        """Return what an output is called here."""
        return "main" if output.name == OUTPUT else output.name


def examples_of(output: ComparedOutput, rows: pa.Table, limit: int) -> list[Example]:
    """Return explained rows as examples: changed ones first, then those that only one version has.

    Args:
        output: The output.
        rows: Rows with an explanation, in the schema of ``ComparedOutput.differing``.
        limit: The largest number of examples.
    """
    found = [
        Example(
            Difference.name_of(output),
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
    found.sort(key=lambda each: (each.b is None) + 2 * (each.a is None))
    return found[:limit]
