"""What to do about a store's errors, by what they say, whoever asked: cojoin's own client, or Hadoop's for Spark."""

from __future__ import annotations

__all__ = ["NO_BUCKET", "cure_of"]

_JAVAS_UNREACHED = ("Unable to execute HTTP request", "Connection refused", "UnknownHostException")
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
"""How stores say that a bucket or container is not there."""

_CURES = (
    (
        ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "token expired"),
        (
            "its credentials have expired: renew them in the session's settings fs.* or the environment, and start the "
            "query again, which goes on where it stopped"
        ),
    ),
    (
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed", "status code: 401"),
        "it does not know these credentials: correct them in the session's settings fs.* or the environment",
    ),
    (NO_BUCKET, "make the bucket, or correct its name"),
    (
        ("status code: 403", "AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
        "give the session's credentials the right to list, read, write and delete there",
    ),
    (
        ("StorageFull", "QuotaExceeded", "status code: 507", "InsufficientStorage", "No space left on device"),
        "make room there, and start the query again, which goes on where it stopped",
    ),
    (
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "status code: 301", "without LOCATION"),
        "set the bucket's region, such as by fs.s3a.endpoint.region",
    ),
    (
        ("error sending request", "error trying to connect", "timed out", "dns error", *_JAVAS_UNREACHED),
        (
            "see that the store runs, and that this machine reaches it by the endpoint in the session's settings, such "
            "as fs.s3a.endpoint; then start the query again, which goes on where it stopped"
        ),
    ),
    (
        ("SlowDown", "ServerBusy", "status code: 500", "status code: 502", "status code: 503", "status code: 504"),
        "the store is overloaded or down: start the query again once it answers; it goes on where it stopped",
    ),
    (
        # The answer to a HEAD request has no text.
        ("status code: 400",),
        (
            "it does not say why; temporary credentials may have expired: renew them in the session's settings fs.* or "
            "the environment, and start the query again, which goes on where it stopped"
        ),
    ),
)


def cure_of(text: str) -> str | None:
    """Return what to do about an error; None where that is not known.

    >>> cure_of("Server returned non-2xx status code: 404 Not Found: NoSuchBucket")
    'make the bucket, or correct its name'
    >>> cure_of("S3Exception: Bad Request (Service: S3, Status Code: 400, Request ID: null)").partition(";")[0]
    'it does not say why'
    """
    # Java's SDK writes it so.
    text = text.replace("Status Code", "status code")
    return next((cure for signs, cure in _CURES if any(sign in text for sign in signs)), None)
