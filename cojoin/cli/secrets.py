"""Masks the option values that a user typed, in all error messages and tracebacks.

An option's value (``--left-option kafka.sasl.jaas.config=...``) may be a password, and Spark, Kafka or the argument
parser may quote it in an error. So these texts pass through ``Secrets.mask``, which replaces such values, and the
quoted parts of them, wherever they occur.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Secrets"]

_PAIR = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.+)", re.DOTALL)
_OPTION = re.compile(r"--[\w-]*(?:opt|conf)[\w-]*(?:=.*)?", re.DOTALL)
_TELLTALE = re.compile(r"pass|secret|token|key|cred|jaas|sasl|auth|sas\b|private", re.IGNORECASE)
_PARTS = re.compile(r"\"([^\"]+)\"|'([^']+)'|=([^\s;\"']+)")
_URL_LOGIN = re.compile(r"://([^/@\s]+)@")
_LONG, _FEW = 12, 4
_MASK = "***"


class Secrets:
    """The values of a command line that must not be shown.

    Args:
        argv: The words of the command line.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        found: set[str] = set()
        follows_option = False
        for word in argv:
            option = _OPTION.fullmatch(word)
            rest = word.partition("=")[2]
            if option is not None:
                found |= _values(rest, is_option=True)
            elif follows_option or not word.startswith("-"):
                found |= _values(word, is_option=follows_option)
            elif "=" in rest:
                found |= _values(rest, is_option=True)
            found |= set(_URL_LOGIN.findall(word))
            follows_option = option is not None and "=" not in word
        # The longest are masked first: if a part were masked before the whole value, the rest would be shown.
        self._values = sorted(found - {""}, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Return a text with every secret masked; a secret of few characters only where it is a word by itself."""
        for value in self._values:
            if len(value) >= _FEW:
                text = text.replace(value, _MASK)
            else:
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: _MASK, text)
        return text


def _values(text: str, *, is_option: bool) -> set[str]:
    """Return the secrets in ``name=value``: any value whose name suggests a secret, and long values of any option."""
    pair = _PAIR.fullmatch(text)
    if pair is None:
        # Without a name, the whole text was meant as the option's value.
        return {text} if is_option else set()
    value = pair["value"]
    if not _TELLTALE.search(pair["name"]) and not (is_option and len(value) >= _LONG):
        return set()
    return {value} | {part for found in _PARTS.findall(value) for part in found if part}
