"""Locations of tables, distinguished by one rule for sources, sinks and checkpoints; and which texts may be secret.

A location is a path or a name. A message shows it without a login, and masks settings whose names suggest a secret.
Some names stay readable on purpose, since a message about a login needs their values: ``sasl.mechanism``,
``sasl.username``, ``sasl.oauthbearer.method`` and ``security.protocol``.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from cojoin.errors import ConfigurationError

# "auth" as in basic.auth.user.info, but not as in sasl.oauthbearer.method.
_TELLING = re.compile(
    r"pass|secret|token|key|cred|private|jaas|sas\b|(?<!o)auth|oauthbearer\.config|\.pem", re.IGNORECASE
)
Location: TypeAlias = str | os.PathLike[str]
"""A path as a string or as a ``pathlib.Path``; where a table name is allowed, a string without a ``/`` is a name."""

# pathlib turns the two slashes of a URL into one.
_BROKEN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")

_FULL = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_PATTERN = re.compile(r"([\[\]{}*?\\])")
LOGIN = re.compile(r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://([^/\s]+)@", re.IGNORECASE)
"""The login in a URL. In Azure's URLs, a container precedes the @, not a login."""

MASK = "***"
"""The text in the place of a secret."""


def may_be_secret(name: str) -> bool:
    """Return whether the name of a setting suggests that its value is secret.

    >>> may_be_secret("ssl.key.password"), may_be_secret("sasl.mechanism")
    (True, False)
    """
    return _TELLING.search(name) is not None


def without_login(text: str) -> str:
    """Return a text in which the name and password in each URL are masked.

    >>> without_login("s3a://me:opensesame@lake/trades"), without_login("abfss://lake@shop.dfs.core.windows.net/trades")
    ('s3a://***@lake/trades', 'abfss://lake@shop.dfs.core.windows.net/trades')
    """
    return LOGIN.sub(f"://{MASK}@", text)


def scheme_and_place(uri: str) -> str:
    """Return a URI's scheme and authority, such as the bucket.

    >>> scheme_and_place("s3a://lake/my%20trades/a.parquet")
    's3a://lake'
    """
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}"


def is_path(location: str) -> bool:
    r"""Return whether a location is a path rather than a table's name.

    >>> is_path("/lake/trades"), is_path("s3a://lake/trades"), is_path("lake.trades")
    (True, True, False)
    """
    return "/" in location or "\\" in location


def is_relative(path: str) -> bool:
    """Return whether a path depends on the working directory of the process that opens it.

    >>> is_relative("trades"), is_relative("./trades"), is_relative("/lake/trades"), is_relative("s3a://lake/trades")
    (True, True, False, False)
    """
    return _FULL.match(path) is None


def literally(path: str) -> str:
    r"""Return a path as Spark's readers take it literally: to them, ``[a]`` is a pattern that matches ``a``.

    >>> print(literally("/lake/trades [a]"))
    /lake/trades \[a\]
    """
    return _PATTERN.sub(r"\\\1", path)


def as_location(declared: Any, label: str, *, expected: str = "a path") -> str:
    """Return a path or a table's name as a string; a ``pathlib.Path`` is always a path.

    Raises ``ConfigurationError`` where the user's value is empty, of another type, or a URL that ``pathlib`` has
    changed; ``label`` says what it configures, ``expected`` what it may be.

    >>> from pathlib import Path
    >>> as_location("lake.trades", "source"), as_location(Path("trades"), "source")
    ('lake.trades', './trades')
    """
    if isinstance(declared, os.PathLike):
        text = os.fspath(declared)
        if isinstance(text, str):
            if _BROKEN_URL.match(text):
                msg = f"{label}: pathlib drops a slash of a URL: got {text!r}; give the URL as a text"
                raise ConfigurationError(msg)
            return text if is_path(text) else f"./{text}"
    elif isinstance(declared, str) and declared.strip():
        return declared
    msg = f"{label}: expected {expected} as a text or a pathlib.Path, got {declared!r}"
    raise ConfigurationError(msg)


def unpatterned(path: str) -> str:
    """Return the folder below which all files lie that a path's pattern matches; a path without a pattern itself.

    >>> unpatterned("/lake/2026-*/trades"), unpatterned("/lake/trades")
    ('/lake', '/lake/trades')
    """
    pattern = _PATTERN.search(path)
    return path if pattern is None else path[: pattern.start()].rpartition("/")[0] or "/"
