"""Authorities, and certificates of theirs, for brokers and clients on loopback."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from stele_harness.stack.ports import LOOPBACK

_VALID = datetime.timedelta(days=1)
PKCS8 = PrivateFormat.PKCS8
SEC1 = PrivateFormat.TraditionalOpenSSL
"""The format of `openssl ecparam -genkey`, which Java does not read."""


class Authority:
    """Its certificate is ``file``; those that it gives lie beside it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = _builder(self._name, self._name, self._key.public_key())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.file = folder / f"{name}.pem"
        signed = certificate.add_extension(constraints, critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.file.write_bytes(signed.public_bytes(Encoding.PEM))

    def give(self, name: str, form: PrivateFormat = PKCS8) -> tuple[Path, Path]:
        """The files of a certificate for ``name`` on loopback, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.IPAddress(ipaddress.ip_address(LOOPBACK)), x509.DNSName("localhost")]
        certificate = (
            _builder(_named(name), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName(places), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )
