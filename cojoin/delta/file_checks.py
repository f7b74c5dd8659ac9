"""Checks that data files fit a Delta table, against the very version of the table to which they are added.

The table's columns and those of the files' rows are the same, by name, type and order; nullability is the table's, and
of a column that is NOT NULL the files' statistics count no nulls. The partition values are those of the table's
partition columns, as texts that their types read. Each file is in the table's folder, in the size that is written of
it: one look a file, eight at a time on object stores.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cojoin.delta.delta_errors import TableRefusedError
from cojoin.delta.plainness import not_null_columns
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.delta.actions import DataFile
    from cojoin.storage.store import Store

__all__ = ["check_files", "column_difference", "nullable_schema"]

_NULLABILITY = frozenset({"nullable", "containsNull", "valueContainsNull"})
_LOOKS = 8
_READ: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": {"true": True, "false": False}.__getitem__,
    "date": date.fromisoformat,
    # Python 3.10 reads no Z.
    "timestamp": lambda text: datetime.fromisoformat(text.removesuffix("Z")),
    "timestamp_ntz": datetime.fromisoformat,
}
"""The readers of partition values, by type; other types take any text."""


def check_files(
    store: Store,
    folder: str,
    metadata: Mapping[str, Any],
    features: frozenset[str],
    schema: pa.Schema | None,
    files: Sequence[DataFile],
) -> None:
    """Check that files fit a table.

    Args:
        store: The store.
        folder: The table's folder below the store's root.
        metadata: The table's ``metaData`` action.
        features: The names of its features.
        schema: The columns of the files' rows, those of the partitions among them.
        files: The files.

    Raises:
        TableRefusedError: One does not fit; the message names what was expected and what was found.
        CheckpointError: The store can't be reached.
    """
    named = without_login(store.path(folder))
    table = json.loads(metadata["schemaString"])
    why = "the files' columns are not known" if schema is None else _difference(table, nullable_schema(schema))
    if why is not None:
        msg = f"Delta table {named}: its columns were changed, or are not those of the query: {why}; start it again"
        raise TableRefusedError(msg)
    types = {each["name"]: each["type"] for each in table["fields"]}
    partitions = {name: types[name] for name in metadata.get("partitionColumns") or ()}
    must = [each for each in not_null_columns(metadata) if each not in partitions]
    for each in files:
        why = _unfit(each, partitions, not_null_columns(metadata), must, counted="deletionVectors" in features)
        if why is not None:
            msg = f"Delta table {named}: file {each.path}: {why}"
            raise TableRefusedError(msg)
    _check_sizes(store, folder, named, files)


def column_difference(metadata: Mapping[str, Any], schema: pa.Schema) -> str | None:
    """Return how a table's columns differ from those of rows, where nulls are no difference; None where they don't.

    Args:
        metadata: The table's ``metaData`` action.
        schema: The rows' columns.
    """
    return _difference(json.loads(metadata["schemaString"]), nullable_schema(schema))


def nullable_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return Arrow's columns as those of a table's ``metaData``, in which every field, element and value is nullable.

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


def _difference(table: Mapping[str, Any], files: Mapping[str, Any]) -> str | None:
    """Return how the columns of a table and those of files differ; None where they don't."""
    expected = [(each["name"], _spelled(each["type"])) for each in table["fields"]]
    found = [(each["name"], _spelled(each["type"])) for each in files["fields"]]
    if expected == found:
        return None
    missing, added = [each for each in expected if each not in found], [each for each in found if each not in expected]
    if not missing and not added:
        return f"the table has them in the order {[name for name, _ in expected]}"
    parts = [("in the table alone", missing), ("in the files alone", added)]
    return ", ".join(f"{where}: {', '.join(' '.join(each) for each in some)}" for where, some in parts if some)


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
            return f"the value {value!r} of the partition column {name!r} is no {partitions[name]}"
    statistics = file.counted()
    if counted and "numRecords" not in statistics:
        return "expected statistics with the number of rows, as the table's feature 'deletionVectors' asks"
    nulls = statistics.get("nullCount") or {}
    for name in must:
        if nulls.get(name) != 0:
            found = nulls.get(name, "unknown")
            return f"the column {name!r} is NOT NULL; expected statistics with no nulls in it, the number is {found}"
    return None


def _is_of_type(value: str, dtype: Any) -> bool:
    read = Decimal if isinstance(dtype, str) and dtype.startswith("decimal") else _READ.get(str(dtype), str)
    try:
        read(value)
    except (ValueError, KeyError, ArithmeticError):
        return False
    return True


def _check_sizes(store: Store, folder: str, named: str, files: Sequence[DataFile]) -> None:
    def size_of(file: DataFile) -> int:
        return store.size(f"{folder.strip('/')}/{file.path}".lstrip("/"))

    if store.for_tasks() is None or len(files) < 2:
        found = list(map(size_of, files))
    else:
        with ThreadPoolExecutor(_LOOKS) as threads:
            found = list(threads.map(size_of, files))
    for file, size in zip(files, found, strict=True):
        if size != file.size:
            msg = (
                f"Delta table {named}: file {file.path}: expected {file.size} bytes, found "
                f"{size or 'no such file'}; see that whoever writes files there sees the same folder as the driver"
            )
            raise TableRefusedError(msg)
