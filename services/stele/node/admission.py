"""How a node becomes known: it asks to join once, and tells later what has changed about it."""

from importlib.metadata import version as installed_version
from typing import Any, Final, Protocol

import msgspec

from stele.domain.commands import AnnounceNode, AnyCommand, Envelope, Join, Outcome, Replace
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.requests.not_taken import NOT_FOUNDED
from stele.log.commander import NotTakenError
from stele.log.follower import LogFollower
from stele.node.identity import Identity
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

SUBMIT_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
NOT_YET: Final = frozenset({NOT_FOUNDED})
"""Reasons why nothing was decided that pass: somebody will found the cluster."""

log = get_logger(__name__)


class Submit(Protocol):
    """``stele.log.commander.Commander``: raises TimeoutError when the outcome is not known, NotTakenError."""

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome: ...


class Advertised(msgspec.Struct, frozen=True):
    """What a node was configured to be, and tells the cluster; its row, once there is one, is what counts."""

    address: str
    dc: str
    rack: str
    num_tokens: int
    replaced_id: str = ""
    """The dead node whose place it is to take; empty: it joins beside the others."""


class JoinRejected(ConfigurationError):
    """The cluster will not have this node; the text says why and what to do."""


async def admit(
    identity: Identity, advertised: Advertised, follower: LogFollower, submit: Submit, stop: Stop
) -> None:
    """Ask to join, or announce what changed; returns once the log has it. Raises JoinRejected.

    Call it when the log has been read to its end and the gate has compared the host ids. Tries again until
    the outcome is known.
    """
    command = _command(identity, advertised, follower.image.node(identity.node_id))
    if command is None:
        return
    joins = not isinstance(command, AnnounceNode)
    envelope = Envelope(
        request_id=identity.join_request_id if joins else new_request_id(),
        command=command,
        actor=f"node {identity.node_id}",
        reason="started with STELE_JOIN=auto" if joins else "restarted",
        origin=advertised.address,
    )
    while not stop.requested:
        try:
            outcome = await submit.submit(envelope, SUBMIT_TIMEOUT_S)
        except TimeoutError as error:
            log.warning("the metadata log has not answered yet", why=str(error))
            continue
        except NotTakenError as error:
            if error.rejection.code not in NOT_YET:
                raise JoinRejected(str(error)) from error
            log.warning("there is nothing to join yet", why=str(error))
            await stop.sleep(RETRY_S)
            continue
        rejection = outcome.rejection
        if rejection is not None:
            raise JoinRejected(f"{rejection.message} {rejection.hint} ({rejection.code})")
        log.info("known to the cluster", epoch=outcome.epoch)
        return


def _command(identity: Identity, advertised: Advertised, known: Node | None) -> AnyCommand | None:
    """None when there is nothing to say: the row is right, or the node has left."""
    features, release = tuple(sorted(KNOWN_FEATURES)), installed_version("stele")
    if known is None:
        who: dict[str, Any] = {
            "node_id": identity.node_id,
            "cluster": identity.cluster,
            "address": advertised.address,
            "dc": advertised.dc,
            "rack": advertised.rack,
            "supported_features": features,
            "release_version": release,
            "host_id": identity.host_id,
        }
        if advertised.replaced_id:
            zero_token = not advertised.num_tokens
            return Replace(replaced_id=advertised.replaced_id, zero_token=zero_token, **who)
        return Join(num_tokens=advertised.num_tokens, **who)
    said = (known.address, known.supported_features, known.release_version)
    if known.state is NodeState.LEFT or said == (advertised.address, features, release):
        return None
    return AnnounceNode(
        node_id=identity.node_id,
        address=advertised.address,
        supported_features=features,
        release_version=release,
        host_id=identity.host_id,
    )
