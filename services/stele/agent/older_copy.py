"""Whether a directory is an older copy of itself: a backup that was put back, a volume's snapshot (I13, I14).

Such a node lacks what it has acknowledged since, and a quorum with it may miss that. What it said last is in
the topic of acks: a start that the directory does not know of, or more heartbeats than it has counted. Then the
node serves nothing until an operator accepts the loss by that number, which is noted on the disk.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from stele.agent.gate import NotThisReplica
from stele.agent.heartbeats import MOST_AHEAD
from stele.agent.identity import COUNTED, AcceptedCopy, Acknowledged, DataDirectory, Identity
from stele.domain.messages import Ack
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_ack
from stele.log.flows import flow_topic
from stele.log.loops import beside
from stele.log.newest import newest_of
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop

SETTING: Final = "STELE_ACCEPT_OLDER_COPY"
RETRY_S: Final = 1.0

log = get_logger(__name__)


async def last_told(
    brokers: Brokers, directory: DataDirectory, stop: Stop, waits: Callable[[str], None]
) -> Ack | None:
    """The newest ack of this directory's node before this start; None where nobody has one any more.

    As long as the brokers do not tell it is asked again, and the node serves nothing; ``waits`` is told why.
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
            log.warning("nothing is served before it is known what was told last", why=str(error))
            waits(str(error))
            await stop.sleep(RETRY_S)
        else:
            acks = [ack for ack in map(_ack_of, values) if ack is not None]
            return max(acks, key=lambda ack: (starts_of(ack), ack.sequence), default=None)
    return None


def check_newest(directory: DataDirectory, told: Ack | None, accept: str) -> None:
    """Raises NotThisReplica where the directory is older than what its node has told, unless that is accepted.

    Where it is accepted the directory notes what the node has told, as far as it did not know of it: that is
    still promised. It is asked before this start's first ack. A start that is refused is none: else a copy
    would be as new as the newest directory once it was started often enough.
    """
    if told is None:
        return
    identity, heartbeats = directory.identity, directory.heartbeats
    counted = heartbeats.counted
    if is_older(identity.boots, counted, told):
        known = any(copy.told == told.sequence for copy in identity.accepted_copies)
        if not known and accept != str(told.sequence):
            refused = NotThisReplica(_refused(directory, told))
            with suppress(OSError):
                directory.save(boots=identity.boots - 1)
            raise refused
        if not known:
            copy = AcceptedCopy(counted=counted, told=told.sequence)
            log.warning("an older copy of the data is accepted", counted=counted, told=copy.told)
            directory.save(
                boots=max(identity.boots, starts_of(told) + 1),
                accepted_copies=(*identity.accepted_copies, copy),
                **_promise_of(identity, told),
            )
        # From now on the newest directory of before is the older one: its number may be ahead of what it told.
        heartbeats.raise_to(told.sequence + MOST_AHEAD)
    if is_counted(told):
        heartbeats.raise_to(told.sequence)


def _promise_of(identity: Identity, told: Ack) -> dict[str, object]:
    """What the node has promised by that ack, as the directory is to note it; nothing where that knows more."""
    log_id, state_id = told.log_id.hex(), told.state_id.hex()
    if not (log_id and state_id):  # of a build that did not say
        return {}
    if (log_id, told.epoch) <= (identity.log_id, identity.acknowledged.epoch):
        return {}
    promise = Acknowledged(told.epoch, state_id, told.version, told.fence_version)
    return {"log_id": log_id, "acknowledged": promise}


def is_older(boots: int, counted: int, told: Ack) -> bool:
    """Whether who has started ``boots`` times, this time included, and has counted so many heartbeats, is older
    than who told that.
    """
    return starts_of(told) >= boots or (is_counted(told) and told.sequence > counted)


def is_counted(ack: Ack) -> bool:
    """Whether its number goes on over all starts, and is in the directory: a build that counted anew at each
    knows of no file ``heartbeats``.
    """
    return ack.boot_id.endswith(COUNTED)


def starts_of(ack: Ack) -> int:
    """How often the node had started by then; 0 where its boot id does not tell (``Identity.boot_id``)."""
    starts = ack.boot_id.partition("-")[0]
    return int(starts) if starts.isdecimal() else 0


def _ack_of(value: bytes) -> Ack | None:
    try:
        return decode_ack(value)
    except DecodeError:
        return None


def _refused(directory: DataDirectory, told: Ack) -> str:
    identity, counted = directory.identity, directory.heartbeats.counted
    try:
        when = f"{datetime.fromtimestamp(told.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, OverflowError, ValueError):
        when = "a time that nobody knows"
    return (
        f"older_copy: {directory.folder} is an older copy of the data of node '{identity.node_id}': this is its"
        f" start {identity.boots}, and it counts {counted} heartbeats, but the cluster has heard"
        f" {told.sequence}, the last one at {when}, of its start {starts_of(told)}. What the node acknowledged"
        " since the copy was made is not in it. Put the newest directory back; or give the node an empty folder"
        f" and a new name, and replace the old one (STELE_REPLACE_NODE={identity.node_id}); or accept the loss:"
        f" start it with {SETTING}={told.sequence}, and then bring its data up to date: `stele rebuild"
        f" {identity.node_id}`, and `stele table repair` where tables have tablets"
    )
