"""A schema registry of one schema behind TLS, which wants a certificate of the client."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.certificates import Certificates

SCHEMA = '{"type": "record", "name": "Trade", "fields": [{"name": "trade_id", "type": "long"}]}'
ANSWER = {"subject": "trades-value", "id": 7, "version": 1, "schemaType": "AVRO", "schema": SCHEMA}


class Answering(BaseHTTPRequestHandler):
    """Answers each request with one schema."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(ANSWER).encode())

    def log_message(self, *_: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    """Says nothing of clients that it turns away."""

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def registry_behind_tls(certificates: Certificates) -> Iterator[str]:
    """Run it for clients that the authority knows, and yield its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.authority))
    context.load_cert_chain(str(certificates.server))
    context.verify_mode = ssl.CERT_REQUIRED
    # With 1.3 a client that is turned away may see that the connection is reset before it reads why.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server = Quiet(("127.0.0.1", 0), Answering)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
