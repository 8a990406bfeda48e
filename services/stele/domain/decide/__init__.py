"""``decide(image, envelope, at_ms)``: the facts that a command makes true, or why it is refused.

One function for each command; nothing is written here, and the same input gives the same answer
everywhere. ``at_ms`` is the writer's clock and goes only into fields that are shown to people.
"""

from collections.abc import Callable
from typing import Any, Final

from stele.domain import commands
from stele.domain.commands import (
    MAX_TEXT_CHARS,
    AnyCommand,
    Envelope,
    Rejection,
    command_name,
)
from stele.domain.decide import cluster, operation, requests, schema
from stele.domain.decide.context import Context, Decision
from stele.domain.image import Image

_DECIDE: Final[dict[type, Callable[[Context, Any], Decision]]] = {
    commands.CreateCluster: cluster.create_cluster,
    commands.Noop: cluster.noop,
    commands.EnableFeatures: cluster.enable_features,
    commands.SetSetting: cluster.set_setting,
    commands.ClaimCoordinator: cluster.claim_coordinator,
    commands.Join: requests.join,
    commands.AnnounceNode: requests.announce_node,
    commands.Leave: requests.leave,
    commands.Cancel: requests.cancel,
    commands.CreateKeyspace: schema.create_keyspace,
    commands.DropKeyspace: schema.drop_keyspace,
    commands.StartRequest: operation.start_request,
    commands.RejectRequest: operation.reject_request,
    commands.Advance: operation.advance,
    commands.AdvanceFence: operation.advance_fence,
    commands.Rollback: operation.rollback,
    commands.FinishCleanup: operation.finish_cleanup,
}


def decide(image: Image, envelope: Envelope, at_ms: int) -> Decision:
    """Facts for the epoch after ``image``, or a rejection with a code, a sentence and a hint."""
    refused = _check_envelope(image, envelope)
    if refused is not None:
        return refused
    command: AnyCommand = envelope.command
    return _DECIDE[type(command)](Context(image, envelope, at_ms), command)


def _check_envelope(image: Image, envelope: Envelope) -> Rejection | None:
    for name in ("actor", "reason", "origin"):
        if len(getattr(envelope, name)) > MAX_TEXT_CHARS:
            return Rejection(
                "text_too_long",
                f"'{name}' has more than {MAX_TEXT_CHARS} characters.",
                "Shorten it; put long texts where you can link to them.",
            )
    if not image.cluster and not isinstance(envelope.command, commands.CreateCluster):
        return Rejection(
            "no_cluster",
            f"The log is empty, so '{command_name(envelope.command)}' has nothing to act on.",
            "The metadata log creates the cluster when it starts: try again.",
        )
    return None
