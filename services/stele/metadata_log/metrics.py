"""What metadata-log counts. One set for the process, in its registry."""

from prometheus_client import Counter, Gauge, Histogram

from stele.runtime.metrics import REGISTRY

commits = Counter(
    "stele_log_commits", "Epochs that commands to this process became.", registry=REGISTRY
)
foreign_epochs = Counter(
    "stele_log_foreign_epochs", "Epochs of other writers that were applied.", registry=REGISTRY
)
rejections = Counter(
    "stele_log_rejections", "Commands that were refused, by code.", ["code"], registry=REGISTRY
)
malformed_commands = Counter(
    "stele_log_malformed_commands",
    "Records of the commands topic that are no command.",
    ["answered"],
    registry=REGISTRY,
)
busy = Counter(
    "stele_log_busy", "Commands turned away because too much is in flight.", registry=REGISTRY
)
bugs = Counter(
    "stele_log_bugs", "Commands on which the core broke; each is in the log.", registry=REGISTRY
)
resolved = Counter(
    "stele_log_resolved",
    "NOOPs appended to force the outcome of silent records.",
    registry=REGISTRY,
)
commit_seconds = Histogram(
    "stele_log_commit_seconds",
    "From a command's arrival to its outcome, applied or rejected.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
in_flight = Gauge(
    "stele_log_in_flight", "Records appended and not read back yet.", registry=REGISTRY
)
redecided = Gauge(
    "stele_log_redecided",
    "Records that lost to another writer and were decided again.",
    registry=REGISTRY,
)
losers = Gauge("stele_log_losers", "Records in the log that lost their epoch.", registry=REGISTRY)
strays = Gauge("stele_log_strays", "Records of other logs that were skipped.", registry=REGISTRY)
topic_differences = Gauge(
    "stele_log_topic_differences",
    "Settings of a topic that differ from Stele's requirements, by harm: loss, durability or other.",
    ["topic", "harm"],
    registry=REGISTRY,
)
epoch = Gauge("stele_log_epoch", "The last epoch applied here.", registry=REGISTRY)
lag = Gauge(
    "stele_log_lag_records",
    "Records between this reader and the end of the log.",
    registry=REGISTRY,
)
