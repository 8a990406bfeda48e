"""Settings of the connector of change data capture."""

from typing import Annotated

from msgspec import Meta

from stele.runtime.settings import ServiceSettings


class CdcConnectorSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and the form of the topics."""

    cdc_topic_prefix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,128}$",
            description="Begins the names of the topics, before KEYSPACE.TABLE; empty: stele.CLUSTER.cdc.",
        ),
    ] = ""
    cdc_partitions: Annotated[
        int, Meta(ge=1, le=1000, description="Partitions of a new topic; the key selects one.")
    ] = 1
    cdc_record_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=1024**3,
            description="Largest record of a new topic. A table with a larger change is not published further.",
        ),
    ] = 8 * 1024 * 1024
    cdc_poll_s: Annotated[
        float,
        Meta(gt=0, le=60, description="Pause when a table has no more changes yet; seconds."),
    ] = 0.5

    @property
    def topic_prefix(self) -> str:
        return self.cdc_topic_prefix or f"stele.{self.cluster}.cdc."
