"""The project's topics: names, configurations, and making them before anybody subscribes.

A consumer does not pick up a topic that is created after it subscribed, hence `ensure_topics`
at every start; it changes nothing when the topics are there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stele.log.admin import answer_of
from stele.log.brokers import Brokers
from stele.log.refusals import Refusals

DEFAULT_DEADLINE_S = 60.0
CALL_TIMEOUT_S = 5.0  # one request to the brokers
STATISTICS_INTERVAL_MS = 50
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0

EPOCH_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # the log's rule: a record is at most 8 MiB
ONE_DAY_MS = 24 * 3600 * 1000  # flows: long enough to look back at, nothing depends on it
SEGMENT_MS = 3600 * 1000  # a flow's retention works by whole segments
ACKS_SEGMENT_MS = 600 * 1000  # who was away reads what has come in two of these at most
ONE_WEEK_MS = 7 * ONE_DAY_MS  # after which a node that reported its load no more is forgotten
LOAD_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # a million tablets of one node

NODE_FLOW_PARTITIONS = 4  # acks and load: keyed by node, so that several guards share the work


class Topic(StrEnum):
    EPOCHS = "epochs"
    COMMANDS = "commands"
    OUTCOMES = "outcomes"
    ORDERS = "orders"
    ACKS = "acks"
    REPORTS = "reports"
    LOAD = "load"
    PLACEMENTS = "placements"


class TopicsUnavailable(Exception):
    """The topics could not be made or have no leader in time; the text says which and why."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


def topic_name(cluster: str, topic: Topic) -> str:
    """`stele.<cluster>.<topic>`"""
    return f"stele.{cluster}.{topic}"


def topic_specs(replication_factor: int) -> dict[Topic, TopicSpec]:
    """How each topic is made."""
    safe = {
        "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        "unclean.leader.election.enable": "false",
    }
    flow = {
        **safe,
        "cleanup.policy": "delete",
        "retention.ms": str(ONE_DAY_MS),
        "segment.ms": str(SEGMENT_MS),
    }
    # The newest of each node is kept for ever: by it a node notices that its directory is an older copy. It
    # reads back to that, so little else is to be between.
    acks = {
        **safe,
        "cleanup.policy": "compact",
        "segment.ms": str(ACKS_SEGMENT_MS),
        "max.compaction.lag.ms": str(ACKS_SEGMENT_MS),
    }
    # The table of last reports: read from its beginning, so what is older than the segment goes soon.
    load = {
        **safe,
        "cleanup.policy": "compact,delete",
        "retention.ms": str(ONE_WEEK_MS),
        "segment.ms": str(SEGMENT_MS),
        "max.compaction.lag.ms": str(SEGMENT_MS),
        "max.message.bytes": str(LOAD_MAX_MESSAGE_BYTES),
    }
    # Never compacted, never expired: records leave only behind snapshots, by DeleteRecords.
    epochs = {
        **safe,
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(EPOCH_MAX_MESSAGE_BYTES),
        "message.timestamp.type": "LogAppendTime",
    }
    return {
        Topic.EPOCHS: TopicSpec(1, epochs),
        Topic.COMMANDS: TopicSpec(1, flow),
        Topic.OUTCOMES: TopicSpec(1, flow),
        Topic.ORDERS: TopicSpec(1, flow),
        Topic.ACKS: TopicSpec(NODE_FLOW_PARTITIONS, acks),
        Topic.REPORTS: TopicSpec(1, flow),
        Topic.LOAD: TopicSpec(NODE_FLOW_PARTITIONS, load),
        Topic.PLACEMENTS: TopicSpec(1, {**safe, "cleanup.policy": "compact"}),
    }


def ensure_topics(
    brokers: Brokers,
    cluster: str,
    replication_factor: int = 1,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    refusals: Refusals | None = None,
) -> None:
    """Make the missing topics and return when all have leaders and producers get ids.

    Several processes may do this at once. ``refusals`` shows meanwhile what the brokers refuse. Raises
    TopicsUnavailable.
    """
    asking = _Asking(brokers, deadline_s, refusals or Refusals())
    specs = {topic_name(cluster, t): s for t, s in topic_specs(replication_factor).items()}
    _make_missing(asking, specs, replication_factor)
    asking.until(
        "see a leader of every partition", lambda t: _check_leaders(asking.admin, specs, t)
    )
    asking.until("get a producer id", lambda t: _check_producer_ids(brokers, asking.refusals, t))


def make_topic(
    brokers: Brokers,
    cluster: str,
    topic: Topic,
    replication_factor: int = 1,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> bool:
    """Make a topic that the brokers do not have; whether it was missing. Raises TopicsUnavailable."""
    asking = _Asking(brokers, deadline_s, Refusals())
    spec = topic_specs(replication_factor)[topic]
    made = _make_missing(asking, {topic_name(cluster, topic): spec}, replication_factor)
    if made:
        ensure_topics(brokers, cluster, replication_factor, deadline_s=deadline_s)
    return bool(made)


def is_missing(
    brokers: Brokers, cluster: str, topic: Topic, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> bool:
    """Whether the brokers do not have a topic. Raises TopicsUnavailable."""
    asking = _Asking(brokers, deadline_s, Refusals())
    specs = {topic_name(cluster, topic): topic_specs(1)[topic]}
    return bool(asking.until("list the topics", lambda t: _missing(asking.admin, specs, t)))


class _Asking:
    """Asks the brokers again and again, up to a deadline."""

    def __init__(self, brokers: Brokers, deadline_s: float, refusals: Refusals) -> None:
        self.refusals = refusals
        self.admin = AdminClient(brokers.client() | {"log_level": 0, "error_cb": refusals})
        self._end_s = time.monotonic() + deadline_s

    def until(self, what: str, attempt: Callable[[float], Sequence[str] | None]) -> Sequence[str]:
        """Repeat an attempt while it raises KafkaException; it is given its time-out in seconds."""
        pause_s = FIRST_PAUSE_S
        while True:
            left_s = self._end_s - time.monotonic()
            try:
                return attempt(max(pause_s, min(CALL_TIMEOUT_S, left_s))) or ()
            except KafkaException as error:
                why = self.refusals.why(error, self.admin)
                if time.monotonic() + pause_s >= self._end_s:
                    raise TopicsUnavailable(f"Could not {what}: {why}.") from error
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 2)


def _make_missing(
    asking: _Asking, specs: Mapping[str, TopicSpec], replication_factor: int
) -> Sequence[str]:
    """Those that were made here. Raises TopicsUnavailable."""
    missing = asking.until("list the topics", lambda t: _missing(asking.admin, specs, t))
    new = [
        NewTopic(
            name,
            num_partitions=specs[name].partitions,
            replication_factor=replication_factor,
            config=dict(specs[name].config),
        )
        for name in missing
    ]
    if not new:
        return ()
    return asking.until(f"create {', '.join(missing)}", lambda t: _create(asking.admin, new, t))


def _missing(admin: AdminClient, specs: Mapping[str, TopicSpec], timeout_s: float) -> list[str]:
    there = admin.list_topics(timeout=timeout_s).topics
    return [name for name in specs if name not in there]


def _create(admin: AdminClient, new: list[NewTopic], timeout_s: float) -> list[str]:
    """Those that were not there."""
    created = list[str]()
    for name, made in admin.create_topics(new, operation_timeout=timeout_s).items():
        try:
            answer_of(made, 2 * timeout_s)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another process's work
                raise
    return created


def _check_leaders(admin: AdminClient, specs: Mapping[str, TopicSpec], timeout_s: float) -> None:
    topics = admin.list_topics(timeout=timeout_s).topics
    for name, spec in specs.items():
        partitions = topics[name].partitions if name in topics else {}
        led = sum(1 for p in partitions.values() if p.leader >= 0 and p.error is None)
        if led < spec.partitions:
            raise KafkaException(
                KafkaError(
                    KafkaError.LEADER_NOT_AVAILABLE,
                    f"{name} has a leader for {led} of {spec.partitions} partitions",
                )
            )


def _check_producer_ids(brokers: Brokers, refusals: Refusals, timeout_s: float) -> None:
    """On a fresh broker the first idempotent producer waits for "Coordinator load in progress".

    Nothing is produced: librdkafka asks for an id by itself and its statistics show the answer.
    """
    assigned = False

    def on_statistics(text: str) -> None:
        nonlocal assigned
        assigned = json.loads(text).get("eos", {}).get("idemp_state") == "Assigned"

    producer = Producer(
        {
            **brokers.client(),
            "enable.idempotence": True,
            "statistics.interval.ms": STATISTICS_INTERVAL_MS,
            "stats_cb": on_statistics,
            "error_cb": refusals,
            "log_level": 0,
        }
    )
    end = time.monotonic() + timeout_s
    while not assigned:
        if time.monotonic() >= end:
            raise KafkaException(
                KafkaError(KafkaError.REQUEST_TIMED_OUT, "no producer id from the brokers")
            )
        producer.poll(STATISTICS_INTERVAL_MS / 1000)
