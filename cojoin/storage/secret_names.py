"""Which names of settings suggest that their values are secret.

Some names stay readable on purpose, because a message about a login has to name their values: ``sasl.mechanism``,
``sasl.username``, ``sasl.oauthbearer.method`` and ``security.protocol``.
"""

from __future__ import annotations

import re

__all__ = ["may_be_secret"]

# "auth" as in basic.auth.user.info, but not as in sasl.oauthbearer.method.
_TELLING = re.compile(
    r"pass|secret|token|key|cred|private|jaas|sas\b|(?<!o)auth|oauthbearer\.config|\.pem", re.IGNORECASE
)


def may_be_secret(name: str) -> bool:
    """Return whether the name of a setting suggests that its value is secret.

    >>> may_be_secret("ssl.key.password"), may_be_secret("sasl.mechanism")
    (True, False)
    """
    return _TELLING.search(name) is not None
