"""What the service tells Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

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
    "1 for a cluster that does not go on: /v1/position says why, and what to do.",
    ["cluster"],
    registry=REGISTRY,
)
epoch_reached = Gauge(
    "stele_placements_epoch", "Last epoch that is materialized.", ["cluster"], registry=REGISTRY
)
strays_skipped = Gauge(
    "stele_placements_strays",
    "Records of other logs that were skipped in a cluster's topic.",
    ["cluster"],
    registry=REGISTRY,
)
lag_records = Gauge(
    "stele_placements_lag_records",
    "Records at the end of a cluster's topic of epochs that were not judged yet, by the last look.",
    ["cluster"],
    registry=REGISTRY,
)
lag_epochs = Gauge(
    "stele_placements_lag_epochs",
    "Epochs in the table events that are not in the table placements yet.",
    ["cluster"],
    registry=REGISTRY,
)
unreadable_reports = Gauge(
    "stele_placements_unreadable_reports",
    "Records of a cluster's topic of reports that could not be read.",
    ["cluster"],
    registry=REGISTRY,
)


def show(job: Job) -> None:
    """Set what is known of each cluster."""
    for cluster, found in job.reached.items():
        epoch_reached.labels(cluster).set(found.epoch)
    for cluster, count in job.strays.items():
        strays_skipped.labels(cluster).set(count)
    for cluster, count in job.unreadable.items():
        unreadable_reports.labels(cluster).set(count)
    for cluster, lag in job.lags.items():
        lag_records.labels(cluster).set(lag.records)
        lag_epochs.labels(cluster).set(lag.epochs)
