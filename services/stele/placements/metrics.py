"""What the service tells Prometheus."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stele.placements.job import Job
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


class Clusters(Collector):
    """Numbers of each cluster, computed at each scrape: a fleet has thousands, a batch changes few."""

    _TEXTS: Final = {
        "epoch": "Last epoch that is materialized.",
        "strays": "Records of other logs that were skipped in a cluster's topic.",
        "lag_records": "Records at the end of a topic of epochs that were not judged yet, by the last look.",
        "lag_epochs": "Epochs in the table events that are not in the table placements yet.",
        "summaries_stopped": "1 for a cluster whose summaries are not made: /healthz says why, and what to do.",
        "topics_stopped": "1 for a cluster whose topic placements or schema is not written: /healthz says why.",
        "unreadable_reports": "Records of a cluster's topic of reports that could not be read.",
    }

    job: Job | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        numbers = {} if self.job is None else _numbers(self.job)
        for name, text in self._TEXTS.items():
            family = GaugeMetricFamily(f"stele_placements_{name}", text, labels=["cluster"])
            for cluster, number in numbers.get(name, {}).items():
                family.add_metric([cluster], number)
            yield family


def _numbers(job: Job) -> dict[str, dict[str, int]]:
    lags, no_reason = job.lags, dict.fromkeys(job.reached, 0)
    return {
        "epoch": {cluster: reached.epoch for cluster, reached in job.reached.items()},
        "strays": job.strays,
        "lag_records": {cluster: lag.records for cluster, lag in lags.items()},
        "lag_epochs": {cluster: lag.epochs for cluster, lag in lags.items()},
        "summaries_stopped": no_reason | dict.fromkeys(job.summaries_stopped, 1),
        "topics_stopped": no_reason | dict.fromkeys(job.topics_stopped, 1),
        "unreadable_reports": job.unreadable,
    }


CLUSTERS: Final = Clusters()
REGISTRY.register(CLUSTERS)
