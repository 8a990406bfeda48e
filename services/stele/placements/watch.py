"""Looks at the brokers: does a topic still continue what was read of it? Spark itself only goes on.

A topic that was deleted, made anew, truncated past the reader or has lost its end stops its cluster alone.
"""

import re
import threading
from typing import Final

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from stele.log.admin import answer_of
from stele.log.brokers import Brokers, Settings
from stele.log.chain import digest_of
from stele.log.ends import resolve
from stele.log.flows import flow_topic
from stele.log.kafka import is_gone
from stele.log.refusals import Refusals
from stele.placements.chain import Head

TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 5.0
CLUSTER_NAME: Final = "[A-Za-z0-9_-]{1,64}"
"""As the settings of every service have it."""
_LATEST: Final = -1
"""As Spark writes the end of a partition."""


class TopicState(msgspec.Struct, frozen=True):
    """A cluster's topic: its oldest offset, the offset after its newest, its id.

    Only partition 0 of it is anybody's; somebody may have added others.
    """

    begin: int
    end: int
    topic_id: str
    partitions: int = 1

    def offsets(self, first: int) -> dict[str, int]:
        """For Spark, which wants one for each partition: from ``first`` on, and nothing of the others."""
        return {"0": first, **{str(other): _LATEST for other in range(1, self.partitions)}}


def flow_pattern(cluster: str, pattern: str, flow: str) -> str:
    """Regular expression, for Python and Java, of the whole name of the topics that are read: those of names
    that a cluster can have, whatever else the operator's pattern allows.
    """
    if not pattern:
        return rf"stele\.{re.escape(cluster)}\.{flow}"
    return rf"stele\.(?={CLUSTER_NAME}\.{flow}$)({pattern})\.{flow}"


class TopicWatch:
    """Asks the brokers; every call blocks for some seconds at most."""

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
        """The topics that are there, by cluster. Raises KafkaException, TimeoutError."""
        with self._lock:
            try:
                return self._look()
            except (KafkaException, TimeoutError) as error:
                why = self._refusals.why(error, self._consumer)
                if self._refusals.newest:
                    raise TimeoutError(why) from error
                raise

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

    def continues(self, cluster: str, head: Head, now: TopicState) -> bool:
        """Whether the last winner is where it was read, or was truncated since."""
        anchor = head.anchor
        if anchor is None or not now.begin <= anchor.offset < now.end:
            return True
        value = self._record(cluster, anchor.offset)
        return value is not None and digest_of(value) == anchor.digest

    def _record(self, cluster: str, offset: int) -> bytes | None:
        """The record at an offset; None when there is none any more."""
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
        if error is not None and not is_gone(error):  # so one that may not read it knows nothing
            self._refusals(error)
            raise KafkaException(error)
        return message.value() if error is None and message.offset() == offset else None


def flaw(head: Head, now: TopicState | None, before: TopicState | None) -> str:
    """Why a cluster must not go on from its head, and what to do; empty while it may."""
    if now is None:
        return f"its topic is gone. {_REMEDY}"
    if before is not None and before.topic_id != now.topic_id:
        return f"its topic was made anew ({before.topic_id}, now {now.topic_id}). {_REMEDY}"
    if now.end < head.next_offset:
        return (
            f"its topic ends at {now.end}, and {head.next_offset} records were read: it was made anew, or "
            f"lost its end. {_REMEDY}"
        )
    return ""


def is_behind(head: Head, now: TopicState) -> bool:
    """Records left the topic that the tables do not hold: their cluster goes on with a snapshot."""
    return now.begin > head.next_offset


_REMEDY: Final = (
    "Restore the topic from a copy that has it, or recover the log (stele recover): then the job goes on by "
    "itself. If the cluster is another one now, founded anew or recovered from before what the tables hold, "
    "have tables and topic forget the one before: python -m stele.placements.forget and the cluster's name. "
    "Then start again."
)

ANOTHER: Final = (
    "the record of its last epoch is not where it was read: its topic was made anew, or lost records. "
    f"{_REMEDY}"
)
