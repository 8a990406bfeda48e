"""Settings of metadata-log, beside those of every service."""

from typing import Annotated, Literal

from msgspec import Meta

from stele.runtime.settings import ServiceSettings


class MetadataLogSettings(ServiceSettings, frozen=True, kw_only=True):
    """STELE_* variables; immutable."""

    max_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Appended records whose outcome is not known yet; beyond that commands get 503.",
        ),
    ] = 10_000
    max_in_flight_bytes: Annotated[
        int,
        Meta(
            ge=16 * 1024 * 1024,
            description="The same in bytes of commands; a record has at most 8 MiB.",
        ),
    ] = 128 * 1024 * 1024
    replicas_patience_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="At the start most catch-up replicas are waited for so long, since what they hold"
            " shows whether the log has lost its end; seconds.",
        ),
    ] = 10.0
    unknown_after_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="A record that was not read back within this time is forced to an outcome by a"
            " NOOP; seconds. An append takes milliseconds, a change of leader a second.",
        ),
    ] = 2.0
    found: Annotated[
        Literal["no", "auto"],
        Meta(
            description="auto: found the cluster when the log is empty and nothing tells of an older one; for"
            " trials. no: wait for `stele found`."
        ),
    ] = "no"
    found_features: Annotated[
        Literal["all", "none"],
        Meta(
            description="Features that a new cluster has from its founding on. all: those of this build. none:"
            " enable them later, where nodes or services are to join that do not support them."
        ),
    ] = "all"
    commands_session_timeout_s: Annotated[
        float,
        Meta(
            ge=6.0,
            le=300,
            description="Another instance takes the commands topic over when this one is silent for so"
            " long; seconds. Brokers take no less than 6.",
        ),
    ] = 6.0
    command_schema_ids: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{1,10}=[0-9a-f]{16}(,[0-9]{1,10}=[0-9a-f]{16})*)?$",
            description="Schemas of commands in Confluent's framing: ID=FINGERPRINT, several separated by"
            " commas. The file names in schemas/history have the fingerprints of Envelope.",
        ),
    ] = ""
