"""The founding of a cluster's log, its names, and its recoveries under another log id."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from stele.domain.base import Command, Fact

NO_LOG: Final = bytes(16)
"""The log id before a log is founded."""


class ClusterCreated(Fact, frozen=True):
    """The first epoch of a log. It names the cluster and the log.

    ``log_id`` has 32 hex digits and is ordered by time. ``topic_id`` is the brokers' id of the
    topic at that time, empty if unknown.
    """

    cluster: str
    cluster_id: str
    partitioner: str
    log_id: str = ""
    topic_id: str = ""


class LogRecovered(Fact, frozen=True):
    """The first epoch of a recovered log.

    It continues after the last remaining epoch of another log.

    ``state_id`` is that of ``last_epoch``. Ids have 32 hex digits. ``topic_id`` is the brokers' id
    of the new log's topic. ``known_epoch`` is the newest epoch of the old log that any process
    reported. It equals ``last_epoch`` if no epoch is known to be lost.

    Topology versions of the new log are greater than ``version_floor``, so that no version has two
    meanings. Lost epochs had versions too, and data ids, tokens and requests with these may still
    exist.
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
    """Create the first epoch of a log.

    ``cluster_id`` is '<name>/<uuid>'. If it is empty, the metadata-log that takes the command
    creates it. ``log_id``, of 32 hex digits, and ``topic_id``, the brokers' id of the topic, always
    come from that metadata-log. It replaces the values of the command.

    ``enable_features`` come from it as well. They are the features of its build, so a new cluster
    has all features of its processes. A cluster that begins with a dump has the features of the
    dump.
    """

    cluster_id: str = ""
    log_id: str = ""
    topic_id: str = ""
    begin_frozen: bool = False
    """If true, the log takes only the command with its first state (``LoadState``)."""
    enable_features: tuple[str, ...] = ()


class Noop(Command, frozen=True, tag="noop"):
    """Change nothing and take an epoch (docs/design.md, rule 10).

    It is the barrier of a linearizable read.
    """

    of_services: ClassVar = True


class Incarnation(msgspec.Struct, frozen=True):
    """An earlier incarnation of the log.

    The history still has the epochs of ``log_id`` up to ``last_epoch``.

    The fields are those of ``LogRecovered``. ``log_id`` and ``topic_id`` are those of the old log.
    """

    log_id: str
    topic_id: str
    last_epoch: int
    state_id: str
    known_epoch: int
    version_floor: int


class ClusterImage(msgspec.Struct, frozen=True):
    """The cluster's name and the incarnations of its log.

    ``log_id`` is the present one, in 16 bytes. ``incarnations`` are the earlier ones, the oldest
    first.
    """

    name: str = ""
    cluster_id: str = ""
    partitioner: str = ""
    log_id: bytes = NO_LOG
    topic_id: str = ""
    incarnations: tuple[Incarnation, ...] = ()

    @property
    def version_floor(self) -> int:
        """Lower bound of topology versions: every new version is greater than this."""
        return self.incarnations[-1].version_floor if self.incarnations else 0

    @property
    def log_id_hex(self) -> str:
        """The log's id as 32 hex digits; empty before the founding."""
        return "" if self.log_id == NO_LOG else self.log_id.hex()


# The relation of an epoch of any log to a recovered log: contained in its history, or lost.


class EpochStatus(StrEnum):
    """The status of an epoch of some log, as seen from the present log."""

    HERE = "here"
    """The epoch is of the present log, which alone can tell whether it has that epoch."""
    KEPT = "kept"
    """The epoch is of an earlier incarnation of this log, within its remaining epochs."""
    LOST = "lost"
    """The epoch is of an earlier incarnation of this log, after its remaining epochs."""
    OTHER = "other"
    """The epoch is of a history that does not lead to the present log."""


def incarnation(image: ClusterImage, log_id: str) -> Incarnation | None:
    """Return the earlier incarnation with this log id (32 hex digits), or None."""
    return next((before for before in image.incarnations if before.log_id == log_id), None)


def epoch_status(image: ClusterImage, log_id: str, epoch: int, state_id: str = "") -> EpochStatus:
    """Return the status of ``epoch`` of ``log_id`` in the image's history; ids have 32 hex digits.

    The state id is compared where the image has that of the epoch: at the end of each incarnation.
    Epoch 0 is the beginning, which all logs share.
    """
    if log_id == image.log_id.hex():
        return EpochStatus.HERE
    before = incarnation(image, log_id)
    if before is None:
        return EpochStatus.OTHER
    if epoch > before.last_epoch:
        return EpochStatus.LOST
    # Another id at a known epoch proves another history.
    known = {each.last_epoch: each.state_id for each in image.incarnations}
    if state_id and known.get(epoch, state_id) != state_id:
        return EpochStatus.OTHER
    return EpochStatus.KEPT
