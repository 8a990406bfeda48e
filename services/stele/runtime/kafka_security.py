"""Broker access from a process's settings.

Contradictory settings and missing files fail at the start.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stele.log.brokers import Brokers, Login, Secret, Tls

if TYPE_CHECKING:
    from stele.runtime.settings import KafkaSettings

_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")
_WITH_PROTOCOL: Final = re.compile(
    r"(?:(?P<protocol>PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?P<server>[^/]+)/?"
)
MAX_PORT: Final = 65535
_PKCS8: Final = "-----BEGIN PRIVATE KEY-----"
_HOW_TO_PKCS8: Final = "openssl pkcs8 -topk8 -nocrypt -in OLD.key -out NEW.key"


def brokers_of(settings: KafkaSettings) -> Brokers:
    """Return the brokers. Raises ValueError, whose text names the variable and what to do."""
    return Brokers(_servers(settings.kafka_bootstrap), _tls(settings), _login(settings))


def _servers(bootstrap: str) -> str:
    """Return `host:port,host:port`, the one form that every client reads alike.

    librdkafka and Java accept `SASL_SSL://host:9092` and empty parts. Faust would read the protocol as part of
    the host's name, and an empty part as a broker on this machine. Raises ValueError for these forms.
    """
    servers = [part.strip() for part in bootstrap.split(",")]
    for server in servers:
        if not _is_server(server):
            raise ValueError(
                f"STELE_KAFKA_BOOTSTRAP={bootstrap}: '{server}' is not host:port."
                f" {_how_to_write(servers)}"
            )
    return ",".join(servers)


def _is_server(text: str) -> bool:
    return bool(_SERVER.fullmatch(text)) and 0 < int(text.rpartition(":")[2]) <= MAX_PORT


def _how_to_write(servers: list[str]) -> str:
    """Return the correction where it is certain, else the rule."""
    parts = [_WITH_PROTOCOL.fullmatch(server) for server in servers if server]
    hosts = [found["server"] for found in parts if found is not None]
    if not hosts or len(hosts) < len(parts) or not all(map(_is_server, hosts)):
        return (
            "Separate several brokers by commas, and write an IPv6 address in brackets: [::1]:9092."
        )
    protocols = sorted({found["protocol"] for found in parts if found and found["protocol"]})
    correction = f"Write STELE_KAFKA_BOOTSTRAP={','.join(hosts)}"
    if len(protocols) == 1:
        return f"{correction} and STELE_KAFKA_SECURITY_PROTOCOL={protocols[0]}."
    return f"{correction}."


def _tls(settings: KafkaSettings) -> Tls | None:
    ca, certificate, key = (
        settings.kafka_ssl_ca_file,
        settings.kafka_ssl_certificate_file,
        settings.kafka_ssl_key_file,
    )
    if not settings.kafka_security_protocol.endswith("SSL"):
        for variable, file in (
            ("STELE_KAFKA_SSL_CA_FILE", ca),
            ("STELE_KAFKA_SSL_CERTIFICATE_FILE", certificate),
            ("STELE_KAFKA_SSL_KEY_FILE", key),
        ):
            if file:
                raise ValueError(
                    f"{variable} is set, and STELE_KAFKA_SECURITY_PROTOCOL={settings.kafka_security_protocol}"
                    " goes without TLS: set that to SSL or SASL_SSL, or leave the file out."
                )
        return None
    if bool(certificate) != bool(key):
        lacks = "STELE_KAFKA_SSL_KEY_FILE" if certificate else "STELE_KAFKA_SSL_CERTIFICATE_FILE"
        raise ValueError(f"{lacks} is missing: a certificate and its key are set together.")
    tls = Tls(ca, certificate, key)
    _check_ca(tls)
    if key:
        _check_key(tls)
    return tls


def _check_ca(tls: Tls) -> None:
    if tls.ca_file:
        _read("STELE_KAFKA_SSL_CA_FILE", tls.ca_file)
    try:
        Tls(tls.ca_file).context()
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"STELE_KAFKA_SSL_CA_FILE: {tls.ca_file} holds no certificates in PEM ({error})."
        ) from error


def _check_key(tls: Tls) -> None:
    _read("STELE_KAFKA_SSL_CERTIFICATE_FILE", tls.certificate_file)
    if _PKCS8 not in _read("STELE_KAFKA_SSL_KEY_FILE", tls.key_file):
        raise ValueError(
            f"STELE_KAFKA_SSL_KEY_FILE: {tls.key_file} holds no key in PKCS #8 without a password"
            f' ("{_PKCS8}"), which Java wants. Make one: {_HOW_TO_PKCS8}'
        )
    try:
        tls.context()
    except ssl.SSLError as error:
        raise ValueError(
            f"STELE_KAFKA_SSL_CERTIFICATE_FILE: {tls.certificate_file} is no certificate in PEM, or"
            f" STELE_KAFKA_SSL_KEY_FILE, {tls.key_file}, is not its key ({error})."
        ) from error


def _login(settings: KafkaSettings) -> Login | None:
    mechanism, username, file = (
        settings.kafka_sasl_mechanism,
        settings.kafka_sasl_username,
        settings.kafka_sasl_password_file,
    )
    given = {
        "STELE_KAFKA_SASL_MECHANISM": mechanism,
        "STELE_KAFKA_SASL_USERNAME": username,
        "STELE_KAFKA_SASL_PASSWORD_FILE": file,
    }
    protocol = settings.kafka_security_protocol
    wanted = protocol.startswith("SASL")
    for variable, value in given.items():
        if value and not wanted:
            raise ValueError(
                f"{variable} is set, and STELE_KAFKA_SECURITY_PROTOCOL={protocol} goes without SASL: set that"
                " to SASL_SSL, or leave the variable out."
            )
        if wanted and not value:
            raise ValueError(
                f"{variable} is missing, which STELE_KAFKA_SECURITY_PROTOCOL={protocol} needs."
            )
    if not username.isprintable():
        raise ValueError("STELE_KAFKA_SASL_USERNAME must be a name in one line.")
    return Login(mechanism, username, Secret(_password(file))) if wanted else None


def _password(file: str) -> str:
    """Read the password. One newline at the end of the file is not part of it."""
    password = _read("STELE_KAFKA_SASL_PASSWORD_FILE", file).removesuffix("\n").removesuffix("\r")
    if not password or not password.isprintable():
        raise ValueError(
            f"STELE_KAFKA_SASL_PASSWORD_FILE: {file} must hold a password, in one line and no more."
        )
    if password != password.strip():
        raise ValueError(
            f"STELE_KAFKA_SASL_PASSWORD_FILE: {file} holds a password that begins or ends with a blank,"
            " which librdkafka leaves out: give the user another one."
        )
    return password


def _read(variable: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ValueError(f"{variable}: {file} cannot be read ({why}).") from None
