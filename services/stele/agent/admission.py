"""How a node becomes known: it asks to join once, learns what came of it, tells what has changed since, and
says again what it is where the log says otherwise.
"""

import asyncio
from typing import Any, Final, Protocol

import msgspec

from stele.agent.identity import DataDirectory, Identity
from stele.agent.standing import expelled, join_ended
from stele.domain.commands import AnnounceNode, AnyCommand, Envelope, Join, Outcome, Replace
from stele.domain.commits.restricted import takes_from
from stele.domain.image import NO_LOG, Image
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState
from stele.domain.requests.not_taken import (
    EXPIRED,
    NOT_FOUNDED,
    OTHER_LOG,
    RESTRICTED,
    REUSED,
    horizon_of,
)
from stele.log.commander import NotTakenError
from stele.log.follower import LogFollower
from stele.runtime.announce import Announcer, growing_pauses
from stele.runtime.build import THIS_BUILD
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

SUBMIT_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
LOOK_S: Final = 0.05
NOTE_S: Final = 0.5
"""Between two looks at what the cluster decided of this node since; only logs and notes wait for it."""
RENEWALS: Final = 3
"""So many times an id that is too old is replaced; where new ones are too old as well the clock is wrong."""
NOT_YET: Final = RESTRICTED | {NOT_FOUNDED, OTHER_LOG}
"""Reasons why nothing was decided that pass: somebody will found the cluster, or thaw its log; or this node
will have read the log that its cluster goes on in.
"""

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
    initial_tokens: tuple[int, ...] = ()
    """What it asks for by name; else the cluster chooses ``num_tokens`` of them."""
    shards: int = 1
    replaced_id: str = ""
    """The dead node whose place it is to take; empty: it joins beside the others."""
    claims_host_id: str = ""
    """Host id of the place that its empty folder may take, where nobody has taken that yet."""
    supported_features: tuple[str, ...] = tuple(sorted(THIS_BUILD.features))
    release_version: str = THIS_BUILD.release


class JoinRejected(ConfigurationError):
    """The cluster will not have this node; the text says why and what to do."""

    title = "Not admitted"


async def admit(
    directory: DataDirectory,
    advertised: Advertised,
    follower: LogFollower,
    submit: Submit,
    stop: Stop,
) -> None:
    """Ask to join, or announce what changed; returns once the log has it. Raises JoinRejected.

    Call it when the log has been read to its end and the gate has compared the host ids. Tries again until
    the outcome is known. What the node asked in an earlier life may be decided meanwhile, and answered under
    the same id, so each try begins and ends with its row.
    """
    announcement_id, told, renewed = new_request_id(follower.image.state_id), "", 0
    while not stop.requested:
        identity = directory.identity
        command = _command(identity, advertised, follower.image.node(identity.node_id))
        if command is None:
            return
        joins = not isinstance(command, AnnounceNode)
        envelope = Envelope(
            request_id=identity.join_request_id if joins else announcement_id,
            command=command,
            actor=actor_of(identity),
            reason="started with STELE_JOIN=auto" if joins else "restarted",
            origin=advertised.address,
            log_id=_log_id(follower.image),
        )
        try:
            outcome = await submit.submit(envelope, SUBMIT_TIMEOUT_S)
            image = await follower.wait_for_epoch(outcome.epoch if outcome.applied else 0)
        except TimeoutError as error:
            log.warning(
                "the metadata log has not answered yet", cluster=identity.cluster, why=str(error)
            )
            continue
        except NotTakenError as error:
            code = error.rejection.code
            is_old = code == EXPIRED and renewed < RENEWALS
            renewed += is_old
            if is_old and not joins:
                announcement_id = new_request_id(
                    follower.image.state_id, horizon_of(error.rejection)
                )
            elif joins and (is_old or code == REUSED):
                await _learn_what_was_asked(directory, follower, horizon_of(error.rejection))
            elif code in NOT_YET:
                if told != str(error):
                    told = str(error)
                    log.warning("the log does not take it yet", cluster=identity.cluster, why=told)
                await _wait_until_taken(envelope.actor, follower, stop)
            else:
                _reject(directory, str(error))
            continue
        rejection = outcome.rejection
        if rejection is not None:
            _reject(directory, f"{rejection.message} {rejection.hint} ({rejection.code})")
        row = image.node(identity.node_id)
        if not joins or row is None or row.address == advertised.address:
            log.info("known to the cluster", epoch=outcome.epoch)
            return


def _log_id(image: Image) -> str:
    """Of the log that is read, in which alone the request may be decided; empty: there is none yet."""
    return "" if image.log_id == NO_LOG else image.log_id.hex()


async def _wait_until_taken(actor: str, follower: LogFollower, stop: Stop) -> None:
    """A while; and as long as the log is frozen, as far as it was read."""
    await stop.sleep(RETRY_S)
    while not stop.requested and not takes_from(follower.image.commits, actor):
        await stop.sleep(RETRY_S)


async def wait_for_membership(directory: DataDirectory, follower: LogFollower, stop: Stop) -> None:
    """Until the node is or was a member, which is noted on the disk; call it once it is known.

    Raises JoinRejected when its request ended otherwise: nobody else would tell it.
    """
    while not stop.requested and not directory.identity.was_member:
        why = join_ended(follower.image, directory.identity)
        if why:
            raise JoinRejected(why)
        row = follower.image.node(directory.identity.node_id)
        if row is not None and row.state in (NodeState.NORMAL, NodeState.LEFT):
            await asyncio.to_thread(directory.save, was_member=True)
            return
        await stop.sleep(LOOK_S)


async def keep_noted(directory: DataDirectory, follower: LogFollower, stop: Stop) -> None:
    """Note the features that are enabled, and log it when the cluster wants the node no longer."""
    told = ""
    while not stop.requested:
        image, identity = follower.image, directory.identity
        out = expelled(image, identity.node_id)
        if out is not None and out.code != told:
            told = out.code
            log.error("this node serves no data any more", why=out.message, hint=out.hint)
        if image.features.enabled != identity.enabled_features:
            try:
                await asyncio.to_thread(directory.save, enabled_features=image.features.enabled)
            except OSError as error:  # tried again; the log has them in any case
                log.warning("what is enabled cannot be put on the disk", why=str(error))
        await stop.sleep(NOTE_S)


async def keep_announced(
    directory: DataDirectory,
    advertised: Advertised,
    follower: LogFollower,
    announcer: Announcer,
    stop: Stop,
) -> None:
    """Say again what this node is, whenever its row says otherwise; call it once the gate is open. A refusal is
    logged, and it tries again later.
    """
    identity, pauses = directory.identity, growing_pauses()
    said = 0  # the epoch that took what was said last
    while not stop.requested:
        image, pause_s = follower.image, NOTE_S
        known = image.node(identity.node_id)
        if known is None or not is_contradicted(identity, advertised, known):
            announcer.is_known()
        elif (
            follower.failure is None
            and image.epoch >= said
            and takes_from(image.commits, actor_of(identity))
        ):
            pause_s = next(pauses)
            log.warning(
                "the log says something else of this node, which announces itself again",
                address=advertised.address,
                release=advertised.release_version,
                said_address=known.address,
                said_release=known.release_version,
                said_features=known.supported_features,
                hint=f"If this goes on, another process runs as node '{identity.node_id}', from a copy of its"
                " data directory: stop it.",
            )
            said = await announcer.say(image.state_id) or said
        await stop.sleep(pause_s)


def announcement_again(
    identity: Identity, advertised: Advertised, state_id: bytes | None, horizon_ms: int = -1
) -> Envelope:
    """What a running node says of itself against its row."""
    return Envelope(
        request_id=new_request_id(state_id, horizon_ms),
        command=_announcement(identity, advertised),
        actor=actor_of(identity),
        reason="the log said something else of it",
        origin=advertised.address,
    )


def is_contradicted(identity: Identity, advertised: Advertised, known: Node) -> bool:
    """Whether the row of a running node says what it is not: an earlier process of it was heard late. Where the
    node has left, or the row is another host's, nothing is to be said.
    """
    is_own = known.host_id == identity.host_id and known.state is not NodeState.LEFT
    return is_own and not _is_right(advertised, known)


def actor_of(identity: Identity) -> str:
    return f"node {identity.node_id}"


def claims_too_much(known: Node | None, advertised: Advertised) -> bool:
    """Whether the log says of this node that it supports what it does not: an older build was started.

    A feature might be enabled on that word. It must be taken back before the node is heard again.
    """
    return known is not None and not {*advertised.supported_features}.issuperset(
        known.supported_features
    )


def check_place(known: Node | None, advertised: Advertised) -> None:
    """A member stays where its replicas were placed. Raises JoinRejected."""
    if known is None:
        return
    if (known.dc, known.rack) != (advertised.dc, advertised.rack):
        raise JoinRejected(
            f"node '{known.node_id}' stands in {known.dc}/{known.rack}, and was started for"
            f" {advertised.dc}/{advertised.rack}: start it with STELE_DC={known.dc} STELE_RACK={known.rack}."
            " To move it, let it leave, and a new node join there (place_changed)"
        )
    if advertised.shards != known.shards:
        raise JoinRejected(
            f"node '{known.node_id}' has {known.shards} shards, and was started with {advertised.shards}: start"
            f" it with STELE_SHARDS={known.shards}, since its tablets have places by these. To have others, let"
            " it leave, and a new node join with as many (shards_changed)"
        )


def note_tokens(known: Node | None, advertised: Advertised) -> None:
    """A member keeps its tokens, and says so where it is started with another number."""
    if known is not None and advertised.num_tokens != known.num_tokens:
        log.warning(
            "STELE_NUM_TOKENS counts when a node joins, and is ignored now",
            num_tokens=known.num_tokens,
            ignored=advertised.num_tokens,
        )


def _reject(directory: DataDirectory, why: str) -> None:
    """The next start asks under another id, since this one stays refused. Raises JoinRejected."""
    directory.join_again()
    raise JoinRejected(why)


async def _learn_what_was_asked(
    directory: DataDirectory, follower: LogFollower, horizon_ms: int
) -> None:
    """The id to join is decided, for what an earlier start asked, or too old to be: the row tells, or there is
    none.
    """
    try:
        image = await follower.wait_for_end()
    except TimeoutError:
        return  # the next try comes back here
    if image.node(directory.identity.node_id) is None:
        directory.join_again(horizon_ms)


def _command(identity: Identity, advertised: Advertised, known: Node | None) -> AnyCommand | None:
    """None when there is nothing to say: the row is right, or the node has left."""
    if known is None:
        who: dict[str, Any] = {
            "node_id": identity.node_id,
            "cluster": identity.cluster,
            "address": advertised.address,
            "dc": advertised.dc,
            "rack": advertised.rack,
            "supported_features": advertised.supported_features,
            "release_version": advertised.release_version,
            "host_id": identity.host_id,
            "shards": advertised.shards,
        }
        if advertised.replaced_id:
            zero_token = not advertised.num_tokens
            return Replace(replaced_id=advertised.replaced_id, zero_token=zero_token, **who)
        chosen = advertised.initial_tokens
        return Join(num_tokens=advertised.num_tokens, initial_tokens=chosen, **who)
    is_right = known.host_id == identity.host_id and _is_right(advertised, known)
    if known.state is NodeState.LEFT or is_right:
        return None
    return _announcement(identity, advertised, advertised.claims_host_id)


def _is_right(advertised: Advertised, known: Node) -> bool:
    said = (known.address, known.supported_features, known.release_version)
    return said == (
        advertised.address,
        advertised.supported_features,
        advertised.release_version,
    )


def _announcement(identity: Identity, advertised: Advertised, claims: str = "") -> AnnounceNode:
    return AnnounceNode(
        node_id=identity.node_id,
        address=advertised.address,
        supported_features=advertised.supported_features,
        release_version=advertised.release_version,
        host_id=identity.host_id,
        claims_host_id=claims,
    )
