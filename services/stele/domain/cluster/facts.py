"""The founding of a cluster's log: its names, once and for ever."""

from typing import Final

import msgspec

from stele.domain.base import Command, Fact

NO_LOG: Final = bytes(16)
"""Log id before a log is founded."""


class ClusterCreated(Fact, frozen=True):
    """The first epoch of a log says which cluster it is of, and which log: 32 hex digits, ordered by time.

    ``topic_id`` is what the brokers called the topic then; empty: not known.
    """

    cluster: str
    cluster_id: str
    partitioner: str
    log_id: str = ""
    topic_id: str = ""


class FoundCluster(Command, frozen=True, tag="found"):
    """The first epoch of a log. What is empty is filled in by the metadata log that takes the command.

    ``cluster_id`` is '<name>/<uuid>', ``log_id`` 32 hex digits; ``topic_id`` is what the brokers call the
    topic.
    """

    cluster_id: str = ""
    log_id: str = ""
    topic_id: str = ""


class Noop(Command, frozen=True, tag="noop"):
    """Changes nothing and takes an epoch: the read barrier of a linearizable read (seed 003)."""


class ClusterImage(msgspec.Struct, frozen=True):
    """``log_id`` has 16 bytes."""

    name: str = ""
    cluster_id: str = ""
    partitioner: str = ""
    log_id: bytes = NO_LOG
    topic_id: str = ""
