"""The columns of an archive: found by name, checked for their types, and refused where the files lack them.

Each row has ``topic``, ``partition``, ``offset`` and the record's ``timestamp``, as Spark's Kafka source writes them,
and either the decoded columns of the schema or the raw ``value``. Tasks read the files with pyarrow. So columns that
have other names in the files are refused, and needed columns that are only in the folders' names. The checks read no
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.installed_packages import check_packages
from cojoin.kafka.archive.archive_index import Layout
from cojoin.kafka.records import HEADERS, KEY, TIME, VALUE
from cojoin.session.arrow_types import spark_data_type
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from cojoin.spark.sources.sources import Source

__all__ = ["folder_columns", "layout_of"]

_NEEDED = {"topic": "topic", "partition": "partition", "offset": "offset", TIME: "timestamp"}
_OPTIONAL = {VALUE: "value", KEY: "key", HEADERS: "headers"}
_SPELLED = {"topic": ("string",), "partition": ("int", "bigint", "smallint", "tinyint"), "offset": ("bigint", "int")}
_SPELLED |= {TIME: ("timestamp",), VALUE: ("binary",), KEY: ("binary", "string")}
_SPELLED |= {HEADERS: ("array<struct<key:string,value:binary>>",)}


def layout_of(frame: DataFrame, schema: str | None, wanted: Sequence[str], what: str) -> Layout:
    """Return the archive's columns, after a check of their types.

    Args:
        frame: The archive.
        schema: DDL of the value's columns; None where the value is not read.
        wanted: The other parts of a record that are read.
        what: The archive, for messages.

    Raises:
        SchemaError: A column is missing or of another type.
    """
    there = {each.name.lower(): each for each in frame.schema.fields}
    missing = [name for name in _NEEDED.values() if name not in there]
    if missing:
        msg = (
            f"{what}: it has no column {', '.join(missing)}; an archive carries topic, partition, offset and the "
            f"record's timestamp, as Spark's Kafka source gives them; it has {', '.join(frame.columns)}"
        )
        raise SchemaError(msg)
    wrong = ["no schema= to decode it by"] if schema is None else _misfits(there, schema, wanted)
    fields = None
    if schema is not None and not wrong:
        fields = tuple(there[name.lower()].name for name in parse_schema(schema).names)
    parts = {*wanted, *([VALUE] if fields is None else [])} - {TIME}
    optional = {own: name for own, name in _OPTIONAL.items() if name in there}
    absent = sorted(parts - optional.keys())
    if VALUE in absent:
        msg = f"{what}: expected the columns of the schema, or the raw value (binary): got no value, {', '.join(wrong)}"
        raise SchemaError(msg)
    if absent:
        asked = ", ".join(_OPTIONAL[own] for own in absent)
        msg = f"{what}: it has no column {asked}, of which columns= makes one; it has {', '.join(frame.columns)}"
        raise SchemaError(msg)
    names: dict[str, str] = {}
    for own, name in (_NEEDED | optional).items():
        found, right = there[name].dataType.simpleString(), _SPELLED[own]
        if found in right:
            names[own] = there[name].name
        elif own in _NEEDED or own in parts:
            msg = f"{what}: column {name}: expected {' or '.join(right)}, got {found}"
            raise SchemaError(msg)
    return Layout(names, fields)


def _misfits(there: Mapping[str, Any], schema: str, parts: Sequence[str]) -> list[str]:
    """Return how an archive's columns differ from a schema; a column of the record's own can't be one of the value."""
    taken = {*_NEEDED.values(), *(_OPTIONAL[part] for part in parts if part in _OPTIONAL)}
    wrong = []
    for each in parse_schema(schema):
        found, expected = there.get(each.name.lower()), spark_data_type(each.type).simpleString()
        if each.name.lower() in taken:
            wrong.append(f"{each.name} is the record's own")
        elif found is None:
            wrong.append(f"no {each.name}")
        elif found.dataType.simpleString() != expected:
            wrong.append(f"{each.name} is {found.dataType.simpleString()} instead of {expected}")
    return wrong


def folder_columns(source: Source, frame: DataFrame, layout: Layout, what: str) -> set[str]:
    """Return the columns that are in the folders' names instead of the files, after a check that tasks need none.

    Args:
        source: Where the archive is.
        frame: The archive.
        layout: Its columns.
        what: The archive, for messages.

    Raises:
        ConfigurationError: The columns have other names in the files, or the files lack one that is needed.
    """
    names, folders = layout.names, _folders(source, frame, what)
    needed = {*names.values(), *(layout.fields or ())} - {names["topic"], names["partition"]}
    if needed & folders:
        msg = (
            f"{what}: it is partitioned by {sorted(needed & folders)}, which its files do not hold; partition it by "
            f"topic, partition or columns that are not read"
        )
        raise ConfigurationError(msg)
    return folders


def _folders(source: Source, frame: DataFrame, what: str) -> set[str]:
    if source.format == "delta":
        check_packages(what, "delta", "delta")
        from delta.tables import DeltaTable  # noqa: PLC0415 - other archives need no delta-spark

        location, spark = str(source.location), frame.sparkSession
        table = DeltaTable.forPath(spark, location) if is_path(location) else DeltaTable.forName(spark, location)
        row = table.detail().select("partitionColumns", "properties").collect()[0]
        mode = row.properties.get("delta.columnMapping.mode", "none")
        if mode != "none":
            msg = (
                f"{what}: its columns are mapped (delta.columnMapping.mode = {mode}), so its files have other names "
                f"for them; give a copy of it without column mapping"
            )
            raise ConfigurationError(msg)
        return set(row.partitionColumns)
    path = next(iter(frame.inputFiles()), "")
    return {part.partition("=")[0] for part in path.split("/") if "=" in part} & set(frame.columns)
