"""Processes by their answers to health queries, and the clusters in Spark's tables: pure functions."""

from collections.abc import Mapping
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

PREFIX: Final = "stele_placements_"


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster in the tables of the placements service.

    ``epoch`` is the newest in the tables. ``not_judged`` counts records of the topic that were not
    read yet. ``waiting`` counts epochs that were read but are not in the tables. ``strays`` counts
    skipped records of other logs. ``quarantine`` states why the cluster is stopped, and what to do.
    """

    cluster: str
    epoch: int = 0
    not_judged: int = 0
    waiting: int = 0
    strays: int = 0
    quarantine: str = ""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A process by its health answer. ``lag`` counts epochs behind the console's newest."""

    service: str
    url: str
    up: bool
    ok: bool
    epoch: int = 0
    lag: int | None = None
    reason: str = ""
    answered_ms: float | None = None
    clusters: tuple[ClusterStatus, ...] = ()
    """Clusters in the tables of the placements service; empty for others."""


def clusters_of(metrics: str, stopped: Mapping[str, str]) -> tuple[ClusterStatus, ...]:
    """Return the clusters from the answers of ``/metrics`` and ``/healthz``. Raises ValueError."""
    by_name = {
        name: _by_cluster(metrics, PREFIX + name)
        for name in ("epoch", "lag_records", "lag_epochs", "strays")
    }
    clusters = sorted({*stopped, *(each for values in by_name.values() for each in values)})
    return tuple(
        ClusterStatus(
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
