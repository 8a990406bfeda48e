"""A broker that is reached by TLS with a password or a certificate, and that goes by its ACLs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from stele_harness.stack.broker import Broker, BrokerAddress
from stele_harness.stack.ports import LOOPBACK, free_port
from tests.certificates import Authority
from tests.docs.acls_page import kinds
from tests.polling import wait_until

HEAP_MB = 256
WAIT_S = 150.0
ITERATIONS = 4096
"""The least that Kafka takes."""
SUPER_USER = "chief"
"""This user may do everything, by SCRAM and by PLAIN, as may the certificate, and any client without TLS."""
CERTIFICATE = "machine"
USERS = {
    SUPER_USER: "a chief's secret",
    "stele": 'a "stele\'s" \\ secret',
    "app": "an app's secret",
    **{kind: f"a {kind}'s secret" for kind in kinds()},
}
_LISTENERS = ("PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
_MODULES = "org.apache.kafka.common.security"


class Secured:
    """Where it listens, and the files of those who connect, which are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {name: free_port() for name in _LISTENERS}
        at = {name: f"{LOOPBACK}:{port}" for name, port in ports.items()}
        self.plaintext, self.sasl_plaintext = at["PLAINTEXT"], at["SASL_PLAINTEXT"]
        self.sasl_ssl, self.ssl = at["SASL_SSL"], at["SSL"]
        both = [ports.pop("PLAINTEXT"), ports.pop("CONTROLLER")]
        self._broker = _SecuredBroker(folder, BrokerAddress(1, *both, *both), ports)
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """Return a client without TLS and with all permissions."""
        self._admin = self._admin or AdminClient({"bootstrap.servers": self.plaintext})
        return self._admin

    def start(self) -> None:
        self._broker.start()
        self._broker.wait_ready()

    def stop(self) -> None:
        self._broker.stop()

    def allow(self, acls: list[AclBinding]) -> None:
        for made in self.admin.create_acls(acls).values():
            made.result(WAIT_S)
        wait_until(lambda: {*acls} <= self._known_acls(), "the broker to know the permissions")

    def forbid(self, acls: list[AclBinding]) -> None:
        """Revoke a permission."""
        filters = [
            AclBindingFilter(
                acl.restype,
                acl.name,
                acl.resource_pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for acl in acls
        ]
        for gone in self.admin.delete_acls(filters).values():
            gone.result(WAIT_S)
        wait_until(lambda: not {*acls} & self._known_acls(), "the broker to forget the permissions")

    def _known_acls(self) -> set[AclBinding]:
        """Return the permissions that the broker goes by, a moment behind the controller."""
        anyone: Any = None  # which the annotations of the package do not allow for
        every = AclBindingFilter(
            ResourceType.ANY,
            anyone,
            ResourcePatternType.ANY,
            anyone,
            anyone,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return {*self.admin.describe_acls(every).result(WAIT_S)}

    def give_passwords(self, users: Mapping[str, str] = USERS) -> None:
        """Set passwords for SCRAM. Existing connections keep the previous one."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        wanted: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(user, info, password.encode())
            for user, password in users.items()
        ]
        for given in self.admin.alter_user_scram_credentials(wanted).values():
            given.result(WAIT_S)

    def by_password(
        self, user: str = SUPER_USER, mechanism: str = "SCRAM-SHA-512", ca: str = "authority"
    ) -> dict[str, str]:
        """Variables of a process."""
        return {
            "STELE_KAFKA_BOOTSTRAP": self.sasl_ssl,
            "STELE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "STELE_KAFKA_SASL_MECHANISM": mechanism,
            "STELE_KAFKA_SASL_USERNAME": user,
            "STELE_KAFKA_SASL_PASSWORD_FILE": str(self.folder / f"{user}.password"),
            "STELE_KAFKA_SSL_CA_FILE": str(self.folder / f"{ca}.pem"),
        }

    def without_tls(self) -> dict[str, str]:
        """By a password all the same."""
        given = {name: text for name, text in self.by_password().items() if "SSL_CA" not in name}
        return {
            **given,
            "STELE_KAFKA_BOOTSTRAP": self.sasl_plaintext,
            "STELE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        }

    def by_certificate(self) -> dict[str, str]:
        return {
            **self.without_certificate(),
            "STELE_KAFKA_SSL_CERTIFICATE_FILE": str(self.folder / f"{CERTIFICATE}.crt"),
            "STELE_KAFKA_SSL_KEY_FILE": str(self.folder / f"{CERTIFICATE}.key"),
        }

    def without_certificate(self) -> dict[str, str]:
        """Where one is wanted."""
        return {
            "STELE_KAFKA_BOOTSTRAP": self.ssl,
            "STELE_KAFKA_SECURITY_PROTOCOL": "SSL",
            "STELE_KAFKA_SSL_CA_FILE": str(self.folder / "authority.pem"),
        }


class _SecuredBroker(Broker):
    """With listeners and settings beside those that every broker of a stack has."""

    def __init__(self, folder: Path, me: BrokerAddress, listeners: dict[str, int]) -> None:
        super().__init__(folder / "broker", me, (me,), HEAP_MB)
        self._folder = folder
        self._listeners = listeners

    def _write_configuration(self) -> Path:
        path = super()._write_configuration()
        lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
        for name, port in self._listeners.items():
            lines["listeners"] += f",{name}://{LOOPBACK}:{port}"
            lines["advertised.listeners"] += f",{name}://{LOOPBACK}:{port}"
            lines["listener.security.protocol.map"] += f",{name}:{name}"
        users = " ".join(f"user_{user}={_quoted(password)}" for user, password in USERS.items())
        lines |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:ANONYMOUS;User:{SUPER_USER};User:CN={CERTIFICATE}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._folder / "broker.both"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._folder / "authority.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f"{_MODULES}.plain.PlainLoginModule required {users};"
            ),
            **{
                f"listener.name.{name}.scram-sha-512.sasl.jaas.config": (
                    f"{_MODULES}.scram.ScramLoginModule required;"
                )
                for name in ("sasl_ssl", "sasl_plaintext")
            },
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        }
        path.write_text("".join(f"{key}={_line(value)}\n" for key, value in lines.items()))
        return path


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """One broker, whose users have passwords."""
    authority = Authority(folder, "authority")
    Authority(folder, "stranger")
    authority.give(CERTIFICATE)
    certificate, key = authority.give("broker")
    (folder / "broker.both").write_bytes(key.read_bytes() + certificate.read_bytes())
    for user, password in USERS.items():
        (folder / f"{user}.password").write_text(f"{password}\n")
    secured = Secured(folder)
    try:
        secured.start()
        secured.give_passwords()
        yield secured
    finally:
        secured.stop()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _line(text: str) -> str:
    """As a file of Java's properties has it."""
    return text.replace("\\", "\\\\")
