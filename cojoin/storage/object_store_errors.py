"""What an object store's errors mean, and what to do about each: in one line, without secrets.

An error names what the store answered: its code and its message. The rest of an answer is left out, since S3 repeats
access keys and signatures in it. URLs are cut after the host, since those of Azure may be signed.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

from cojoin.storage.locations import without_login
from cojoin.storage.store_cures import NO_BUCKET, cure_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ABSENT", "ERRORS", "Explained", "absence_allowed", "explained", "is_unknown_condition"]

ERRORS = (BaseError, OSError, ValueError)
"""What the client raises."""

ABSENT = (NotFoundError, FileNotFoundError)
"""What it raises where there is no such object."""

_URL = re.compile(r"\b(https?://[^\s/?]+)[^\s]*")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]*)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_STATUS = re.compile(r"non-2xx status code: (\d{3}[^:<]*)")
_UNREACHED = re.compile(r"- HTTP error: ([^\n<]*)")

_UNKNOWN = ("status code: 501", "NotImplemented", "InvalidArgument", "InvalidRequest", "UnsupportedHeader")
_CURE_WITHOUT_CODE = (
    "see that the session's credentials are right, have not expired, and may list, read, write and delete there, and "
    "that the region is the bucket's"
)


class Explained(NamedTuple):
    """An error of a store.

    Attributes:
        why: What the store said, on one line.
        cure: What to do; None where that is not known.
    """

    why: str
    cure: str | None


def explained(error: BaseException) -> Explained:
    """Return what an error means.

    >>> text = "Generic S3 error: Error performing GET http://host:1/lake?X=1 in 2.05ms - Server returned non-2xx "
    >>> text += "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code><Message>Expired.</Message></Error>"
    >>> explained(OSError(text)).why
    'the store answered 400 Bad Request: ExpiredToken: Expired.'
    """
    text = str(error).strip()
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    answer, unreached = [found[1].strip() for found in (status, code, message) if found], _UNREACHED.search(text)
    if answer:
        why = f"the store answered {': '.join(answer)}"
    elif unreached is not None:
        why = f"the store does not answer: {unreached[1]}"
    else:
        why = text.partition("\n")[0].partition(": <")[0]
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) and status is None:
        text += " status code: 403"
    if status is not None and code is None and status[1].startswith(("400", "403")):
        # The answer to a question for an object's size has no body.
        return Explained(why, _CURE_WITHOUT_CODE)
    cure = cure_of(text)
    return Explained(without_login(_URL.sub(r"\1/...", " ".join(why.split()))), cure)


@contextlib.contextmanager
def absence_allowed() -> Iterator[None]:
    """Ignore that an object does not exist, but not that its bucket does not.

    Raises:
        FileNotFoundError: There is no such bucket.
    """
    try:
        yield
    except ABSENT as error:
        if any(sign in str(error) for sign in NO_BUCKET):
            raise


def is_unknown_condition(error: BaseException | None) -> bool:
    """Return whether a store refuses a conditional write because it knows no conditions."""
    return error is not None and any(sign in str(error) for sign in _UNKNOWN)
