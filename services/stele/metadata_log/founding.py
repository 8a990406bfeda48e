"""Founding: its command, and the reasons to refuse it.

An empty topic alone does not mean a new cluster.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from stele.domain.commands import Envelope, FoundCluster, Outcome, Rejection
from stele.domain.image import ZERO_STATE, Image
from stele.domain.requests.ids import named
from stele.domain.requests.not_taken import OLDER_CLUSTER, OTHER_LOG
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.catch_up import CatchUp

WHAT_TO_DO: Final = (
    "`stele recover` continues from a catch-up replica; or look for the right topic, or restore it."
    " For a new cluster use another name, or delete the rest of the old one."
)

OlderCluster = Callable[[MetadataLogSettings], Awaitable[str]]
"""Returns evidence of an older cluster as text; see ``evidence``."""


async def nothing_older(_: MetadataLogSettings) -> str:
    return ""


async def older_in_replicas(catch_up: CatchUp, cluster: str) -> str:
    """Return evidence that a replica holds epochs of this cluster, as text.

    It may have appeared since this process started, as a restored folder. Replicas that do not
    answer, and those of another cluster, do not block founding.
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
    """Return the founding command.

    All instances use one request id, so the cluster is created once.
    """
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
    """Return a rejection when the command names another log, else None."""
    if envelope.log_id in ("", image.log_id.hex()):
        return None
    return Rejection(
        OTHER_LOG,
        f"The command is meant for log {envelope.log_id[:64]}; this is {image.log_id.hex()}."
        " Nothing was decided.",
        "Look at the cluster's state, and send a new command if it is still wanted.",
    )
