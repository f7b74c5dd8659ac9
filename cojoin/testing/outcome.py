"""The output of a harness: the log, by output, and as a report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cojoin.engine.batch_report import BatchReport
from cojoin.engine.descriptions import describe_operation
from cojoin.engine.display import Display, display_of
from cojoin.engine.formats import format_time
from cojoin.engine.side_outputs import OutputTag
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.testing.events import Event, Record, Rejected, SideRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.values.rows import Row

__all__ = ["Outcome", "count_records"]


class Outcome:
    """The part of a harness that returns its output."""

    log: list[Event]
    _calls: int
    _emitted: Mapping[str, int]
    _inputs: tuple[InputSpec, InputSpec]
    _operation: Any
    _operators: list[Operator]
    _schema: pa.Schema
    _taken: int

    def take(self) -> list[Event]:
        """Return the events of the log since the last ``take``."""
        taken, self._taken = self.log[self._taken :], len(self.log)
        return taken

    @property
    def output(self) -> list[Row]:
        """All rows of the main output, in order."""
        return [event.value for event in self.log if isinstance(event, Record)]

    def side_output(self, tag: OutputTag | str) -> list[Row]:
        """Return all rows of a side output, in order.

        Args:
            tag: Its ``OutputTag``, or the tag's id.

        Raises:
            ConfigurationError: The tag is not declared.
        """
        name = self._declared(tag).tag_id
        return [event.value for event in self.log if isinstance(event, SideRecord) and event.tag == name]

    def schema_of(self, tag: OutputTag | str | None = None) -> pa.Schema:
        """Return the columns of the main output, or of a side output.

        Raises:
            ConfigurationError: The tag is not declared.
        """
        return self._schema if tag is None else self._declared(tag).schema

    def _declared(self, tag: OutputTag | str) -> OutputTag:
        name = tag.tag_id if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            msg = f"side output: expected an OutputTag or its id, got {tag!r}"
            raise ConfigurationError(msg)
        declared: dict[str, OutputTag] = {each.tag_id: each for each in getattr(self._operation, "side_outputs", ())}
        if name not in declared:
            msg = f"side output: {name!r} was not declared{did_you_mean(name, declared)}"
            raise ConfigurationError(msg)
        return declared[name]

    @property
    def rejected(self) -> list[Rejected]:
        """All rejected rows, in order."""
        return [event for event in self.log if isinstance(event, Rejected)]

    def report(self) -> BatchReport:
        """Return the counts, watermarks and sizes after the last call, as in a query's progress.

        ``print(harness.report().table())`` shows them.
        """
        return self._report([len(operator.snapshot()) for operator in self._operators])

    def __repr__(self) -> str:
        return display_of(self._display, "Harness").text()

    def _repr_html_(self) -> str:
        return display_of(self._display, "Harness").html()

    def _display(self) -> Display:
        # The size of the state is left out: it takes a snapshot.
        report = self._report([0] * len(self._operators))
        left, right = self._inputs
        head = f"Harness: {describe_operation(self._operation)} of {left.name!r} with {right.name!r}"
        calls = "before the first call" if self._calls == 0 else f"call{'s' * (self._calls != 1)}: {self._calls:,}"
        said = f"{calls}; watermark {format_time(report.watermark)}; rows out {report.rows_out:,}"
        return Display(head, report.table_rows(), [said])

    def _report(self, sizes: Sequence[int]) -> BatchReport:
        groups = [
            {"key_group": group, "state_bytes": size, "emitted": {}, **operator.report()}
            for group, (operator, size) in enumerate(zip(self._operators, sizes, strict=True))
        ]
        groups[0]["emitted"] = dict(self._emitted)
        names = (self._inputs[0].name, self._inputs[1].name)
        return BatchReport.merge(self._calls - 1, names, groups)


def count_records(events: Iterable[Event]) -> dict[str, int]:
    """Return the number of rows of each output."""
    kinds = [
        event.tag if isinstance(event, SideRecord) else "output" if isinstance(event, Record) else "rejected"
        for event in events
    ]
    return dict(Counter(kinds))
