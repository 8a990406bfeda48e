"""The first record of a recovered log.

It continues after the last remaining epoch, under a new log id.
"""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cluster.model import NO_LOG, LogRecovered
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.recovery.versions import floor_after
from stele.domain.registry import features_of

COMMAND: Final = "recover"
"""Name of the command in the record. It cannot be sent, because there is no log to decide it."""


class NewLog(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that the pure core must not create: ids of 16 bytes, and the time.

    Each id is greater than all earlier ones of its kind. ``log_id`` must be greater than that of
    any log of this cluster that is known anywhere; ``next_state_id`` makes one from the greatest.
    ``topic_id`` is the brokers' id of the topic that receives the record. ``at_ms`` is in
    milliseconds since 1970.
    """

    log_id: bytes
    state_id: bytes
    topic_id: str
    at_ms: int


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The actor, reason and origin of a recovery, as in every epoch."""

    actor: str
    reason: str
    origin: str = ""


def recovered(image: Image, new: NewLog, why: Why, known_epoch: int = 0) -> Epoch | Rejection:
    """Return the record that continues the log after ``image``, which holds all that remains of it.

    ``known_epoch`` is the newest epoch of the old log that any source reported, or 0.
    """
    if image.log_id == NO_LOG or not image.epoch:
        return Rejection(
            "nothing_to_recover",
            "The remaining data has no epoch of a founded log.",
            "Begin with a snapshot or segments that do, or found a new cluster: `stele found`.",
        )
    for what, given, known in (
        ("log id", new.log_id, image.log_id),
        ("state id", new.state_id, image.state_id),
    ):
        # Ids are ordered by time. Readers recognize only a greater log id as the later log.
        if len(given) != len(known) or given <= known:
            return Rejection(
                "not_later",
                f"The new {what} {given.hex()} is not greater than {known.hex()}.",
                "Make it with the time of now, and from the greatest that is known.",
            )
    known_epoch = max(known_epoch, image.epoch)
    # A log that was recovered before may not have used a version above its floor yet.
    version = max(image.topology.version, image.founding.version_floor)
    lost_epochs = known_epoch - image.epoch  # each made at most one version
    fact = LogRecovered(
        from_log_id=image.log_id.hex(),
        last_epoch=image.epoch,
        state_id=image.state_id.hex(),
        log_id=new.log_id.hex(),
        topic_id=new.topic_id,
        known_epoch=known_epoch,
        version_floor=floor_after(version, new.at_ms, lost_epochs),
    )
    return Epoch(
        prev_state_id=image.state_id,
        state_id=new.state_id,
        log_id=new.log_id,
        witness_state_id=image.state_id,
        epoch=image.epoch + 1,
        witness_epoch=image.epoch,
        request_id="",
        command=COMMAND,
        facts=(fact,),
        actor=why.actor,
        reason=why.reason,
        origin=why.origin,
        at_ms=new.at_ms,
        required_features=features_of((fact,)).required,
    )


def recovery_of(epoch: Epoch) -> LogRecovered | None:
    """Return the recovery that the epoch records, or None.

    A record contains the data of the old log twice: in its fact and in its own fields. If they
    contradict each other, it is no recovery.
    """
    (fact,) = epoch.facts if len(epoch.facts) == 1 else (None,)
    if not isinstance(fact, LogRecovered):
        return None
    said = fact.log_id, fact.state_id, fact.last_epoch + 1
    agrees = said == (epoch.log_id.hex(), epoch.prev_state_id.hex(), epoch.epoch)
    return fact if agrees and fact.log_id > fact.from_log_id else None
