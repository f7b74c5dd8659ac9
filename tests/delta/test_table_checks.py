"""For each feature, property and column of Delta: whether a plain file may be added, or by which name it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cojoin.delta.deltalake_table import TableRefusedError
from cojoin.delta.table_checks import why_not_plain, why_not_removable
from cojoin.delta.table_log import TableLog
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import FIELDS, PLAIN, append, by_hand, features, writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HARMLESS = ("appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants")
HARMLESS_TO_READERS = ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType")
REFUSED = (
    *("allowColumnDefaults", "checkpointProtection", "clustering", "collations-preview", "coordinatedCommits-preview"),
    *("domainMetadata", "fromTheFuture", "icebergCompatV1", "icebergCompatV2", "identityColumns", "inCommitTimestamp"),
    *("materializePartitionColumns", "rowTracking"),
)
REFUSED_TO_READERS = (
    *("catalogManaged", "fromTheFuture", "typeWidening", "vacuumProtocolCheck", "variantShredding-preview"),
)


def why(folder: Path, *, removes: bool = False) -> str | None:
    found = TableLog(LocalStore(str(folder))).newest()
    assert found is not None
    return (why_not_removable if removes else why_not_plain)(found.protocol, found.metadata)


@pytest.mark.parametrize("name", [*HARMLESS, *HARMLESS_TO_READERS])
def test_a_harmless_feature_takes_a_plain_file(tmp_path: Path, name: str) -> None:
    protocol = features(reader=[name]) if name in HARMLESS_TO_READERS else features(name)
    by_hand(tmp_path, protocol)
    assert why(tmp_path) is None
    assert append(writer(tmp_path), tmp_path, 0).version == 1
    assert (why(tmp_path, removes=True) is None) == (name != "deletionVectors")


@pytest.mark.parametrize(
    ("name", "protocol"),
    [*((each, features(each)) for each in REFUSED), *((each, features(reader=[each])) for each in REFUSED_TO_READERS)],
)
def test_other_features_are_refused_by_name(tmp_path: Path, name: str, protocol: Mapping[str, Any]) -> None:
    by_hand(tmp_path, protocol)
    assert writer(tmp_path).refusal() == why(tmp_path) == f"its feature {name!r}"
    with pytest.raises(TableRefusedError, match=f"its feature '{name}' does not allow this commit; start the"):
        append(writer(tmp_path), tmp_path, 0)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"delta.constraints.positive": "id > 0"}, "its CHECK constraint 'positive'"),
        ({"delta.columnMapping.mode": "name"}, "its column mapping (delta.columnMapping.mode = name)"),
        ({"delta.columnMapping.mode": "none", "delta.columnMapping.maxColumnId": "4"}, None),
        ({"delta.enableTypeWidening": "false"}, None),
        ({"delta.enableTypeWidening": "true"}, "its property delta.enableTypeWidening"),
        ({"delta.fromTheFuture": "1"}, "its property delta.fromTheFuture"),
        ({"owner": "me", "delta.logRetentionDuration": "interval 3 days"}, None),
    ],
)
def test_properties(tmp_path: Path, properties: Mapping[str, str], reason: str | None) -> None:
    assert why(by_hand(tmp_path, properties=properties)) == reason


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"metadata": {"comment": "the key"}}, None),
        ({"metadata": {"delta.invariants": "{}"}}, "an invariant of its column 'id'"),
        ({"metadata": {"delta.generationExpression": "1"}}, "generated values of its column 'id'"),
        ({"metadata": {"delta.identity.start": 1}}, "identity values of its column 'id'"),
        ({"metadata": {"delta.columnMapping.id": 1}}, "column mapping of its column 'id'"),
        ({"metadata": {"CURRENT_DEFAULT": "1"}}, "a default value of its column 'id'"),
        ({"metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}, "a type char or varchar of its column 'id'"),
        ({"nullable": False}, None),
        ({"type": {"type": "array", "elementType": "long", "containsNull": False}}, "NOT NULL within its column 'id'"),
        (
            {"type": {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}},
            "NOT NULL within its column 'id'",
        ),
    ],
)
def test_columns(tmp_path: Path, column: Mapping[str, Any], reason: str | None) -> None:
    assert why(by_hand(tmp_path, fields=[{**FIELDS[0], **column}])) == reason


@pytest.mark.parametrize(("outer", "named"), [("struct", "id.x"), ("array", "id.element.x"), ("map", "id.value.x")])
def test_metadata_of_a_nested_field_counts_as_that_of_a_column(tmp_path: Path, outer: str, named: str) -> None:
    for number, (metadata, reason) in enumerate(
        [
            ({"comment": "harmless"}, None),
            ({"delta.invariants": "{}"}, "an invariant"),
            ({"delta.columnMapping.id": 1}, "column mapping"),
            ({"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}, "a type char or varchar"),
        ]
    ):
        fields = [{"name": "x", "type": "long", "nullable": True, "metadata": metadata}]
        dtype: dict[str, Any] = {"type": "struct", "fields": fields}
        if outer == "array":
            dtype = {"type": "array", "elementType": dtype, "containsNull": True}
        elif outer == "map":
            dtype = {"type": "map", "keyType": "string", "valueType": dtype, "valueContainsNull": True}
        found = why(by_hand(tmp_path / str(number), fields=[{**FIELDS[0], "type": dtype}]))
        assert found == (reason and f"{reason} of its column {named!r}")


def test_protocols_without_names(tmp_path: Path) -> None:
    assert why(by_hand(tmp_path / "5", {"minReaderVersion": 2, "minWriterVersion": 5})) is None
    assert (
        why(by_hand(tmp_path / "6", {"minReaderVersion": 2, "minWriterVersion": 6})) == "its feature 'identityColumns'"
    )
    assert why(by_hand(tmp_path / "9", {"minReaderVersion": 9, "minWriterVersion": 9})) == (
        "its protocol, reader 9 and writer 9"
    )
    append_only = by_hand(tmp_path / "a", PLAIN, properties={"delta.appendOnly": "true"})
    assert (why(append_only), why(append_only, removes=True)) == (None, "its property delta.appendOnly")
