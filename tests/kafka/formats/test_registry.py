"""Schemas of a registry, looked up once, and the errors of one that refuses or does not answer."""

from __future__ import annotations

import doctest
import json
import pickle
import socket
import threading
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.formats import registry
from cojoin.kafka.formats.decoding import FramedJson
from cojoin.kafka.formats.record_formats import avro, json_schema, protobuf, resolve
from cojoin.kafka.formats.registry import SchemaLookup
from tests.kafka.formats.encoded import avro_record, framed
from tests.servers.certificates import make_certificates
from tests.servers.tls import SCHEMA, registry_behind_tls
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.certificates import Certificates
    from tests.servers.registry import RegistryServer

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
TRADE: dict[str, Any] = {"type": "record", "name": "Trade", "fields": [{"name": "trade_id", "type": "long"}]}


def test_subjects_versions_and_ids(registry: RegistryServer) -> None:
    number = registry.register("lookups-value", json.dumps(TRADE))
    found = resolve(avro(registry.url), "lookups-value", "value", WHAT)
    assert found.ddl == "trade_id bigint"
    assert found.decoder is not None
    faults: list[str | None] = [None] * 3
    values = [framed(number, avro_record(TRADE, {"trade_id": 5})), framed(99_999, b""), None]
    decoded = pickle.loads(pickle.dumps(found.decoder)).decode(values, faults)
    assert decoded.to_pylist() == [{"trade_id": 5}, None, None]
    assert faults == [
        None,
        f"undecodable: the value's schema 99999 is not in the registry {registry.url}",
        None,
    ]
    fields = [*TRADE["fields"], {"name": "note", "type": "string", "default": ""}]
    registry.register("lookups-value", json.dumps({**TRADE, "fields": fields}))
    assert resolve(avro(registry.url), "lookups-value", "value", WHAT).ddl == "trade_id bigint, note string"
    assert resolve(avro(registry.url, schema=1), "lookups-value", "value", WHAT).ddl == "trade_id bigint"
    for format_, subject, said in (
        (avro(registry.url), "nothing-value", "it has no subject 'nothing-value'"),
        (avro(registry.url, schema=9), "lookups-value", "has no version 9; it has 1, 2"),
        (avro(registry.url), None, "expected subject="),
        (protobuf(registry.url), "lookups-value", r"is AVRO, expected PROTOBUF: use cojoin.kafka.avro\(\)"),
        (avro(f"{registry.url}/elsewhere"), "lookups-value", "no registry at this address"),
    ):
        with pytest.raises(cj.ConfigurationError, match=said):
            resolve(format_, subject, "value", WHAT)


def test_a_schema_that_was_deleted_is_not_there_for_a_new_process(registry: RegistryServer) -> None:
    number = registry.register("deleted-value", json.dumps({**TRADE, "name": "Deleted"}))
    decoder = resolve(avro(registry.url, schema="trade_id long"), None, "value", WHAT).decoder
    assert decoder is not None
    value, faults = framed(number, avro_record(TRADE, {"trade_id": 5})), [None]
    registry.client.delete_subject("deleted-value")
    registry.client.delete_subject("deleted-value", permanent=True)
    assert decoder.decode([value], faults).to_pylist() == [None]
    assert f"schema {number} is not in the registry" in str(faults[0])


def test_json_is_taken_out_of_the_wire_format(registry: RegistryServer) -> None:
    number = registry.register(
        "texts-value", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}), "JSON"
    )
    found = resolve(json_schema(registry.url), "texts-value", "value", WHAT)
    assert found.ddl == "a bigint"
    assert isinstance(found.decoder, FramedJson)
    faults: list[str | None] = [None, None]
    assert found.decoder.decode([framed(number, b'{"a": 1}'), b"{}"], faults).to_pylist() == [b'{"a": 1}', None]
    assert faults[0] is None
    assert "has no schema id" in str(faults[1])


def test_a_login_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    asked: list[str | None] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization"))
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b'{"error_code": 40101, "message": "no opensesame, no tok-1-secret"}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    try:
        for login, secret in (
            ({"username": "ali", "password": "opensesame"}, "opensesame"),
            ({"token": "tok-1-secret"}, "tok-1-secret"),
            ({"token": lambda: "tok-1-secret"}, "tok-1-secret"),
            ({"url": place.replace("//", "//ali:open%73esame@")}, "opensesame"),
        ):
            made = cj.kafka.registry(**{"url": place, **login})
            with pytest.raises(cj.ConfigurationError, match=r"refused the login \(HTTP 401\)") as told:
                SchemaLookup(made, WHAT, at_start=True).of_subject("trades-value", None)
            assert secret not in f"{told.value} {made!r} {avro(made)!r}"
    finally:
        server.shutdown()
        server.server_close()
    assert asked == ["Basic YWxpOm9wZW5zZXNhbWU=", *["Bearer tok-1-secret"] * 2, "Basic YWxpOm9wZW5zZXNhbWU="]
    logged = caplog.text
    assert str(server.server_port) in logged, "the client's library logs what it asks"
    assert "opensesame" not in logged
    assert "open%73esame" not in logged


def _failing() -> str:
    msg = "POST https://login/token?client_secret=opensesame: 500"
    raise OSError(msg)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: "tok-1-secret\n", "expected the token's text, got one that is empty, or has blanks"),
        (lambda: b"tok-1-secret", "expected the token's text, got a bytes"),
        (_failing, r"the function _failing failed: OSError: .*client_secret=\*\*\*.* \(in test_registry.py"),
    ],
)
def test_a_token_function_that_fails_is_told_without_its_secrets(function: Any, said: str) -> None:
    made = cj.kafka.registry("http://127.0.0.1:9", token=function)
    for at_start, kind in ((True, cj.ConfigurationError), (False, cj.QueryFailedError)):
        with pytest.raises(kind, match=f"{WHAT}: .*token: .*{said}") as told:
            SchemaLookup(made, WHAT, at_start=at_start).of_subject("trades-value", None)
        assert "tok-1-secret" not in str(told.value)
        assert "opensesame" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "localhost:8081"}, "expected an address"),
        ({"url": "http://r", "username": "ali"}, "expected both username= and password="),
        ({"url": "http://r", "username": "a", "password": "b", "token": "c"}, "a password or a token"),
        ({"url": "http://r", "token": 5}, "token: expected a text or a function"),
        ({"url": "http://r", "token": "one\n"}, "token: expected printable characters"),
        ({"url": "http://a:b@r", "token": "c"}, "expected one login, got one in the address"),
        ({"url": "http://a:b@r,http://a:c@s"}, "expected one login for all addresses, got several"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=said):
        cj.kafka.registry(**arguments)


def looked_up(place: str, **login: Any) -> str:
    return SchemaLookup(cj.kafka.registry(place, **login), WHAT, at_start=True).of_subject("trades-value", None).text


def two_authorities(folder: Path) -> list[Certificates]:
    """Return the certificates of the server's authority and of another one."""
    names = {"own": "ali", "other": "cassim"}
    for name in names:
        (folder / name).mkdir()
    return [make_certificates(folder / name, client) for name, client in names.items()]


def test_certificates_of_both_sides_are_checked(tmp_path: Path) -> None:
    own, other = two_authorities(tmp_path)
    trusted: dict[str, Any] = {"ca": str(own.authority)}
    known = trusted | {"certificate": str(own.client), "private_key": str(own.client_key)}
    stranger = trusted | {"certificate": str(other.client), "private_key": str(other.client_key)}
    with registry_behind_tls(own) as url:

        def asked(place: str = url, **login: Any) -> str:
            return looked_up(place, **login)

        assert asked(**known) == SCHEMA
        absent, text = tmp_path / "absent.pem", tmp_path / "text.pem"
        text.write_text("no certificate")
        for login, told in (
            ({}, "not trusted by SSL_CERT_FILE, SSL_CERT_DIR or the package certifi (self-signed certificate"),
            (known | {"ca": str(other.authority)}, f"not trusted by {str(other.authority)!r} (certificate signature"),
            (trusted, "it may want a certificate of the client (SSLV3_ALERT_HANDSHAKE_FAILURE), which certificate="),
            (stranger, f"it does not take the certificate {str(other.client)!r}"),
            (known | {"private_key": str(other.client_key)}, "private_key: expected the key of the certificate in"),
            (known | {"ca": str(absent)}, f"ca: file {str(absent)!r} does not exist, or this process may not read it"),
            (
                known | {"certificate": str(absent)},
                f"certificate: file {str(absent)!r} does not exist, or this process may not read it",
            ),
            (known | {"certificate": str(text)}, "the files of ca=, certificate= and private_key= can't be used"),
        ):
            with refused(f"{WHAT}: schema registry {url}: ", told):
                asked(**login)
        named = url.replace("127.0.0.1", "localhost")
        with refused("its certificate is for another address", "use one that the certificate names"):
            asked(named, **known)


def test_a_certificate_that_has_ended_is_told(tmp_path: Path) -> None:
    ended = make_certificates(tmp_path, "ali", ended=True)
    with (
        registry_behind_tls(ended) as url,
        refused("its certificate is not valid now (certificate has expired)", "renew it"),
    ):
        looked_up(url, ca=str(ended.authority))


def test_a_running_query_is_told_that_nothing_is_lost_and_takes_a_renewed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would be tried for half a minute.
    monkeypatch.setitem(registry._RUNNING, "max.retries", 0)
    own, other = two_authorities(tmp_path)
    mine = tmp_path / "mine.pem"
    with registry_behind_tls(own) as url:
        made = cj.kafka.registry(url, ca=str(own.authority), certificate=str(mine))
        for taken in (other, own):
            mine.write_bytes(taken.client_key.read_bytes() + taken.client.read_bytes())
            lookup = SchemaLookup(made, WHAT)
            if taken is own:
                assert lookup.of_subject("trades-value", None).text == SCHEMA
            else:
                with refused("no record is lost", f"not take the certificate {str(mine)!r}", kind=cj.QueryFailedError):
                    lookup.of_subject("trades-value", None)


def test_a_connection_that_breaks_off_is_no_wrong_certificate(tmp_path: Path) -> None:
    own = make_certificates(tmp_path, "ali")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        with refused("gave no answer: ", "see that the registry runs at this address", kind=cj.QueryFailedError):
            looked_up(url, ca=str(own.authority))


def _hang_up(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.recv(10)
            connection.close()


@pytest.mark.parametrize("argument", ["ca", "certificate", "private_key"])
def test_a_file_s_content_is_refused_and_not_shown(tmp_path: Path, argument: str) -> None:
    key = make_certificates(tmp_path, "ali").client_key.read_text()
    with pytest.raises(
        cj.ConfigurationError, match="expected the path of a file on the driver and the workers"
    ) as told:
        cj.kafka.registry("https://127.0.0.1:8081", **{argument: key})
    assert not [line for line in key.splitlines() if line in str(told.value)]


def test_an_address_without_tls_is_told(registry: RegistryServer) -> None:
    with refused("this address, or a proxy before it, does not speak TLS: see the port"):
        looked_up(registry.url.replace("http://", "https://"))


def test_its_examples() -> None:
    assert not doctest.testmod(registry).failed
