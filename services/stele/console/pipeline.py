"""What the tables of the pipeline hold of each cluster, and which are quarantined: pure functions."""

from collections.abc import Mapping
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

PREFIX: Final = "stele_placements_"


class ClusterShown(msgspec.Struct, frozen=True, kw_only=True):
    """``epoch`` is the newest in the tables, ``not_judged`` are records of the topic that no one has read yet,
    ``waiting`` epochs that were read and are not in the tables, ``strays`` skipped records of other logs.
    ``quarantine`` says why nothing goes on, and what to do.
    """

    cluster: str
    epoch: int = 0
    not_judged: int = 0
    waiting: int = 0
    strays: int = 0
    quarantine: str = ""


def clusters_of(metrics: str, stopped: Mapping[str, str]) -> tuple[ClusterShown, ...]:
    """From the answers of ``/metrics`` and ``/healthz``. Raises ValueError."""
    by_name = {
        name: _by_cluster(metrics, PREFIX + name)
        for name in ("epoch", "lag_records", "lag_epochs", "strays")
    }
    clusters = sorted({*stopped, *(each for values in by_name.values() for each in values)})
    return tuple(
        ClusterShown(
            cluster=cluster,
            epoch=by_name["epoch"].get(cluster, 0),
            not_judged=by_name["lag_records"].get(cluster, 0),
            waiting=by_name["lag_epochs"].get(cluster, 0),
            strays=by_name["strays"].get(cluster, 0),
            quarantine=stopped.get(cluster, ""),
        )
        for cluster in clusters
    )


def _by_cluster(metrics: str, name: str) -> dict[str, int]:
    return {
        sample.labels["cluster"]: int(sample.value)
        for family in text_string_to_metric_families(metrics)
        if family.name == name
        for sample in family.samples
        if "cluster" in sample.labels
    }
