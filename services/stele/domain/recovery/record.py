"""The first record of a recovered log: it goes on after the last epoch that is left, under an id of its own."""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cluster.facts import NO_LOG, LogRecovered
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.recovery.versions import floor_after
from stele.domain.registry import required_features

COMMAND: Final = "recover"
"""What the record says it came from. It is no command that anybody could send: there is no log to decide it."""


class NewLog(msgspec.Struct, frozen=True, kw_only=True):
    """What the core may not invent: ids of 16 bytes, each greater than all of its kind before, and the time.

    ``log_id`` must be greater than that of any log of this cluster that is known anywhere; ``next_state_id``
    makes one from the greatest. ``topic_id`` is what the brokers call the topic that the record goes into.
    """

    log_id: bytes
    state_id: bytes
    topic_id: str
    at_ms: int


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Who recovers the log, why, and from where, as in every epoch."""

    actor: str
    reason: str
    origin: str = ""


def recovered(image: Image, new: NewLog, why: Why, known_epoch: int = 0) -> Epoch | Rejection:
    """The record by which the log goes on after ``image``, which holds all that is left of it.

    ``known_epoch`` is the newest epoch of the old log that anybody told of, 0 when nobody told.
    """
    if image.log_id == NO_LOG or not image.epoch:
        return Rejection(
            "nothing_to_recover",
            "What is left holds no epoch of a founded log.",
            "Begin with a snapshot or segments that do, or found a new cluster: `stele found`.",
        )
    for what, given, known in (
        ("log id", new.log_id, image.log_id),
        ("state id", new.state_id, image.state_id),
    ):
        if len(given) != len(known) or given <= known:
            return Rejection(
                "not_later",
                f"The new {what} {given.hex()} is not greater than {known.hex()}.",
                "Make it with the time of now, and from the greatest that is known.",
            )
    known_epoch = max(known_epoch, image.epoch)
    version = max(image.topology.version, image.founding.version_floor)
    lost_epochs = known_epoch - image.epoch  # of which each made one version at most
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
        required_features=required_features((fact,)),
    )


def recovery_of(epoch: Epoch) -> LogRecovered | None:
    """What the epoch says of the log that it goes on from, which it must follow; None when it is no recovery.

    A record says so twice, in its fact and in its own fields; what contradicts itself is no recovery.
    """
    (fact,) = epoch.facts if len(epoch.facts) == 1 else (None,)
    if not isinstance(fact, LogRecovered):
        return None
    said = fact.log_id, fact.state_id, fact.last_epoch + 1
    agrees = said == (epoch.log_id.hex(), epoch.prev_state_id.hex(), epoch.epoch)
    return fact if agrees and fact.log_id > fact.from_log_id else None
