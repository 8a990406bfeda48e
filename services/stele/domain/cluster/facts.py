"""The founding of a cluster's log, its names, and how it went on under another id when it was recovered."""

from typing import ClassVar, Final

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


class LogRecovered(Fact, frozen=True):
    """The first epoch of a recovered log, which goes on where all that is left of another one ends.

    ``state_id`` is that of ``last_epoch``; ids have 32 hex digits; ``topic_id`` is what the brokers call the
    topic of the new log. ``known_epoch`` is the newest epoch of the old log that anybody told of, and
    ``last_epoch`` itself when none is known to be lost. Topology versions of the new log are greater than
    ``version_floor``, so that none stands for two: lost epochs had versions too, of which data ids, tokens and
    requests may be left.
    """

    from_log_id: str
    last_epoch: int
    state_id: str
    log_id: str
    topic_id: str
    known_epoch: int
    version_floor: int


ClusterFact = ClusterCreated | LogRecovered


class FoundCluster(Command, frozen=True, tag="found"):
    """The first epoch of a log.

    ``cluster_id`` is '<name>/<uuid>', made by the metadata log that takes the command where it is empty.
    ``log_id``, 32 hex digits, and ``topic_id``, what the brokers call the topic, always come from that
    metadata log, whatever the command says.
    """

    cluster_id: str = ""
    log_id: str = ""
    topic_id: str = ""
    begin_frozen: bool = False
    """The log takes nothing but the state that it is to begin with (``LoadState``)."""


class Noop(Command, frozen=True, tag="noop"):
    """Changes nothing and takes an epoch: the read barrier of a linearizable read (seed 003)."""

    of_services: ClassVar = True


class Incarnation(msgspec.Struct, frozen=True):
    """What the log was before it was recovered: of ``log_id`` the epochs up to ``last_epoch`` are still here.

    The fields are those of ``LogRecovered``; ``log_id`` and ``topic_id`` are the old log's.
    """

    log_id: str
    topic_id: str
    last_epoch: int
    state_id: str
    known_epoch: int
    version_floor: int


class ClusterImage(msgspec.Struct, frozen=True):
    """``log_id`` has 16 bytes, and is that of now; ``incarnations`` are those before it, the oldest first."""

    name: str = ""
    cluster_id: str = ""
    partitioner: str = ""
    log_id: bytes = NO_LOG
    topic_id: str = ""
    incarnations: tuple[Incarnation, ...] = ()

    @property
    def version_floor(self) -> int:
        """A topology version that is made from now on is greater than this."""
        return self.incarnations[-1].version_floor if self.incarnations else 0
