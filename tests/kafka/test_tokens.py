"""What a function that returns tokens may return, how long a token is used, and that none is shown."""

from __future__ import annotations

import functools
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import cojoin as cj
from cojoin.kafka import Token
from cojoin.kafka.client import ClusterOptions
from cojoin.kafka.tokens import TokenFunction, Tokens
from cojoin.spark.sources.options import Secrets
from tests.kafka.logins import unsigned_token
from tests.spark.refused import refused

pytestmark = pytest.mark.kafka

WHAT = "source kafka trades"


def tokens(function: Any, secrets: tuple[str, ...] = ()) -> Tokens:
    return Tokens(TokenFunction.of(function, WHAT), WHAT, Secrets(secrets))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "got a NoneType"),
        ("opensesame", "expected the token's text and its lifetime in seconds, or a cojoin.kafka.Token; got a str"),
        ((b"opensesame", 60), "got a bytes as the text"),
        (("opensesame opensesame", 60), "got a text that is empty, or has blanks"),
        (("", 60), "got a text that is empty"),
        (("opensesame", "60"), "got a str as the lifetime"),
        (("opensesame", True), "got a bool as the lifetime"),
        (("opensesame", 0), "has expired: its lifetime is 0 s"),
        (("opensesame", float("nan")), "has expired: its lifetime is nan s"),
        (("opensesame", timedelta(seconds=-5)), "has expired: its lifetime is -5 s"),
        (("opensesame", 1.8e9), "if it is a time in epoch seconds, subtract time.time()"),
        (Token("opensesame", 60, extensions={"auth": "x"}), "got the extension 'auth'"),
        (Token("opensesame", 60, principal=7), "a principal or extensions that are not texts"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_token_is_told_without_its_text(answer: Any, text: str) -> None:
    def returned() -> Any:
        return answer

    with refused(f"{WHAT}: token: the function test_what_is_no_token_is_told_without_its_text.<locals>.returned", text):
        tokens(returned).fetch(0, at_start=True)
    with pytest.raises(cj.ConfigurationError) as caught:
        tokens(returned).fetch(0, at_start=True)
    assert "opensesame" not in str(caught.value)


def test_a_function_that_fails_is_named_with_its_error_and_no_secret() -> None:
    jwt = unsigned_token()

    def failing() -> Any:
        msg = f"401 for https://idp/token?client_secret=opensesame&user=ali with {jwt} by opensesame-too"
        raise OSError(msg)

    asked = tokens(failing, ("opensesame-too",))
    with pytest.raises(cj.ConfigurationError) as caught:
        asked.fetch(60_000, at_start=True)
    said = str(caught.value)
    assert "failing failed: OSError: 401 for https://idp/token?client_secret=***&user=ali with *** by ***" in said
    assert "test_tokens.py, line" in said
    assert caught.value.__context__ is None
    # While a query runs it is asked again until the patience ends.
    begin = time.monotonic()
    with refused("failing failed: OSError", "patience=", kind=cj.QueryFailedError):
        asked.fetch(1_000, at_start=False)
    assert 0.4 < time.monotonic() - begin < 5
    assert asked.problem is not None
    with refused("failing failed", kind=cj.QueryFailedError):
        asked()


def test_a_token_is_used_for_three_quarters_of_its_life_and_kept_over_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [("one", 100), ("two", timedelta(seconds=100)), OSError("away"), ("three", 100)]
    now = 1_000.0
    monkeypatch.setattr("cojoin.kafka.tokens.time.time", lambda: now)

    def function() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    wanted = TokenFunction(function)
    seen = []
    for moment in (1_000.0, 1_074.0, 1_076.0, 1_152.0, 1_153.0):
        now = moment
        # Each connection of a process has the same one.
        asked = Tokens(wanted, WHAT, Secrets([]))
        seen += [asked()[:2]]
    assert seen == [("one", 1_100.0), ("one", 1_100.0), ("two", 1_176.0), ("two", 1_176.0), ("three", 1_253.0)]
    assert asked.mask("not three, but two") == "not ***, but two"
    asked.forget()
    answers.append(Token("four", 9, "ali", {"cluster": "a"}))
    assert asked() == ("four", 1_162.0, "ali", {"cluster": "a"})


def test_what_is_no_login_by_a_token() -> None:
    def asked(**arguments: Any) -> ClusterOptions:
        arguments = {"options": {}, "token": unsigned_token, **arguments}
        return ClusterOptions.of("one:9092", arguments["options"], "1 minute", arguments["token"], WHAT)

    with refused(WHAT, "token: expected a function that returns a token, got a str"):
        asked(token="opensesame")
    with refused("token: the function", "can't be sent to the workers", "lock"):
        asked(token=with_lock(threading.Lock()))
    with refused("token: the partial can't be sent to the workers"):
        asked(token=functools.partial(print, threading.Lock(), "opensesame"))
    with refused("option 'oauth_cb': expected a text, got a function; one that returns tokens is token="):
        asked(options={"oauth_cb": print}, token=None)
    with refused("expected the option sasl.mechanisms to be OAUTHBEARER, got 'PLAIN'"):
        asked(options={"sasl.mechanisms": "PLAIN"})
    with refused("expected the option security.protocol to be SASL_SSL, got 'ssl'"):
        asked(options={"security.protocol": "ssl"})
    with refused("sasl.oauthbearer.method=oidc"):
        asked(options={"sasl.oauthbearer.method": "OIDC"})
    made = asked(options={"sasl.mechanisms": "OAUTHBEARER", "security.protocol": "SASL_PLAINTEXT"})
    assert made.settings == {"sasl.mechanisms": "OAUTHBEARER", "security.protocol": "SASL_PLAINTEXT"}
    assert repr(made) == "ClusterOptions(bootstrap_servers='one:9092')"


def with_lock(lock: Any) -> Any:
    def locked() -> Any:
        return lock

    return locked
