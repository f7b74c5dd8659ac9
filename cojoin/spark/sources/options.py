"""The options of Spark's readers and writers: checked as users give them, and masked where they are shown.

Secrets, such as passwords in options and logins in URLs, are masked in texts that are shown, logged or stored. A
setting is treated as secret if its name suggests it (``storage.locations.may_be_secret``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError
from cojoin.storage.locations import LOGIN, MASK, may_be_secret, without_login

if TYPE_CHECKING:
    from collections.abc import Iterable


def as_options(declared: Any, label: str) -> dict[str, str]:
    """Return options (None, or a dict of strings, numbers and booleans) in the form that Spark takes: strings by name.

    ``label`` begins the message of the ConfigurationError for other values, such as ``"sinks.delta"``.

    >>> as_options({"mergeSchema": True}, "sinks.delta")
    {'mergeSchema': 'true'}
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping) or not all(isinstance(name, str) for name in declared):
        example = f"{{{declared!r}: 'true'}}" if isinstance(declared, str) else "{'mergeSchema': 'true'}"
        msg = f"{label}: options: expected a dict of options, such as {example}, got {type(declared).__name__}"
        raise ConfigurationError(msg)
    for name, value in declared.items():
        # Values may be secrets, so messages never show them.
        if not isinstance(value, (str, bool, int, float)):
            msg = (
                f"{label}: options: option {name!r}: expected a text, a number or a boolean, "
                f"got {type(value).__name__}; leave out an option to have its default"
            )
            raise ConfigurationError(msg)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in declared.items()}


_PART = re.compile(r"\"([^\"]+)\"|'([^']+)'|=([^\s;\"']+)")
_FEW = 4


class Secrets:
    """Values that must not be shown.

    A value may itself have parts that are secret, as in ``user="me" password="opensesame";`` or in a PEM. So the texts
    in quotes, the texts after an equals sign and the lines of a value are masked wherever they occur, too.

    >>> Secrets(["opensesame"]).mask("no login with opensesame at s3a://me:too@lake/trades")
    'no login with *** at s3a://***@lake/trades'
    """

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {part for value in values for part in (value, *_parts(value))} - {""}
        # The longest are masked first: if a part were masked before the whole value, the rest would be shown.
        self._values = sorted(secrets, key=len, reverse=True)

    @classmethod
    def of_settings(cls, settings: Mapping[str, object]) -> Secrets:
        """Return the values of the settings whose names suggest a secret, and the logins in all values.

        >>> Secrets.of_settings({"sasl.username": "ali", "sasl.password": "opensesame"}).mask("ali, opensesame")
        'ali, ***'
        """
        secrets: set[str] = set()
        for name, value in settings.items():
            secrets |= {str(value)} if may_be_secret(name) else logins(str(value))
        return cls(secrets)

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
    known = set(LOGIN.findall(text))
    return known | {login.partition(":")[2] for login in known} - {""}


def _parts(value: str) -> set[str]:
    """Return the parts of a value that may be secret by themselves; a part without letters and digits is not."""
    parts = {part for match in _PART.findall(value) for part in match}
    parts |= {line.strip() for line in value.splitlines()}
    return {part for part in parts if re.search(r"\w", part)}
