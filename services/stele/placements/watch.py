"""Checks at the brokers that a topic still continues what was read of it, which Spark does not
check.

A topic that was deleted, created again, truncated past the reader or has lost its end stops its
cluster alone.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.brokers import Brokers, Settings
from stele.log.chain import digest_of
from stele.log.deliveries import Refusals
from stele.log.ends import resolve
from stele.log.errors import OtherHistoryError
from stele.log.flows import flow_topic
from stele.log.fold import Start
from stele.log.follower import Floor
from stele.log.kafka import answer_of, is_gone
from stele.log.port import Ends
from stele.placements.fold import EventsHead
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import begin

TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 5.0
MOST_LOOKS: Final = 20
LOOK_AGAIN_S: Final = 0.1
CLUSTER_NAME: Final = "[A-Za-z0-9_-]{1,64}"
"""The form of a cluster's name in the settings of every service."""
_LATEST: Final = -1
"""Spark's value for the end of a partition."""


class TopicState(msgspec.Struct, frozen=True):
    """A cluster's topic: its oldest offset, the offset after its newest record, and its id.

    Only partition 0 is used; others may have been added.
    """

    begin: int
    end: int
    topic_id: str
    partitions: int = 1

    def offsets(self, first: int) -> dict[str, int]:
        """Return Spark's offsets, one for each partition: from ``first`` on, and the end for the
        others.
        """
        return {"0": first, **{str(other): _LATEST for other in range(1, self.partitions)}}


def flow_pattern(cluster: str, pattern: str, flow: str) -> str:
    """Return a regular expression, for Python and Java, of the whole names of the topics to read.

    It matches only names that a cluster can have, whatever else the operator's pattern allows.
    """
    if not pattern:
        return rf"stele\.{re.escape(cluster)}\.{flow}"
    return rf"stele\.(?={CLUSTER_NAME}\.{flow}$)({pattern})\.{flow}"


class TopicWatch:
    """Queries the brokers. Every call blocks for some seconds at most."""

    def __init__(
        self, brokers: Brokers, cluster: str, pattern: str = "", flow: str = "epochs"
    ) -> None:
        self.names: frozenset[str] = frozenset()
        """All topics of the brokers, as last seen."""
        self._lock = threading.Lock()
        self._suffix = f".{flow}"
        self._pattern = re.compile(flow_pattern(cluster, pattern, flow))
        self._refusals = Refusals()
        own: Settings = {"log_level": 0, "error_cb": self._refusals}
        self._admin = AdminClient(brokers.client() | own)
        self._consumer = Consumer(
            {
                **brokers.client(),
                **own,
                "group.id": "stele-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def look(self) -> dict[str, TopicState]:
        """Return the existing topics by cluster. Raises KafkaException, TimeoutError."""
        with self._lock:
            try:
                return self._look_again()
            except (KafkaException, TimeoutError) as error:
                why = self._refusals.why(error, self._consumer)
                if self._refusals.newest:
                    raise TimeoutError(why) from error
                raise

    def _look_again(self) -> dict[str, TopicState]:
        """Look until the listed topics exist. One may be deleted after the brokers have listed it."""
        for _ in range(MOST_LOOKS - 1):
            try:
                return self._look()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            time.sleep(LOOK_AGAIN_S)
        return self._look()

    def _look(self) -> dict[str, TopicState]:
        topics = self._consumer.list_topics(timeout=TIMEOUT_S).topics
        self.names = frozenset(topics)
        names = [name for name in sorted(topics) if self._pattern.fullmatch(name)]
        if not names:
            return {}
        begins, ends = (
            resolve(self._consumer, [TopicPartition(n, 0, which) for n in names], TIMEOUT_S)
            for which in (OFFSET_BEGINNING, OFFSET_END)
        )
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
        ids = {name: str(answer_of(future, TIMEOUT_S).topic_id) for name, future in asked.items()}
        return {
            name.removeprefix("stele.").removesuffix(self._suffix): TopicState(
                begin.offset, end.offset, ids[name], len(topics[name].partitions)
            )
            for name, begin, end in zip(names, begins, ends, strict=True)
        }

    def continues(self, cluster: str, head: EventsHead, now: TopicState) -> bool:
        """Return whether the last winner is still at its offset, or was truncated since."""
        anchor = head.anchor
        if anchor is None or not now.begin <= anchor.offset < now.end:
            return True
        value = self._record(cluster, anchor.offset)
        return value is not None and digest_of(value) == anchor.digest

    def _record(self, cluster: str, offset: int) -> bytes | None:
        """Return the record at an offset; None when it no longer exists."""
        where = TopicPartition(flow_topic(cluster, "epochs"), 0, offset)
        with self._lock:
            self._consumer.assign([where])
            try:
                message = self._consumer.poll(READ_TIMEOUT_S)
            finally:
                self._consumer.unassign()
        if message is None:
            raise TimeoutError(f"record {offset} of {where.topic} did not come")
        error = message.error()
        if error is not None and not is_gone(error):  # a missing permission is no proof
            self._refusals(error)
            raise KafkaException(error)
        return message.value() if error is None and message.offset() == offset else None


def flaw(head: EventsHead, now: TopicState | None, before: TopicState | None) -> str:
    """Return why a cluster must not continue from its head, and what to do; empty while it may."""
    if now is None:
        return f"its topic is gone. {_REMEDY}"
    if before is not None and before.topic_id != now.topic_id:
        return f"its topic was recreated ({before.topic_id}, now {now.topic_id}). {_REMEDY}"
    if now.end < head.next_offset:
        return (
            f"its topic ends at {now.end}, and {head.next_offset} records were read: it was recreated, or "
            f"lost its end. {_REMEDY}"
        )
    return ""


def is_behind(head: EventsHead, now: TopicState) -> bool:
    """Return whether records left the topic that the tables lack.

    The cluster then needs a snapshot.
    """
    return now.begin > head.next_offset


_REMEDY: Final = (
    "Restore the topic from a copy that has it, or recover the log (stele recover): then the job continues by "
    "itself. If the cluster is another one now, founded anew or recovered from before what the tables hold, "
    "have tables and topic forget the one before: python -m stele.placements.forget and the cluster's name. "
    "Then start again."
)

ANOTHER: Final = (
    "the record of its last epoch is not where it was read: its topic was recreated, or lost records. "
    f"{_REMEDY}"
)


# The snapshot from which a cluster continues when its topic lost records that the tables lack.


PATIENCE_S: Final = 15.0
"""Timeout of one attempt, in seconds. Other clusters continue until the next one."""
AT_ONCE: Final = 4
"""Clusters whose snapshots are loaded at the same time; limits memory."""
CLUSTER: Final = "{cluster}"
"""Placeholder for the cluster's name in an address, since each cluster of a fleet has its own
replicas.
"""


def addresses_of(urls: Sequence[str], cluster: str) -> tuple[str, ...]:
    return tuple(url.replace(CLUSTER, cluster) for url in urls)


def snapshots(
    urls: Sequence[str], behind: Mapping[str, tuple[EventsHead, TopicState]]
) -> dict[str, Start | str]:
    """Return by cluster where to continue, or why that is unknown and what to do.

    Blocks for some seconds.
    """
    return asyncio.run(_snapshots(urls, behind))


async def _snapshots(
    urls: Sequence[str], behind: Mapping[str, tuple[EventsHead, TopicState]]
) -> dict[str, Start | str]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(cluster: str) -> Start | str:
        async with limit:
            return await snapshot(addresses_of(urls, cluster), cluster, *behind[cluster])

    found = await asyncio.gather(*map(ask, behind))
    return dict(zip(behind, found, strict=True))


async def snapshot(
    urls: Sequence[str], cluster: str, head: EventsHead, topic: TopicState
) -> Start | str:
    """Return a snapshot that includes what the tables hold and that the topic continues; else
    the reason.
    """
    lost = _lost(head, topic)
    if not urls:
        return f"{lost} Set STELE_CATCH_UP_URLS to the addresses of its catch-up."
    floor = Floor(head.epoch, head.state_id, "the table events holds") if head.epoch else None
    catch_up, replicas = CatchUp(urls), ", ".join(urls)
    try:
        async with asyncio.timeout(PATIENCE_S):
            start, _ = await begin(catch_up, cluster, lambda: _ends(topic), floor, decided=False)
    except TimeoutError:
        return f"{lost} None of {replicas} offers a snapshot to continue from: check that catch-up runs."
    except (OtherHistoryError, UnreadableSnapshotError) as error:
        remedy = f" {_forget(cluster)}" if isinstance(error, OtherHistoryError) else ""
        return f"{lost} {error}{remedy}"
    finally:
        await catch_up.close()
    if start.anchor is None:
        return f"{lost} None of {replicas} has a snapshot yet."
    if start.image.epoch < head.epoch:
        return (
            f"the log goes on from epoch {start.image.epoch}, and the tables hold others up to {head.epoch} "
            f"that are not in it. {_forget(cluster)}"
        )
    return start


async def _ends(topic: TopicState) -> Ends:
    return Ends(topic.begin, topic.end)


def _forget(cluster: str) -> str:
    return (
        "If the log is right, remove this cluster from tables and topic (first copy the rows that you need)"
        f": python -m stele.placements.forget {cluster}. Then start again."
    )


def _lost(head: EventsHead, topic: TopicState) -> str:
    if topic.begin > head.next_offset:
        return f"records {head.next_offset} to {topic.begin - 1} left its topic unread."
    return f"its log does not go on from epoch {head.epoch}, which the tables hold."
