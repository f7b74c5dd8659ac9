"""Finds the output rows of an input's row, with the row of the other input that it matched, and rejected rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.inspect.findings import Finding
from cojoin.checkpoints.inspect.output_rows import FoundRows, Output, OutputRow, find_rejected, find_rows
from cojoin.checkpoints.inspect.read import read_progress
from cojoin.checkpoints.inspect.sentences import describe_row
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.display import format_time, show_row
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.inspect.state_rows import Values
    from cojoin.storage.store import Store

__all__ = ["EmittedRows"]

_LIMIT_OF_A_ROW, _LIMIT_OF_A_KEY = 20, 5

_WHY = {
    "null_key": "a column of its key is null",
    "null_event_time": "its event time is null",
    "too_far_ahead": "its event time was further ahead of the clock than the input's max_ahead",
    "time_beyond_python": "a time of it is beyond the years 1 to 9999, which Python can't show to the function",
}


class EmittedRows:
    """The look-up of rows in a query's outputs.

    Args:
        spark: The session.
        files: The checkpoint.
        state: The query's state and description.

    Attributes:
        notes: What could not be looked up, and why.
    """

    def __init__(self, spark: SparkSession, files: Store, state: QueryState) -> None:
        self._spark, self._files, self._state = spark, files, state
        self._manifests = Manifests(files)
        last = self._manifests.last()
        outputs = {} if last is None else last.outputs
        # Outputs that were never written are left out.
        self._places: Mapping[str, Mapping[str, Any]] = {
            name: place for name, place in outputs.items() if place["batch_id"] is not None
        }
        self._query_id = str(read_query(files)["query_id"])
        self._watermarks: dict[int, int | None] = {}
        self.notes: list[str] = []

    def emitted(self, side: int, values: Values, *, is_row: bool) -> Iterator[Finding]:
        """Yield the output rows that have given values of an input's row.

        Args:
            side: 0 for the left input, 1 for the right.
            values: The values, by column of that input.
            is_row: Whether the question is about a row, rather than a key.
        """
        names = self._names(side)
        joins = self._state.query["operator"] != "process"
        if joins and side and not is_row:
            # A key's rows are found by the columns of the left input.
            return
        for name, schema in self._schemas().items():
            wanted = {
                names.get(column, column): (value, schema.field(names.get(column, column)).type)
                for column, value in values.items()
                if names.get(column, column) in schema.names
            }
            wanted = {column: pair for column, pair in wanted.items() if not pa.types.is_nested(pair[1])}
            output = self._output(name)
            if output is None:
                continue
            if not wanted:
                self._note(f"{name}, since it has none of the columns {', '.join(values)}")
                continue
            limit = _LIMIT_OF_A_ROW if is_row else _LIMIT_OF_A_KEY
            rows = find_rows(self._spark, output, wanted, limit)
            self._note_left_out(rows, name)
            for row in rows.found:
                yield self._emitted(name, side, row)

    def rejected(self, sides: Sequence[Values | None]) -> Iterator[Finding]:
        """Yield the rejected rows that have given values of each input's row; None skips an input."""
        output = self._output(REJECTED)
        if output is None:
            return
        pairs = [(spec, values) for spec, values in zip(self._state.inputs, sides, strict=True) if values is not None]
        rows = find_rejected(self._spark, output, pairs, _LIMIT_OF_A_ROW)
        self._note_left_out(rows, REJECTED)
        for row in rows.found:
            yield self._rejected(row)

    def _emitted(self, name: str, side: int, written: OutputRow) -> Finding:
        values = written.row.as_dict()
        own, other = self._parts(values, side)
        spec = self._state.inputs[side]
        where = "" if name == OUTPUT else f" to side output {name!r}"
        watermark = None if written.unknown else self._watermark_after(written.batch_id)
        if other is None:
            # The rows that a function emits are not split into the columns of the two inputs.
            text = f"The row {show_row(values)} was emitted{where}{self._batch(written, watermark)}."
            return Finding("emitted", text, None, name, values, written.batch_id, watermark)
        matched = other if any(value is not None for value in other.values()) else None
        fate = "matched" if side else "emitted"
        text = f"{describe_row(spec.name, own)} was {fate}{self._batch(written, watermark)}"
        if matched is None:
            text += ", without a match."
        else:
            text += f", with {show_row(matched)} of {self._state.inputs[1 - side].name!r}."
        return Finding("emitted", text, spec.name, name, values, written.batch_id, watermark, matched=matched)

    def _rejected(self, written: OutputRow) -> Finding:
        found = written.row.as_dict()
        reason, watermark, row = str(found["reason"]), found["watermark"], json.loads(found["row"])
        why = _WHY.get(reason, "")
        if reason == "late":
            why = f"the watermark was at {format_time(watermark)} already before its batch"
        text = (
            f"{describe_row(found['input'], row)} was rejected{self._batch(written, None)} as {reason}"
            f"{f': {why}' if why else ''}."
        )
        return Finding("rejected", text, found["input"], REJECTED, found, written.batch_id, watermark, reason=reason)

    def _batch(self, written: OutputRow, watermark: int | None) -> str:
        if written.batch_id is None:
            return f" (in which batch is not known: {written.unknown})"
        if written.unknown is not None:
            return f" in batch {written.batch_id} {written.unknown}"
        reached = "" if watermark is None else f", in which the watermark came to {format_time(watermark)}"
        return f" in batch {written.batch_id}{reached}"

    def _names(self, side: int) -> dict[str, str]:
        """Return the names of an input's columns in the output, to which joins may add suffixes."""
        query = self._state.query
        if query["operator"] == "process":
            return {}
        left, right = self._state.inputs
        there = parse_schema(query["output"], what="output").names
        of_left = dict(zip(left.schema.names, there, strict=False))
        if side == 0:
            return of_left
        without = {*right.key, query.get("deletes"), *right.technical}
        payload = [name for name in right.schema.names if name not in without]
        of_right = dict(zip(payload, there[len(left.schema) :], strict=False))
        return {**of_right, **{mine: of_left[name] for mine, name in zip(right.key, left.key, strict=True)}}

    def _schemas(self) -> dict[str, pa.Schema]:
        query = self._state.query
        outputs = {OUTPUT: query["output"], **query.get("side_outputs", {})}
        return {name: parse_schema(columns, what=name) for name, columns in outputs.items()}

    def _parts(self, values: Mapping[str, Any], side: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Split a joined row into the columns of this side and of the other; the latter are None for a function."""
        if self._state.query["operator"] == "process":
            return dict(values), None
        count = len(self._state.inputs[0].schema)
        mine = {theirs: name for each in (1, 0) for name, theirs in self._names(each).items()}
        items = [(mine.get(name, name), value) for name, value in values.items()]
        left, right = dict(items[:count]), dict(items[count:])
        return (left, right) if side == 0 else (right, left)

    def _output(self, name: str) -> Output | None:
        place = self._places.get(name)
        if place is None:
            return None
        if "delta" not in place:
            self._note(f"{name}, since it goes to {' '.join(f'{kind} {where}' for kind, where in _told(place))}")
            return None
        return Output(name, str(place["delta"]), self._query_id)

    def _watermark_after(self, batch_id: int | None) -> int | None:
        if batch_id is None:
            return None
        if batch_id not in self._watermarks:
            manifest = self._manifests.read(batch_id)
            self._watermarks[batch_id] = (
                self._from_progress(batch_id) if manifest is None else manifest.report.watermark
            )
        return self._watermarks[batch_id]

    def _from_progress(self, batch_id: int) -> int | None:
        rows = read_progress(self._spark, self._files.root).where(F.col("batch_id") == batch_id)
        row = rows.select(F.unix_millis("watermark").alias("watermark")).first()
        return None if row is None else row.watermark

    def _note_left_out(self, rows: FoundRows, name: str) -> None:
        self._note(rows.note)
        if rows.total > len(rows.found):
            self._note(f"all {rows.total:,} rows of {name}; {len(rows.found)} are told")

    def _note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)


def _told(place: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(kind, where) for kind, where in place.items() if kind != "batch_id"]
