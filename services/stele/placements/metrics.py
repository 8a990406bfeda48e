"""What the service tells Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stele.placements.derived_tables import Reached
from stele.placements.job import Lag
from stele.runtime.metrics import REGISTRY

batch_seconds = Histogram(
    "stele_placements_batch_seconds",
    "Time by part: events (judge and commit), batch, topic, tables, summaries, reports, movements, look.",
    ["part"],
    buckets=(0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64),
    registry=REGISTRY,
)
restarts = Counter(
    "stele_placements_restarts",
    "Restarts of the query from where the tables stand.",
    registry=REGISTRY,
)
stopped = Gauge(
    "stele_placements_stopped",
    "1 for a stopped cluster: /v1/position has the reason and the remedy.",
    ["cluster"],
    registry=REGISTRY,
)


class Shown(Protocol):
    """What is shown of a job."""

    @property
    def reached(self) -> Mapping[str, Reached]: ...
    @property
    def strays(self) -> Mapping[str, int]: ...
    @property
    def unreadable(self) -> Mapping[str, int]: ...
    @property
    def summaries_stopped(self) -> Mapping[str, str]: ...
    @property
    def topics_stopped(self) -> Mapping[str, str]: ...
    @property
    def lags(self) -> Mapping[str, Lag]: ...


class Clusters(Collector):
    """Numbers of each cluster, computed at each scrape: a fleet has thousands, a batch changes few.

    The values of the previous job stay until the present job replaces them.
    """

    _TEXTS: Final = {
        "epoch": "Last epoch that is materialized.",
        "strays": "Records of other logs that were skipped in a cluster's topic.",
        "lag_records": "Records at the end of a topic of epochs that were not judged yet, by the last look.",
        "lag_epochs": "Epochs in the table events that are not in the table placements yet.",
        "summaries_stopped": "1 for a cluster whose summaries are not made: /healthz says why, and what to do.",
        "topics_stopped": "1 for a cluster whose topic placements or schema is not written: /healthz says why.",
        "unreadable_reports": "Records of a cluster's topic of reports that could not be read.",
    }

    def __init__(self) -> None:
        self.job: Shown | None = None
        self._told: dict[str, dict[str, int]] = {name: {} for name in self._TEXTS}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if self.job is not None:
            for name in ("summaries_stopped", "topics_stopped"):
                self._told[name].update(dict.fromkeys(self._told["epoch"], 0))
            for name, numbers in _numbers(self.job).items():
                self._told[name].update(numbers)
        for name, text in self._TEXTS.items():
            family = GaugeMetricFamily(f"stele_placements_{name}", text, labels=["cluster"])
            for cluster, number in self._told[name].items():
                family.add_metric([cluster], number)
            yield family


def _numbers(job: Shown) -> dict[str, dict[str, int]]:
    lags = job.lags
    return {
        "epoch": {cluster: reached.epoch for cluster, reached in job.reached.items()},
        "strays": dict(job.strays),
        "lag_records": {cluster: lag.records for cluster, lag in lags.items()},
        "lag_epochs": {cluster: lag.epochs for cluster, lag in lags.items()},
        "summaries_stopped": dict.fromkeys(job.summaries_stopped, 1),
        "topics_stopped": dict.fromkeys(job.topics_stopped, 1),
        "unreadable_reports": dict(job.unreadable),
    }


CLUSTERS: Final = Clusters()
REGISTRY.register(CLUSTERS)
