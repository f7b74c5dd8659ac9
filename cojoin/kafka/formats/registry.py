"""Where a schema registry is and how it is reached: any server of the API that Confluent's has.

A registry can be pickled and shown: its login is in no ``repr``, message, plan or checkpoint. A token may be a function
of the user's, which is called on the driver and on the workers before each request.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cojoin.errors import ConfigurationError
from cojoin.kafka.token_texts import call_problem, function_name, is_token_text, without_tokens
from cojoin.session.pickling import pickling_error
from cojoin.spark.sources.secrets import Secrets, without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FILES", "Registry", "TokenFunctionError", "as_registry", "registry"]

FILES = {"ssl.ca.location": "ca", "ssl.certificate.location": "certificate", "ssl.key.location": "private_key"}
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
        number: What a process knows its client by where it has a function.

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
        """What is equal for registries that share a client in a process."""
        return (self.url, self.settings, self.number)

    def mask(self, text: str) -> str:
        """Return a text in which the login is masked."""
        settings = dict(self.settings)
        password = settings.get("basic.auth.user.info", "").partition(":")[2]
        secrets = {**settings, "url": self.url, "password": password, "token": _LAST_TOKENS.get(self.number, "")}
        return without_tokens(Secrets.of_settings(secrets).mask(text))

    def asked_token(self) -> str:
        """Return a token of the user's function.

        Raises:
            TokenFunctionError: The function fails, or returns no token.
        """
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
        msg = "registry: expected one login, got one in the address and another one beside it"
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
    files = zip(FILES, (ca, certificate, private_key), strict=True)
    settings |= {name: value for name, value in files if value is not None}
    settings |= {str(name): str(value) for name, value in (options or {}).items()}
    _check_files(settings)
    asked = token if token is not None and not isinstance(token, str) else None
    return Registry(url, tuple(sorted(settings.items())), asked, number)


def _check_files(settings: Mapping[str, str]) -> None:
    for name in FILES:
        value = settings.get(name, "")
        if "-----BEGIN" in value or "\n" in value:
            msg = f"registry: {name}: expected the path of a file on the driver and the workers, got a content"
            raise ConfigurationError(msg)


def _apart(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return addresses without the login in them, and the login: HTTP libraries log the addresses that they ask."""
    addresses, logins = [], set()
    for each in url.split(","):
        parts = urlsplit(each.strip())
        login, _, place = parts.netloc.rpartition("@")
        addresses.append(parts._replace(netloc=place).geturl())
        username, _, password = login.partition(":")
        logins |= {(unquote(username), unquote(password))} if login else set()
    if len(logins) > 1:
        msg = "registry: expected one login for all addresses, got several"
        raise ConfigurationError(msg)
    return ",".join(addresses), next(iter(logins), None)


def as_registry(given: Any, what: str) -> Registry:
    """Return the registry that a user's argument names: an address, or what ``registry`` returned.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(given, Registry):
        return given
    if isinstance(given, str):
        return registry(given)
    msg = f"{what}: registry: expected an address or cojoin.kafka.registry(...), got a {type(given).__name__}"
    raise ConfigurationError(msg)
