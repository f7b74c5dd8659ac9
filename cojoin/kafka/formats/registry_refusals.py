"""What is said where a schema registry refuses or does not answer, with what to do.

A request that fails in its TLS handshake is told as what it is: neither side has to guess whether the registry runs.
Every text that comes from outside goes through the registry's ``mask``.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.kafka.formats.registry import FILES
from cojoin.kafka.refusals import OTHER_NAME, OTHER_TIME

if TYPE_CHECKING:
    from cojoin.kafka.formats.registry import Registry

__all__ = ["answer_problem", "client_problem", "no_answer"]

_NO_TLS = ("WRONG_VERSION_NUMBER", "record layer failure")
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "DECRYPT_ERROR")
"""What alerts of a server have in their names that does not take the client's certificate, or got none."""


def answer_problem(registry: Registry, place: str, status: int, said: str) -> ConfigurationError | QueryFailedError:
    """Return the error for an answer that is none of those that are expected.

    Args:
        registry: The registry.
        place: The input or output, and the registry, for the message.
        status: The answer's HTTP status.
        said: Its text.
    """
    said = registry.mask(said)
    if status in (401, 403):
        return ConfigurationError(f"{place} refused the login (HTTP {status}): {said}; see cojoin.kafka.registry()")
    if status == 404:
        msg = (
            f"{place}: there is no registry at this address (HTTP 404): expected the address of its API, such as "
            f"http://localhost:8081, or Apicurio's http://localhost:8080/apis/ccompat/v7"
        )
        return ConfigurationError(msg)
    return QueryFailedError(f"{place} answered with HTTP {status}: {said}; start the query again when it is well")


def no_answer(
    registry: Registry, place: str, error: BaseException, *, at_start: bool
) -> ConfigurationError | QueryFailedError:
    """Return the error for a request that was not answered.

    Args:
        registry: The registry.
        place: The input or output, and the registry, for the message.
        error: What the client's HTTP library raised.
        at_start: Whether no query runs yet.
    """
    lost = "" if at_start else "no record is lost, those of this batch are read again by the next start: "
    if (problem := _tls_problem(registry, error)) is not None:
        kind = ConfigurationError if at_start else QueryFailedError
        return kind(f"{place}: {lost}{problem}")
    said = registry.mask(f"{type(error).__name__}: {error}")
    return QueryFailedError(f"{place} gave no answer: {said}; {lost}see that the registry runs at this address")


def client_problem(registry: Registry, error: Exception) -> str:
    """Return why no client of a registry can be made, such as a file that is not there.

    Args:
        registry: The registry.
        error: What confluent-kafka's client raised.

    >>> from cojoin.kafka.formats.registry import registry
    >>> client_problem(registry("https://localhost:8081", ca="/absent.pem"), FileNotFoundError("No such file"))
    "ca: there is no file '/absent.pem' that this process may read; the driver and each worker need it"
    """
    for setting, value in registry.settings:
        if setting in FILES and not os.access(value, os.R_OK):
            argument = FILES[setting]
            return (
                f"{argument}: there is no file {value!r} that this process may read; the driver and each worker need it"
            )
    if not isinstance(error, ssl.SSLError):
        return registry.mask(str(error))
    if error.reason == "KEY_VALUES_MISMATCH":
        return "private_key: expected the key of the certificate in certificate=, got another one"
    return f"the files of ca=, certificate= and private_key= can't be used ({error}): expected PEM"


def _tls_problem(registry: Registry, error: BaseException) -> str | None:
    """Return which side does not take the other's certificate; None where another thing failed, which may pass."""
    found = _tls_error(error)
    if found is None:
        return None
    settings = dict(registry.settings)
    if isinstance(found, ssl.SSLCertVerificationError):
        return _distrust(found, settings.get("ssl.ca.location"))
    return _turned_away(found, settings.get("ssl.certificate.location"))


def _turned_away(found: ssl.SSLError, own: str | None) -> str | None:
    reason = found.reason or str(found)
    if any(each in f"{reason} {found}" for each in _NO_TLS):
        return "this address, or a proxy before it, does not speak TLS: see the port, the proxy, and https:// itself"
    if own is None and reason.endswith("ALERT_HANDSHAKE_FAILURE"):
        # What servers say before TLS 1.3, of a certificate that is missing and of ciphers alike.
        return f"it may want a certificate of the client ({reason}), which certificate= and private_key= give"
    if "ALERT" not in reason or not any(each in reason for each in _OF_CERTIFICATES):
        return None
    if own is None:
        return f"it wants a certificate of the client ({reason}): give one with certificate= and private_key="
    return f"it does not take the certificate {own!r} ({reason}): give one that it trusts with certificate="


def _distrust(found: ssl.SSLCertVerificationError, trusted: str | None) -> str:
    said = found.verify_message
    if found.verify_code in OTHER_NAME:
        return f"its certificate is for another address ({said}): use one that the certificate names"
    if found.verify_code in OTHER_TIME:
        return f"its certificate is not valid now ({said}): renew it, or set the clock of this machine right"
    # As confluent-kafka's client chooses them.
    by = "SSL_CERT_FILE, SSL_CERT_DIR or the package certifi" if trusted is None else repr(trusted)
    return f"its certificate is not trusted by {by} ({said}): give a file with the authority that signed it with ca="


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error from which the client's library raised an error; None where it is another server's."""
    while error is not None and not isinstance(error, ssl.SSLError):
        # That of the server which was asked for a token.
        error = None if type(error).__name__ == "OAuthTokenError" else error.__cause__ or error.__context__
    return error
