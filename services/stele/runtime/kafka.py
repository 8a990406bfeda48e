"""The project's topics: names, configurations, and their creation before any consumer subscribes.

A consumer does not notice a topic that is created after it subscribed, hence `ensure_topics` at
every start. It changes nothing when the topics exist.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from stele.log.brokers import Brokers
from stele.log.deliveries import Refusals, note_start_wait
from stele.log.flows import flow_topic
from stele.log.kafka import answer_of
from stele.log.loops import beside
from stele.runtime.logs import get_logger
from stele.runtime.settings import ServiceSettings

# Settings of topics, and their differences from Stele's needs: one reading, one comparison.
#
# ``ensure_topics`` creates topics with the right settings. But they may be changed at any time,
# brokers with ``auto.create.topics.enable`` create missing topics with other settings, and older
# releases created others. Each difference is reported together with its remedy.


COPIES: Final = 3
IN_SYNC: Final = 2
"""A topic that must not be lost has ``COPIES`` copies.

It acknowledges a record once this many have it.
"""
DEVELOPMENT: Final = "STELE_DEVELOPMENT"
ANSWER_S: Final = 5.0
UNLIMITED: Final = "-1"
MIN_IN_SYNC: Final = "min.insync.replicas"

NOT_ALLOWED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Required settings of a topic. ``must_not_be_lost``: its records cannot be sent again."""

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    must_not_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class ActualTopic:
    """Actual settings of a topic.

    ``copies`` are those of the partition that has the fewest. ``config`` is empty when the brokers
    do not let this process read it.
    """

    partitions: int
    copies: int
    config: Mapping[str, str]


class Harm(StrEnum):
    """The consequence of a difference."""

    LOSS = "loss"
    """The topic refuses records, or deletes some that are needed."""
    DURABILITY = "durability"
    """The loss of one broker's disk may lose records that were acknowledged."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs from the spec.

    ``text`` states the difference, its effect and the remedy.

    ``raise_to`` is the needed number of partitions, if more of them do no harm. 0: the difference
    is another one.
    """

    topic: str
    harm: Harm
    text: str
    raise_to: int = 0


def read_topics(
    admin: AdminClient, names: Iterable[str], timeout_s: float = ANSWER_S
) -> dict[str, ActualTopic]:
    """Return the state of the topics that exist. Raises KafkaException, TimeoutError."""
    there = admin.list_topics(timeout=timeout_s).topics
    found = {name: there[name] for name in names if name in there and there[name].partitions}
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in found}
    asked = (
        admin.describe_configs([*resources.values()], request_timeout=timeout_s) if found else {}
    )
    return {
        name: ActualTopic(
            partitions=len(topic.partitions),
            copies=min(len(each.replicas) for each in topic.partitions.values()),
            config=_config_of(asked[resources[name]], timeout_s),
        )
        for name, topic in found.items()
    }


def differences(
    specs: Mapping[str, TopicSpec], states: Mapping[str, ActualTopic], *, development: bool = False
) -> tuple[SettingDifference, ...]:
    """Return the differences of topics from their specs, by topic. Pure.

    A setting that could not be read never differs. In ``development`` too few copies are not
    reported.
    """
    found = list[SettingDifference]()
    for name, spec in specs.items():
        state = states.get(name)
        if state is not None:
            found += _partitions(name, spec, state)
            found += _settings(name, spec, state)
            if spec.must_not_be_lost and not development:
                found += _durability(name, state)
    return tuple(found)


def sentences(found: Iterable[SettingDifference]) -> list[str]:
    """Return the differences as sentences, one for all topics that differ alike."""
    topics = dict[str, list[str]]()
    for each in found:
        topics.setdefault(each.text, []).append(each.topic)
    return [
        f"Topic{'s' if len(names) > 1 else ''} {', '.join(names)}: {text}."
        for text, names in topics.items()
    ]


def _config_of(asked: Future[Mapping[str, ConfigEntry]], timeout_s: float) -> dict[str, str]:
    """Return the settings; empty when the brokers do not let this process read them.

    Raises KafkaException, TimeoutError.
    """
    try:
        entries = answer_of(asked, timeout_s)
    except KafkaException as error:
        if error.args[0].code() in NOT_ALLOWED:
            return {}
        raise
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _partitions(name: str, spec: TopicSpec, state: ActualTopic) -> Iterator[SettingDifference]:
    if state.partitions < spec.partitions:
        text = (
            f"it has {state.partitions} of {spec.partitions} partitions, so processes share its records badly:"
            f" `kafka-topics.sh --alter --topic {name} --partitions {spec.partitions}`"
        )
        yield SettingDifference(name, Harm.OTHER, text, raise_to=spec.partitions)
    elif spec.partitions == 1 < state.partitions:
        text = (
            f"it has {state.partitions} partitions, which keep no order among their records, and needs 1: stop"
            " all processes, delete it if its records are not needed, and let Stele make it again"
        )
        yield SettingDifference(name, Harm.LOSS, text)


def _settings(name: str, spec: TopicSpec, state: ActualTopic) -> Iterator[SettingDifference]:
    for setting, needed in spec.config.items():
        value = state.config.get(setting)
        if value is None or setting == MIN_IN_SYNC or _is_met(setting, value, needed):
            continue
        harm = Harm.OTHER if setting in _HARMLESS else Harm.LOSS
        text = f"with {setting}={value} {_effect(setting, value, needed)}: set it to {needed}"
        yield SettingDifference(name, harm, text)
    in_sync = state.config.get(MIN_IN_SYNC, "")
    if in_sync.isdecimal() and int(in_sync) > state.copies:
        text = (
            f"with {MIN_IN_SYNC}={in_sync} and {_copies(state.copies)} it takes no records: add copies"
            " (`kafka-reassign-partitions.sh`), or set it to a lower number"
        )
        yield SettingDifference(name, Harm.LOSS, text)


def _durability(name: str, state: ActualTopic) -> Iterator[SettingDifference]:
    in_sync = state.config.get(MIN_IN_SYNC, str(IN_SYNC))
    how = list[str]()
    if state.copies < COPIES:
        how.append(f"give it {COPIES} copies on as many brokers (`kafka-reassign-partitions.sh`)")
    if in_sync.isdecimal() and int(in_sync) < IN_SYNC:
        how.append(f"set {MIN_IN_SYNC} to {IN_SYNC}")
    if how:
        text = (
            f"it has {_copies(state.copies)} and {MIN_IN_SYNC}={in_sync}, so the loss of one broker's disk may"
            f" lose acknowledged records: {', then '.join(how)}; or set {DEVELOPMENT}=true if they may be lost"
        )
        yield SettingDifference(name, Harm.DURABILITY, text)


def _copies(count: int) -> str:
    return f"{count} cop{'y' if count == 1 else 'ies'}"


_AT_LEAST: Final = frozenset({"retention.ms", "retention.bytes", "max.message.bytes"})
_AT_MOST: Final = frozenset({"segment.ms", "max.compaction.lag.ms"})
_EFFECTS: Final = {
    "retention.ms": "it deletes records too early",
    "retention.bytes": "it deletes records too early",
    "segment.ms": "old records are deleted late, and processes read more of them at their start",
    "max.compaction.lag.ms": "old records are deleted late, and processes read more of them at their start",
    "max.message.bytes": "it takes no large records",
    "unclean.leader.election.enable": "it may lose records that were acknowledged",
    "message.timestamp.type": "the clocks of its writers decide when records are deleted",
}
"""Effect of each setting that differs. That of ``cleanup.policy`` depends on its values."""
_HARMLESS: Final = _AT_MOST | {"message.timestamp.type"}


def _is_met(setting: str, value: str, needed: str) -> bool:
    if setting == "cleanup.policy":
        return {*value.split(",")} == {*needed.split(",")}
    if value == needed or not (setting in _AT_LEAST or setting in _AT_MOST):
        return value == needed
    if UNLIMITED in (value, needed):
        return value == UNLIMITED and setting in _AT_LEAST
    return int(value) >= int(needed) if setting in _AT_LEAST else int(value) <= int(needed)


def _effect(setting: str, value: str, needed: str) -> str:
    if setting == "cleanup.policy":
        if "compact" not in needed:
            return "it takes no records without keys, which those of the log are"
        if "compact" not in value:
            return "it deletes the newest record of a key that is silent for long"
        return "it keeps records of keys that are gone"
    if needed == UNLIMITED:
        return "it deletes records that may be nowhere else"
    return _EFFECTS[setting]


DEFAULT_DEADLINE_S = 60.0
CALL_TIMEOUT_S = 5.0  # one request to the brokers
STATISTICS_INTERVAL_MS = 50
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
LIST = "list the topics"  # first request: without an answer the address may be wrong

EPOCH_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # the log's rule: a record is at most 8 MiB
ONE_DAY_MS = 24 * 3600 * 1000  # flows: long enough to look back at, nothing depends on it
SEGMENT_MS = 3600 * 1000  # a flow's retention works by whole segments
ACKS_SEGMENT_MS = 600 * 1000  # a node that was away reads at most two of these segments
ONE_WEEK_MS = 7 * ONE_DAY_MS  # a node without load reports for this long is forgotten
LOAD_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # a million tablets of one node
SCHEMA_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # a table of tens of thousands of columns

log = get_logger(__name__)

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
    SCHEMA = "schema"


class TopicsUnavailable(Exception):
    """The topics could not be created, or have no leader in time.

    The text names them and the reason.
    """


def named_specs(cluster: str, replication_factor: int) -> dict[str, TopicSpec]:
    """Return the spec of each topic of the cluster, by its name at the brokers."""
    return {flow_topic(cluster, t): s for t, s in topic_specs(replication_factor).items()}


def topic_specs(replication_factor: int) -> dict[Topic, TopicSpec]:
    """Return the spec of each topic."""
    safe = {
        "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        "unclean.leader.election.enable": "false",
        # Otherwise the writer's clock would decide when records are deleted.
        "message.timestamp.type": "LogAppendTime",
    }
    flow = {
        **safe,
        "cleanup.policy": "delete",
        "retention.ms": str(ONE_DAY_MS),
        "segment.ms": str(SEGMENT_MS),
    }
    # The newest ack of each node is kept forever: by it a node detects that its directory is an
    # older copy. It reads back to that ack, so few records should follow it.
    acks = {
        **safe,
        "cleanup.policy": "compact",
        "segment.ms": str(ACKS_SEGMENT_MS),
        "max.compaction.lag.ms": str(ACKS_SEGMENT_MS),
    }
    # The table of last reports. It is read from its beginning, so records beyond the segment are
    # removed soon.
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
    }
    return {
        Topic.EPOCHS: TopicSpec(1, epochs, must_not_be_lost=True),
        Topic.COMMANDS: TopicSpec(1, flow),
        Topic.OUTCOMES: TopicSpec(1, flow),
        Topic.ORDERS: TopicSpec(1, flow),
        Topic.ACKS: TopicSpec(NODE_FLOW_PARTITIONS, acks, must_not_be_lost=True),
        Topic.REPORTS: TopicSpec(1, flow),
        Topic.LOAD: TopicSpec(NODE_FLOW_PARTITIONS, load),
        Topic.PLACEMENTS: TopicSpec(1, {**safe, "cleanup.policy": "compact"}),
        Topic.SCHEMA: TopicSpec(
            1,
            {
                **safe,
                "cleanup.policy": "compact",
                "max.message.bytes": str(SCHEMA_MAX_MESSAGE_BYTES),
            },
        ),
    }


def ensure_topics(
    brokers: Brokers,
    cluster: str,
    replication_factor: int = 1,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    refusals: Refusals | None = None,
) -> None:
    """Create missing topics and partitions. Return when all have leaders and producers get ids.

    Other differences from the specs remain; metadata-log reports them (``topic_state``). Several
    processes may do this at once. ``refusals`` collects what the brokers refuse. Raises
    TopicsUnavailable.
    """
    asking = _Asking(brokers, deadline_s, refusals or Refusals())
    specs = named_specs(cluster, replication_factor)
    _make_missing(asking, specs, replication_factor)
    lacking = _raise_partitions(asking, specs)
    wanted = {name: lacking.get(name, spec.partitions) for name, spec in specs.items()}
    asking.until(
        "see a leader of every partition", lambda t: _check_leaders(asking.admin, wanted, t)
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
    """Create a topic that the brokers lack.

    Return whether it was missing. Raises TopicsUnavailable.
    """
    spec = topic_specs(replication_factor)[topic]
    name = flow_topic(cluster, topic)
    made = make_named_topic(brokers, name, spec, replication_factor, deadline_s=deadline_s)
    if made:
        ensure_topics(brokers, cluster, replication_factor, deadline_s=deadline_s)
    return made


def make_named_topic(
    brokers: Brokers,
    name: str,
    spec: TopicSpec,
    replication_factor: int = 1,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> bool:
    """Create a topic of this name that the brokers lack.

    Return whether it was missing. Raises TopicsUnavailable.
    """
    asking = _Asking(brokers, deadline_s, Refusals())
    return bool(_make_missing(asking, {name: spec}, replication_factor))


def is_missing(
    brokers: Brokers, cluster: str, topic: Topic, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> bool:
    """Return whether the brokers lack a topic. Raises TopicsUnavailable."""
    asking = _Asking(brokers, deadline_s, Refusals())
    specs = {flow_topic(cluster, topic): topic_specs(1)[topic]}
    return bool(asking.until(LIST, lambda t: _missing(asking.admin, specs, t)))


class _Asking:
    """Repeats requests to the brokers until a deadline."""

    def __init__(self, brokers: Brokers, deadline_s: float, refusals: Refusals) -> None:
        self.refusals = refusals
        self.admin = AdminClient(brokers.client() | {"log_level": 0, "error_cb": refusals})
        self._end_s = time.monotonic() + deadline_s

    def until(self, what: str, attempt: Callable[[float], Sequence[str] | None]) -> Sequence[str]:
        """Repeat an attempt while it raises KafkaException or TimeoutError.

        The attempt gets its timeout in seconds. Raises TopicsUnavailable.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            left_s = self._end_s - time.monotonic()
            try:
                return attempt(max(pause_s, min(CALL_TIMEOUT_S, left_s))) or ()
            except (KafkaException, TimeoutError) as error:
                hint = " Is STELE_KAFKA_BOOTSTRAP right?" if what == LIST else ""
                why = f"Could not {what}: {self.refusals.why(error, self.admin)}.{hint}"
                note_start_wait(why)
                if time.monotonic() + pause_s >= self._end_s:
                    raise TopicsUnavailable(why) from error
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 2)


def _make_missing(
    asking: _Asking, specs: Mapping[str, TopicSpec], replication_factor: int
) -> Sequence[str]:
    """Return the topics that were created here. Raises TopicsUnavailable."""
    missing = asking.until(LIST, lambda t: _missing(asking.admin, specs, t))
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
    """Return the topics that did not exist."""
    created = list[str]()
    for name, made in admin.create_topics(new, operation_timeout=timeout_s).items():
        try:
            answer_of(made, 2 * timeout_s)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # made by another process
                raise
    return created


def _raise_partitions(asking: _Asking, specs: Mapping[str, TopicSpec]) -> dict[str, int]:
    """Add missing partitions.

    Return the partition counts of topics that this process may not change.

    Raises TopicsUnavailable.
    """
    lacking = dict[str, int]()

    def attempt(timeout_s: float) -> None:
        states = read_topics(asking.admin, specs, timeout_s)
        for each in differences(specs, states):
            if not each.raise_to or each.topic in lacking:
                continue
            new = NewPartitions(each.topic, each.raise_to)
            (made,) = asking.admin.create_partitions([new], operation_timeout=timeout_s).values()
            try:
                answer_of(made, 2 * timeout_s)
            except KafkaException as error:
                code = error.args[0].code()
                if code in NOT_ALLOWED:
                    lacking[each.topic] = states[each.topic].partitions
                    log.warning("a topic has too few partitions", topic=each.topic, why=each.text)
                elif code != KafkaError.INVALID_PARTITIONS:  # added by another process
                    raise
            else:
                log.warning("partitions were added", topic=each.topic, partitions=each.raise_to)

    asking.until("give all topics their partitions", attempt)
    return lacking


def _check_leaders(admin: AdminClient, wanted: Mapping[str, int], timeout_s: float) -> None:
    topics = admin.list_topics(timeout=timeout_s).topics
    for name, count in wanted.items():
        partitions = topics[name].partitions if name in topics else {}
        led = sum(1 for p in partitions.values() if p.leader >= 0 and p.error is None)
        if led < count:
            raise KafkaException(
                KafkaError(
                    KafkaError.LEADER_NOT_AVAILABLE,
                    f"{name} has a leader for {led} of {count} partitions",
                )
            )


def _check_producer_ids(brokers: Brokers, refusals: Refusals, timeout_s: float) -> None:
    """Wait for a producer id.

    On a fresh broker the first idempotent producer gets "Coordinator load in progress".

    No record is produced: librdkafka requests an id by itself, and its statistics show the answer.
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


# Wait for the brokers at the start, with a warning in the log.
#
# A stop request interrupts the wait.


SAY_AFTER_S: Final = 1.0
"""Delay of the first warning in seconds. Available brokers answer sooner."""
SAY_AGAIN_S: Final = 10.0


async def wait_for_topics(settings: ServiceSettings) -> None:
    """Create the cluster's missing topics. Waits for the brokers without a time limit."""
    while not await _are_made(settings):
        pass
    note_start_wait("")


async def _are_made(settings: ServiceSettings) -> bool:
    """Return whether the topics are ready within ``DEFAULT_DEADLINE_S``."""
    refusals = Refusals()
    making = beside(
        "brokers",
        lambda: ensure_topics(
            settings.brokers,
            settings.cluster,
            settings.kafka_replication_factor,
            refusals=refusals,
        ),
    )
    patience_s = SAY_AFTER_S
    while not (await asyncio.wait((making,), timeout=patience_s))[0]:
        if not refusals.newest:  # refusals are logged where they occur
            log.warning(
                "Kafka has not answered yet",
                bootstrap=settings.kafka_bootstrap,
                protocol=settings.kafka_security_protocol,
                hint="Start it, or correct STELE_KAFKA_BOOTSTRAP or STELE_KAFKA_SECURITY_PROTOCOL.",
            )
        patience_s = SAY_AGAIN_S
    try:
        making.result()
    except TopicsUnavailable as error:
        log.warning("the topics are not ready", why=str(error))
        return False
    return True
