"""The errors of ``deltalake`` as cojoin's own, in one place: on one line, without colours, stacks and secrets.

An error of a store names what the store answered and what to do, as ``object_store_errors`` has it; signed addresses
are cut after the host, and the values of the store's options that are secret are masked.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError, EnvironmentSetupError, QueryFailedError
from cojoin.storage.locations import MASK, without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "LostCommitError",
    "TableConflictError",
    "TableRefusedError",
    "check_deltalake",
    "explained_error",
    "translated",
]

_OLDEST = (1, 6)
_COLOUR, _ARROW, _STACK = (
    re.compile(r"\x1b\[[0-9;]*m"),
    re.compile(r"\s*\n\s*↳\s*"),
    re.compile(r"\n\s*0: .*", re.DOTALL),
)


class TableRefusedError(QueryFailedError):
    """A table that does not take a commit: what it asks of data files is not what the commit has."""


class TableConflictError(QueryFailedError):
    """Other writers committed to a table at the same moment, in each of the tries."""


class LostCommitError(QueryFailedError):
    """A commit that was made and is not in the table's log any more.

    Attributes:
        version: The commit's version.
    """

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


def check_deltalake() -> None:
    """Check that ``deltalake`` is installed, in a version that this works with.

    Raises:
        EnvironmentSetupError: It is missing or too old.
    """
    wanted = ".".join(map(str, _OLDEST))
    try:
        import deltalake  # noqa: PLC0415 - it is loaded with the first table that is written
    except ImportError as error:
        msg = f"expected deltalake {wanted} or later, found none ({error}); pip install 'deltalake>={wanted}'"
        raise EnvironmentSetupError(msg) from error
    found = tuple(int(each) for each in re.findall(r"\d+", deltalake.__version__)[:2])
    if found < _OLDEST:
        msg = f"expected deltalake {wanted} or later, found {deltalake.__version__}; pip install 'deltalake>={wanted}'"
        raise EnvironmentSetupError(msg)


@contextlib.contextmanager
def translated(table: str, what: str, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Raise an error of ``deltalake`` within the block as one of cojoin's.

    Args:
        table: The table's folder.
        what: What can't be done with the table, such as ``"read"``.
        secrets: Texts to be masked.

    Raises:
        QueryFailedError: What was done failed.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise QueryFailedError(explained_error(error, table, what, secrets)) from None


def explained_error(error: BaseException, table: str, what: str, secrets: Sequence[str] = ()) -> str:
    """Return an error's message on one line, with what to do; its arguments are those of ``translated``."""
    from cojoin.storage.object_store_errors import explained  # noqa: PLC0415 - it loads obstore, for errors alone

    text = _ARROW.sub(": ", _STACK.sub("", _COLOUR.sub("", str(error)))).strip()
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    why, cure = explained(type(error)(text) if isinstance(error, OSError) else OSError(text))
    cure = cure or "see that the driver may list, read, write and delete there"
    return f"Delta table {without_login(table)}: it can't be {what}: {why}; {cure}"
