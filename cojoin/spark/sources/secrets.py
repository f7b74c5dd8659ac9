"""Masks secrets, such as passwords in options and logins in URLs, in texts that are shown, logged or stored.

A setting is treated as secret if its name suggests it (``storage.secret_names``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cojoin.storage.locations import LOGIN, MASK, without_login
from cojoin.storage.secret_names import may_be_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Secrets", "logins", "without_login"]

_PART = re.compile(r"\"([^\"]+)\"|'([^']+)'|=([^\s;\"']+)")
_FEW = 4


class Secrets:
    """Values that must not be shown.

    A value may itself have parts that are secret, as in ``user="me" password="opensesame";`` or in a PEM. So the texts
    in quotes, the texts after an equals sign and the lines of a value are masked wherever they occur, too.

    Args:
        values: The values; an empty one is ignored.

    >>> Secrets(["opensesame"]).mask("no login with opensesame at s3a://me:too@lake/trades")
    'no login with *** at s3a://***@lake/trades'
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = {part for value in values for part in (value, *_parts(value))} - {""}
        # The longest are masked first: if a part were masked before the whole value, the rest would be shown.
        self._values = sorted(found, key=len, reverse=True)

    @classmethod
    def of_settings(cls, settings: Mapping[str, object]) -> Secrets:
        """Return the values of the settings whose names suggest a secret, and the logins in all values.

        >>> Secrets.of_settings({"sasl.username": "ali", "sasl.password": "opensesame"}).mask("ali, opensesame")
        'ali, ***'
        """
        found: set[str] = set()
        for name, value in settings.items():
            found |= {str(value)} if may_be_secret(name) else logins(str(value))
        return cls(found)

    def mask(self, text: str) -> str:
        """Return a text with every secret masked, and every login in a URL.

        A secret of fewer than 4 characters is masked only where it is a word by itself.
        """
        for value in self._values:
            if len(value) >= _FEW:
                text = text.replace(value, MASK)
            else:
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", MASK, text)
        return without_login(text)


def logins(text: str) -> set[str]:
    """Return the logins in the URLs of a text, as ``name:password``, and their passwords alone."""
    found = set(LOGIN.findall(text))
    return found | {login.partition(":")[2] for login in found} - {""}


def _parts(value: str) -> set[str]:
    """Return the parts of a value that may be secret by themselves; a part without letters and digits is not."""
    found = {part for match in _PART.findall(value) for part in match}
    found |= {line.strip() for line in value.splitlines()}
    return {part for part in found if re.search(r"\w", part)}
