"""Settings that every service has, read from STELE_* environment variables.

A service adds its own by inheriting, and reads them once with `load_settings`.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import FieldInfo, fields

from stele.log.brokers import Brokers
from stele.runtime.http_tls import AUTHORITIES, check_authorities, server_tls
from stele.runtime.kafka_security import brokers_of

PREFIX: Final = "STELE_"

NEARLY: Final = 0.9
"""How alike a misspelt variable and the one that was meant are, of 1, as where two letters are swapped. No two
variables of ours are that much alike."""

Urls = tuple[Annotated[str, Meta(pattern=r"^https?://\S+$")], ...]
""""http://a:1,http://b:2" in the environment, a tuple in the program."""


class ConfigurationError(Exception):
    """A setting is missing or wrong; the text names the variable and says what it must be."""

    title = "Bad configuration"
    """Stands before the text when the process ends by it. Another try would end the same way."""


def _default_instance_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class KafkaSettings(Struct, frozen=True, kw_only=True, dict=True):
    """How the brokers are reached; immutable."""

    kafka_bootstrap: Annotated[
        str,
        Meta(
            min_length=1, description="Kafka brokers to begin with: host:port, separated by commas."
        ),
    ] = "127.0.0.1:9092"
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="SSL: by TLS; SASL: as a user with a password."),
    ] = "PLAINTEXT"
    kafka_sasl_mechanism: Annotated[
        Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Meta(
            description="How the password is proven. PLAIN sends it as it is, so only with SASL_SSL."
        ),
    ] = ""
    kafka_sasl_username: Annotated[str, Meta(description="Kafka's user of this process.")] = ""
    kafka_sasl_password_file: Annotated[
        str, Meta(description="File that holds the password, in one line and nothing else.")
    ] = ""
    kafka_ssl_ca_file: Annotated[
        str,
        Meta(
            description="File of the authorities, in PEM, of which one has signed the brokers' certificates;"
            " empty: those of the machine."
        ),
    ] = ""
    kafka_ssl_certificate_file: Annotated[
        str,
        Meta(
            description="File of this process's certificate, in PEM, where the brokers ask for one; with those"
            " between it and its authority."
        ),
    ] = ""
    kafka_ssl_key_file: Annotated[
        str,
        Meta(
            description="File of the certificate's key, in PEM: PKCS #8 without a password, as Java wants it."
        ),
    ] = ""

    @cached_property
    def brokers(self) -> Brokers:
        """Made once: what a file holds later counts for the next process. Raises ConfigurationError."""
        try:
            return brokers_of(self)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    def check(self) -> None:
        """Raises ConfigurationError for what does not go together."""
        _ = self.brokers


class ServiceSettings(KafkaSettings, frozen=True, kw_only=True):
    """The common settings; immutable."""

    cluster: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]{1,64}$",
            description="Name of the cluster; part of its topics' names.",
        ),
    ] = "stele"
    instance_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,128}$",
            description="Name of this process, the same after a restart: the cluster knows a service by it, and"
            " so do the brokers.",
        ),
    ] = field(default_factory=_default_instance_id)
    kafka_replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=7,
            description="Copies of each topic; 3 in production, which needs three brokers.",
        ),
    ] = 1
    development: Annotated[
        bool,
        Meta(
            description="The log may be lost, as on a developer's machine: topics with fewer than three copies"
            " are not reported."
        ),
    ] = False
    redis_url: Annotated[
        str,
        Meta(
            description="Redis for fencing tokens and sessions; rebuilt from the log when empty."
            " With Sentinels: redis+sentinel://host:port,host:port/service."
        ),
    ] = "redis://127.0.0.1:6379/0"
    redis_cluster: Annotated[
        bool, Meta(description="Whether STELE_REDIS_URL names a member of a Redis Cluster.")
    ] = False
    http_host: Annotated[str, Meta(description="Address to listen on; 0.0.0.0: on all.")] = (
        "127.0.0.1"
    )
    http_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    ] = 0
    http_tls_certificate_file: Annotated[
        str,
        Meta(
            description="File of the certificate, in PEM, that this process serves HTTPS with; empty: HTTP."
            " With those between it and its authority."
        ),
    ] = ""
    http_tls_key_file: Annotated[
        str,
        Meta(description="File of that certificate's key, in PEM, without a password."),
    ] = ""
    http_callers_file: Annotated[
        str,
        Meta(
            description="File of those who may change something by HTTP, with the hashes of their tokens"
            " (`stele token`); empty: whoever reaches the port. For metadata-log, catch-up and the console."
        ),
    ] = ""
    metadata_log_urls: Annotated[
        Urls, Meta(description="Addresses of metadata-log, separated by commas.")
    ] = ()
    session_guard_urls: Annotated[
        Urls, Meta(description="Addresses of session-guard, separated by commas.")
    ] = ()
    coordinator_urls: Annotated[
        Urls, Meta(description="Addresses of coordinator, separated by commas.")
    ] = ()
    tablet_balancer_urls: Annotated[
        Urls, Meta(description="Addresses of tablet-balancer, separated by commas.")
    ] = ()
    catch_up_urls: Annotated[
        Urls, Meta(description="Addresses of catch-up, separated by commas.")
    ] = ()
    placements_urls: Annotated[
        Urls, Meta(description="Addresses of placements, separated by commas.")
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least severe line that is logged."),
    ] = "info"
    log_json: Annotated[
        bool, Meta(description="One JSON object a line; false: coloured text for people.")
    ] = True
    request_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=300,
            description="A request is answered within this time, with 'unknown' if need be; seconds.",
        ),
    ] = 10.0
    kafka_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=300,
            description="A produce or a metadata call is given up after this time; seconds.",
        ),
    ] = 30.0
    heartbeat_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="A node is called down after this silence; seconds, several intervals.",
        ),
    ] = 5.0

    @cached_property
    def http_tls(self) -> ssl.SSLContext | None:
        """The TLS context of the server, created once; None for plain HTTP. Raises ConfigurationError."""
        try:
            return server_tls(self.http_tls_certificate_file, self.http_tls_key_file)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    def called(self) -> str:
        """Return the name of this process in its log lines."""
        return self.instance_id

    def check(self) -> None:
        super().check()
        _ = self.http_tls


S = TypeVar("S", bound=KafkaSettings)


def load_settings(kind: type[S], environment: Mapping[str, str] = os.environ) -> S:
    """Read the settings from the environment. Raises ConfigurationError with every problem."""
    values, problems = dict[str, Any](), list[str]()
    for setting in fields(kind):
        variable = variable_of(setting.name)
        text = environment.get(variable)
        if text is not None:
            try:
                values[setting.name] = _read(text, setting)
            except ValidationError as error:
                problems.append(f"{variable}={text!r}: {error}. {_meaning(setting)}")
    try:
        if environment.get(AUTHORITIES):
            check_authorities(environment[AUTHORITIES])
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ConfigurationError("; ".join(problems))
    settings = kind(**values)
    settings.check()
    return settings


def misspelt(
    kind: type[KafkaSettings], environment: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield unknown variables with a known one of a similar name.

    Other unknown variables may be meant for other processes that share a file of variables with this
    one.
    """
    known = [variable_of(each.name) for each in fields(kind)]
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in known:
            for meant in get_close_matches(variable, known, 1, NEARLY):
                yield variable, meant


def environment_of(settings: KafkaSettings) -> dict[str, str]:
    """Return the variables with which another process connects to the same brokers."""
    found = {each.name: str(getattr(settings, each.name)) for each in fields(KafkaSettings)}
    return {variable_of(name): text for name, text in found.items() if text}


def variable_of(setting: str) -> str:
    return f"{PREFIX}{setting}".upper()


def _read(text: str, setting: FieldInfo) -> Any:
    """Return the value of a variable, without a slash at the end of addresses. Raises ValidationError."""
    parts = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    value = parts if isinstance(setting.default, tuple) else text
    return convert(value, setting.type, strict=False, dec_hook=_made)


def _meaning(setting: FieldInfo) -> str:
    """Return the description of a setting, with its values if they are a fixed list."""
    kind, meta = get_args(setting.type)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return f"{meta.description} One of: {', '.join(words)}." if words else str(meta.description)


def _made(kind: type, value: Any) -> Any:
    """Convert a text to a type that msgspec does not support, such as a path. Raises ValueError."""
    return kind(value)
