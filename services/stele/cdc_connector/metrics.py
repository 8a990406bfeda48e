"""The connector's metrics."""

from typing import Final

from prometheus_client import Counter, Gauge

from stele.runtime.metrics import REGISTRY

published: Final = Counter(
    "stele_cdc_connector_changes",
    "Changes that the brokers have acknowledged, by table.",
    ["table"],
    registry=REGISTRY,
)
lag: Final = Gauge(
    "stele_cdc_connector_lag_seconds",
    "Age of the time up to which a table is published. The confidence window is its least value.",
    ["table"],
    registry=REGISTRY,
)
failures: Final = Counter(
    "stele_cdc_connector_failures",
    "Reads and sends that failed and are repeated, by table.",
    ["table"],
    registry=REGISTRY,
)
