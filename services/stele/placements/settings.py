"""What can be set, with the reason for each default."""

from pathlib import Path

from pydantic import Field

from stele.placements.job import JobOptions
from stele.placements.session import default_jars
from stele.runtime.settings import ServiceSettings


class PlacementsSettings(ServiceSettings):
    """The common settings, and those of the Spark job."""

    data_dir: Path = Field(
        default=Path(".stele/placements"), description="Folder of all that this service keeps."
    )
    delta_dir: Path | None = Field(
        default=None, description="Folder of the Delta tables; default: delta in the data folder."
    )
    clusters_pattern: str = Field(
        default="",
        description="Regular expression of the clusters of a fleet; empty: STELE_CLUSTER alone.",
    )
    spark_jars: Path = Field(
        default_factory=default_jars, description="Folder that holds the connectors' jars."
    )
    spark_master: str = Field(
        default="local[2]", description="Spark's master; clusters are judged in parallel."
    )
    spark_driver_memory: str = Field(
        default="768m",
        pattern=r"^[0-9]+[mg]$",
        description="Heap of the driver; in local mode it holds a batch of records too.",
    )
    trigger_interval_ms: int = Field(
        default=500,
        ge=50,
        description="Least time between the starts of two batches; milliseconds.",
    )
    max_offsets_per_trigger: int = Field(
        default=5000, ge=1, description="Most records in a batch: bounds memory when catching up."
    )

    def job_options(self) -> JobOptions:
        return JobOptions(
            bootstrap=self.kafka_bootstrap,
            cluster=self.cluster,
            pattern=self.clusters_pattern,
            delta_dir=(self.delta_dir or self.data_dir / "delta").resolve(),
            trigger_ms=self.trigger_interval_ms,
            max_offsets=self.max_offsets_per_trigger,
        )
