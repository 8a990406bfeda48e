"""Looks at the brokers: does a topic still continue what was read of it? Spark itself only goes on.

A topic that was deleted, made anew, truncated past the reader or has lost its end stops its cluster alone.
"""

import re
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

from stele.log.ends import resolve
from stele.log.flows import flow_topic
from stele.placements.chain import FIRST_BYTES, Head, is_record_of

TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 5.0


class TopicState(msgspec.Struct, frozen=True):
    """A cluster's topic of epochs: its oldest offset, the offset after its newest, its id."""

    begin: int
    end: int
    topic_id: str


def epochs_pattern(cluster: str, pattern: str) -> str:
    """Regular expression of the whole name of the topics that are read."""
    return flow_topic(f"({pattern})" if pattern else re.escape(cluster), "epochs").replace(
        "stele.", r"stele\.", 1
    )


class TopicWatch:
    """Asks the brokers; every call blocks for some seconds at most. For one thread at a time."""

    def __init__(self, bootstrap: str, cluster: str, pattern: str = "") -> None:
        self.names: frozenset[str] = frozenset()
        """All topics of the brokers, as last seen."""
        self._pattern = re.compile(epochs_pattern(cluster, pattern))
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "stele-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def look(self) -> dict[str, TopicState]:
        """The topics that are there, by cluster. Raises KafkaException, TimeoutError."""
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
        ids = {name: str(future.result(TIMEOUT_S).topic_id) for name, future in asked.items()}
        return {
            name.removeprefix("stele.").removesuffix(".epochs"): TopicState(
                begin.offset, end.offset, ids[name]
            )
            for name, begin, end in zip(names, begins, ends, strict=True)
        }

    def continues(self, cluster: str, head: Head, now: TopicState, anchor: int | None) -> bool:
        """Whether the record that made the head's state is where it was, or was truncated since."""
        if anchor is None or not now.begin <= anchor < now.end:
            return True
        return is_record_of(head, self._first_bytes(cluster, anchor))

    def _first_bytes(self, cluster: str, offset: int) -> bytes:
        where = TopicPartition(flow_topic(cluster, "epochs"), 0, offset)
        self._consumer.assign([where])
        try:
            message = self._consumer.poll(READ_TIMEOUT_S)
        finally:
            self._consumer.unassign()
        if message is None:
            raise TimeoutError(f"record {offset} of {where.topic} did not come")
        error = message.error()
        if error is not None and error.retriable():
            raise KafkaException(error)
        there = error is None and message.offset() == offset
        return (message.value() or b"")[:FIRST_BYTES] if there else b""


def flaw(head: Head, now: TopicState | None, before: TopicState | None) -> str:
    """Why a cluster must not go on from its head, and what to do; empty while it may."""
    if now is None:
        return f"its topic is gone. Restore it, then start again. {_RECREATED}"
    if before is not None and before.topic_id != now.topic_id:
        return f"its topic was made anew ({before.topic_id}, now {now.topic_id}). {_RECREATED}"
    if now.end < head.next_offset:
        return (
            f"its topic ends at {now.end}, and {head.next_offset} records were read: it was made anew, or "
            f"lost its end. {_RECREATED}"
        )
    if now.begin > head.next_offset:
        return (
            f"records {head.next_offset} to {now.begin - 1} left its topic unread. Restore the topic, or the "
            "table events, then start again."
        )
    return ""


_RECREATED: Final = (
    "If the cluster is a new one, delete its rows from the tables events, placements and placements_past, "
    "and the records of its topic placements, then start again."
)

ANOTHER: Final = (
    f"the record of its newest epoch is another one now: its topic was made anew. {_RECREATED}"
)
