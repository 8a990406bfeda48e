"""Replicas whose snapshots are not the members': what such a one has counts for nothing, and it begins anew."""

from typing import Final

from stele.domain.archive.commands import AdmitDivergence
from stele.domain.archive.decide import check_replica, forgotten_snapshots
from stele.domain.archive.facts import ReplicaDiverged
from stele.domain.archive.image import ArchiveImage
from stele.domain.archive.limits import UPKEEP
from stele.domain.archive.majority import diverged
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image

TIMES: Final = 2
"""Who has diverged so often is replaced, as a dead member is: its disk lies, or its build."""


def to_admit(image: Image, replica_id: str) -> int:
    """The newest epoch at which a replica has diverged, and is to say so; 0: there is none."""
    if UPKEEP not in image.features.enabled:
        return 0
    epochs = diverged(image.archive).get(replica_id, ())
    return epochs[-1] if epochs else 0


def is_told(archive: ArchiveImage, replica_id: str, folder_id: str) -> bool:
    """The log says that what the replica has in this folder counts for nothing."""
    last = archive.diverged.get(replica_id)
    return last is not None and last.folder_id == folder_id


def unreliable(archive: ArchiveImage) -> set[str]:
    """Replicas that others are to replace."""
    return {name for name, last in archive.diverged.items() if last.times >= TIMES}


def admit_divergence(context: Context, command: AdmitDivergence) -> Decision:
    """Once for each folder. What it had announced is forgotten with it."""
    archive = context.image.archive
    refused = check_replica(archive, command.replica_id, command.folder_id)
    if refused is not None:
        return refused
    if is_told(archive, command.replica_id, command.folder_id):
        return ()
    if command.epoch not in diverged(archive).get(command.replica_id, ()):
        return Rejection(
            "not_diverged",
            f"The snapshot of epoch {str(command.epoch)[:20]} that '{command.replica_id}' has announced is not"
            " another one than a majority of the members has.",
            "`stele catch-up show` says who has diverged.",
        )
    before = archive.diverged.get(command.replica_id)
    fact = ReplicaDiverged(
        replica_id=command.replica_id,
        epoch=command.epoch,
        folder_id=command.folder_id,
        times=1 if before is None else before.times + 1,
    )
    return fact, *forgotten_snapshots(archive, command.replica_id)
