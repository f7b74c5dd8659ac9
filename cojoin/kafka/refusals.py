"""Why a cluster refuses or does not answer, in plain words: what was expected, what librdkafka said, what to do.

librdkafka names causes by the library that met them: a listener of another protocol only ends the connection, and a
certificate for another host is "verify that ssl.ca.location is correct". What is said here is told apart by its own
words, and of a certificate by asking OpenSSL. Settings may hold secrets: no message has the value of one that may.
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING

from cojoin.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ConnectionLog", "certificate_problem", "is_ended", "login_problem", "protocol_problem", "setting_problem"]

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_USUAL = (
    *("client.id", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
    *("ssl.key.pem", "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password", "isolation.level"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "socket.timeout.ms"),
    *("sasl.kerberos.service.name", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "fetch.max.bytes"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url", "max.partition.fetch.bytes"),
)
"""The options that most people set, for a name that is almost one of them."""

# A listener that does not understand what comes ends the connection, whatever the client takes it to be doing.
_ENDED = re.compile(
    r"security\.protocol|connecting to a |Disconnected.* in state (UP|APIVERSION_QUERY|SSL_HANDSHAKE|AUTH\w*)"
)
_LOG_PREFIX = re.compile(r"^\w+ \[[^\]]*\] \[thrd:[^\]]*\]: ")
_ADDRESS = re.compile(r"(?:sasl_)?ssl://\[?(?P<host>[^\s/]+?)\]?:(?P<port>\d+)/")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_OTHER_NAME = {62: "host name", 64: "IP address"}
_CERTIFICATE_SECONDS = 5


class ConnectionLog:
    """What librdkafka says of its connections while a question waits; much of it stands in its log alone."""

    def __init__(self) -> None:
        self.ended: str | None = None
        """The last words, where the last that was heard is that a connection was made, and ended by the other side."""

    def hear(self, text: str) -> None:
        """Take a line of librdkafka's, without secrets."""
        text = _LOG_PREFIX.sub("", text).strip()
        if _ENDED.search(text):
            self.ended = text
        elif "Connect to" in text or "resolve" in text:
            self.ended = None


def is_ended(heard: str) -> bool:
    """Return whether these words of librdkafka's are that the other side ended a connection."""
    return _ENDED.search(heard) is not None


def protocol_problem(servers: str, settings: Mapping[str, str], heard: str) -> str:
    """Return what to say where a listener speaks another protocol.

    Args:
        servers: The bootstrap servers.
        settings: The options.
        heard: librdkafka's words, without secrets.
    """
    own = settings.get("security.protocol", "plaintext (librdkafka's default)")
    return (
        f"{servers} took the connection and ended it without an answer, as a listener does that speaks another "
        f"protocol: {heard}; the option security.protocol is {own}: expected that of the listener at this address, "
        f"one of {', '.join(_PROTOCOLS)}"
    )


def login_problem(servers: str, settings: Mapping[str, str], heard: str) -> str:
    """Return what to say where TLS or the login failed.

    Args:
        servers: The bootstrap servers.
        settings: The options.
        heard: librdkafka's words, without secrets.
    """
    if "certificate verif" in heard:
        found = certificate_problem(heard, settings)
        if found is not None:
            return f"{servers}: {found}"
    hint = ""
    if "current SASL state" in heard:
        hint = "the listener at this address takes no logins by SASL: expected plaintext or ssl there; "
    return f"{servers} refused the login: {heard}; {hint}see the options security.protocol, sasl.* and ssl.*"


def certificate_problem(heard: str, settings: Mapping[str, str]) -> str | None:
    """Ask OpenSSL what is wrong with a broker's certificate; None where it can't be asked, or finds nothing.

    Only a handshake is tried: nothing of a login is sent.

    Args:
        heard: librdkafka's words, which name the broker.
        settings: The options, of which the trusted certificates are used.
    """
    found = _ADDRESS.search(heard)
    if found is None:
        return None
    host, port = found["host"], int(found["port"])
    try:
        context = _context(settings)
        connection = socket.create_connection((host, port), _CERTIFICATE_SECONDS)
        with connection, context.wrap_socket(connection, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        said, code = error.verify_message, error.verify_code
    except (OSError, ValueError):
        return None
    place = f"the certificate of the broker at {host}:{port}"
    if code in _OTHER_NAME:
        return (
            f"{place} is trusted, and is for another {_OTHER_NAME[code]} ({said}): use an address that the certificate "
            f"names, in bootstrap_servers and in the brokers' advertised.listeners, or give the brokers a certificate "
            f"that names this one"
        )
    trusted = "ssl.ca.location" if "ssl.ca.location" in settings else "ssl.ca.pem"
    own = f"the certificates of the option {trusted}" if trusted in settings else "this machine's own certificates"
    return (
        f"{place} is not trusted ({said}): expected one that is valid by {own}; give the authority that signed it with "
        f"the option ssl.ca.location"
    )


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return what trusts as librdkafka does with these options."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    location, pem = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    if location is not None and location != "probe":
        from pathlib import Path  # noqa: PLC0415 - where something went wrong alone

        is_folder = Path(location).is_dir()
        context.load_verify_locations(capath=location if is_folder else None, cafile=None if is_folder else location)
    elif pem is not None:
        context.load_verify_locations(cadata=pem)
    else:
        context.load_default_certs()
    return context


def setting_problem(settings: Mapping[str, str], names: Sequence[str], said: str) -> str:
    """Return what to say of an option that librdkafka refuses.

    Args:
        settings: The options, none of whose secret values stands in ``said``.
        names: The options that librdkafka's words name.
        said: Its words.
    """
    name = max(names, key=len, default=None)
    setting = "options" if name is None else f"option {name!r}"
    hint = ""
    if any(each.startswith("kafka.") for each in settings):
        hint = "; librdkafka's names have no 'kafka.' in front"
    elif "JAAS" in said:
        hint = "; expected sasl.mechanism, sasl.username and sasl.password instead of sasl.jaas.config"
    elif name is not None and "No such configuration property" in said:
        hint = _near(name, _USUAL) or "; its manual, CONFIGURATION.md, has all names"
    elif "SASL mechanism" in said:
        hint = f"; expected the option sasl.mechanism to be one of {', '.join(_MECHANISMS)}"
    elif name == "security.protocol" and "Invalid value" in said:
        hint = f"; expected one of {', '.join(_PROTOCOLS)}{_near(settings[name], _PROTOCOLS)}"
    return f"{setting}: librdkafka refuses it: {said}{hint}"


def _near(name: str, valid: Sequence[str]) -> str:
    found = did_you_mean(name, valid)
    return found if "did you mean" in found else ""
