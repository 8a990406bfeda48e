"""The brokers with TLS and login: the only place that maps them to the settings of clients.

Clients of this process use librdkafka's names, Spark's source uses Java's. The live flow makes
Faust's settings from the same parts (``runtime.live_flow``). The settings of a process make the
value (``runtime.kafka_security``).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Settings = dict[str, Any]
"""Settings of a librdkafka client."""

RECONNECT_MS: Final = 1000
"""Longest pause in milliseconds before another attempt to reach a broker that failed or refused."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Secret:
    """A text that representations and encoders do not show by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret(...)"

    def reveal(self) -> str:
        """Return the text."""
        return self._text


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM for TLS. Host names are always checked."""

    ca_file: str = ""
    """Certificate authorities of the brokers; empty: those that this machine trusts."""
    certificate_file: str = ""
    """This process's certificate with its intermediate certificates; empty: none is sent."""
    key_file: str = ""
    """Key of that certificate, in PKCS #8, without a password."""

    def context(self) -> ssl.SSLContext:
        """Return the context for a client in Python.

        Raises OSError for missing or invalid files; ssl.SSLError is a subclass of it.
        """
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials for SASL."""

    mechanism: str
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Brokers:
    """Addresses of the brokers with TLS and login.

    ``servers`` are host:port, separated by commas. Without ``tls`` the traffic is not encrypted.
    """

    servers: str
    tls: Tls | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.login is None else f"SASL_{transport}"

    def client(self) -> Settings:
        """Return the settings of a librdkafka client."""
        settings: Settings = {
            "bootstrap.servers": self.servers,
            "reconnect.backoff.max.ms": RECONNECT_MS,
        }
        if self.tls is not None or self.login is not None:
            settings["security.protocol"] = self.protocol
        if self.tls is not None:
            files = {
                "ssl.ca.location": self.tls.ca_file,
                "ssl.certificate.location": self.tls.certificate_file,
                "ssl.key.location": self.tls.key_file,
            }
            settings |= {name: file for name, file in files.items() if file}
        if self.login is not None:
            settings["sasl.mechanism"] = self.login.mechanism
            settings["sasl.username"] = self.login.username
            settings["sasl.password"] = self.login.password.reveal()
        return settings

    def java(self) -> dict[str, str]:
        """Return the settings of a client in Java. Raises OSError.

        They contain the content of the files, because Spark's executors on other machines lack
        them.
        """
        settings = {"bootstrap.servers": self.servers}
        if self.tls is not None or self.login is not None:
            settings["security.protocol"] = self.protocol
        if self.tls is not None and self.tls.ca_file:
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.certificates"] = _text_of(self.tls.ca_file)
        if self.tls is not None and self.tls.certificate_file:
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.certificate.chain"] = _text_of(self.tls.certificate_file)
            settings["ssl.keystore.key"] = _text_of(self.tls.key_file)
        if self.login is not None:
            settings["sasl.mechanism"] = self.login.mechanism
            settings["sasl.jaas.config"] = _jaas(self.login)
        return settings


def _text_of(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


def _jaas(login: Login) -> str:
    user, password = (_quoted(text) for text in (login.username, login.password.reveal()))
    return f"{_LOGIN_MODULES[login.mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
