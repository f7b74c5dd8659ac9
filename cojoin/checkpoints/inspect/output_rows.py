"""Finds rows in a query's Delta outputs, and in their logs the batch that wrote each row.

A row's data file was added by one commit, whose transaction id has the application id ``cojoin-<query id>-<output>``
and the batch's number as its version. The batch is unknown where the log was cleaned, or the file was rewritten
(``OPTIMIZE``).
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

from cojoin.delta_jvm.newest_batch import FENCE
from cojoin.delta_jvm.table_version import read_table
from cojoin.engine.input_spec import rejected_table
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.rows import Row, back_quoted, decode_rows, dump_json, show_text, text_bytes
from cojoin.engine.values.types import type_to_ddl
from cojoin.storage.locations import is_path, literally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.inspect.state_rows import Values
    from cojoin.engine.input_spec import InputSpec

__all__ = ["FoundRows", "Output", "OutputRow", "find_rejected", "find_rows", "spelled_values"]

_FILE = "@file"
_ACTIONS = "txn struct<appId: string, version: bigint>, add struct<path: string>"


@dataclass(frozen=True)
class Output:
    """A Delta output of a query.

    Attributes:
        name: The output's name, such as ``"output"``.
        location: The table's path, with a ``/``, or its name.
        query_id: The query's own id.
    """

    name: str
    location: str
    query_id: str


@dataclass(frozen=True)
class OutputRow:
    """A row of an output.

    Attributes:
        row: The row as it is in the table.
        batch_id: The batch that wrote it; None where it is not known.
        unknown: Why the batch is not known, or which other query it belongs to; None where it is the query's own.
    """

    row: Row
    batch_id: int | None
    unknown: str | None = None


@dataclass(frozen=True)
class FoundRows:
    """The rows that were found in a table.

    Attributes:
        found: The rows, up to the limit.
        total: How many rows there are in all.
        note: Why the table could not be searched; None where it could.
    """

    found: Sequence[OutputRow] = ()
    total: int = 0
    note: str | None = None


def find_rows(
    spark: SparkSession, output: Output, wanted: Mapping[str, tuple[Any, pa.DataType]], limit: int
) -> FoundRows:
    """Return the rows of an output that have given values in some columns.

    Args:
        spark: The session.
        output: The output.
        wanted: The value and its type, by column.
        limit: The most rows to return.
    """
    conditions = [_equal_to(name, value, dtype) for name, (value, dtype) in wanted.items()]
    return _find(spark, output, lambda frame: _all(frame, conditions), limit)


def find_rejected(
    spark: SparkSession, output: Output, wanted: Sequence[tuple[InputSpec, Values]], limit: int
) -> FoundRows:
    """Return the rejected rows of inputs that have given values in some columns.

    Args:
        spark: The session.
        output: The output of rejected rows.
        wanted: The inputs, each with the values that its row must have, by column.
        limit: The most rows to return. Up to ten times as many candidates are compared.

    Returns:
        The rows. Where there are more candidates than were compared, the total is that of all candidates.
    """
    spelled = [(spec.name, spelled_values(spec, values)) for spec, values in wanted]

    def chosen(frame: DataFrame) -> DataFrame:
        return frame.where(reduce(or_, [_may_be(name, values) for name, values in spelled]))

    found = _find(spark, output, chosen, 10 * limit)
    by_name = dict(spelled)
    exact = [
        row
        for row in found.found
        if all(json.loads(row.row["row"]).get(name) == value for name, value in by_name[row.row["input"]].items())
    ]
    total = len(exact) if found.total == len(found.found) else found.total
    return FoundRows(exact[:limit], total, found.note)


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


def _all(frame: DataFrame, conditions: Sequence[Column]) -> DataFrame:
    for condition in conditions:
        frame = frame.where(condition)
    return frame


def _find(spark: SparkSession, output: Output, choose: Any, limit: int) -> FoundRows:
    table = read_table(spark, output.location)
    if table is None:
        return FoundRows(note=f"the table {output.location} of {output.name} is not there any more")
    reader = spark.read.format("delta")
    by_path = is_path(output.location)
    frame: DataFrame = reader.load(output.location) if by_path else spark.read.table(output.location)
    try:
        # The file's name is a metadata column of the scan, so it is selected before any condition.
        rows = choose(frame.select("*", F.col("_metadata.file_name").alias(_FILE)))
        total = rows.count()
        found = rows.limit(limit).toArrow() if total else None
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        return FoundRows(note=f"the table {output.location} of {output.name} can't be read: {reason}")
    if found is None:
        return FoundRows()
    files = found.column(_FILE).to_pylist()
    batches = _batches(spark, output, table.log_path, {*files})
    decoded = decode_rows(found.drop_columns([_FILE]), beyond=str)
    return FoundRows([OutputRow(row, *batches[file]) for row, file in zip(decoded, files, strict=True)], total)


def _batches(
    spark: SparkSession, output: Output, log_path: str, files: set[str]
) -> dict[str, tuple[int | None, str | None]]:
    """Return for each file the batch that wrote it, and why it is not known or whose it is."""
    unknown = (None, "the table's log no longer tells which batch wrote it")
    found: dict[str, tuple[int | None, str | None]] = dict.fromkeys(files, unknown)
    commits = spark.read.schema(_ACTIONS).json(f"{literally(log_path)}/*.json")
    actions = commits.withColumn("commit", F.col("_metadata.file_name"))
    name = F.element_at(F.split("add.path", "/"), -1)
    told = actions.where(F.col("txn").isNotNull() | name.isin(sorted(files))).select(
        "commit", "txn", name.alias("file")
    )
    try:
        rows = told.collect()
    except PySparkException:
        # Commits were deleted between the listing and the reading.
        return found
    transactions = {row.commit: row.txn for row in rows if row.txn is not None and not row.txn.appId.startswith(FENCE)}
    prefix, suffix = "cojoin-", f"-{output.name}"
    # Oldest first: the last commit that added a file decides, and one that rewrote it belongs to no batch.
    for row in sorted((row for row in rows if row.file is not None), key=lambda row: str(row.commit)):
        transaction = transactions.get(row.commit)
        version = int(row.commit.removesuffix(".json")) if row.commit.removesuffix(".json").isdigit() else None
        app_id = "" if transaction is None else transaction.appId
        if transaction is None or not app_id.startswith(prefix) or not app_id.endswith(suffix):
            found[row.file] = (None, f"its file was rewritten since, in version {version} of the table")
            continue
        owner = app_id.removeprefix(prefix).removesuffix(suffix)
        other = None if owner == output.query_id else f"of another query, {owner}, whose output this was"
        found[row.file] = (int(transaction.version), other)
    return found


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
