"""Files on a real server of S3's protocol, read as tasks read those of an archive: by the session's settings alone."""

from __future__ import annotations

import pickle
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from cojoin.kafka.archive_files import archived, footer
from cojoin.kafka.hybrid_cluster import Layout, Piece
from cojoin.kafka.records import TIME, VALUE, RecordFormat
from cojoin.kafka.tasks import ArchivedSpan
from cojoin.storage.file_systems import open_file
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import Settings, settings_of
from tests.servers.s3 import BUCKET, SETTINGS, Refusal, S3Server, settings_for

RECORDS = pa.table(
    {
        "topic": ["trades"] * 3000,
        "partition": pa.array([0] * 3000, pa.int32()),
        "offset": list(range(3000)),
        TIME: pa.array(range(3000), pa.timestamp("us", "UTC")),
        VALUE: [f"{number}-{uuid.uuid4().hex * 20}".encode() for number in range(3000)],
    }
)


def written(endpoint: str) -> tuple[str, dict[str, Settings]]:
    """Write the records as a parquet file of several row groups; return its URI and how it is reached."""
    folder, sink = f"s3a://{BUCKET}/{uuid.uuid4().hex}", pa.BufferOutputStream()
    pq.write_table(RECORDS, sink, row_group_size=700, compression="none")
    settings = settings_of(f"s3a://{BUCKET}", settings_for(endpoint).get)
    inner = settings_of(folder, settings_for(endpoint).get)
    assert settings is not None
    assert inner is not None
    ObjectStore.of(inner, folder).write_bytes("a b/1.parquet", sink.getvalue().to_pybytes())
    return f"{folder}/a%20b/1.parquet", {f"s3a://{BUCKET}": settings}


def rows(uri: str, places: dict[str, Settings], begin: int, end: int) -> list[bytes]:
    names = {name: name for name in RECORDS.column_names}
    form = RecordFormat((VALUE, TIME), None, None, keeps_tombstones=False, archive=Layout(names, None, places))
    span = ArchivedSpan(("trades", 0), begin, end, (Piece(uri, ("trades", 0), 0, 3000),))
    # The format travels with the tasks.
    batches = archived([span], pickle.loads(pickle.dumps(form)), "input 'trades'", {})
    return [value for batch in batches for value in batch.column(VALUE).to_pylist()]


def test_an_archive_is_read_by_the_sessions_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with S3Server() as server:
        uri, places = written(server.endpoint)
        assert footer(uri, "archive", places) == (3000, frozenset(RECORDS.column_names))
        assert rows(uri, places, 0, 3000) == RECORDS[VALUE].to_pylist()
        before = server.requests
        assert rows(uri, places, 1000, 1010) == RECORDS[VALUE].to_pylist()[1000:1010]
        # The size, the footer, and the pages of one row group.
        assert server.requests - before < 12
        with open_file(uri, "archive", places) as file:
            assert pq.read_table(file).equals(RECORDS)


def test_what_can_not_be_read_is_told_without_secrets() -> None:
    with S3Server() as server:
        uri, places = written(server.endpoint)
        with pytest.raises(cj.QueryFailedError, match=r"gone.parquet is gone: the archive was rewritten"):
            rows(uri.replace("1.parquet", "gone.parquet"), places, 0, 10)
        server.refuses = lambda _method, path: Refusal("403 Forbidden", "AccessDenied", "Access Denied")
        with pytest.raises(cj.QueryFailedError, match=r"can't be read: the store answered 403 Forbidden") as caught:
            rows(uri, places, 0, 10)
        with pytest.raises(cj.ConfigurationError, match=r"can't read .*: the store answered 403 Forbidden") as refused:
            footer(uri, "archive", places)
    said = f"{caught.value} {refused.value} {Layout({}, None, places)!r} {places!r}"
    assert not [each for each in (SETTINGS["fs.s3a.secret.key"], SETTINGS["fs.s3a.access.key"]) if each in said]
