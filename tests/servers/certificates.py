"""Certificates of an authority of the tests' own, valid for as long as their server runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

if TYPE_CHECKING:
    from pathlib import Path


class Certificates(NamedTuple):
    """The files of an authority, a server and a client, as PEM.

    Attributes:
        authority: The authority's certificate.
        server: The server's key and certificate, which names 127.0.0.1.
        client_key: The client's key, without a password.
        client: The client's certificate.
    """

    authority: Path
    server: Path
    client_key: Path
    client: Path


def make_certificates(folder: Path, client: str, *, ended: bool = False) -> Certificates:
    """Make an authority in a folder, and have it certify a server at 127.0.0.1 and a client of a name.

    Args:
        folder: The folder, which exists.
        client: The client's name.
        ended: Whether the server's certificate is no longer valid.
    """
    issuer, issuer_key = _name("authority"), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(issuer, issuer_key.public_key(), issuer, issuer_key, is_authority=True)
    found = Certificates(
        folder / "authority.pem", folder / "server-with-key.pem", folder / "client.key", folder / "client.pem"
    )
    found.authority.write_bytes(authority)
    server_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    place = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    server = _certificate(_name("server"), server_key.public_key(), issuer, issuer_key, place, ended=ended)
    found.server.write_bytes(_pem(server_key) + server)
    use = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    found.client_key.write_bytes(_pem(client_key))
    found.client.write_bytes(_certificate(_name(client), client_key.public_key(), issuer, issuer_key, use))
    return found


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType | None = None,
    *,
    is_authority: bool = False,
    ended: bool = False,
) -> bytes:
    now = datetime.now(timezone.utc) - timedelta(days=3 if ended else 0)
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if extension is not None:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
