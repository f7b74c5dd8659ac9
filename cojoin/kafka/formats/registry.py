"""A schema registry: how it is reached, its schemas, and the errors where it refuses or does not answer.

It is any server of the API that Confluent's has. A registry can be pickled and shown: its login is in no ``repr``,
message, plan or checkpoint, and every text that comes from outside goes through its ``mask``. A token may be a function
of the user's, which is called on the driver and on the workers before each request.

Schemas are asked for by confluent-kafka's own client, once a process. What an id stands for never changes, so it is
kept as long as the process lives. An id that the registry does not have is asked for again after half a minute. A
registry that does not answer is an error that names it: within seconds before a query starts, and after about half a
minute while it runs. A failed TLS handshake is a different error, so that users need not guess whether the registry
runs. An answer costs a request of some milliseconds, and the first one in a process half a second more, for the
client's imports.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.installed_packages import check_packages
from cojoin.kafka.refusals import OTHER_NAME, OTHER_TIME
from cojoin.kafka.tokens import call_problem, function_name, is_token_text, without_tokens
from cojoin.session.sealed import pickling_error
from cojoin.spark.sources.options import Secrets
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from cojoin.kafka.formats.wire_format import SchemaName


_FILES = {"ssl.ca.location": "ca", "ssl.certificate.location": "certificate", "ssl.key.location": "private_key"}
"""The client's settings that name files, each with the argument of ``registry``."""

_LAST_TOKENS: dict[str, str] = {}
"""This process' last token of each registry with a function, so that it can be masked."""


class TokenFunctionError(RuntimeError):
    """A user's function returned no token; the message has no secret."""


@dataclass(frozen=True)
class Registry:
    """A schema registry; ``registry`` makes one.

    Attributes:
        url: Its address, or several with commas between them.
        settings: Settings of confluent-kafka's ``SchemaRegistryClient``; they may hold secrets.
        token: The user's function that returns a token; None for other logins.
        number: The key of a process' client where it has a function.

    >>> registry("http://ali:opensesame@localhost:8081")
    Registry(http://localhost:8081)
    """

    url: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    number: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return f"Registry({self.title})"

    @property
    def title(self) -> str:
        """The address, without a login."""
        return without_login(self.url)

    @property
    def known_by(self) -> tuple[object, ...]:
        """The values that are equal for registries that share a client in a process."""
        return (self.url, self.settings, self.number)

    def mask(self, text: str) -> str:
        """Return a text in which the login is masked."""
        settings = dict(self.settings)
        password = settings.get("basic.auth.user.info", "").partition(":")[2]
        secrets = {**settings, "url": self.url, "password": password, "token": _LAST_TOKENS.get(self.number, "")}
        return without_tokens(Secrets.of_settings(secrets).mask(text))

    def fetch_token(self) -> str:
        """Return a token of the user's function; raises TokenFunctionError where that fails, or returns none."""
        if self.token is None:
            msg = "this registry has no function that returns tokens"
            raise TokenFunctionError(msg)
        try:
            answer = self.token()
        except Exception as error:  # noqa: BLE001 - the user's own code
            raise TokenFunctionError(self.mask(call_problem(self.token, error))) from None
        if not isinstance(answer, str) or not is_token_text(answer):
            got = (
                "one that is empty, or has blanks or control characters"
                if isinstance(answer, str)
                else f"a {type(answer).__name__}"
            )
            msg = f"{function_name(self.token)}: expected the token's text, got {got}"
            raise TokenFunctionError(msg)
        _LAST_TOKENS[self.number] = answer
        return answer


def registry(
    url: str,
    *,
    username: str | None = None,
    password: str | None = None,
    token: str | Callable[[], str] | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    private_key: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Registry:
    """Return a schema registry with its login, for ``avro``, ``protobuf`` and ``json_schema``.

    Args:
        url: The address of its API, such as ``"http://localhost:8081"``, or Apicurio's
            ``"http://localhost:8080/apis/ccompat/v7"``; several of one registry have commas between them. A login
            in it, as in ``"http://ali:opensesame@localhost:8081"``, is used as ``username=`` and ``password=``.
        username: The user's name, for a login by password.
        password: The password.
        token: A bearer token, or your own function without arguments that returns one.
        ca: A file with the certificates that are trusted, on the driver and on the workers.
        certificate: A file with the client's certificate, for mutual TLS.
        private_key: A file with its private key.
        options: Further settings of confluent-kafka's ``SchemaRegistryClient``, such as
            ``{"bearer.auth.logical.cluster": "lsrc-1"}``.

    Returns:
        The registry. Its ``repr`` shows the address without a login.

    Raises:
        ConfigurationError: The address is none, the logins contradict each other, or a file's content is given.

    Example:
        >>> registry("http://localhost:8081", username="ali", password="opensesame")
        Registry(http://localhost:8081)
    """
    if not isinstance(url, str) or not url.strip().startswith(("http://", "https://")):
        msg = f"registry: expected an address such as 'http://localhost:8081', got {without_login(str(url))!r}"
        raise ConfigurationError(msg)
    url, inside = _apart(url)
    if inside is not None and not (username is None and password is None and token is None):
        msg = "registry: expected one login, got one in the address and another one in the arguments"
        raise ConfigurationError(msg)
    username, password = inside or (username, password)
    if (username is None) != (password is None):
        msg = "registry: expected both username= and password=, or neither"
        raise ConfigurationError(msg)
    if username is not None and token is not None:
        msg = "registry: expected a password or a token, got both"
        raise ConfigurationError(msg)
    settings = {} if username is None else {"basic.auth.user.info": f"{username}:{password}"}
    number = ""
    if token is not None:
        settings |= {"bearer.auth.logical.cluster": ""}
        if isinstance(token, str):
            if not is_token_text(token):
                msg = "registry: token: expected printable characters, got none, or blanks or control characters too"
                raise ConfigurationError(msg)
            settings |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": token}
        elif not callable(token):
            msg = f"registry: token: expected a text or a function that returns one, got a {type(token).__name__}"
            raise ConfigurationError(msg)
        elif (reason := pickling_error(token)) is not None:
            msg = f"registry: token: the function can't be sent to the workers: {without_tokens(reason)}"
            raise ConfigurationError(msg)
        else:
            number = uuid.uuid4().hex
    files = zip(_FILES, (ca, certificate, private_key), strict=True)
    settings |= {name: value for name, value in files if value is not None}
    settings |= {str(name): str(value) for name, value in (options or {}).items()}
    _check_files(settings)
    function = token if token is not None and not isinstance(token, str) else None
    return Registry(url, tuple(sorted(settings.items())), function, number)


def _check_files(settings: Mapping[str, str]) -> None:
    for name in _FILES:
        value = settings.get(name, "")
        if "-----BEGIN" in value or "\n" in value:
            msg = f"registry: {name}: expected the path of a file on the driver and the workers, got a content"
            raise ConfigurationError(msg)


def _apart(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return addresses without the login in them, and the login: HTTP libraries log the addresses that they ask."""
    addresses, logins = [], set()
    for address in url.split(","):
        parts = urlsplit(address.strip())
        login, _, place = parts.netloc.rpartition("@")
        addresses.append(parts._replace(netloc=place).geturl())
        username, _, password = login.partition(":")
        logins |= {(unquote(username), unquote(password))} if login else set()
    if len(logins) > 1:
        msg = "registry: expected one login for all addresses, got several"
        raise ConfigurationError(msg)
    return ",".join(addresses), next(iter(logins), None)


def as_registry(declared: Any, label: str) -> Registry:
    """Return the registry that a user's argument names: an address, or what ``registry`` returned."""
    if isinstance(declared, Registry):
        return declared
    if isinstance(declared, str):
        return registry(declared)
    msg = f"{label}: registry: expected an address or cojoin.kafka.registry(...), got a {type(declared).__name__}"
    raise ConfigurationError(msg)


_NO_TLS = ("WRONG_VERSION_NUMBER", "record layer failure")
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "DECRYPT_ERROR")
"""Parts of the names of alerts by which a server refuses the client's certificate, or a missing one."""


def _answer_problem(registry: Registry, place: str, status: int, text: str) -> ConfigurationError | QueryFailedError:
    text = registry.mask(text)
    if status in (401, 403):
        return ConfigurationError(f"{place} refused the login (HTTP {status}): {text}; see cojoin.kafka.registry()")
    if status == 404:
        msg = (
            f"{place}: no registry at this address (HTTP 404): expected the address of its API, such as "
            f"http://localhost:8081, or Apicurio's http://localhost:8080/apis/ccompat/v7"
        )
        return ConfigurationError(msg)
    return QueryFailedError(f"{place} answered with HTTP {status}: {text}; start the query again when it is well")


def _no_answer(
    registry: Registry, place: str, error: BaseException, *, at_start: bool
) -> ConfigurationError | QueryFailedError:
    """Return the error for a request that was not answered, by the error of the client's HTTP library."""
    lost = "" if at_start else "no record is lost, those of this batch are read again by the next start: "
    if (problem := _tls_problem(registry, error)) is not None:
        kind = ConfigurationError if at_start else QueryFailedError
        return kind(f"{place}: {lost}{problem}")
    text = registry.mask(f"{type(error).__name__}: {error}")
    return QueryFailedError(f"{place} gave no answer: {text}; {lost}see that the registry runs at this address")


def _client_problem(registry: Registry, error: Exception) -> str:
    """Return the reason why no client of a registry can be made, such as a missing file, by the client's error.

    >>> from cojoin.kafka.formats.registry import registry
    >>> _client_problem(registry("https://localhost:8081", ca="/absent.pem"), FileNotFoundError("No such file"))
    "ca: file '/absent.pem' does not exist, or this process may not read it; the driver and each worker need it"
    """
    for setting, value in registry.settings:
        if setting in _FILES and not os.access(value, os.R_OK):
            argument = _FILES[setting]
            return (
                f"{argument}: file {value!r} does not exist, or this process may not read it; the driver and each "
                f"worker need it"
            )
    if not isinstance(error, ssl.SSLError):
        return registry.mask(str(error))
    if error.reason == "KEY_VALUES_MISMATCH":
        return "private_key: expected the key of the certificate in certificate=, got another one"
    return f"the files of ca=, certificate= and private_key= can't be used ({error}): expected PEM"


def _tls_problem(registry: Registry, error: BaseException) -> str | None:
    """Return which side does not take the other's certificate; None where another thing failed, which may pass."""
    failure = _tls_error(error)
    if failure is None:
        return None
    settings = dict(registry.settings)
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _distrust(failure, settings.get("ssl.ca.location"))
    return _turned_away(failure, settings.get("ssl.certificate.location"))


def _turned_away(error: ssl.SSLError, own: str | None) -> str | None:
    reason = error.reason or str(error)
    if any(each in f"{reason} {error}" for each in _NO_TLS):
        return "this address, or a proxy before it, does not speak TLS: see the port, the proxy, and https:// itself"
    if own is None and reason.endswith("ALERT_HANDSHAKE_FAILURE"):
        # What servers say before TLS 1.3, of a certificate that is missing and of ciphers alike.
        return f"it may want a certificate of the client ({reason}), which certificate= and private_key= give"
    if "ALERT" not in reason or not any(each in reason for each in _OF_CERTIFICATES):
        return None
    if own is None:
        return f"it wants a certificate of the client ({reason}): give one with certificate= and private_key="
    return f"it does not take the certificate {own!r} ({reason}): give one that it trusts with certificate="


def _distrust(error: ssl.SSLCertVerificationError, trusted: str | None) -> str:
    reason = error.verify_message
    if error.verify_code in OTHER_NAME:
        return f"its certificate is for another address ({reason}): use one that the certificate names"
    if error.verify_code in OTHER_TIME:
        return f"its certificate is not valid now ({reason}): renew it, or set the clock of this machine right"
    # As confluent-kafka's client chooses them.
    by = "SSL_CERT_FILE, SSL_CERT_DIR or the package certifi" if trusted is None else repr(trusted)
    return f"its certificate is not trusted by {by} ({reason}): give a file with the authority that signed it with ca="


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error from which the client's library raised an error; None where it is another server's."""
    while error is not None and not isinstance(error, ssl.SSLError):
        # That of the server which was asked for a token.
        error = None if type(error).__name__ == "OAuthTokenError" else error.__cause__ or error.__context__
    return error


_AT_START = {"timeout": 4, "max.retries": 1, "retries.wait.ms": 200}
_RUNNING = {"timeout": 10, "max.retries": 8, "retries.wait.ms": 500, "retries.max.wait.ms": 8_000}
_UNKNOWN_SECONDS = 30.0
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_MOST_KEPT = 10_000

_CLIENTS: dict[tuple[object, ...], Any] = {}
_SCHEMAS: dict[tuple[object, ...], RegisteredSchema] = {}
_UNKNOWN: dict[tuple[object, ...], float] = {}
_LOCK = threading.Lock()


class MissingReferenceError(QueryFailedError):
    """A schema refers to another one that the registry does not have."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry, ``"AVRO"``, ``"PROTOBUF"`` or ``"JSON"``.

    ``references`` has the schemas that it refers to, each with the name by which it does, those first that others need.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaLookup:
    """Looks up schemas of one registry, for which it does not wait if ``at_start``, before a query runs.

    Each request raises a ConfigurationError where the registry refuses the login, or none is at the address, and a
    QueryFailedError where it does not answer.
    """

    def __init__(self, registry: Registry, label: str, *, at_start: bool = False) -> None:
        self._registry, self._at_start = registry, at_start
        self._place, self._known_by = f"{label}: schema registry {registry.title}", (*registry.known_by, at_start)

    def by_id(self, number: SchemaName) -> RegisteredSchema | None:
        """Return the schema of an id or a GUID; None where the registry does not have it."""
        place = (*self._registry.known_by, number)
        with _LOCK:
            if (known := _SCHEMAS.get(place)) is not None:
                return known
            if time.monotonic() < _UNKNOWN.get(place, 0.0):
                return None
            if isinstance(number, int):
                answer = self.ask(lambda client: client.get_schema(number), {_NO_SCHEMA})
            else:
                # A registry without GUIDs has nothing at this address.
                answer = self.ask(lambda client: client.get_schema_by_guid(str(number)), {_NO_SCHEMA, 404})
            if answer is None:
                _forget_some(_UNKNOWN)
                _UNKNOWN[place] = time.monotonic() + _UNKNOWN_SECONDS
                return None
            _forget_some(_SCHEMAS)
            return _SCHEMAS.setdefault(place, self._registered(answer))

    def of_subject(self, subject: str, version: int | None) -> RegisteredSchema:
        """Return a version of a subject, the newest for None; one that does not exist is a ConfigurationError."""
        with _LOCK:
            answer = self.ask(
                lambda client: _newest(client, subject) if version is None else client.get_version(subject, version),
                {_NO_SUBJECT, _NO_VERSION},
            )
            if answer is None:
                versions = self.ask(lambda client: client.get_versions(subject), {_NO_SUBJECT, _NO_VERSION})
                if versions:
                    missing = f"subject {subject!r} has no version {version}; it has {', '.join(map(str, versions))}"
                else:
                    missing = f"it has no subject {subject!r}; name another with subject=, or give the columns as DDL"
                msg = f"{self._place}: {missing}"
                raise ConfigurationError(msg)
            return self._registered(answer.schema)

    def newest_of(self, subject: str, version: int | None) -> tuple[int, RegisteredSchema] | None:
        """Return a version of a subject, the newest for None, with its id; None where the subject does not exist."""
        if version is not None:
            registered = self.of_subject(subject, version)
            with _LOCK:
                answer = self.ask(lambda client: client.get_version(subject, version))
            return int(answer.schema_id), registered
        with _LOCK:
            answer = self.ask(lambda client: _newest(client, subject), {_NO_SUBJECT, _NO_VERSION})
            return None if answer is None else (int(answer.schema_id), self._registered(answer.schema))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register a schema, and return its id; one that the registry does not take is a QueryFailedError."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - takes half a second

        with _LOCK:
            return int(self.ask(lambda client: client.register_schema(subject, Schema(schema.text, schema.kind))))

    def _registered(self, schema: Any) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._add_references(schema, references)
        return RegisteredSchema(str(schema.schema_type or "AVRO"), str(schema.schema_str), tuple(references.items()))

    def _add_references(self, schema: Any, texts: dict[str, str]) -> None:
        for reference in schema.references or ():
            if reference.name in texts:
                continue
            answer = self.ask(partial(_version_of, reference=reference), {_NO_SUBJECT, _NO_VERSION})
            if answer is None:
                msg = (
                    f"{self._place}: a schema refers to version {reference.version} of subject {reference.subject!r}, "
                    f"which the registry does not have; register it again"
                )
                raise MissingReferenceError(msg)
            self._add_references(answer.schema, texts)
            texts[reference.name] = str(answer.schema.schema_str)

    def ask(self, question: Callable[[Any], Any], absent: Collection[int] = ()) -> Any:
        """Return the result of a function of the client; None where the registry answers with a code of ``absent``.

        A token function that fails, or a certificate that is not taken, is a QueryFailedError while a query runs, and a
        ConfigurationError before.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - takes half a second

        try:
            return question(self._client())
        except SchemaRegistryError as error:
            if error.error_code in absent or error.http_status_code in absent:
                return None
            status, text = error.http_status_code, str(error.error_message)
            raise _answer_problem(self._registry, self._place, status, text) from None
        except (ConfigurationError, QueryFailedError):
            raise
        except TokenFunctionError as error:
            kind = ConfigurationError if self._at_start else QueryFailedError
            msg = f"{self._place}: token: {error}"
            raise kind(msg) from None
        except Exception as error:  # noqa: BLE001 - the client raises those of its HTTP library
            _CLIENTS.pop(self._known_by, None)  # the next one reads certificates again, which may be renewed
            raise _no_answer(self._registry, self._place, error, at_start=self._at_start) from None

    def _client(self) -> Any:
        if self._known_by not in _CLIENTS:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

            settings: dict[str, Any] = {"url": self._registry.url} | (_AT_START if self._at_start else _RUNNING)
            settings |= dict(self._registry.settings)
            if self._registry.token is not None:
                settings |= {
                    "bearer.auth.credentials.source": "CUSTOM",
                    "bearer.auth.custom.provider.function": _fields,
                    "bearer.auth.custom.provider.config": {
                        "registry": self._registry,
                        "cluster": settings.pop("bearer.auth.logical.cluster", ""),
                    },
                }
            try:
                _CLIENTS[self._known_by] = SchemaRegistryClient(settings)
            except (ValueError, TypeError, OSError) as error:
                problem = _client_problem(self._registry, error)
                msg = f"{self._place}: {problem}"
                raise ConfigurationError(msg) from None
        return _CLIENTS[self._known_by]


def _version_of(client: Any, reference: Any) -> Any:
    return client.get_version(reference.subject, reference.version)


def _newest(client: Any, subject: str) -> Any:
    client.clear_latest_caches()  # the client would keep the version that was the newest when it was first asked
    return client.get_latest_version(subject)


def _fields(config: dict[str, Any]) -> dict[str, Any]:
    registry: Registry = config["registry"]
    return {"bearer.auth.token": registry.fetch_token(), "bearer.auth.logical.cluster": config["cluster"]}


def _forget_some(kept: dict[Any, Any]) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()


def check_registry(label: str, *needed: str) -> None:
    """Check that the packages for a registry's schemas are installed, with the modules that the format needs."""
    check_packages(label, "registry", "confluent_kafka", "httpx2", *needed)
