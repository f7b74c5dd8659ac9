"""Finds the secrets among the words of the command line, so that error messages and tracebacks can mask them.

An option's value (``--conf spark.hadoop.fs.s3a.secret.key=...``) may be a password, and Spark or the argument parser
may quote it in an error. A value is treated as secret if its name suggests it, and, with an option that takes settings
of Spark, also if it is long. Misspelled options are recognised, too, as far as their names contain "opt" or "conf".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cojoin.spark.sources.secrets import Secrets, logins
from cojoin.storage.secret_names import may_be_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["secrets_of"]

_PAIR = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.+)", re.DOTALL)
_OPTION = re.compile(r"--[\w-]*(?:opt|conf)[\w-]*(?:=.*)?", re.DOTALL)
_LONG = 12


def secrets_of(words: Sequence[str]) -> Secrets:
    """Return the values among the words of a command line that must not be shown."""
    found: set[str] = set()
    follows_option = False
    for word in words:
        option = _OPTION.fullmatch(word)
        rest = word.partition("=")[2]
        if option is not None:
            found |= _values(rest, is_option=True)
        elif follows_option or not word.startswith("-"):
            found |= _values(word, is_option=follows_option)
        elif "=" in rest:
            found |= _values(rest, is_option=True)
        found |= logins(word)
        follows_option = option is not None and "=" not in word
    return Secrets(found)


def _values(text: str, *, is_option: bool) -> set[str]:
    """Return the secret in ``name=value``: a value whose name suggests it, or a long value of an option."""
    pair = _PAIR.fullmatch(text)
    if pair is None:
        # Without a name, the whole text was meant as the option's value.
        return {text} if is_option else set()
    value = pair["value"]
    return {value} if may_be_secret(pair["name"]) or (is_option and len(value) >= _LONG) else set()
