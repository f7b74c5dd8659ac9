"""Files and errors of a real server of S3's protocol: reads at any position, errors with their remedy, no secrets."""

from __future__ import annotations

import doctest
import pickle
import time
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from cojoin.checkpoints.lease import Lease
from cojoin.kafka.archive_files import archived, footer
from cojoin.kafka.archive_index import Layout, Piece
from cojoin.kafka.records import TIME, VALUE, RecordFormat
from cojoin.kafka.tasks import ArchivedSpan
from cojoin.storage import object_store
from cojoin.storage.file_systems import open_file
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import Settings, settings_of
from tests.servers.s3 import BUCKET, SETTINGS, Refusal, S3Server, settings_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DENIED = Refusal("403 Forbidden", "AccessDenied", "Access Denied")
EXPIRED = Refusal("400 Bad Request", "ExpiredToken", "The provided token has expired.")
UNKNOWN_KEY = Refusal("403 Forbidden", "InvalidAccessKeyId", "The key you provided does not exist in our records.")
UNKNOWN_CONDITION = Refusal("501 Not Implemented", "NotImplemented", "A header is not implemented.")
_WITHOUT_CODE = "see that the session's credentials are right, have not expired, and may list, read, write and delete"
SECRETS = (SETTINGS["fs.s3a.secret.key"], SETTINGS["fs.s3a.access.key"])
RECORDS = pa.table(
    {
        "topic": ["trades"] * 3000,
        "partition": pa.array([0] * 3000, pa.int32()),
        "offset": list(range(3000)),
        TIME: pa.array(range(3000), pa.timestamp("us", "UTC")),
        VALUE: [f"{number}-{uuid.uuid4().hex * 20}".encode() for number in range(3000)],
    }
)


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


def opened(endpoint: str, bucket: str = BUCKET) -> ObjectStore:
    # All servers of a process have the same buckets.
    root = f"s3a://{bucket}/{uuid.uuid4().hex}/of errors"
    settings = settings_of(root, settings_for(endpoint).get)
    assert settings is not None
    return ObjectStore.of(settings, root)


def uses(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "accessed": store.exists,
        "read": lambda: store.read("a"),
        "written": lambda: store.write("a", "b"),
        "swapped": lambda: store.replace("a", b"b", None),
        "listed": lambda: store.names("a"),
        "deleted": lambda: store.delete("a"),
        "measured": lambda: store.size("a"),
        "dated": lambda: store.modified("a"),
        "place": store.check_place,
        "conditional": store.check_conditional_writes,
    }


def said(use: Callable[[], object]) -> str:
    with pytest.raises(cj.CheckpointError) as caught:
        use()
    text = str(caught.value)
    assert "\n" not in text
    assert not [each for each in SECRETS if each in text]
    return text


@pytest.mark.parametrize(
    ("refusal", "answer", "cure"),
    [
        (DENIED, "the store answered 403 Forbidden", "give the session's credentials the right to list, read, write"),
        (EXPIRED, "the store answered 400 Bad Request", "its credentials have expired: renew them"),
        (UNKNOWN_KEY, "the store answered 403 Forbidden", "it refuses these credentials: correct them"),
    ],
    ids=["denied", "expired", "unknown key"],
)
def test_every_use_of_a_store_that_refuses_says_what_to_do(
    server: S3Server, refusal: Refusal, answer: str, cure: str
) -> None:
    store = opened(server.endpoint)
    server.refuses = lambda _method, _path: refusal
    for name, use in uses(store).items():
        text = said(use)
        assert text.startswith(f"checkpoint {store.root}: "), name
        assert answer in text, name
        # The answer to HEAD has no body, so no code.
        assert (_WITHOUT_CODE if name in {"measured", "dated"} else cure) in text, name


def test_a_bucket_that_is_not_there_is_no_empty_one(server: S3Server) -> None:
    store = opened(server.endpoint, "nobody")
    for name, use in uses(store).items():
        if name == "dated":
            continue
        assert "make the bucket, or correct its name" in said(use), name


def test_a_store_that_can_not_be_reached_is_told_within_seconds() -> None:
    store, started = opened("http://127.0.0.1:1"), time.monotonic()
    text = said(store.check_place)
    assert "the store does not answer: " in text
    assert "by the endpoint in the session's settings, such as fs.s3a.endpoint" in text
    assert time.monotonic() - started < 30


def test_a_passing_error_is_bridged(server: S3Server) -> None:
    store, refusals = opened(server.endpoint), [Refusal("503 Slow Down", "SlowDown", "Please reduce your rate.")] * 3
    server.refuses = lambda _method, _path: refusals.pop() if refusals else None
    store.write("a", "b")
    assert store.read("a") == "b"
    assert not refusals


def test_a_store_that_does_not_know_conditional_writes_is_found(server: S3Server) -> None:
    store = opened(server.endpoint)
    store.check_conditional_writes()
    server.ignores_conditions = True
    assert "does not honour conditional writes" in said(store.check_conditional_writes)
    server.ignores_conditions, server.refuses_conditions = False, UNKNOWN_CONDITION
    assert "does not honour conditional writes" in said(store.check_conditional_writes)
    assert store.names("") == []


def test_an_outage_is_not_taken_for_damage(server: S3Server) -> None:
    """Whoever can't read the lease must not be told to delete it."""
    store = opened(server.endpoint)
    lease = Lease.acquire(store)
    for refusal, cure in ((DENIED, "give the session's credentials"), (EXPIRED, "renew them")):
        server.refuses = lambda _method, _path, refusal=refusal: refusal
        text = said(lambda: Lease.acquire(store))
        assert cure in text
        assert "damaged" not in text
        assert "delete this file" not in text
        server.refuses = lambda _method, _path: None
    server.refuses = lambda _method, _path: EXPIRED
    with pytest.raises(cj.QueryFailedError, match=r"ExpiredToken.*renew them.*This query held epoch 1 and stops"):
        lease.check()
    server.refuses = lambda _method, _path: None
    # Renewed: nothing was lost, and it goes on.
    lease = Lease.acquire(store)
    assert lease.epoch == 2
    lease.release()


@pytest.mark.parametrize(
    "text",
    [
        "Generic S3 error: Error performing PUT https://me:open-sesame@host/lake?X-Amz-Signature=open-sesame in 2ms",
        (
            "Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><Message>No."
            "</Message><AWSAccessKeyId>an-access-key</AWSAccessKeyId><StringToSign>open-sesame</StringToSign></Error>"
        ),
        "Generic S3 error: <Error><AWSAccessKeyId>an-access-key</AWSAccessKeyId></Error>",
    ],
)
def test_what_a_store_repeats_of_a_request_is_left_out(text: str) -> None:
    found = object_store.explained(OSError(text))
    assert not [each for each in SECRETS if each in f"{found}"]


def test_its_examples() -> None:
    assert not doctest.testmod(object_store).failed


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
        before = server.requests.total()
        assert rows(uri, places, 1000, 1010) == RECORDS[VALUE].to_pylist()[1000:1010]
        # The size, the footer, and the pages of one row group.
        assert server.requests.total() - before < 12
        with open_file(uri, "archive", places) as file:
            assert pq.read_table(file).equals(RECORDS)
            whole, before = file.size(), server.requests.total()
            file.seek(whole)
            assert file.read(10) == b""
            assert server.requests.total() == before, "there is nothing to ask for after its end"
            file.seek(whole - 4)
            assert file.read(10) == b"PAR1"


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
