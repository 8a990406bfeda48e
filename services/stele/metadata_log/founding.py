"""Founding: who asks for it, and what it is refused for. An empty topic alone is no new cluster."""

from collections.abc import Awaitable, Callable
from typing import Final

from stele.domain.commands import Envelope, FoundCluster, Outcome, Rejection
from stele.domain.image import ZERO_STATE, Image
from stele.domain.requests.ids import named
from stele.domain.requests.not_taken import OLDER_CLUSTER, OTHER_LOG
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.catch_up import CatchUp

WHAT_TO_DO: Final = (
    "`stele recover` goes on from what a catch-up replica holds; or look for the right topic, or restore it."
    " For a new cluster take another name, or delete what is left of the old one."
)

OlderCluster = Callable[[MetadataLogSettings], Awaitable[str]]
"""What tells of an older cluster, in words; see ``evidence``."""


async def nothing_older(_: MetadataLogSettings) -> str:
    return ""


async def older_in_replicas(catch_up: CatchUp, cluster: str) -> str:
    """What a replica holds of this cluster, in words. It may have come since this process was started, as the
    folder of a backup. One that does not answer is no reason to wait; neither is one of another cluster.
    """
    held = [
        (answer.log_id, answer.epoch, answer.replica_id, url)
        for url, answer in await catch_up.archives()
        if answer.epoch and answer.cluster in ("", cluster)
    ]
    if not held:
        return ""
    log_id, epoch, replica_id, url = max(held)
    return f"catch-up replica {replica_id} ({url}) holds epoch {epoch} of log {log_id}"


def founding(settings: MetadataLogSettings) -> Envelope:
    """All instances use one request id: whichever is first, the cluster is made once."""
    return Envelope(
        request_id=named(f"found-{settings.cluster}"),
        command=FoundCluster(),
        actor=settings.instance_id,
        reason="The log was empty, and STELE_FOUND is auto.",
        origin="metadata-log",
    )


def refused_for(envelope: Envelope, older: str) -> Outcome:
    rejection = Rejection(
        OLDER_CLUSTER,
        f"The log is empty, but {older}: this may be a lost log and no new cluster. Nothing was decided.",
        WHAT_TO_DO,
        {"evidence": older},
    )
    return Outcome(
        request_id=envelope.request_id,
        applied=False,
        epoch=0,
        state_id=ZERO_STATE,
        rejection=rejection,
        taken=False,
    )


def meant_for_another(envelope: Envelope, image: Image) -> Rejection | None:
    """Why a command that names a log is not taken in this one; None when it is meant for it."""
    if envelope.log_id in ("", image.log_id.hex()):
        return None
    return Rejection(
        OTHER_LOG,
        f"The command is meant for log {envelope.log_id[:64]}; this is {image.log_id.hex()}."
        " Nothing was decided.",
        "Look at the cluster's state, and send a new command if it is still wanted.",
    )
