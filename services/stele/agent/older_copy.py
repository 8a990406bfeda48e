"""Detects that a directory is an older copy of itself (I13, I14).

A copy may be a restored backup or volume snapshot. The node then lacks what it has acknowledged
since, and a quorum that includes it may miss that. The topic of acks holds its newest ack, which
shows a later start or more heartbeats than the directory has counted.

The node then serves nothing until an operator accepts the loss by the ack's sequence number
(``STELE_ACCEPT_OLDER_COPY``). The acceptance is noted on the disk. The reasons are in
docs/decisions/076-heartbeats-are-counted-on-the-disk.md.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from stele.agent.gate import NotThisReplica
from stele.agent.identity import (
    COUNTED,
    MOST_AHEAD,
    AcceptedCopy,
    Acknowledged,
    DataDirectory,
    Identity,
)
from stele.domain.messages import Ack
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_ack
from stele.log.ends import newest_of
from stele.log.flows import flow_topic
from stele.log.loops import beside
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop

SETTING: Final = "STELE_ACCEPT_OLDER_COPY"
RETRY_S: Final = 1.0

log = get_logger(__name__)


async def newest_ack(
    brokers: Brokers, directory: DataDirectory, stop: Stop, waits: Callable[[str], None]
) -> Ack | None:
    """Return the newest ack of this directory's node before this start, or None.

    While the brokers do not answer, this retries and the node serves nothing. ``waits`` is called
    with the reason.
    """
    identity = directory.identity
    topic = flow_topic(identity.cluster, "acks")

    def is_own(value: bytes) -> bool:
        ack = _ack_of(value)
        return ack is not None and ack.host_id == identity.host_id

    ask = partial(newest_of, brokers, topic, identity.node_id, is_own)
    while not (directory.is_new or stop.requested):
        try:
            values = await beside("acks", ask)
        except TimeoutError as error:
            log.warning(
                "nothing is served before the newest acknowledgement is known", why=str(error)
            )
            waits(str(error))
            await stop.sleep(RETRY_S)
        else:
            acks = [ack for ack in map(_ack_of, values) if ack is not None]
            return max(acks, key=lambda ack: (starts_of(ack), ack.sequence), default=None)
    return None


def check_newest(directory: DataDirectory, newest: Ack | None, accept: str) -> None:
    """Check that the directory is not older than the node's last ack.

    Call it before the first ack of this start.

    If an operator accepts an older copy, the directory notes the promises of that ack that it
    lacks. They are still valid.

    Raises NotThisReplica when the copy is older and not accepted. A refused start is not counted.
    Otherwise enough starts would make a copy look as new as the newest directory.
    """
    if newest is None:
        return
    identity, heartbeats = directory.identity, directory.heartbeats
    counted = heartbeats.counted
    if is_older(identity.boots, counted, newest):
        known = any(copy.told == newest.sequence for copy in identity.accepted_copies)
        if not known and accept != str(newest.sequence):
            refused = NotThisReplica(_refused(directory, newest))
            # A full disk must not hide the refusal.
            with suppress(OSError):
                directory.save(boots=identity.boots - 1)
            raise refused
        if not known:
            copy = AcceptedCopy(counted=counted, told=newest.sequence)
            log.warning("an older copy of the data is accepted", counted=counted, told=copy.told)
            directory.save(
                boots=max(identity.boots, starts_of(newest) + 1),
                accepted_copies=(*identity.accepted_copies, copy),
                **_promise_of(identity, newest),
            )
        # The former newest directory is now the older copy. Its number may be ahead of its last
        # ack, by at most ``MOST_AHEAD``.
        heartbeats.raise_to(newest.sequence + MOST_AHEAD)
    if is_counted(newest):
        heartbeats.raise_to(newest.sequence)


def _promise_of(identity: Identity, newest: Ack) -> dict[str, object]:
    """Return the promise in ``newest`` as fields of the identity.

    The result is empty if the directory has a newer promise.
    """
    log_id, state_id = newest.log_id.hex(), newest.state_id.hex()
    if not (log_id and state_id):  # sent by a build without these fields
        return {}
    # Ids of logs begin with their time, so the order of their hex digits is that of the logs.
    if (log_id, newest.epoch) <= (identity.log_id, identity.acknowledged.epoch):
        return {}
    promise = Acknowledged(newest.epoch, state_id, newest.version, newest.fence_version)
    return {"log_id": log_id, "acknowledged": promise}


def is_older(boots: int, counted: int, newest: Ack) -> bool:
    """Return whether a directory with these counts is older than the ack ``newest``.

    ``boots`` includes this start. ``counted`` is the number of heartbeats on the disk.
    """
    return starts_of(newest) >= boots or (is_counted(newest) and newest.sequence > counted)


def is_counted(ack: Ack) -> bool:
    """Return whether the ack's number continues over all starts and is in the directory.

    Earlier builds counted from 0 at each start, and have no file ``heartbeats``.
    """
    return ack.boot_id.endswith(COUNTED)


def starts_of(ack: Ack) -> int:
    """Return the number of starts at the time of the ack (``Identity.boot_id``); 0 if unknown."""
    starts = ack.boot_id.partition("-")[0]
    return int(starts) if starts.isdecimal() else 0


def _ack_of(value: bytes) -> Ack | None:
    try:
        return decode_ack(value)
    except DecodeError:
        return None


def _refused(directory: DataDirectory, newest: Ack) -> str:
    """Return the error text for an older copy, with all ways to continue."""
    identity, counted = directory.identity, directory.heartbeats.counted
    try:
        when = f"{datetime.fromtimestamp(newest.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, OverflowError, ValueError):
        when = "an unknown time"
    return (
        f"older_copy: {directory.folder} is an older copy of the data of node '{identity.node_id}': this is its"
        f" start {identity.boots}, and it counts {counted} heartbeats, but the cluster has received"
        f" {newest.sequence}, the last one at {when}, of its start {starts_of(newest)}. What the node"
        " acknowledged since the copy was made is not in it. Put the newest directory back; or give the"
        " node an empty folder and a new name, and replace the old one"
        f" (STELE_REPLACE_NODE={identity.node_id}); or accept the loss: start it with"
        f" {SETTING}={newest.sequence}, and then bring its data up to date: `stele rebuild"
        f" {identity.node_id}`, and `stele table repair` where tables have tablets"
    )
