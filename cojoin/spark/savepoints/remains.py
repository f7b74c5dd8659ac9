"""Lists where rows of a key remain once it is erased from a state, with what removes them.

A query's outputs are known from its manifest, and their rows are counted where the table has the key's columns. Nothing
is removed here: the tables are the user's, and their readers too.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.output_rows import spelled_values
from cojoin.checkpoints.written_state import WrittenState
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.types import parse_schema, type_to_ddl
from cojoin.session.delta_tables import table_in_sql
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.spark.restore.restoration import Restoration
from cojoin.spark.savepoints.erasure import Remainder
from cojoin.storage.locations import is_path, literally, without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store

__all__ = ["list_remains", "sql_literal"]

_VACUUM_NOTE = (
    "Until VACUUM, older versions of the table have the rows; RETAIN 0 HOURS needs "
    "spark.databricks.delta.retentionDurationCheck.enabled=false, and no reader or writer at work. With deletion "
    "vectors, REORG TABLE ... APPLY (PURGE) comes first. The table's log keeps the smallest and largest values of "
    "older files until delta.logRetentionDuration is over"
)

_PATHS_NOTE = (
    "Spark's log of the files that it has read (spark/sources) keeps their paths, in the new checkpoint, too, which "
    "goes on by it: a path that names a person, as a folder for each key, stays there"
)
_WITHOUT_LOG = ("delta", "kafka")
"""The formats whose positions have no paths."""


def list_remains(
    spark: SparkSession,
    files: Store,
    query: Mapping[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    outputs: Mapping[str, Mapping[str, Any]],
    sources: Sequence[SourceDescription],
    keys: Sequence[Values],
    *,
    counts: bool,
) -> list[Remainder]:
    """Return where rows of some keys remain.

    Args:
        spark: The session.
        files: The old checkpoint.
        query: Its description of the query.
        inputs: The inputs, as it describes them.
        outputs: The outputs, as its manifest has them.
        sources: The descriptions of the sources.
        keys: The keys, by the left input's columns.
        counts: Whether rows of the outputs are counted.
    """
    note = "It has the state as it was, its snapshots, segments, progress, and by default the rejected rows"
    found = [Remainder(without_login(files.root), "the old checkpoint", None, (_removal(files.root),), note)]
    found += [
        Remainder(without_login(each), "an earlier checkpoint, from which this one began", None, (_removal(each),))
        for each in _former(files)
    ]
    for name, place in outputs.items():
        if place.get("batch_id") is not None:
            found.append(_of_output(spark, name, place, query, inputs, keys, counts=counts))
    for spec, source in zip(inputs, sources, strict=True):
        where = "a DataFrame" if source is None else f"{source['format']} {without_login(str(source['location']))}"
        note = (
            "Where its rows come from: not searched. A query that reads it again from its beginning, or a topic's "
            "archive, brings them back"
        )
        if source is not None and source["format"] not in _WITHOUT_LOG:
            note += f". {_PATHS_NOTE}"
        found.append(Remainder(where, f"the source of {spec.name!r}", None, (), note))
    return found


def _removal(root: str) -> str:
    if root.startswith(("file:", "/")):
        path = "/" + root.removeprefix("file:").lstrip("/")
        return f"rm -r -- '{path}'" if "'" not in path else f"delete the directory {path}"
    return f"delete the directory {without_login(root)}"


def _former(files: Store) -> Iterator[str]:
    """Yield the checkpoints from which a checkpoint's query began."""
    restored, written = Restoration.read(files), WrittenState.read(files)
    if restored is not None:
        yield restored.origin
    if written is not None and written.origin is not None:
        yield written.origin


def _of_output(
    spark: SparkSession,
    name: str,
    place: Mapping[str, Any],
    query: Mapping[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    keys: Sequence[Values],
    *,
    counts: bool,
) -> Remainder:
    what = name if name in (OUTPUT, REJECTED) else f"side output {name!r}"
    kind = next((each for each in ("delta", "parquet") if each in place), None)
    if kind is None:
        told = ", ".join(f"{each} {where}" for each, where in place.items() if each not in ("batch_id", "version"))
        return Remainder(told, what, None, (), "It is not known where its rows are")
    location = str(place[kind])
    condition = _rejected(inputs, keys) if name == REJECTED else _emitted(name, query, inputs, keys)
    if condition is None:
        columns = ", ".join(inputs[0].key)
        note = f"Its rows do not have the key's columns ({columns}), so which of them are the key's is not known"
        return Remainder(without_login(location), what, None, (), note)
    rows, note = _count(spark, kind, location, condition) if counts else (None, "")
    if kind == "parquet":
        told = "Parquet files can't be deleted from: write the folder anew without the rows where"
        return Remainder(without_login(location), what, rows, (), f"{note}{'. ' if note else ''}{told} {condition}")
    table = table_in_sql(spark, location)
    statements = (f"DELETE FROM {table} WHERE {condition}", f"VACUUM {table} RETAIN 0 HOURS")  # noqa: S608 - shown only
    return Remainder(without_login(location), what, rows, statements, ". ".join(filter(None, [note, _VACUUM_NOTE])))


def _count(spark: SparkSession, kind: str, location: str, condition: str) -> tuple[int | None, str]:
    try:
        reader = spark.read.format(kind)
        if kind == "parquet":
            frame: DataFrame = reader.load(literally(location))
        else:
            frame = reader.load(location) if is_path(location) else reader.table(location)
        return frame.where(F.expr(condition)).count(), ""
    except SPARK_ERRORS as error:
        return None, f"It can't be read: {str(error).strip().splitlines()[0]}"


def _emitted(
    name: str, query: Mapping[str, Any], inputs: tuple[InputSpec, InputSpec], keys: Sequence[Values]
) -> str | None:
    """Return the condition on an output's rows of some keys; None where its columns do not have the key."""
    left, right = inputs
    columns = query["output"] if name == OUTPUT else query.get("side_outputs", {}).get(name)
    if columns is None:
        return None
    schema = parse_schema(columns, what=name)
    if query["operator"] != "process":
        # A join's output begins with the left's columns, which may have a suffix.
        names = dict(zip(left.schema.names, schema.names, strict=False))
        return _either([_equal({names[each]: value for each, value in key.items()}, left) for key in keys])
    for spec in (left, right):
        same = all(
            each in schema.names and schema.field(each).type.equals(spec.schema.field(each).type) for each in spec.key
        )
        if same:
            return _either([_equal(dict(zip(spec.key, key.values(), strict=True)), left) for key in keys])
    return None


def _rejected(inputs: tuple[InputSpec, InputSpec], keys: Sequence[Values]) -> str:
    found = []
    for spec in inputs:
        for key in keys:
            spelled = spelled_values(spec, dict(zip(spec.key, key.values(), strict=True)))
            tests = [f"input = {_quoted(spec.name)}"]
            for column, value in spelled.items():
                text = value if isinstance(value, str) else json.dumps(value)
                place = "$['" + column + "']"
                tests.append(f"get_json_object(row, {_quoted(place)}) = {_quoted(text)}")
            found.append(" AND ".join(tests))
    return _either(found)


def _equal(values: Mapping[str, Any], left: InputSpec) -> str:
    """Return the condition that columns have the values of a key, which come in the order of the key's columns."""
    types = [left.schema.field(each).type for each in left.key]
    return " AND ".join(
        f"{back_quoted(column)} = {sql_literal(value, dtype)}"
        for (column, value), dtype in zip(values.items(), types, strict=True)
    )


def _either(conditions: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(conditions))
    return distinct[0] if len(distinct) == 1 else " OR ".join(f"({each})" for each in distinct)


def sql_literal(value: Any, dtype: pa.DataType) -> str:
    """Return a key's value as a literal of Spark's SQL.

    >>> import pyarrow as pa
    >>> sql_literal(7, pa.int64()), sql_literal("gold", pa.string())
    ('7', "'gold'")
    """
    plain = encode_entries([value], dtype)[0].as_py()
    if isinstance(plain, (bool, int)):
        return str(plain).lower()
    if isinstance(plain, str):
        return _quoted(plain)
    if isinstance(plain, bytes):
        return f"X'{plain.hex().upper()}'"
    if isinstance(plain, datetime):
        kind, zone = ("TIMESTAMP_NTZ", "") if plain.tzinfo is None else ("TIMESTAMP", " UTC")
        moment = plain if plain.tzinfo is None else plain.astimezone(timezone.utc)
        return f"{kind}'{moment:%Y-%m-%d %H:%M:%S.%f}{zone}'"
    return f"DATE'{plain}'" if isinstance(plain, date) else f"CAST('{plain}' AS {type_to_ddl(dtype)})"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
