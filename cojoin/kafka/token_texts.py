"""What may be shown of a user's function that returns tokens, and of what it says: never a token.

Brokers (``tokens``) and schema registries (``formats.registry``) take tokens by such functions.
"""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cojoin.storage.locations import MASK
from cojoin.storage.secret_names import may_be_secret

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_problem", "function_name", "is_token_text", "without_tokens"]

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
    found = getattr(function, "__qualname__", None)
    return f"the function {found}" if isinstance(found, str) else f"the {type(function).__qualname__}"


def call_problem(function: Callable[..., Any], error: Exception) -> str:
    """Return what is said of a call that failed: the function, the exception without tokens, and where it was."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames[1:] else "its call"
    return f"{function_name(function)} failed: {type(error).__name__}: {without_tokens(str(error))} (in {place})"


def without_tokens(text: str) -> str:
    """Return a text without what looks like a token, and without parameters whose names suggest a secret.

    >>> without_tokens("POST /token?client_secret=opensesame&scope=kafka: 500")
    'POST /token?client_secret=***&scope=kafka: 500'
    """

    def shown(found: re.Match[str]) -> str:
        secret = may_be_secret(unquote(found["name"]))
        return f"{found['name']}{found['sign']}{MASK}" if secret else found[0]

    return _PARAMETER.sub(shown, _JWT.sub(MASK, text))
