"""A registry behind TLS, with an authority of one's own, that wants a certificate of the client."""

from __future__ import annotations

import doctest
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.formats import registry_refusals
from cojoin.kafka.formats.schema_lookup import SchemaLookup
from tests.servers.certificates import make_certificates
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.certificates import Certificates
    from tests.servers.registry import RegistryServer

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
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
def behind_tls(certificates: Certificates) -> Iterator[str]:
    """Serve, to clients that the authority knows, and yield the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.authority))
    context.load_cert_chain(str(certificates.server))
    context.verify_mode = ssl.CERT_REQUIRED
    server = Quiet(("127.0.0.1", 0), Answering)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def looked_up(place: str, **login: Any) -> str:
    return SchemaLookup(cj.kafka.registry(place, **login), WHAT, at_start=True).of_subject("trades-value", None).text


def test_certificates_of_both_sides_are_checked(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    own, other = make_certificates(tmp_path / "own", "ali"), make_certificates(tmp_path / "other", "cassim")
    trusted: dict[str, Any] = {"ca": str(own.authority)}
    known = trusted | {"certificate": str(own.client), "private_key": str(own.client_key)}
    stranger = trusted | {"certificate": str(other.client), "private_key": str(other.client_key)}
    with behind_tls(own) as url:

        def asked(place: str = url, **login: Any) -> str:
            return looked_up(place, **login)

        assert asked(**known) == SCHEMA
        absent, text = tmp_path / "absent.pem", tmp_path / "text.pem"
        text.write_text("no certificate")
        for login, told in (
            ({}, "not trusted by this machine's authorities (self-signed certificate"),
            (known | {"ca": str(other.authority)}, f"not trusted by {str(other.authority)!r} (certificate signature"),
            (trusted, "it wants a certificate of the client (TLSV13_ALERT_CERTIFICATE_REQUIRED): give one with"),
            (stranger, f"it does not take the certificate {str(other.client)!r}"),
            (known | {"private_key": str(other.client_key)}, "private_key: expected the key of the certificate in"),
            (known | {"ca": str(absent)}, f"ca: there is no file {str(absent)!r} on this machine"),
            (known | {"certificate": str(absent)}, f"certificate: there is no file {str(absent)!r} on this machine"),
            (known | {"certificate": str(text)}, "the files of ca=, certificate= and private_key= can't be used"),
        ):
            with refused(f"{WHAT}: schema registry {url}: ", told):
                asked(**login)
        named = url.replace("127.0.0.1", "localhost")
        with refused("its certificate is for another address", "use one that the certificate names"):
            asked(named, **known)


def test_an_address_without_tls_is_told(registry: RegistryServer) -> None:
    with refused("it does not speak TLS at this address: expected http:// in place of https://"):
        looked_up(registry.url.replace("http://", "https://"))


def test_its_examples() -> None:
    assert not doctest.testmod(registry_refusals).failed
