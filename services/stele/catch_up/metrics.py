"""Metrics of catch-up."""

from prometheus_client import Counter, Gauge, Histogram

from stele.runtime.answers.catch_up import CheckAnswer
from stele.runtime.metrics import REGISTRY

archived_epoch = Gauge(
    "stele_archived_epoch", "The newest epoch that is on this replica's disk.", registry=REGISTRY
)
snapshot_epoch = Gauge(
    "stele_snapshot_epoch",
    "The epoch of the newest snapshot on this replica's disk.",
    registry=REGISTRY,
)
snapshot_seconds = Histogram(
    "stele_snapshot_seconds", "How long a snapshot took to be written; seconds.", registry=REGISTRY
)
served_bytes = Counter(
    "stele_catch_up_served_bytes", "Bytes of records that were given to others.", registry=REGISTRY
)
store_epoch = Gauge(
    "stele_archive_store_epoch",
    "Up to this epoch the store has what this replica has.",
    registry=REGISTRY,
)
store_snapshot_epoch = Gauge(
    "stele_archive_store_snapshot_epoch",
    "The epoch of the newest snapshot in the store.",
    registry=REGISTRY,
)
store_failures = Counter(
    "stele_archive_store_failures",
    "How often the store was away or refused; it is tried again.",
    registry=REGISTRY,
)
store_put_bytes = Counter(
    "stele_archive_store_put_bytes", "Bytes that were put into the store.", registry=REGISTRY
)
trimmed_epochs = Counter(
    "stele_archive_trimmed_epochs",
    "Epochs that were deleted from this replica's archive by archive_keep_days and archive_keep_epochs.",
    registry=REGISTRY,
)
divergences = Counter(
    "stele_archive_divergences",
    "Number of times this replica's snapshot differed from the members', so that it started again empty.",
    registry=REGISTRY,
)
checked_seconds = Gauge(
    "stele_archive_checked_seconds",
    "End of the newest complete check of the archive; seconds since 1970, 0: never.",
    registry=REGISTRY,
)
flaws = Gauge(
    "stele_archive_flaws",
    "Faults found by the newest complete check of the archive.",
    registry=REGISTRY,
)


def set_check(answer: CheckAnswer) -> None:
    """Set the metrics of a check."""
    if answer.verdict is not None:
        checked_seconds.set(answer.ended_ms / 1000)
        flaws.set(len(answer.verdict.flaws))
