"""The output rows of an input's row, in a query's Delta outputs, and the batch that wrote each of them.

A row's data file was added by one commit, whose transaction id has the application id ``cojoin-<query id>-<output>``
and the batch's number as its version. The batch is unknown where the log was cleaned, or the file was rewritten
(``OPTIMIZE``). Rejected rows are searched in their table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.inspect.findings import Finding, describe_row
from cojoin.checkpoints.inspect.query_state import read_progress
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.output_tables import read_rows
from cojoin.delta.table_batches import FENCE, KEPT
from cojoin.delta.table_log import UnreadableLogError
from cojoin.engine.display import format_time, show_row
from cojoin.engine.input_spec import rejected_table
from cojoin.engine.joins.output_columns import names_in_output
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.rows import Row, back_quoted, decode_rows, dump_json, show_text, text_bytes
from cojoin.engine.values.types import parse_schema, type_to_ddl
from cojoin.session.delta_tables import table_log
from cojoin.session.spark_errors import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.delta.table_log import TableLog
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store


_FILE = "@file"


@dataclass(frozen=True)
class Output:
    """A Delta output of a query: its name, such as ``"output"``, and its table's path, with a ``/``, or name."""

    name: str
    location: str
    query_id: str


@dataclass(frozen=True)
class OutputRow:
    """A row of an output, and the batch that wrote it, or None.

    ``unknown`` is why the batch is not known, or the other query that it belongs to; None where it is the query's own.
    """

    row: Row
    batch_id: int | None
    unknown: str | None = None


@dataclass(frozen=True)
class FoundRows:
    """Rows of a table up to a limit, and the number of all such rows; ``note``: why it could not be searched."""

    rows: Sequence[OutputRow] = ()
    total: int = 0
    note: str | None = None


def find_rows(
    spark: SparkSession, output: Output, wanted: Mapping[str, tuple[Any, pa.DataType]], limit: int
) -> FoundRows:
    """Return up to ``limit`` rows of an output that have the wanted values, with their types, by column."""
    conditions = [_equal_to(name, value, dtype) for name, (value, dtype) in wanted.items()]
    return _find(
        spark, output, lambda frame: reduce(lambda rows, condition: rows.where(condition), conditions, frame), limit
    )


def find_rejected(
    spark: SparkSession, output: Output, wanted: Sequence[tuple[InputSpec, Values]], limit: int
) -> FoundRows:
    """Return up to ``limit`` rejected rows of inputs that have the wanted values by column.

    Up to ten times as many candidates are compared. Where there are more, the total is that of all candidates.
    """
    spelled = [(spec.name, spelled_values(spec, values)) for spec, values in wanted]

    def chosen(frame: DataFrame) -> DataFrame:
        return frame.where(reduce(or_, [_may_be(name, values) for name, values in spelled]))

    candidates = _find(spark, output, chosen, 10 * limit)
    by_name = dict(spelled)
    exact = [
        row
        for row in candidates.rows
        if all(json.loads(row.row["row"]).get(name) == value for name, value in by_name[row.row["input"]].items())
    ]
    total = len(exact) if candidates.total == len(candidates.rows) else candidates.total
    return FoundRows(exact[:limit], total, candidates.note)


def _equal_to(name: str, value: Any, dtype: pa.DataType) -> Column:
    """Return the condition that a column equals a value, where null equals null."""
    column = F.col(back_quoted(name))
    if isinstance(value, str) and show_text(value) != value:
        # The text is not valid UTF-8: data skipping would look for another text, and skip the file that has this one.
        return column.cast("binary").eqNullSafe(F.lit(text_bytes(value)))
    return column.eqNullSafe(_literal(value).cast(type_to_ddl(dtype)))


def _literal(value: Any) -> Column:
    if isinstance(value, str):
        # As bytes: py4j can't pass a text that is not valid UTF-8.
        return F.lit(text_bytes(value)).cast("string")
    return F.array(*map(_literal, value)) if isinstance(value, list) else F.lit(value)


def _find(spark: SparkSession, output: Output, choose: Any, limit: int) -> FoundRows:
    log = table_log(spark, output.location)
    if log is None or log.newest() is None:
        return FoundRows(note=f"the table {output.location} of {output.name} no longer exists")
    frame = read_rows(spark, "delta", output.location)
    try:
        # The file's name is a metadata column of the scan, so it is selected before any condition.
        rows = choose(frame.select("*", F.col("_metadata.file_name").alias(_FILE)))
        total = rows.count()
        table_rows = rows.limit(limit).toArrow() if total else None
    except PySparkException as error:
        return FoundRows(note=f"the table {output.location} of {output.name} can't be read: {first_line(error)}")
    if table_rows is None:
        return FoundRows()
    files = table_rows.column(_FILE).to_pylist()
    batches = _batches(log, output, {*files})
    decoded = decode_rows(table_rows.drop_columns([_FILE]), beyond=str)
    return FoundRows([OutputRow(row, *batches[file]) for row, file in zip(decoded, files, strict=True)], total)


def _batches(log: TableLog, output: Output, files: set[str]) -> dict[str, tuple[int | None, str | None]]:
    """Return for each file the batch that wrote it, and why it is not known or whose it is."""
    unknown = (None, "the table's log no longer has the commit of its batch")
    batches: dict[str, tuple[int | None, str | None]] = dict.fromkeys(files, unknown)
    prefix, suffix = "cojoin-", f"-{output.name}"
    try:
        commits = [log.commit(version) for version in log.versions()]
    except UnreadableLogError:
        # Commits were deleted between the listing and the reading.
        return batches
    # Oldest first: the last commit that added a file decides, and one that rewrote it belongs to no batch.
    for commit in commits:
        own = next((entry for entry in commit.applications.items() if not entry[0].startswith(FENCE)), None)
        for name in files.intersection(file.path.rpartition("/")[2] for file in commit.added):
            # The rows that an upsert leaves unchanged are written again, of a MERGE in the files of the new ones.
            is_rewritten = name.startswith(f"{KEPT}-") or commit.info.get("operation") == "MERGE"
            if own is None or is_rewritten or not own[0].startswith(prefix) or not own[0].endswith(suffix):
                batches[name] = (None, f"its file was rewritten since, in version {commit.version} of the table")
                continue
            owner = own[0].removeprefix(prefix).removesuffix(suffix)
            other = None if owner == output.query_id else f"of another query, {owner}, whose output this was"
            batches[name] = (own[1], other)
    return batches


def _may_be(name: str, values: Mapping[str, Any]) -> Column:
    """Return a condition that matches all rejected rows with these values, and few others.

    It searches the row's JSON text, in which a nested field may have the same name and value.
    """
    is_it = F.col("input") == name
    for column, value in values.items():
        text = f"{dump_json(column)}: {dump_json(value)}"
        is_it &= F.col("row").contains(f"{text},") | F.col("row").contains(f"{text}}}")
    return is_it


def spelled_values(spec: InputSpec, values: Values) -> dict[str, Any]:
    """Return values as they are in the JSON text of a rejected row."""
    schema = pa.schema([spec.schema.field(name) for name in values])
    row = pa.table([encode_entries([values[field.name]], field.type) for field in schema], schema=schema)
    timeless = type(spec)(spec.name, schema, (), None)
    spelled: dict[str, Any] = json.loads(rejected_table(row, timeless, "", NONE).column("row")[0].as_py())
    return spelled


_LIMIT_OF_A_ROW, _LIMIT_OF_A_KEY = 20, 5

_WHY = {
    "null_key": "a column of its key is null",
    "null_event_time": "its event time is null",
    "null_known_at": "its known time is null",
    "too_far_ahead": "its event time was further ahead of the clock than the input's max_ahead",
    "moved_back": "a change of its table has moved its event time back, so by known times it never matches",
    "time_beyond_python": "a time of it is beyond the years 1 to 9999, which Python can't show to the function",
}


class EmittedRows:
    """The look-up of rows in a query's outputs; ``notes`` has the look-ups that failed, with their reasons."""

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
        """Yield the output rows that have these values, by column, of a row of an input (0: left, 1: right).

        ``is_row``: the question is about a row, rather than a key.
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
            if rule := self._places[name].get("upsert"):
                self._note(f"rows that {name} has replaced or left out, since it keeps one for each {rule['key']}")
            limit = _LIMIT_OF_A_ROW if is_row else _LIMIT_OF_A_KEY
            rows = find_rows(self._spark, output, wanted, limit)
            self._note_left_out(rows, name)
            for row in rows.rows:
                yield self._emitted(name, side, row)

    def rejected(self, sides: Sequence[Values | None]) -> Iterator[Finding]:
        """Yield the rejected rows that have these values of each input's row; None skips an input."""
        output = self._output(REJECTED)
        if output is None:
            return
        pairs = [(spec, values) for spec, values in zip(self._state.inputs, sides, strict=True) if values is not None]
        rows = find_rejected(self._spark, output, pairs, _LIMIT_OF_A_ROW)
        self._note_left_out(rows, REJECTED)
        for row in rows.rows:
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
        rejected = written.row.as_dict()
        reason, watermark, row = str(rejected["reason"]), rejected["watermark"], json.loads(rejected["row"])
        why = _WHY.get(reason, "")
        if reason == "late":
            why = f"the watermark was at {format_time(watermark)} already before its batch"
        text = (
            f"{describe_row(rejected['input'], row)} was rejected{self._batch(written, None)} as {reason}"
            f"{f': {why}' if why else ''}."
        )
        return Finding(
            "rejected", text, rejected["input"], REJECTED, rejected, written.batch_id, watermark, reason=reason
        )

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
        output = parse_schema(query["output"], label="output").names
        of_left, of_right = names_in_output(left, right, output, query.get("deletes"))
        if side == 0:
            return of_left
        return {**of_right, **{mine: of_left[name] for mine, name in zip(right.key, left.key, strict=True)}}

    def _schemas(self) -> dict[str, pa.Schema]:
        query = self._state.query
        outputs = {OUTPUT: query["output"], **query.get("side_outputs", {})}
        return {name: parse_schema(columns, label=name) for name, columns in outputs.items()}

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
        location = self._places.get(name)
        if location is None:
            return None
        if "delta" not in location:
            target = " ".join(
                f"{kind} {where}" for kind, where in location.items() if kind not in ("batch_id", "upsert")
            )
            self._note(f"{name}, since it goes to {target}")
            return None
        return Output(name, str(location["delta"]), self._query_id)

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
        if rows.total > len(rows.rows):
            self._note(f"all {rows.total:,} rows of {name}; {len(rows.rows)} are shown")

    def _note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)
