"""Messages for a cluster that refuses or does not answer: the expectation, librdkafka's own words, and advice.

librdkafka reports causes in the words of the library that met them: a listener of another protocol only closes the
connection, and a certificate for another host is "verify that ssl.ca.location is correct". So causes are recognised by
librdkafka's texts, and those of a certificate by asking OpenSSL. No message has the value of a setting that may be
secret; the texts that come in have none either.
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING

from cojoin.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_USUAL = (
    *("client.id", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
    *("ssl.key.pem", "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password", "isolation.level"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "socket.timeout.ms"),
    *("sasl.kerberos.service.name", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "fetch.max.bytes"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url", "max.partition.fetch.bytes"),
)
"""The most common options, to be proposed for a name that is almost one of them."""

# A listener that does not understand a request closes the connection, whatever state the client is in.
_ENDED = re.compile(
    r"security\.protocol|connecting to a |Disconnected.* in state (UP|APIVERSION_QUERY|SSL_HANDSHAKE|AUTH\w*)"
)
# The answers of a listener that wants a client's certificate and gets none, or one that it does not trust.
_ALERT = re.compile(
    r"\balert (bad certificate|\w*certificate|unknown ca|handshake failure|access denied)", re.IGNORECASE
)
_LOG_PREFIX = re.compile(r"^\w+ \[[^\]]*\] \[thrd:[^\]]*\]: ")
_ADDRESS = re.compile(r"(?:sasl_)?ssl://\[?(?P<host>[^\s/]+?)\]?:(?P<port>\d+)/")
_CERTIFICATES = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
OTHER_NAME = {62: "host name", 64: "IP address"}
"""OpenSSL's codes of a certificate that is for another one."""

OTHER_TIME = (9, 10)
"""Its codes of a certificate that is not valid now."""

_CERTIFICATE_SECONDS = 5


class ConnectionLog:
    """The state of librdkafka's connections while a request waits, from its log and its errors."""

    def __init__(self) -> None:
        self.ended: str | None = None
        """The text of the last connection that the other side closed; None if a later one could not be made at all."""

    def add(self, text: str) -> None:
        """Read a line of librdkafka's log, without secrets."""
        text = _LOG_PREFIX.sub("", text).strip()
        if _ENDED.search(text):
            self.ended = text
        elif "Connect to" in text or "resolve" in text:
            self.ended = None


def is_ended(text: str) -> bool:
    """Return whether librdkafka reports that the other side closed a connection."""
    return _ENDED.search(text) is not None


def is_alert(text: str) -> bool:
    """Return whether librdkafka reports that the other side refused this side's certificate."""
    return _ALERT.search(text) is not None


def protocol_problem(servers: str, settings: Mapping[str, str], text: str) -> str:
    """Return the message for a listener that speaks another protocol."""
    own = settings.get("security.protocol", "plaintext (librdkafka's default)")
    return (
        f"{servers} took the connection and ended it without an answer, as a listener does that speaks another "
        f"protocol: {text}; the option security.protocol is {own}: expected that of the listener at this address, "
        f"one of {', '.join(_PROTOCOLS)}"
    )


def login_problem(servers: str, settings: Mapping[str, str], text: str) -> str:
    """Return the message for TLS or a login that failed."""
    if "certificate verif" in text:
        problem = _certificate_problem(text, settings)
        if problem is not None:
            return f"{servers}: {problem}"
    hint = ""
    if is_alert(text):
        own = [name for name in _CERTIFICATES if name in settings]
        shown = f"that of the option {own[0]}, which it does not trust" if own else "none"
        hint = (
            f"the listener at this address wants a certificate of the client, and got {shown}: give one that it trusts "
            f"with ssl.certificate.location and ssl.key.location, or as texts, ssl.certificate.pem and ssl.key.pem; "
        )
    elif '"status":"invalid_token"' in text:
        hint = "the brokers do not take the token: it has expired, or they do not trust its issuer or its user; "
    elif "current SASL state" in text:
        hint = "the listener at this address takes no logins by SASL: expected plaintext or ssl; "
    return f"{servers} refused the login: {text}; {hint}see the options security.protocol, sasl.* and ssl.*"


def _certificate_problem(text: str, settings: Mapping[str, str]) -> str | None:
    """Return the problem that OpenSSL finds with a broker's certificate; None where it can't be asked, or finds none.

    Only a handshake is tried: nothing of a login is sent.
    """
    address = _ADDRESS.search(text)
    if address is None:
        return None
    host, port = address["host"], int(address["port"])
    try:
        context = _context(settings)
        connection = socket.create_connection((host, port), _CERTIFICATE_SECONDS)
        with connection, context.wrap_socket(connection, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        reason, code = error.verify_message, error.verify_code
    except (OSError, ValueError):
        return None
    place = f"the certificate of the broker at {host}:{port}"
    if code in OTHER_NAME:
        return (
            f"{place} is trusted, and is for another {OTHER_NAME[code]} ({reason}): use an address that the "
            f"certificate names, in bootstrap_servers and in the brokers' advertised.listeners, or give the brokers a "
            f"certificate that names this one"
        )
    if code in OTHER_TIME:
        return f"{place} is not valid now ({reason}): renew it, or set the clock of this machine right"
    trusted = "ssl.ca.location" if "ssl.ca.location" in settings else "ssl.ca.pem"
    own = f"the certificates of the option {trusted}" if trusted in settings else "this machine's own certificates"
    return (
        f"{place} is not trusted ({reason}): expected one that is valid by {own}; give the authority that signed it "
        f"with the option ssl.ca.location"
    )


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that trusts the same certificates as librdkafka with these options."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    location, pem = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    if location is not None and location != "probe":
        from pathlib import Path  # noqa: PLC0415 - only needed after an error

        is_folder = Path(location).is_dir()
        context.load_verify_locations(capath=location if is_folder else None, cafile=None if is_folder else location)
    elif pem is not None:
        context.load_verify_locations(cadata=pem)
    else:
        context.load_default_certs()
    return context


def setting_problem(settings: Mapping[str, str], text: str) -> str:
    """Return the message for an option that librdkafka refuses."""
    name = max((option for option in settings if option in text), key=len, default=None)
    setting = "options" if name is None else f"option {name!r}"
    hint = ""
    if any(each.startswith("kafka.") for each in settings):
        hint = "; librdkafka's names have no 'kafka.' in front"
    elif "JAAS" in text:
        hint = "; expected sasl.mechanism, sasl.username and sasl.password instead of sasl.jaas.config"
    elif name is not None and "No such configuration property" in text:
        hint = _near(name, _USUAL) or "; its manual, CONFIGURATION.md, has all names"
    elif "SASL mechanism" in text:
        hint = f"; expected the option sasl.mechanism to be one of {', '.join(_MECHANISMS)}"
    elif name == "security.protocol" and "Invalid value" in text:
        hint = f"; expected one of {', '.join(_PROTOCOLS)}{_near(settings[name], _PROTOCOLS)}"
    return f"{setting}: librdkafka refuses it: {text}{hint}"


def _near(name: str, valid: Sequence[str]) -> str:
    hint = did_you_mean(name, valid)
    return hint if "did you mean" in hint else ""
