"""What a node counts, beside the metrics of every service."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from stele.runtime.metrics import REGISTRY

requests: Final = Counter(
    "stele_node_requests",
    "Data requests that this node coordinated, by kind and outcome.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
request_seconds: Final = Histogram(
    "stele_node_request_seconds",
    "Time to coordinate a data request.",
    ["kind"],
    # A quorum write of 10 KiB takes 2 ms; the default limit is 5 s.
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
refused: Final = Counter(
    "stele_node_refused_operations",
    "Operations that this node refused as a replica, by reason (stale_version, not_a_replica ...).",
    ["reason"],
    registry=REGISTRY,
)
streamed_bytes: Final = Counter(
    "stele_node_streamed_bytes",
    "Keys and values received by STREAM orders.",
    registry=REGISTRY,
)
expired_changes: Final = Counter(
    "stele_node_expired_changes",
    "Changes that this node removed from change logs because they were too old.",
    registry=REGISTRY,
)
epoch: Final = Gauge("stele_node_epoch", "Epoch that this node has applied.", registry=REGISTRY)
version: Final = Gauge(
    "stele_node_topology_version", "Topology version that this node routes by.", registry=REGISTRY
)
unknown_data: Final = Gauge(
    "stele_node_unknown_data",
    "Tables and keyspaces whose rows the node keeps although the log does not know them.",
    registry=REGISTRY,
)
keys: Final = Gauge(
    "stele_node_keys", "Keys in the store, as of the last look at them.", registry=REGISTRY
)
tablet_bytes: Final = Gauge(
    "stele_node_tablet_bytes",
    "Keys and values in the node's tablets, as of its last report of its load.",
    registry=REGISTRY,
)
tablet_reads: Final = Gauge(
    "stele_node_tablet_reads_per_second",
    "Reads that the node serves as a replica of tablets, smoothed, as of its last report of its load.",
    registry=REGISTRY,
)
tablet_writes: Final = Gauge(
    "stele_node_tablet_writes_per_second",
    "Writes that the node serves as a replica of tablets, smoothed, as of its last report of its load.",
    registry=REGISTRY,
)
measure_seconds: Final = Histogram(
    "stele_node_measure_seconds",
    "Time to measure all tablets of the node, between other scans.",
    # 1 us for each row.
    buckets=(0.001, 0.01, 0.1, 1, 10, 60, 600),
    registry=REGISTRY,
)
load_failures: Final = Counter(
    "stele_node_load_failures",
    "Reports of the node's load that could not be made or sent.",
    registry=REGISTRY,
)
