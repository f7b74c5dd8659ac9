"""Logins by a token (SASL's OAUTHBEARER), which a function of the user's returns on the driver and on the workers.

The function is called where a client is made, and again when three quarters of a token's lifetime have passed. A
process keeps each source's last token for all its tasks; a token that the brokers refuse is forgotten. No message, log
line, file or ``repr`` has a token, also not of a schema registry (``formats.registry``). Before a query starts, a
function that fails is an error at once; while a query runs, it is called again until the patience ends.

A token costs what the function costs, and with confluent-kafka 2.13 or later a second for each client that is made.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.session.sealed import pickling_error
from cojoin.storage.locations import MASK, may_be_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.spark.sources.options import Secrets


_REFRESHED_AT = 0.75
"""The share of a token's lifetime after which another one is asked for; librdkafka asks after 0.8."""

_PAUSE_SECONDS = 0.5
_LONGEST_SECONDS = 10 * 365 * 86_400
_EXTENSION = re.compile(r"(?!auth$)[A-Za-z]+")
_MECHANISM, _OWN_MECHANISM = ("sasl.mechanism", "sasl.mechanisms"), "OAUTHBEARER"
_EXPECTED = "expected the token's text and its lifetime in seconds, or a cojoin.kafka.Token"


@dataclass(frozen=True)
class Token:
    """A token with which brokers let a client in; its ``repr`` does not show it.

    Attributes:
        text: The token, such as a JWT.
        lifetime: The time for which it is valid from now on: seconds, or a ``timedelta``.
        principal: The user's name, where the brokers want it in addition to the token.
        extensions: SASL extensions, such as ``{"logicalCluster": "lkc-1"}``.

    >>> Token("eyJhbGciOiJub25lIn0.e30.", timedelta(hours=1))
    Token(lifetime=datetime.timedelta(seconds=3600))
    """

    text: str = field(repr=False)
    lifetime: float | timedelta
    principal: str = field(default="", repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TokenFunction:
    """A user's function that returns tokens, sent to the workers; ``number`` is the key of a process' last token."""

    ask: Callable[[], Token | tuple[str, float]] = field(repr=False, compare=False)
    number: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)

    @classmethod
    def of(cls, function: Any, label: str) -> TokenFunction:
        """Return a user's function, checked as far as possible without a call."""
        if not callable(function):
            msg = f"{label}: token: expected a function that returns a token, got a {type(function).__name__}"
            raise ConfigurationError(msg)
        made = cls(function)
        reason = pickling_error(function)
        if reason is not None:
            msg = f"{label}: token: {made.name} can't be sent to the workers: {without_tokens(reason)}"
            raise ConfigurationError(msg)
        return made

    @property
    def name(self) -> str:
        """The function's name, without its arguments, which may be secret."""
        return function_name(self.ask)


@dataclass(frozen=True)
class _Kept:
    """A token with the times between which it is used, in epoch seconds."""

    token: Token = field(repr=False)
    refreshed_at: float
    expires_at: float


_KEPT: dict[str, _Kept] = {}
"""This process' last token of each function."""

_LOCK = threading.Lock()

Answer: TypeAlias = tuple[str, float, str, dict[str, str]]
"""A token as confluent-kafka takes it: its text, when it expires in epoch seconds, the principal, the extensions."""


class Tokens:
    """The tokens of a connection; confluent-kafka calls it as ``oauth_cb``."""

    def __init__(self, function: TokenFunction, label: str, secrets: Secrets) -> None:
        self._function, self._label, self._secrets = function, label, secrets
        self.problem: str | None = None
        """The problem of the function's last call, without secrets; None after a success."""

    def __call__(self, config: str = "") -> Answer:
        """Return a token for confluent-kafka, which calls again after an exception."""
        del config
        kept = self._kept()
        if kept is None:
            msg = f"{self._label}: {self.problem}"
            raise QueryFailedError(msg)
        return kept.token.text, kept.expires_at, kept.token.principal, dict(kept.token.extensions)

    def fetch(self, patience_ms: int | None, *, at_start: bool) -> None:
        """See that there is a token.

        A function that fails is called again for ``patience_ms`` milliseconds (None has no end), and is then a
        QueryFailedError; before a query starts (``at_start``) it is a ConfigurationError at once.
        """
        begin = time.monotonic()
        while self._kept() is None:
            msg = f"{self._label}: token: {self.problem}"
            if at_start:
                raise ConfigurationError(msg)
            waited = time.monotonic() - begin
            if patience_ms is not None and waited + _PAUSE_SECONDS >= patience_ms / 1_000:
                msg = f"{msg}; it was asked for {waited:.0f} s: wait for longer with patience="
                raise QueryFailedError(msg)
            time.sleep(_PAUSE_SECONDS)

    def forget(self) -> None:
        """Forget the last token, because the brokers have refused it."""
        _KEPT.pop(self._function.number, None)

    def mask(self, text: str) -> str:
        """Return a text without the token and without what may be secret."""
        kept = _KEPT.get(self._function.number)
        return without_tokens(self._secrets.mask(text if kept is None else text.replace(kept.token.text, MASK)))

    def _kept(self) -> _Kept | None:
        """Return a token that is valid, a new one where the last one is old; None where the function fails."""
        number, now = self._function.number, time.time()
        with _LOCK:
            kept = _KEPT.get(number)
            if kept is not None and now < kept.refreshed_at:
                return kept
            fetched, self.problem = self._called()
            if fetched is not None:
                _KEPT[number] = fetched
                return fetched
        return kept if kept is not None and now < kept.expires_at else None

    def _called(self) -> tuple[_Kept | None, str | None]:
        """Call the function, and return its token or what is wrong; no exception of the user's leaves this."""
        begun = time.time()
        try:
            answer = self._function.ask()
        except Exception as error:  # noqa: BLE001 - the user's own code
            return None, self.mask(call_problem(self._function.ask, error))
        token = _as_token(answer)
        if isinstance(token, str):
            return None, f"{self._function.name}: {_EXPECTED}; got {token}"
        seconds = token.lifetime.total_seconds() if isinstance(token.lifetime, timedelta) else float(token.lifetime)
        if not seconds > 0:
            return None, f"{self._function.name} returned a token that has expired: its lifetime is {seconds:g} s"
        if seconds > _LONGEST_SECONDS:
            return None, (
                f"{self._function.name} returned a lifetime of {seconds:g} s: expected seconds from now on; if it is a "
                f"time in epoch seconds, subtract time.time()"
            )
        return _Kept(token, begun + _REFRESHED_AT * seconds, begun + seconds), None


def _as_token(answer: Any) -> Token | str:
    """Return a function's answer as a token; if it is not one, a description of it without its content."""
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        answer = Token(*answer)
    if not isinstance(answer, Token):
        return f"a {type(answer).__name__}"
    if not isinstance(answer.text, str):
        return f"a {type(answer.text).__name__} as the text"
    if not is_token_text(answer.text):
        return "a text that is empty, or has blanks or control characters"
    if isinstance(answer.lifetime, bool) or not isinstance(answer.lifetime, (int, float, timedelta)):
        return f"a {type(answer.lifetime).__name__} as the lifetime"
    texts = [answer.principal, *answer.extensions, *answer.extensions.values()]
    if not all(isinstance(each, str) for each in texts):
        return "a principal or extensions that are not texts"
    wrong = [name for name in answer.extensions if _EXTENSION.fullmatch(name) is None]
    return answer if not wrong else f"the extension {wrong[0]!r}, whose name is not one of SASL's: letters, not 'auth'"


def with_token_login(settings: Mapping[str, str], label: str) -> dict[str, str]:
    """Return librdkafka's settings with a login by a token: OAUTHBEARER, by TLS unless they name another protocol.

    >>> with_token_login({}, "source")
    {'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'OAUTHBEARER'}
    """
    protocol = settings.get("security.protocol", "SASL_SSL")
    named = next((name for name in _MECHANISM if name in settings), None)
    if named is not None and settings[named] != _OWN_MECHANISM:
        msg = f"{label}: token: expected the option {named} to be {_OWN_MECHANISM}, got {settings[named]!r}"
        raise ConfigurationError(msg)
    if protocol.lower() not in {"sasl_ssl", "sasl_plaintext"}:
        msg = f"{label}: token: expected the option security.protocol to be SASL_SSL, got {protocol!r}"
        raise ConfigurationError(msg)
    if settings.get("sasl.oauthbearer.method", "default").lower() == "oidc":
        msg = f"{label}: token: by the option sasl.oauthbearer.method=oidc librdkafka gets tokens itself; leave one out"
        raise ConfigurationError(msg)
    own = {} if named is not None else {"sasl.mechanism": _OWN_MECHANISM}
    return {"security.protocol": "SASL_SSL", **settings, **own}


_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_JWT = re.compile(r"eyJ[\w-]+\.[\w-]*(?:\.[\w-]*)*")
_PARAMETER = re.compile(r"(?P<name>[\w.-]+)(?P<sign>=|%3D)(?P<value>[^&\s\"']+)", re.IGNORECASE)


def is_token_text(text: str) -> bool:
    """Return whether a text can be a token: printable ASCII without blanks.

    >>> is_token_text("eyJhbGciOiJub25lIn0.e30."), is_token_text("one line end" + chr(10))
    (True, False)
    """
    return _PRINTABLE.fullmatch(text) is not None


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's name, without its arguments, which may be secret."""
    name = getattr(function, "__qualname__", None)
    return f"the function {name}" if isinstance(name, str) else f"the {type(function).__qualname__}"


def call_problem(function: Callable[..., Any], error: Exception) -> str:
    """Return the message for a call that failed: the function, the exception without tokens, and its place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames[1:] else "its call"
    return f"{function_name(function)} failed: {type(error).__name__}: {without_tokens(str(error))} (in {place})"


def without_tokens(text: str) -> str:
    """Return a text without what looks like a token, and without parameters whose names suggest a secret.

    >>> without_tokens("POST /token?client_secret=opensesame&scope=kafka: 500")
    'POST /token?client_secret=***&scope=kafka: 500'
    """

    def shown(parameter: re.Match[str]) -> str:
        secret = may_be_secret(unquote(parameter["name"]))
        return f"{parameter['name']}{parameter['sign']}{MASK}" if secret else parameter[0]

    return _PARAMETER.sub(shown, _JWT.sub(MASK, text))
