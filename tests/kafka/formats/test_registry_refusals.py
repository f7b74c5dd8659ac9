"""A registry behind TLS, with an authority of one's own, that wants a certificate of the client."""

from __future__ import annotations

import doctest
import socket
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.formats import registry
from cojoin.kafka.formats.registry import SchemaLookup
from tests.servers.certificates import make_certificates
from tests.servers.tls import SCHEMA, registry_behind_tls
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.certificates import Certificates
    from tests.servers.registry import RegistryServer

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"


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
            (known | {"ca": str(absent)}, f"ca: there is no file {str(absent)!r} that this process may read"),
            (
                known | {"certificate": str(absent)},
                f"certificate: there is no file {str(absent)!r} that this process may read",
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
