"""How ``deltalake`` reaches a table's folder on Azure and Google, and that no message has a secret.

Nobody gives the tests an account there, so what ``deltalake`` would send is looked at: a server that refuses all stands
at the address that it is given. The tables themselves are tried on a server of S3's protocol (``test_on_s3``).
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable

from cojoin.delta.deltalake_table import address_of, explained_error, translated
from cojoin.errors import QueryFailedError
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "shop.dfs.core.windows.net"
AZURE = f"abfss://lake@{ACCOUNT}/tables"
KEY = "b3BlbnNlc2FtZQ=="
SAS = "sv=2024-11-04&sp=rl&sig=opensesame%3D"
BY_KEY = {f"fs.azure.account.key.{ACCOUNT}": KEY}
BY_SAS = {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": SAS}
BY_LOGIN = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "fs.azure.account.oauth2.client.id": "me",
    "fs.azure.account.oauth2.client.secret": "opensesame",
    "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/my-tenant/oauth2/token",
}


class Request(NamedTuple):
    """What a request asks for, its login, and its content."""

    target: str
    login: str | None
    content: str


class Refusing:
    """A server at ``url`` that grants a token to who asks for one, and refuses everything else."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                requests.append(Request(f"{self.command} {self.path}", self.headers.get("Authorization"), content))
                is_login = self.path.endswith("/token")
                granted = {"access_token": "granted", "token_type": "Bearer", "expires_in": 3600}
                refused = "<Error><Code>AuthenticationFailed</Code><Message>sv=1&amp;sig=opensesame is over.</Message>"
                body = (json.dumps(granted) if is_login else f"{refused}</Error>").encode()
                self.send_response(200 if is_login else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815 - the names that the server calls

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Refusing]:
    refusing = Refusing()
    yield refusing
    refusing.close()


def refused(root: str, given: dict[str, str], at: dict[str, str]) -> str:
    """Return the message where ``deltalake`` opens a table by these settings, at a server of the test's own."""
    settings = settings_of(root, given.get)
    assert settings is not None
    store = ObjectStore.of(settings, root)
    address = address_of(store, "trades")
    assert address is not None
    options = {**address.options, **at, "allow_http": "true", "max_retries": "0"}
    with pytest.raises(QueryFailedError) as caught, translated(store.path("trades"), "read", address.secrets):
        DeltaTable(address.url, storage_options=options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "options", "secrets"),
    [
        (BY_KEY, {"account_key": KEY}, [KEY]),
        (BY_SAS, {"sas_key": SAS}, [SAS]),
        (
            BY_LOGIN,
            {"client_id": "me", "client_secret": "opensesame", "tenant_id": "my-tenant"},
            ["opensesame"],
        ),
    ],
)
def test_a_place_on_azure(given: dict[str, str], options: dict[str, str], secrets: list[str]) -> None:
    settings = settings_of(AZURE, given.get)
    assert settings is not None
    address = address_of(ObjectStore.of(settings, AZURE), "trades")
    assert address is not None
    assert address.url == "az://lake/tables/trades"
    assert {"account_name": "shop", **options}.items() <= dict(address.options).items()
    assert address.secrets == secrets
    assert not address.is_overwritten
    assert not any(each in repr(address) + repr(settings) for each in secrets)


def test_a_place_on_google(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}))
    given = {"fs.gs.auth.service.account.json.keyfile": str(key)}
    settings = settings_of("gs://lake/tables", given.get)
    assert settings is not None
    address = address_of(ObjectStore.of(settings, "gs://lake/tables"), "trades")
    assert address is not None
    assert address.url == "gs://lake/tables/trades"
    assert address.options["service_account"] == str(key)
    assert not address.is_overwritten


def test_deltalake_signs_by_the_key_of_azure(server: Refusing) -> None:
    message = refused(AZURE, BY_KEY, {"endpoint": server.url})
    assert server.requests[0].target == "GET /lake/tables/trades/_delta_log/_last_checkpoint"
    assert str(server.requests[0].login).startswith("SharedKey shop:")
    assert message == (
        f"Delta table {AZURE}/trades: it can't be read: the store answered 403 Forbidden: AuthenticationFailed: "
        f"sv=1&amp;sig=*** is over.; it refuses these credentials: correct them in the session's settings fs.* or the "
        f"environment"
    )


def test_deltalake_signs_by_a_sas_of_azure(server: Refusing) -> None:
    message = refused(AZURE, BY_SAS, {"endpoint": server.url})
    assert server.requests[0].target == f"GET /lake/tables/trades/_delta_log/_last_checkpoint?{SAS}"
    assert server.requests[0].login is None
    assert "opensesame" not in message


def test_deltalake_logs_in_as_a_client_of_azure(server: Refusing) -> None:
    message = refused(AZURE, BY_LOGIN, {"endpoint": server.url, "authority_host": server.url})
    login, read = server.requests[:2]
    assert login.target == "POST /my-tenant/oauth2/v2.0/token"
    assert login.content.startswith("client_id=me&client_secret=opensesame&")
    assert (read.target, read.login) == ("GET /lake/tables/trades/_delta_log/_last_checkpoint", "Bearer granted")
    assert "opensesame" not in message


def test_deltalake_takes_the_key_file_of_google(server: Refusing, tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text(
        json.dumps(
            {
                "gcs_base_url": server.url,
                "disable_oauth": True,
                "client_email": "me",
                "private_key": "opensesame",
                "private_key_id": "1",
            }
        )
    )
    message = refused("gs://lake/tables", {"fs.gs.auth.service.account.json.keyfile": str(key)}, {})
    assert server.requests[0].target.startswith("GET /lake/tables%2Ftrades%2F")
    assert "the store answered 403 Forbidden" in message
    assert "opensesame" not in message


SIGNED = f"https://{ACCOUNT}/lake/trades/_delta_log?sv=2024-11-04&sp=rl&sig=opensesame%3D"

STATUS = f"Error performing GET {SIGNED} in 2ms - Server returned non-2xx status code: 403 Forbidden"


@pytest.mark.parametrize("secrets", [(), (SAS,)], ids=["not in the options", "in the options"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"Error performing GET {SIGNED} in 3.1s - HTTP error: error sending request for url ({SIGNED})",
            f"the store does not answer: error sending request for url (https://{ACCOUNT}/...",
        ),
        (
            f"{STATUS}: <Error><Code>AuthenticationFailed</Code><Message>It is over: {SIGNED}</Message></Error>",
            f"the store answered 403 Forbidden: AuthenticationFailed: It is over: https://{ACCOUNT}/...",
        ),
        (
            f"{STATUS}, without a body: {SIGNED}",
            "the store answered 403 Forbidden, without a body; see that the session",
        ),
        (f"Generic MicrosoftAzure error: {SIGNED} is odd", f"https://{ACCOUNT}/... is odd"),
        ("The query sv=2024-11-04&sig=opensesame%3D has expired", "sig=*** has expired"),
        ("X-Amz-Security-Token=opensesame&X-Amz-Signature=opensesame", "X-Amz-Security-Token=***&X-Amz-Signature=***"),
    ],
)
def test_a_signature_is_in_no_message(text: str, expected: str, secrets: tuple[str, ...]) -> None:
    for error in (OSError(text), ValueError(text)):
        message = explained_error(error, f"{AZURE}/trades", "read", secrets)
        assert message.startswith(f"Delta table {AZURE}/trades: it can't be read: ")
        assert expected in message
        assert "opensesame" not in message
