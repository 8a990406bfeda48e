"""How an epoch that somebody knows stands to a log that was recovered: is it in this history, or gone?"""

from enum import StrEnum

from stele.domain.cluster.facts import ClusterImage, Incarnation


class Standing(StrEnum):
    """What became of an epoch of some log, as the log of now tells."""

    HERE = "here"
    """It is of the log of now, which alone can tell whether it has that epoch."""
    KEPT = "kept"
    """It is of a log that this one was recovered from, and in what was left of it."""
    LOST = "lost"
    """It is of a log that this one was recovered from, and comes after what was left of it."""
    OTHER = "other"
    """It is of a history that does not lead here."""


def incarnation(image: ClusterImage, log_id: str) -> Incarnation | None:
    """What the log was under this id (32 hex digits), which is not its present one."""
    return next((before for before in image.incarnations if before.log_id == log_id), None)


def standing(image: ClusterImage, log_id: str, epoch: int, state_id: str = "") -> Standing:
    """How ``epoch`` of ``log_id`` stands to the image's history; ids are 32 hex digits.

    The state id counts where the image knows that of the epoch: at the end of each incarnation. Epoch 0 is
    the beginning, which all share.
    """
    if log_id == image.log_id.hex():
        return Standing.HERE
    before = incarnation(image, log_id)
    if before is None:
        return Standing.OTHER
    if epoch > before.last_epoch:
        return Standing.LOST
    known = {each.last_epoch: each.state_id for each in image.incarnations}
    if state_id and known.get(epoch, state_id) != state_id:
        return Standing.OTHER
    return Standing.KEPT
