"""Settings that every service has, read from STELE_* environment variables.

A service adds its own by inheriting, and reads them once with `load_settings`.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class ConfigurationError(Exception):
    """A setting is missing or wrong; the text names the variable and says what it must be."""

    title = "Bad configuration"
    """Stands before the text when the process ends by it. Another try would end the same way."""


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


# "http://a:1,http://b:2" in the environment, a tuple in the program.
Urls = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _default_instance_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class ServiceSettings(BaseSettings):
    """The common settings; immutable."""

    model_config = SettingsConfigDict(env_prefix="STELE_", frozen=True, extra="ignore")

    cluster: str = Field(
        default="stele",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the cluster; part of its topics' names.",
    )
    instance_id: str = Field(
        default_factory=_default_instance_id,
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
        description="Name of this process; keeps its consumer group membership over a restart.",
    )
    kafka_bootstrap: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        description="Kafka brokers to begin with: host:port, separated by commas.",
    )
    kafka_replication_factor: int = Field(
        default=1,
        ge=1,
        le=7,
        description="Copies of each topic; 3 in production, which needs three brokers.",
    )
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        description="Redis for fencing tokens and sessions; rebuilt from the log when empty.",
    )
    http_host: str = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 in a container."
    )
    http_port: int = Field(
        default=0, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    metadata_log_urls: Urls = Field(
        default=(), description="Addresses of metadata-log, separated by commas."
    )
    session_guard_urls: Urls = Field(
        default=(), description="Addresses of session-guard, separated by commas."
    )
    coordinator_urls: Urls = Field(
        default=(), description="Addresses of coordinator, separated by commas."
    )
    tablet_balancer_urls: Urls = Field(
        default=(), description="Addresses of tablet-balancer, separated by commas."
    )
    catch_up_urls: Urls = Field(
        default=(), description="Addresses of catch-up, separated by commas."
    )
    placements_urls: Urls = Field(
        default=(), description="Addresses of placements, separated by commas."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe line that is logged."
    )
    log_json: bool = Field(
        default=True, description="One JSON object a line; false: coloured text for people."
    )
    request_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="A request is answered within this time, with 'unknown' if need be; seconds.",
    )
    kafka_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=300,
        description="A produce or a metadata call is given up after this time; seconds.",
    )
    heartbeat_interval_s: float = Field(
        default=1.0, gt=0, le=60, description="Time between two heartbeats of a node; seconds."
    )
    heartbeat_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="A node is called down after this silence; seconds, several intervals.",
    )


S = TypeVar("S", bound=BaseSettings)


def load_settings(kind: type[S]) -> S:
    """Read the settings from the environment. Raises ConfigurationError with every problem."""
    try:
        return kind()
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix") or ""
        problems = [
            f"{prefix}{'_'.join(str(part) for part in e['loc'])}".upper()
            + f"={e.get('input')!r}: {e['msg']}"
            for e in error.errors(include_url=False)
        ]
        raise ConfigurationError("; ".join(problems)) from error
