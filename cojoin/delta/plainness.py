"""Decides if plain Parquet files may be added to a Delta table by cojoin's own commits, and if not, why.

A table is plain where its protocol, its properties and its columns ask nothing of a data file but the table's columns
under their own names: the features listed here, and no others, for what a later protocol brings is not known here.
Some are harmless only while nothing uses them: constraints, generated columns, column mapping. ``deltalake`` refuses
some features, too, but accepts files that violate a constraint, and such with the wrong names under column mapping.

Deletion vectors are harmless to added files; a file that has one can't be removed by ``deltalake``, which does not
repeat it in the removal. (Delta's protocol, "Table Features".)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cojoin.delta.actions import Protocol

__all__ = ["HARMLESS_PROPERTIES", "not_null_columns", "why_not_plain", "why_not_removable"]

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
"""The features of a column, by the keys of its metadata or the beginnings of these."""


def why_not_plain(protocol: Protocol, metadata: Mapping[str, Any]) -> str | None:
    """Return why plain Parquet files can't be added to a table; None where they can.

    Args:
        protocol: The table's protocol.
        metadata: Its ``metaData`` action.

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
        yield from _of_column(column)


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


def _of_column(column: Mapping[str, Any]) -> Iterator[str]:
    named = column["name"]
    for key in column.get("metadata") or {}:
        yield from (
            f"{what} of its column {named!r}" for sign, what in _COLUMN_FEATURES.items() if key.startswith(sign)
        )
    if _has_inner_not_null(column["type"]):
        yield f"NOT NULL within its column {named!r}"


def _has_inner_not_null(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    if False in (node.get("containsNull"), node.get("valueContainsNull")):
        return True
    fields = node.get("fields", ())
    inner = [node.get(each) for each in ("elementType", "keyType", "valueType")] + [each["type"] for each in fields]
    return any(not each.get("nullable", True) for each in fields) or any(map(_has_inner_not_null, inner))


def _columns(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = metadata.get("schemaString")
    fields: list[dict[str, Any]] = json.loads(text)["fields"] if text else []
    return fields
