"""Tables on S3's protocol: commits are exact there, errors name what the store answered, and show no secret."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cojoin.delta.actions import DataFile
from cojoin.delta.deltalake_table import LostCommitError, address_of, deleted_rows, why_unreachable
from cojoin.delta.table_log import TableLog, commit_name
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.errors import QueryFailedError
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import Settings, settings_of
from tests.delta.tables import APP, FIELDS, SCHEMA, deleting, features
from tests.servers.s3 import BUCKET, HANG_UP, SETTINGS, Refusal, S3Server, settings_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.push

SECRETS = (SETTINGS["fs.s3a.secret.key"], SETTINGS["fs.s3a.access.key"])


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def store(server: S3Server) -> ObjectStore:
    root = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
    settings = settings_of(root, settings_for(server.endpoint).get)
    assert settings is not None
    return ObjectStore.of(settings, root, "table")


def append(to: TableWriter, store: ObjectStore, batch_id: int) -> int:
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [batch_id]}, schema=SCHEMA), file)
    content, name = file.getvalue().to_pybytes(), f"{uuid.uuid4()}.parquet"
    store.write_bytes(f"t/{name}", content)
    change = Change({APP: batch_id}, SCHEMA, [DataFile(name, len(content), 1, '{"numRecords":1}')])
    return to.commit(change, lambda version: version(APP) == batch_id, new=NewTable(SCHEMA)).version


def test_deleted_rows_are_found_by_the_path_below_the_table(store: ObjectStore) -> None:
    paths = {"a b/x.parquet": (1,), "x.parquet": (2,)}
    adds = [
        {"add": {"path": quote(path), "size": 1, "modificationTime": 1, "dataChange": True, "partitionValues": {}}}
        for path in paths
    ]
    for add, rows in zip(adds, paths.values(), strict=True):
        add["add"] |= {"deletionVector": deleting(*rows), "stats": '{"numRecords":3}'}
    metadata = {"id": "t", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
    metadata |= {"schemaString": json.dumps({"type": "struct", "fields": [*FIELDS]}), "partitionColumns": []}
    actions = [{"protocol": features(reader=["deletionVectors"])}, {"metaData": metadata}, *adds]
    store.write(commit_name(0), "\n".join(map(json.dumps, actions)))
    assert deleted_rows(store, 0, [*paths]) == {"a b/x.parquet": b"\x02", "x.parquet": b"\x04"}


def test_two_writers_append_in_turns(server: S3Server, store: ObjectStore) -> None:
    ours, theirs = TableWriter(store, "t"), TableWriter(store, "t")
    assert [append(each, store, number) for number, each in enumerate((ours, theirs, ours, theirs))] == [0, 1, 2, 3]
    # The other's commit comes between our comparison and our commit.
    compared = []

    def compare(version: Callable[[str], int | None]) -> bool:
        compared.append(version(APP))
        if len(compared) == 1:
            append(theirs, store, 4)
        return version(APP) == 5

    assert ours.commit(Change({APP: 5}), compare).version == 5
    assert compared == [3, 4]
    address = address_of(store, "t")
    assert address is not None
    read = DeltaTable(address.url, storage_options=dict(address.options))
    assert (read.version(), read.transaction_version(APP), len(read.file_uris())) == (5, 5, 5)
    log = TableLog(store, "t")
    assert len(log.files(5)) == 5
    assert [each.applications for each in log.commits(3)] == [{APP: 4}, {APP: 5}]
    counts = []
    for number in range(6, 16):
        before = server.requests.total()
        append(ours, store, number)
        counts.append(server.requests.total() - before)
    # A file and its look, a look at the log, the listing and the reading of its new commit, the commit, read back.
    assert max(counts[2:]) == min(counts[2:]) <= 12, "the commits since the last checkpoint are not read again"


def test_files_and_commits_are_encrypted_with_the_key_of_the_settings(server: S3Server) -> None:
    encrypted = {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn:aws:kms:x:1:key/1"}
    prefix = uuid.uuid4().hex
    settings = settings_of(f"s3a://{BUCKET}/{prefix}", {**settings_for(server.endpoint), **encrypted}.get)
    assert settings is not None
    store = ObjectStore.of(settings, f"s3a://{BUCKET}/{prefix}", "table")
    append(TableWriter(store, "t"), store, 0)
    client = server.client()
    names = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
    heads = [client.head_object(Bucket=BUCKET, Key=name) for name in names]
    assert {(each["ServerSideEncryption"], each["SSEKMSKeyId"]) for each in heads} == {
        ("aws:kms", "arn:aws:kms:x:1:key/1")
    }
    assert len(heads) >= 2


def test_a_commit_that_another_has_overwritten_is_named(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, real = TableWriter(store, "t"), DeltaTable.create_write_transaction
    append(ours, store, 0)

    def overwritten(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        real(table, *arguments, **options)
        store.write_bytes(f"t/_delta_log/{1:020d}.json", b'{"txn":{"appId":"theirs","version":1}}\n')

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overwritten)
    with pytest.raises(LostCommitError, match="version 1 was made and is that of another writer"):
        append(ours, store, 1)


@pytest.mark.parametrize(
    ("refusal", "answer", "cure"),
    [
        (Refusal("403 Forbidden", "AccessDenied", "no"), "AccessDenied: no", "the right to list, read, write"),
        (
            Refusal("403 Forbidden", "InvalidAccessKeyId", f"The key {SECRETS[1]} is unknown"),
            "InvalidAccessKeyId: The key *** is unknown",
            "it refuses these credentials",
        ),
        (
            Refusal("400 Bad Request", "ExpiredToken", "The provided token has expired."),
            "ExpiredToken: The provided token has expired.",
            "its credentials have expired: renew them",
        ),
        (HANG_UP, "the store does not answer", "see that the store runs"),
    ],
)
def test_a_store_that_refuses_is_named_without_secrets(
    server: S3Server, store: ObjectStore, refusal: Refusal, answer: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cojoin.delta.deltalake_table._RETRIES", {"max_retries": "1", "retry_timeout": "2s"})
    ours = TableWriter(store, "t")
    append(ours, store, 0)
    for refused in ("PUT", "GET"):
        # A commit is put; what is new in the log is listed, by a request for the bucket.
        server.refuses = lambda method, path, refused=refused: (
            refusal if method == refused and (method == "PUT" or path == f"/{BUCKET}") else None
        )
        with pytest.raises(QueryFailedError) as caught:
            ours.commit(Change({APP: 1}), lambda version: version(APP) == 1)
        text = str(caught.value)
        assert answer in text
        assert cure in text
        assert "\n" not in text
        assert not any(each in text for each in (*SECRETS, "X-Amz", "Signature"))
    server.refuses = lambda _method, _path: None
    assert append(ours, store, 1) == 1


def test_where_deltalake_would_write_elsewhere_spark_writes() -> None:
    settings = Settings("s3", "lake", "my trades")
    store = ObjectStore.of(settings, "s3a://lake/my trades", "table")
    assert address_of(store, "t") is None
    assert why_unreachable(store, "t") == "its path has characters that deltalake takes for a URL's"


def test_options_are_texts_and_hide_their_secrets() -> None:
    options = {"access_key_id": "AK", "secret_access_key": "opensesame", "client_options": {"allow_http": True}}
    store = ObjectStore.of(Settings("s3", "lake", "a/b", {**options, "region": "x"}), "s3a://lake/a/b")
    address = address_of(store, "t")
    assert address is not None
    assert (address.url, address.options["allow_http"], address.is_overwritten) == ("s3://lake/a/b/t", "true", True)
    assert "opensesame" not in repr(address)
    assert set(address.secrets) == {"AK", "opensesame"}
