"""What can be set, with the reason for each default."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from stele.placements.job import JobOptions
from stele.placements.session import LOOPBACK, default_jars
from stele.placements.store import Store
from stele.runtime.settings import ServiceSettings


class PlacementsSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and those of the Spark job."""

    data_dir: Annotated[Path, Meta(description="Folder of all that this service keeps.")] = Path(
        ".stele/placements"
    )
    delta_dir: Annotated[
        Store | None,
        Meta(
            description="Path or s3://BUCKET/PREFIX of the Delta tables; default: delta in the data folder."
        ),
    ] = None
    clusters_pattern: Annotated[
        str,
        Meta(
            description="Regular expression of the clusters of a fleet; empty: STELE_CLUSTER alone."
        ),
    ] = ""
    spark_jars: Annotated[Path, Meta(description="Folder that holds the connectors' jars.")] = (
        field(default_factory=default_jars)
    )
    spark_master: Annotated[
        str, Meta(description="Spark's master; clusters are judged in parallel.")
    ] = "local[2]"
    spark_driver_host: Annotated[
        str,
        Meta(
            description="Where executors on other machines reach this process; an address of this machine."
        ),
    ] = LOOPBACK
    spark_driver_memory: Annotated[
        str,
        Meta(
            pattern=r"^[0-9]+[mg]$",
            description="Heap of the driver; in local mode it holds a batch of records too.",
        ),
    ] = "768m"
    trigger_interval_ms: Annotated[
        int, Meta(ge=50, description="Least time between the starts of two batches; milliseconds.")
    ] = 200
    max_offsets_per_trigger: Annotated[
        int, Meta(ge=1, description="Most records in a batch: bounds memory when catching up.")
    ] = 5000

    placement_schema_ids: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{1,10}=[0-9a-f]{16}(,[0-9]{1,10}=[0-9a-f]{16})*)?$",
            description="The topic placements in Confluent's framing: by a registry's id the fingerprint of the"
            " schema, of PlacementRow and of PlacementsMarker; empty: in single-object encoding.",
        ),
    ] = ""
    movements: Annotated[
        bool,
        Meta(
            description="Whether reports of streams are read too, and the table movements is written."
        ),
    ] = True

    def store(self) -> Store:
        """Where the tables are."""
        return self.delta_dir or Store(self.data_dir / "delta")

    def job_options(self) -> JobOptions:
        return JobOptions(
            brokers=self.brokers,
            cluster=self.cluster,
            pattern=self.clusters_pattern,
            delta_dir=str(self.store()),
            catch_up_urls=self.catch_up_urls,
            trigger_ms=self.trigger_interval_ms,
            max_offsets=self.max_offsets_per_trigger,
            schema_ids=self.placement_schema_ids,
            movements=self.movements,
        )


class SqlServerSettings(PlacementsSettings, frozen=True, kw_only=True):
    """Those of the SQL server; of the job's it reads where the tables are, and what Spark is started with."""

    sql_host: Annotated[
        str, Meta(description="Address to take SQL clients on; 0.0.0.0 in a container.")
    ] = LOOPBACK
    sql_port: Annotated[
        int, Meta(ge=1, le=65535, description="Port for them; that of every HiveServer2.")
    ] = 10000
