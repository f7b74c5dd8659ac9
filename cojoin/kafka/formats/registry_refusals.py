"""What is said where a schema registry refuses or does not answer, with what to do.

A request that fails in its TLS handshake is told as what it is: neither side has to guess whether the registry runs.
Every text that comes from outside goes through the registry's ``mask``.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError, QueryFailedError

if TYPE_CHECKING:
    from cojoin.kafka.formats.registry import Registry

__all__ = ["answer_problem", "client_problem", "no_answer"]

_FILES = {"ssl.ca.location": "ca", "ssl.certificate.location": "certificate", "ssl.key.location": "private_key"}
"""The client's settings that name files, each with the argument of ``cojoin.kafka.registry``."""

_OTHER_NAME = {62, 64}
"""OpenSSL's codes of a certificate that is for another host name or address."""

_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS at this address: expected http:// in place of https://",
    "KEY_VALUES_MISMATCH": "private_key: expected the key of the certificate in certificate=, got another one",
}
"""What OpenSSL's reasons mean here."""


def answer_problem(registry: Registry, what: str, status: int, said: str) -> ConfigurationError | QueryFailedError:
    """Return the error for an answer that is none of those that are expected.

    Args:
        registry: The registry.
        what: The input or output, for the message.
        status: The answer's HTTP status.
        said: Its text.
    """
    said, place = registry.mask(said), f"{what}: schema registry {registry.title}"
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
    registry: Registry, what: str, error: BaseException, *, at_start: bool
) -> ConfigurationError | QueryFailedError:
    """Return the error for a request that was not answered.

    Args:
        registry: The registry.
        what: The input or output, for the message.
        error: What the client's HTTP library raised.
        at_start: Whether no query runs yet.
    """
    place = f"{what}: schema registry {registry.title}"
    if (problem := _tls_problem(registry, error)) is not None:
        return ConfigurationError(f"{place}: {problem}")
    said = registry.mask(f"{type(error).__name__}: {error}")
    lost = "" if at_start else "no record is lost, those of this batch are read again by the next start: "
    msg = f"{place} gave no answer: {said}; {lost}see that the registry runs at this address"
    return QueryFailedError(msg)


def client_problem(registry: Registry, error: Exception) -> str:
    """Return why no client of a registry can be made, such as a file that is not there.

    Args:
        registry: The registry.
        error: What confluent-kafka's client raised.

    >>> from cojoin.kafka.formats.registry import registry
    >>> client_problem(registry("https://localhost:8081", ca="/absent.pem"), FileNotFoundError("No such file"))
    "ca: there is no file '/absent.pem' on this machine; the driver and each worker need it"
    """
    for setting, value in registry.settings:
        if setting in _FILES and not Path(value).is_file():
            return f"{_FILES[setting]}: there is no file {value!r} on this machine; the driver and each worker need it"
    return _tls_problem(registry, error) or registry.mask(str(error))


def _tls_problem(registry: Registry, error: BaseException) -> str | None:
    """Return what is wrong with the certificates of either side; None where another thing failed.

    Args:
        registry: The registry.
        error: What was raised where its client was made, or where it was asked.
    """
    found = _tls_error(error)
    if found is None:
        return None
    settings = dict(registry.settings)
    if isinstance(found, ssl.SSLCertVerificationError):
        return _distrust(found, settings.get("ssl.ca.location"))
    reason = found.reason or str(found)
    if "ALERT" not in reason:
        said = _REASONS.get(reason)
        return said or f"the files of ca=, certificate= and private_key= can't be used ({found}): expected PEM"
    if (name := settings.get("ssl.certificate.location")) is None:
        return f"it wants a certificate of the client ({reason}): give one with certificate= and private_key="
    return f"it does not take the certificate {name!r} ({reason}): give one that it trusts with certificate="


def _distrust(found: ssl.SSLCertVerificationError, trusted: str | None) -> str:
    said = found.verify_message
    if found.verify_code in _OTHER_NAME:
        return f"its certificate is for another address ({said}): use one that the certificate names"
    by = "this machine's authorities" if trusted is None else repr(trusted)
    return f"its certificate is not trusted by {by} ({said}): give a file with the authority that signed it with ca="


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that an error comes from."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
