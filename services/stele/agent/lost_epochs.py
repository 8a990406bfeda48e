"""Whether a data directory may follow a log: it is bound to one, which may have been recovered since.

Epochs that this node acted upon may be gone then: it may hold data that the cluster does not know of, and lack
what it moved away by them. So it serves nothing until an operator accepts the loss by the old log's id, which
is noted on the disk.
"""

from typing import Final

import msgspec

from stele.agent.identity import AcceptedLoss, Identity
from stele.domain.cluster.lineage import Standing, incarnation, standing
from stele.domain.image import Image

SETTING: Final = "STELE_ACCEPT_LOST_EPOCHS"


class Binding(msgspec.Struct, frozen=True):
    """``refused`` says why the node may not follow the log; ``loss`` is what it accepts by following it. A log
    that ``is_older`` than the node's may go on as that one further on.
    """

    refused: str = ""
    loss: AcceptedLoss | None = None
    is_older: bool = False


FREE: Final = Binding()


def binding(identity: Identity, image: Image, accept: str) -> Binding:
    """How a directory is bound to the image's log. ``accept`` is the id of the log whose loss is accepted."""
    if identity.cluster_id and identity.cluster_id != image.cluster_id:
        begun = image.overrides.begun_with
        if begun is None or begun.of_cluster_id != identity.cluster_id:
            return Binding(_other("cluster id", identity.cluster_id, image.cluster_id))
        return _bound_to_another(identity, image, accept)
    if not identity.log_id:
        return FREE
    told = identity.acknowledged
    stands = standing(image.founding, identity.log_id, told.epoch, told.state_id)
    if stands is Standing.HERE and accept == identity.log_id:
        return Binding(
            f"{SETTING}={accept} names the log that this node follows; what it lost can be accepted once it was"
            " recovered as another one. Start the node without it; if it says then that the log has lost"
            " winners, `stele recover --force` first"
        )
    # An accepted epoch was compared with no archive, and a log that was recovered by force may have another one
    # of its number.
    is_here = stands is Standing.HERE or (stands is Standing.KEPT and accept != identity.log_id)
    return FREE if is_here else _bound_to_another(identity, image, accept)


def _bound_to_another(identity: Identity, image: Image, accept: str) -> Binding:
    now, told = image.log_id.hex(), identity.acknowledged
    if now < identity.log_id:
        return Binding(_other("log", identity.log_id, now), is_older=True)
    before = incarnation(image.founding, identity.log_id)
    last_epoch = 0 if before is None else before.last_epoch
    if accept != identity.log_id:
        return Binding(_lost(identity, now, last_epoch))
    kept_epoch = max(0, min(last_epoch, told.epoch - 1))
    return Binding(loss=AcceptedLoss(identity.log_id, told.epoch, kept_epoch, now))


def other_history(identity: Identity, why: str) -> str:
    """For a node whose log turns out to be another one before anything of it was read."""
    return (
        f"{why} Give the node the log that it belongs to. If it was recovered without that epoch, accept the"
        f" loss: start the node with {SETTING}={identity.log_id}, and then repair what it holds"
    )


def _lost(identity: Identity, now: str, last_epoch: int) -> str:
    told = identity.acknowledged
    if last_epoch:
        what = f"was recovered after epoch {last_epoch} as log {now}"
        lost = (
            f"epochs {last_epoch + 1} to {told.epoch} are lost"
            if told.epoch > last_epoch
            else f"its epoch {told.epoch} is another one there"
        )
    else:
        what, lost = f"does not lead to this log, {now}", "what it acted upon there may be lost"
    return (
        f"this node acknowledged epoch {told.epoch} (version {told.version}, fence {told.fence_version}) of"
        f" log {identity.log_id}, which {what}: {lost}. It may hold data that the cluster does not know of, and"
        " lack what it moved away. Give it the log that it belongs to, or an empty folder and a new name; or"
        f" accept the loss: start it with {SETTING}={identity.log_id}, and then repair what it holds"
    )


def _other(what: str, mine: str, theirs: str) -> str:
    return (
        f"the data is of {what} {mine}; this log is of {what} {theirs}: give the node the log that it belongs"
        " to, or an empty folder and a new name"
    )
