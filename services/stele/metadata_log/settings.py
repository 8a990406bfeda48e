"""Settings of metadata-log, beside those of every service."""

from typing import Literal

from pydantic import Field

from stele.runtime.settings import ServiceSettings


class MetadataLogSettings(ServiceSettings):
    """STELE_* variables; immutable."""

    max_in_flight: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        description="Appended records whose outcome is not known yet; beyond that commands get 503.",
    )
    max_in_flight_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        description="The same in bytes of commands; a record has at most 8 MiB.",
    )
    unknown_after_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="A record that was not read back within this time is forced to an outcome by a"
        " NOOP; seconds. An append takes milliseconds, a change of leader a second.",
    )
    found: Literal["no", "auto"] = Field(
        default="no",
        description="auto: found the cluster when the log is empty and nothing tells of an older one; for"
        " trials. no: wait for `stele found`.",
    )
    commands_session_timeout_s: float = Field(
        default=6.0,
        ge=6.0,
        le=300,
        description="Another instance takes the commands topic over when this one is silent for so"
        " long; seconds. Brokers take no less than 6.",
    )
