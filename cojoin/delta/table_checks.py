"""Checks that plain Parquet files fit a Delta table, in the version of the table to which they are added.

A table is plain where its protocol, properties and columns require nothing of a data file but the table's columns
under their own names. Unlisted features are refused, since later protocols are unknown. Some of the listed features
are harmless only while nothing uses them: constraints, generated columns, column mapping. ``deltalake`` refuses some
features, too, but accepts files that violate a constraint, or that have the wrong names under column mapping. Deletion
vectors are harmless to added files; ``deltalake`` can't remove a file that has one, since it leaves the vector out of
the ``remove`` action. (Delta's protocol, "Table Features".)

A file fits where its rows' columns are the table's by name, type and order, whatever their nullability, and the file's
statistics count no nulls of a column that is NOT NULL. It has a partition value for each partition column of the table,
as a text that can be parsed as the column's type, and is not empty: by the protocol that is a null, which not every
reader makes of it. It is in the table's folder in its written size; that costs one request a file, eight at a time on
object stores.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cojoin.delta.deltalake_table import TableRefusedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.delta.actions import DataFile, Protocol
    from cojoin.storage.store import Store

_HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)

HARMLESS_PROPERTIES = frozenset(
    f"delta.{name}"
    for name in (
        "appendOnly",
        "checkpointInterval",
        "checkpointPolicy",
        "deletedFileRetentionDuration",
        "enableChangeDataFeed",
        "enableDeletionVectors",
        "enableExpiredLogCleanup",
        "isolationLevel",
        "logRetentionDuration",
        "minReaderVersion",
        "minWriterVersion",
        "setTransactionRetentionDuration",
    )
)
"""Table properties that do not affect the format of a plain data file."""

_MOST_READER, _MOST_WRITER = 3, 7
_CONSTRAINT = "delta.constraints."
_MAPPING = "delta.columnMapping."
_COLUMN_FEATURES = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "generated values",
    "delta.identity.": "identity values",
    "delta.columnMapping.": "column mapping",
    "delta.typeChanges": "type widening",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a type char or varchar",
    "__COLLATIONS": "a collation",
}
"""The features of a column, or of a field within one, by the prefixes of the keys of its metadata."""
_INNER_TYPES = ("elementType", "keyType", "valueType")
_NULLABILITY = frozenset({"nullable", "containsNull", "valueContainsNull"})
_LOOKS = 8
_READ: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": {"true": True, "false": False}.__getitem__,
    "date": date.fromisoformat,
    # Python 3.10's fromisoformat does not accept a Z.
    "timestamp": lambda text: datetime.fromisoformat(text.removesuffix("Z")),
    "timestamp_ntz": datetime.fromisoformat,
}
"""The parsers of partition values, by Delta's type; other types accept any text."""


def why_not_plain(protocol: Protocol, metadata: Mapping[str, Any]) -> str | None:
    """Return why plain Parquet files can't be added to a table with this ``metaData`` action; None where they can.

    >>> from cojoin.delta.actions import Protocol
    >>> why_not_plain(Protocol(3, 7, frozenset({"typeWidening"})), {})
    "its feature 'typeWidening'"
    """
    return next(_reasons(protocol, metadata), None)


def why_not_removable(protocol: Protocol, metadata: Mapping[str, Any]) -> str | None:
    """Return why files can't be removed from a table, or replaced by others; None where they can."""
    if dict(metadata.get("configuration") or {}).get("delta.appendOnly", "false").lower() == "true":
        return "its property delta.appendOnly"
    if "deletionVectors" in protocol.features:
        return "its feature 'deletionVectors'"
    return why_not_plain(protocol, metadata)


def not_null_columns(metadata: Mapping[str, Any]) -> list[str]:
    """Return a table's columns that are NOT NULL."""
    return [each["name"] for each in _columns(metadata) if not each.get("nullable", True)]


def _reasons(protocol: Protocol, metadata: Mapping[str, Any]) -> Iterator[str]:
    if protocol.reader > _MOST_READER or protocol.writer > _MOST_WRITER:
        yield f"its protocol, reader {protocol.reader} and writer {protocol.writer}"
    yield from (f"its feature {each!r}" for each in sorted(protocol.features - _HARMLESS_FEATURES))
    provider = (metadata.get("format") or {}).get("provider", "parquet")
    if provider != "parquet":
        yield f"its data files' format {provider!r}"
    for name, value in sorted(dict(metadata.get("configuration") or {}).items()):
        yield from _of_property(name, value)
    for column in _columns(metadata):
        yield from _of_field(column, column["name"])
        if _has_inner_not_null(column["type"]):
            yield f"NOT NULL within its column {column['name']!r}"


def _of_property(name: str, value: str) -> Iterator[str]:
    if name.startswith(_CONSTRAINT):
        yield f"its CHECK constraint {name.removeprefix(_CONSTRAINT)!r}"
    elif name.startswith(_MAPPING):
        if name == f"{_MAPPING}mode" and value.lower() != "none":
            yield f"its column mapping (delta.columnMapping.mode = {value})"
    elif name.startswith("delta.enable") and value.lower() == "false":
        return
    elif name.startswith("delta.") and name not in HARMLESS_PROPERTIES:
        yield f"its property {name}"


def _of_field(field: Mapping[str, Any], named: str) -> Iterator[str]:
    for key in field.get("metadata") or {}:
        yield from (
            f"{feature} of its column {named!r}" for sign, feature in _COLUMN_FEATURES.items() if key.startswith(sign)
        )
    yield from _of_type(field["type"], named)


def _of_type(node: Any, named: str) -> Iterator[str]:
    if isinstance(node, dict):
        for field in node.get("fields", ()):
            yield from _of_field(field, f"{named}.{field['name']}")
        for part in _INNER_TYPES:
            yield from _of_type(node.get(part), f"{named}.{part.removesuffix('Type')}")


def _has_inner_not_null(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    if False in (node.get("containsNull"), node.get("valueContainsNull")):
        return True
    fields = node.get("fields", ())
    inner = [node.get(each) for each in _INNER_TYPES] + [each["type"] for each in fields]
    return any(not each.get("nullable", True) for each in fields) or any(map(_has_inner_not_null, inner))


def _columns(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = metadata.get("schemaString")
    fields: list[dict[str, Any]] = json.loads(text)["fields"] if text else []
    return fields


def check_files(
    store: Store,
    folder: str,
    metadata: Mapping[str, Any],
    features: frozenset[str],
    schema: pa.Schema | None,
    files: Sequence[DataFile],
) -> None:
    """Check that files fit the table with this ``metaData`` action; ``schema`` has their columns and partition columns.

    Raises ``TableRefusedError`` with what was expected and what was found, and ``CheckpointError`` where the store
    can't be reached.
    """
    named = without_login(store.path(folder))
    why = "the files' columns are not known" if schema is None else column_difference(metadata, schema)
    if why is not None:
        msg = f"Delta table {named}: its columns were changed, or are not the query's: {why}; start the query again"
        raise TableRefusedError(msg)
    types = {each["name"]: each["type"] for each in _columns(metadata)}
    partitions = {name: types[name] for name in metadata.get("partitionColumns") or ()}
    must = [each for each in not_null_columns(metadata) if each not in partitions]
    for file in files:
        why = _unfit(file, partitions, not_null_columns(metadata), must, counted="deletionVectors" in features)
        if why is not None:
            msg = f"Delta table {named}: file {file.path}: {why}"
            raise TableRefusedError(msg)
    _check_sizes(store, folder, named, files)


def column_difference(metadata: Mapping[str, Any], schema: pa.Schema) -> str | None:
    """Return the differences of a ``metaData`` action's and rows' columns, except in nullability; None without any."""
    expected, actual = (
        [(each["name"], _spelled(each["type"])) for each in columns]
        for columns in (_columns(metadata), nullable_schema(schema)["fields"])
    )
    if expected == actual:
        return None
    missing = [each for each in expected if each not in actual]
    added = [each for each in actual if each not in expected]
    if not missing and not added:
        return f"the table has them in the order {[name for name, _ in expected]}"
    parts = [("in the table alone", missing), ("in the files alone", added)]
    return ", ".join(f"{where}: {', '.join(' '.join(each) for each in some)}" for where, some in parts if some)


def nullable_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return an Arrow schema in the form of a ``metaData`` action, with every field, element and value nullable.

    >>> import pyarrow as pa
    >>> nullable_schema(pa.schema([("id", pa.int64())]))["fields"][0]["type"]
    'long'
    """
    from deltalake import Schema  # noqa: PLC0415 - it takes a third of a second

    widened: dict[str, Any] = _nullable(json.loads(Schema.from_arrow(schema).to_json()))
    return widened


def _nullable(node: Any) -> Any:
    if isinstance(node, list):
        return [_nullable(each) for each in node]
    if isinstance(node, dict):
        return {name: True if name in _NULLABILITY else _nullable(each) for name, each in node.items()}
    return node


def _spelled(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else json.dumps(_without_metadata(_nullable(dtype)), sort_keys=True)


def _without_metadata(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_metadata(each) for each in node]
    if isinstance(node, dict):
        return {name: _without_metadata(each) for name, each in node.items() if name != "metadata"}
    return node


def _unfit(
    file: DataFile, partitions: Mapping[str, Any], not_null: Sequence[str], must: Sequence[str], *, counted: bool
) -> str | None:
    """Return why a file does not fit the table; None where it does."""
    if file.partition_values.keys() != partitions.keys():
        return f"expected values of the partition columns {list(partitions)}, got {list(file.partition_values)}"
    for name, value in file.partition_values.items():
        if value is None and name in not_null:
            return f"the partition column {name!r} is NOT NULL, and its value is null"
        if value is not None and not _is_of_type(value, partitions[name]):
            why = f"not of its type {partitions[name]}" if value else "an empty text, which Spark reads as a null"
            return f"the value {value!r} of the partition column {name!r} is {why}"
    statistics = file.counted()
    if counted and "numRecords" not in statistics:
        return "expected statistics with the number of rows, as the table's feature 'deletionVectors' requires"
    nulls = statistics.get("nullCount") or {}
    for name in must:
        if nulls.get(name) != 0:
            number = nulls.get(name, "unknown")
            return f"the column {name!r} is NOT NULL; expected statistics that count 0 nulls in it, got {number}"
    return None


def _is_of_type(value: str, dtype: Any) -> bool:
    read = Decimal if isinstance(dtype, str) and dtype.startswith("decimal") else _READ.get(str(dtype), str)
    try:
        read(value)
    except (ValueError, KeyError, ArithmeticError):
        return False
    return value != ""


def _check_sizes(store: Store, folder: str, named: str, files: Sequence[DataFile]) -> None:
    def path_of(name: str) -> str:
        return f"{folder.strip('/')}/{name}".lstrip("/")

    known: dict[str, int] = {}
    # The files of one partition are listed together.
    for top, count in Counter(file.path.partition("/")[0] for file in files if "/" in file.path).items():
        known |= (store.sizes(path_of(top)) or {}) if count > 1 else {}

    def size_of(file: DataFile) -> int:
        size = known.get(path_of(file.path))
        return store.size(path_of(file.path)) if size is None else size

    if store.for_tasks() is None or len(files) < 2:
        sizes = list(map(size_of, files))
    else:
        with ThreadPoolExecutor(_LOOKS) as threads:
            sizes = list(threads.map(size_of, files))
    for file, size in zip(files, sizes, strict=True):
        if size != file.size:
            is_missing = size == 0 and not store.exists(path_of(file.path))
            msg = (
                f"Delta table {named}: file {file.path}: expected {file.size} bytes, found "
                f"{'no such file' if is_missing else size}; check that all writers of its files see the same folder as "
                "the driver"
            )
            raise TableRefusedError(msg)
