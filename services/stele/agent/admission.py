"""Admission of a node: it joins once, and then keeps its row in the log correct.

A restarted node announces what has changed. A running node announces itself again when its row
differs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import msgspec

from stele.agent.identity import DataDirectory, Identity
from stele.domain.commands import AnnounceNode, AnyCommand, Envelope, Join, Outcome, Replace
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.names import NodeState, RequestStatus
from stele.domain.not_taken import (
    EXPIRED,
    NOT_FOUNDED,
    OTHER_LOG,
    RESTRICTED,
    REUSED,
    horizon_of,
    takes_from,
)
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.commander import NotTakenError
from stele.log.follower import LogFollower
from stele.runtime.announce import THIS_BUILD, Announcer, growing_pauses
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

# The state of a node that the cluster does not accept: pure functions of the image.


class Expelled(msgspec.Struct, frozen=True):
    """The permanent reason why a node serves nothing: code, sentence and hint.

    ``wanted`` is true if a request asked this live node to leave, so that nothing is wrong with it.
    """

    code: str
    message: str
    hint: str
    wanted: bool = False


def expelled(image: Image, node_id: str) -> Expelled | None:
    """Return the reason, or None for a node that is a member or may become one."""
    row = image.node(node_id)
    if row is None:
        return None
    if row.state is NodeState.LEFT:
        request = image.request(row.request_id)
        return Expelled(
            "node_left",
            f"Node '{node_id}' has left the cluster{_by(request)}, and serves no data.",
            "Stop it. This cluster no longer uses its data directory: delete it once no data"
            " is missing.",
            wanted=_was_asked_to_leave(row, request),
        )
    if row.excluded:
        return Expelled(
            "node_excluded",
            f"Node '{node_id}' was declared dead in epoch {row.excluded_since}, and serves no data any more.",
            f"`stele remove {node_id}`, or replace it. Keep its data directory until that is done.",
        )
    return None


def join_ended(image: Image, identity: Identity) -> str:
    """Return the reason why the node can never become a member.

    The result is empty while it can become one, or if it was one.
    """
    row = image.node(identity.node_id)
    if row is None or row.state is not NodeState.LEFT or identity.was_member:
        return ""
    request = image.request(row.request_id)
    if request is not None and request.status is RequestStatus.DONE:
        return ""  # it was a member, but did not note that in time
    return (
        f"node '{identity.node_id}' did not become a member{_by(request)}. Neither its name nor its data"
        " directory can be used again. Once the cause is gone, start a node with a new STELE_NODE_ID and an"
        " empty STELE_DATA_DIR (node_left)"
    )


def _by(request: Request | None) -> str:
    """Return a text about the request that caused this state, and its actor."""
    if request is None:
        return ""
    who = f" of {request.actor}" if request.actor else ""
    why = request.error or request.reason
    status = "" if request.status is RequestStatus.DONE else f" {request.status}"
    return (
        f" (request {request.request_id}, {request.kind}{who},{status} epoch {request.finished_epoch}"
        + (f": {why})" if why else ")")
    )


def _was_asked_to_leave(row: Node, request: Request | None) -> bool:
    return (
        request is not None
        and request.node_id == row.node_id
        and request.status is RequestStatus.DONE
        and OPERATIONS[request.kind].subjects_work
    )


SUBMIT_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
LOOK_S: Final = 0.05
CHECK_S: Final = 0.5
"""Interval for comparing the node's row and the enabled features, in seconds.

Only logs and notes depend on it.
"""
RENEWALS: Final = 3
"""How often an expired request id is replaced.

If new ids are expired as well, the clock is wrong.
"""
NOT_YET: Final = RESTRICTED | {NOT_FOUNDED, OTHER_LOG}
"""Rejection codes that are temporary: the command is sent again.

The cluster is not founded, its log is frozen, or this node has not read the log that a recovery
began.
"""

log = get_logger(__name__)


class Submit(Protocol):
    """The sender of commands, as ``stele.log.commander.Commander`` implements it.

    It raises TimeoutError when the outcome is unknown, and NotTakenError when the command was not
    taken.
    """

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome: ...


class Advertised(msgspec.Struct, frozen=True):
    """The configuration that a node announces.

    Once the node has a row in the log, only the row counts.
    """

    address: str
    dc: str
    rack: str
    num_tokens: int
    initial_tokens: tuple[int, ...] = ()
    """Tokens that the node requests. If empty, the cluster chooses ``num_tokens`` of them."""
    shards: int = 1
    replaced_id: str = ""
    """The dead node that this node replaces. If empty, it joins as an additional node."""
    claims_host_id: str = ""
    """Host id of a free place in the log that this empty directory may take."""
    supported_features: tuple[str, ...] = tuple(sorted(THIS_BUILD.features))
    release_version: str = THIS_BUILD.release


class JoinRejected(ConfigurationError):
    """The cluster does not admit this node. The text gives the reason and what to do."""

    title = "Not admitted"


async def admit(
    directory: DataDirectory,
    advertised: Advertised,
    follower: LogFollower,
    submit: Submit,
    stop: Stop,
) -> None:
    """Ask to join, or announce what has changed. Returns once the log has it.

    Call it after the log was read to its end and the gate has compared the host ids. It retries
    until the outcome is known. A request of an earlier start may be decided meanwhile under the
    same id, so each attempt begins and ends with the node's row.

    Raises JoinRejected.
    """
    announcement_id, told, renewed = new_request_id(follower.image.state_id), "", 0
    while not stop.requested:
        identity = directory.identity
        command = _command(identity, advertised, follower.image.node(identity.node_id))
        if command is None:
            return
        joins = not isinstance(command, AnnounceNode)
        envelope = Envelope(
            # The id to join is on the disk: a crash and a retry cannot make two nodes of one.
            request_id=identity.join_request_id if joins else announcement_id,
            command=command,
            actor=actor_of(identity),
            reason="started with STELE_JOIN=auto" if joins else "restarted",
            origin=advertised.address,
            # Only this log may decide the command.
            log_id=follower.image.founding.log_id_hex,
        )
        try:
            outcome = await submit.submit(envelope, SUBMIT_TIMEOUT_S)
            # Read up to the outcome first: the next attempt must see the row that it made.
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
        # An earlier start may have joined under this id from another address: then announce this
        # one.
        if not joins or row is None or row.address == advertised.address:
            log.info("known to the cluster", epoch=outcome.epoch)
            return


async def _wait_until_taken(actor: str, follower: LogFollower, stop: Stop) -> None:
    """Wait ``RETRY_S``, and then as long as the log is frozen in the image that was read."""
    await stop.sleep(RETRY_S)
    while not stop.requested and not takes_from(follower.image.commits, actor):
        await stop.sleep(RETRY_S)


async def wait_for_membership(directory: DataDirectory, follower: LogFollower, stop: Stop) -> None:
    """Wait until the node is or was a member, and note that on the disk.

    Call it after ``admit``.

    Raises JoinRejected when the request to join ended in another way. No other process informs the
    node.
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


async def keep_synced(directory: DataDirectory, follower: LogFollower, stop: Stop) -> None:
    """Note the enabled features on the disk, and log when the node has left or is excluded."""
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
            except OSError as error:  # retried; the log has them in any case
                log.warning("what is enabled cannot be put on the disk", why=str(error))
        await stop.sleep(CHECK_S)


async def keep_announced(
    directory: DataDirectory,
    advertised: Advertised,
    follower: LogFollower,
    announcer: Announcer,
    stop: Stop,
) -> None:
    """Announce this node again whenever its row differs. Call it once the gate is open.

    A refusal is logged, and the announcement is repeated later with growing pauses.
    """
    identity, pauses = directory.identity, growing_pauses()
    announced_epoch = 0  # the epoch that took the last announcement
    while not stop.requested:
        image, pause_s = follower.image, CHECK_S
        known = image.node(identity.node_id)
        if known is None or not row_differs(identity, advertised, known):
            announcer.on_listed()
        # Wait until the last announcement was read, or it would be repeated against an old row.
        elif (
            follower.failure is None
            and image.epoch >= announced_epoch
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
                hint=_difference_hint(known),
            )
            announced_epoch = await announcer.send(image.state_id) or announced_epoch
        await stop.sleep(pause_s)


def announcement_again(
    identity: Identity, advertised: Advertised, state_id: bytes | None, horizon_ms: int = -1
) -> Envelope:
    """Return the announcement of a running node whose row differs."""
    return Envelope(
        request_id=new_request_id(state_id, horizon_ms),
        command=_announcement(identity, advertised),
        actor=actor_of(identity),
        reason="the log said something else of it",
        origin=advertised.address,
    )


def row_differs(identity: Identity, advertised: Advertised, known: Node) -> bool:
    """Return whether the row of a running node differs from what it advertises.

    An announcement of an earlier process may have been applied late. No announcement is due when
    the node has left, or when the row has another host id.
    """
    is_own = known.host_id == identity.host_id and known.state is not NodeState.LEFT
    return is_own and not _is_right(advertised, known)


def _difference_hint(known: Node) -> str:
    if not known.address:
        return "Another node announced this address. If this repeats, give each node its own STELE_ADDRESS."
    return (
        f"If this repeats, another process runs as node '{known.node_id}', from a copy of its data directory:"
        " stop it."
    )


def actor_of(identity: Identity) -> str:
    return f"node {identity.node_id}"


def claims_too_much(known: Node | None, advertised: Advertised) -> bool:
    """Return whether the row lists a feature that this build lacks, as after a downgrade.

    The cluster might enable a feature because of that row. The row must be corrected before the
    node acknowledges again.
    """
    return known is not None and not {*advertised.supported_features}.issuperset(
        known.supported_features
    )


def check_place(known: Node | None, advertised: Advertised) -> None:
    """Check that a member has kept its dc, rack and shards. Raises JoinRejected.

    The node's replicas were placed by them.
    """
    if known is None:
        return
    if (known.dc, known.rack) != (advertised.dc, advertised.rack):
        raise JoinRejected(
            f"node '{known.node_id}' is in {known.dc}/{known.rack}, but was started for"
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
    """Log a warning when a member is started with another number of tokens. It keeps its own."""
    if known is not None and advertised.num_tokens != known.num_tokens:
        log.warning(
            "STELE_NUM_TOKENS counts when a node joins, and is ignored now",
            num_tokens=known.num_tokens,
            ignored=advertised.num_tokens,
        )


def _reject(directory: DataDirectory, why: str) -> None:
    """Note a new id for the next request to join, since this one stays refused.

    Raises JoinRejected.
    """
    directory.join_again()
    raise JoinRejected(why)


async def _learn_what_was_asked(
    directory: DataDirectory, follower: LogFollower, horizon_ms: int
) -> None:
    """Replace the id to join if the log, read to its end, has no row for the node.

    The id is already decided, for a request of an earlier start, or expired. If an earlier request
    was applied there is a row, and the id stays.
    """
    try:
        image = await follower.wait_for_end()
    except TimeoutError:
        return  # the next attempt calls this again
    if image.node(directory.identity.node_id) is None:
        directory.join_again(horizon_ms)


def _command(identity: Identity, advertised: Advertised, known: Node | None) -> AnyCommand | None:
    """Return the command to send, or None if the row is right or the node has left."""
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
