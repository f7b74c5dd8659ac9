"""A commit's actions are read as the protocol has them."""

from __future__ import annotations

import json

import pytest

from cojoin.delta.actions import Protocol, commit_of


def test_a_commit_of_every_kind() -> None:
    lines = [
        {"commitInfo": {"timestamp": 5, "inCommitTimestamp": 7, "userMetadata": "m", "operation": "MERGE"}},
        {"txn": {"appId": "a", "version": 3}},
        {"txn": {"appId": "b", "version": 4}},
        {"add": {"path": "day=1/a%20b%2541.parquet", "size": 9, "partitionValues": {"day": "1"}, "dataChange": False}},
        {"remove": {"path": "gone.parquet", "deletionTimestamp": 8, "dataChange": True}},
        {"cdc": {"path": "_change_data/c.parquet", "size": 2, "partitionValues": {"day": None}, "dataChange": False}},
        {"domainMetadata": {"domain": "x", "configuration": "", "removed": False}},
    ]
    found = commit_of(6, "\n".join(map(json.dumps, lines)).encode())
    assert (found.version, found.user_metadata, found.timestamp) == (6, "m", 7)
    assert found.applications == {"a": 3, "b": 4}
    assert (found.added[0].path, found.added[0].partition_values) == ("day=1/a b%41.parquet", {"day": "1"})
    assert not found.added[0].changes_data
    assert (found.removed[0].path, found.removed[0].size, found.removed[0].modified) == ("gone.parquet", 0, 8)
    assert found.changes[0].partition_values == {"day": None}
    assert found.protocol is None
    assert found.metadata is None


@pytest.mark.parametrize(
    ("logged", "is_outside"),
    [
        ("file:/lake/0.parquet", True),
        ("file:///lake/0.parquet", True),
        ("s3a://lake/0.parquet", True),
        ("/lake/0.parquet", True),
        ("0.parquet", False),
        ("day=12:30/0.parquet", False),
        # A name with a colon is escaped in a log.
        ("file%3A/0.parquet", False),
    ],
)
def test_a_file_with_a_scheme_is_another_tables(logged: str, is_outside: bool) -> None:
    (file,) = commit_of(0, json.dumps({"add": {"path": logged}}).encode()).added
    assert file.is_outside == is_outside


def test_what_is_no_commit_is_refused() -> None:
    for content in (b'{"txn":', b"[1]", b'{"txn":{"appId":"a"}}'):
        with pytest.raises((ValueError, KeyError)):
            commit_of(0, content)


def test_the_features_that_a_version_implies() -> None:
    assert "identityColumns" in Protocol.of({"minReaderVersion": 1, "minWriterVersion": 6}).features
    named = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["a"], "writerFeatures": ["a", "b"]}
    assert Protocol.of(named).features == {"a", "b"}
