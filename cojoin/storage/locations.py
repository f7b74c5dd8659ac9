"""Where tables are: a path or a name, told apart by one rule for sources, sinks and checkpoints."""

from __future__ import annotations

import os
import re
from typing import Any, TypeAlias

from cojoin.errors import ConfigurationError

__all__ = ["Location", "as_location", "is_path"]

Location: TypeAlias = "str | os.PathLike[str]"
"""A path as a text or as a ``pathlib.Path``; where a table may have a name, a text without a ``/`` is one."""

# pathlib makes one slash of two.
_BROKEN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_path(location: str) -> bool:
    r"""Return whether a location is a path and no table's name.

    >>> is_path("/lake/trades"), is_path("s3a://lake/trades"), is_path("lake.trades")
    (True, True, False)
    """
    return "/" in location or "\\" in location


def as_location(declared: Any, what: str, *, expected: str = "a path") -> str:
    """Return a path, or a table's name, as a text; a ``pathlib.Path`` is a path whatever it looks like.

    Args:
        declared: What the user gave.
        what: What it configures, for the message, such as ``"checkpoint"``.
        expected: What it may be.

    Raises:
        ConfigurationError: It is neither a text nor a path, empty, or a URL that ``pathlib`` has made another of.

    >>> from pathlib import Path
    >>> as_location("lake.trades", "source"), as_location(Path("trades"), "source")
    ('lake.trades', './trades')
    """
    if isinstance(declared, os.PathLike):
        text = os.fspath(declared)
        if isinstance(text, str):
            if _BROKEN_URL.match(text):
                msg = f"{what}: pathlib drops a slash of a URL: got {text!r}; give the URL as a text"
                raise ConfigurationError(msg)
            return text if is_path(text) else f"./{text}"
    elif isinstance(declared, str) and declared.strip():
        return declared
    msg = f"{what}: expected {expected} as a text or a pathlib.Path, got {declared!r}"
    raise ConfigurationError(msg)
