"""A server of S3's protocol: moto's, which knows conditional writes and keeps all in memory.

Its requests are answered one at a time, since moto compares and then writes without a lock. So its conditional writes
are exact, which those of s3s-fs are not: it looks whether the file exists, and writes it afterwards.

A server can be told to refuse: some or all requests, from any moment on, with any of S3's errors (``Refusal``), or
without an answer (``HANG_UP``).
``python -m tests.servers.s3 FILE [ADDRESS]`` runs one alone, and writes its endpoint to a file. It counts its requests
(``requests_of``).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import socket
import sys
import threading
import urllib.request
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import boto3
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

__all__ = [
    "BUCKET",
    "HANG_UP",
    "SETTINGS",
    "Refusal",
    "S3Server",
    "client_of",
    "requests_of",
    "s3_process",
    "s3_server",
    "settings_for",
]

BUCKET = "lake"
SETTINGS = {
    "fs.s3a.access.key": "an-access-key",
    "fs.s3a.secret.key": "open-sesame",
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.endpoint.region": "eu-central-1",
}
"""Hadoop's settings for the server, without its endpoint."""

_COUNT = "/-/requests"
_VARIABLE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{20,}|\d+")
_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


def settings_for(endpoint: str) -> dict[str, str]:
    """Return Hadoop's settings for a server."""
    return {**SETTINGS, "fs.s3a.endpoint": endpoint}


def client_of(endpoint: str) -> Any:
    """Return a client of a server."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=SETTINGS["fs.s3a.access.key"],
        aws_secret_access_key=SETTINGS["fs.s3a.secret.key"],
        region_name="us-east-1",
    )


@dataclass(frozen=True)
class Refusal:
    """What a server answers in place of doing what it is asked.

    Attributes:
        status: The HTTP status.
        code: S3's code of the error, such as ``"AccessDenied"``.
        message: Its message.
    """

    status: str
    code: str
    message: str

    def body(self) -> bytes:
        """Return the error as S3 writes it."""
        text = f"<Code>{self.code}</Code><Message>{self.message}</Message><RequestId>{uuid.uuid4().hex}</RequestId>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{text}</Error>'.encode()


HANG_UP = Refusal("", "", "the connection is closed without an answer")
"""What a server does that is gone."""


class S3Server:
    """A server in this process, with an empty bucket; it runs inside the ``with`` block.

    All servers of a process share their buckets, so whoever counts or lists them all gives a name.

    Args:
        bucket: The bucket's name.
        address: The address at which it answers.

    Attributes:
        refuses: Returns the refusal of a request, by its method and path, or None to have it answered.
        ignores_conditions: Whether conditional writes are answered as if they had no condition.
        refuses_conditions: How conditional writes are refused; None where they are not.
        requests: How many requests came, by method and object; numbers and the like in names are left out.
    """

    def __init__(self, bucket: str = BUCKET, address: str = "127.0.0.1") -> None:
        self.bucket, self._address = bucket, address
        self.refuses: Callable[[str, str], Refusal | None] = lambda _method, _path: None
        self.ignores_conditions, self.requests = False, Counter[str]()
        self.refuses_conditions: Refusal | None = None
        self._application, self._lock = create_backend_app("s3"), threading.Lock()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server(address, 0, self._answer, threaded=True, request_handler=_Handler)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The endpoint's URL."""
        return f"http://{self._address}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        client = self.client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=self.bucket)
        return self

    def client(self) -> Any:
        """Return a client of the server."""
        return client_of(self.endpoint)

    @property
    def root(self) -> str:
        """The bucket's URL."""
        return f"s3a://{self.bucket}"

    def settings(self) -> dict[str, str]:
        """Return Hadoop's settings for the bucket alone; other buckets may be on other servers."""
        found = settings_for(self.endpoint)
        return {name.replace("fs.s3a.", f"fs.s3a.bucket.{self.bucket}."): value for name, value in found.items()}

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """Yield each object's name and content."""
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            for each in page.get("Contents", []):
                yield each["Key"], client.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read()

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: Any, start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == _COUNT:
            body = json.dumps(self.requests).encode()
            start("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        # Before the lock, since the body of a client that was cut off may never come.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        content = environ["wsgi.input"].read(length) if length else b""
        if len(content) < length:
            msg = f"the client has sent {len(content)} of {length} bytes"
            raise ConnectionAbortedError(msg)
        if length:
            environ = {**environ, "wsgi.input": io.BytesIO(content)}
        with self._lock:
            self.requests[_kind(environ)] += 1
            refusal = self.refuses(environ["REQUEST_METHOD"], environ["PATH_INFO"])
            if environ["REQUEST_METHOD"] == "PUT" and any(each in environ for each in _CONDITIONS):
                refusal = refusal or self.refuses_conditions
            if refusal is None:
                if self.ignores_conditions:
                    environ = {name: value for name, value in environ.items() if name not in _CONDITIONS}
                return list(self._application(environ, start))
        if refusal is HANG_UP:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError(refusal.message)
        body = b"" if environ["REQUEST_METHOD"] == "HEAD" else refusal.body()
        start(refusal.status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


class _Handler(WSGIRequestHandler):
    """Keeps connections open: to open one for each request takes longer than the answer."""

    protocol_version = "HTTP/1.1"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket, and yield its endpoint."""
    with S3Server() as server:
        yield server.endpoint


@contextlib.contextmanager
def s3_process(folder: Path) -> Iterator[str]:
    """Run a server in a process of its own, whose log goes to a folder, and yield its endpoint."""
    file, project = folder / "endpoint", Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(project)}
    server = Server("s3", [sys.executable, "-m", "tests.servers.s3", str(file)], folder, environment)
    try:
        server.wait_until(file.exists, 60)
        yield file.read_text()
    finally:
        server.stop()


def requests_of(endpoint: str) -> Counter[str]:
    """Return how many requests a server in another process has had, by method and object (``S3Server.requests``)."""
    with urllib.request.urlopen(f"{endpoint}{_COUNT}") as answer:
        return Counter(json.loads(answer.read()))


def _kind(environ: Any) -> str:
    method, path, query = (str(environ.get(name, "")) for name in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING"))
    named = parse_qs(query, keep_blank_values=True)
    if "list-type" in named:
        method, path = "LIST", f"{path.rstrip('/')}/{named.get('prefix', [''])[0]}"
    elif "HTTP_X_AMZ_COPY_SOURCE" in environ:
        method = "COPY"
    elif "delete" in named:
        method = "DELETE SEVERAL"
    parts = [_VARIABLE.sub("*", part) for part in path.strip("/").split("/")]
    return f"{method} {'/'.join(parts)}"


def main(file: Path, address: str = "127.0.0.1") -> None:
    """Run a server until this process is ended."""
    with S3Server(address=address) as server:
        hidden = file.with_suffix(".tmp")
        hidden.write_text(server.endpoint)
        hidden.rename(file)
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
