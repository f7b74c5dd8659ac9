"""A server of S3's protocol in this process: moto's, which knows conditional writes and keeps all in memory.

Its requests are answered one at a time, since moto compares and then writes without a lock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUCKET", "SETTINGS", "s3_server", "settings_for"]

BUCKET = "lake"
SETTINGS = {
    "fs.s3a.access.key": "an-access-key",
    "fs.s3a.secret.key": "open-sesame",
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.endpoint.region": "eu-central-1",
}
"""Hadoop's settings for the server, without its endpoint."""


def settings_for(endpoint: str) -> dict[str, str]:
    """Return Hadoop's settings for a server."""
    return {**SETTINGS, "fs.s3a.endpoint": endpoint}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket, and yield its endpoint."""
    application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: Any, start: Any) -> list[bytes]:
        with lock:
            return list(application(environ, start))

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=SETTINGS["fs.s3a.access.key"],
            aws_secret_access_key=SETTINGS["fs.s3a.secret.key"],
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
