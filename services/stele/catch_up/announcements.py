"""The commands that a replica sends: it announces itself and its snapshots, and proposes
truncation.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from confluent_kafka import KafkaException

from stele.catch_up.identity import ReplicaIdentity
from stele.domain.commands import Envelope, Outcome, command_name
from stele.domain.image import Image
from stele.domain.model.archive import (
    SNAPSHOTS_KEPT,
    TRUNCATE_BEHIND,
    AdmitDivergence,
    AgreeToTrim,
    AnnounceReplica,
    AnnounceSnapshot,
    ArchiveCommand,
    ProposeTrim,
    TrimArchive,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.model.requests import asking_ms, named, state_time_ms
from stele.domain.names import ReplicaState
from stele.domain.not_taken import moved_on, takes_from
from stele.domain.rules.archive import has_admitted_divergence, to_admit
from stele.domain.rules.retention import Point, to_propose, trimming, truncatable
from stele.log.archive.container import EpochSpan
from stele.log.archive.snapshots import Kept
from stele.log.commander import NotTakenError
from stele.runtime.logs import get_logger
from stele.runtime.settings import ConfigurationError

LOOK_S: Final = 1.0
MOMENT_S: Final = 0.02
NS_IN_MS: Final = 1_000_000
SUBMIT_S: Final = 10.0
PAUSE_S: Final = 10.0
"""Pause after a refusal and after a timeout, in seconds."""

_REASONS: Final[dict[type, str]] = {
    AdmitDivergence: "the members have another snapshot",
    TruncateLog: "truncate_behind",
    ProposeTrim: "archive_keep_days, archive_keep_epochs",
    TrimArchive: "archive_keep_days, archive_keep_epochs",
}

log = get_logger(__name__)


class ReplicaHoldings(NamedTuple):
    """The replica and its holdings: its newest snapshots, the epochs of all of them, and its
    segments.
    """

    identity: ReplicaIdentity
    dc: str
    rack: str
    address: str
    held: tuple[Kept, ...]
    """Snapshots with the hashes of their content."""
    points: tuple[Point, ...]
    spans: tuple[EpochSpan, ...]
    vote: AgreeToTrim | None = None
    """This replica's agreement to the proposed beginning of the archive, if any."""

    @property
    def epochs(self) -> frozenset[int]:
        """Epochs of all its snapshots."""
        return frozenset(point.epoch for point in self.points)

    @property
    def actor(self) -> str:
        """Name of the actor in this replica's commands."""
        return f"catch-up {self.identity.replica_id}"


def next_command(image: Image, own: ReplicaHoldings, now_ms: int) -> ArchiveCommand | None:
    """Return the next command that the log still lacks and would accept now, or None. Pure.

    ``now_ms`` is the time that decides which readers are lost.
    """
    identity = own.identity
    if not takes_from(image.commits, own.actor):
        return None
    known = image.archive.replicas.get(identity.replica_id)
    place = (own.dc, own.rack, own.address, identity.folder_id)
    if known is None or (known.dc, known.rack, known.address, known.folder_id) != place:
        return AnnounceReplica(
            replica_id=identity.replica_id,
            dc=own.dc,
            rack=own.rack,
            address=own.address,
            folder_id=identity.folder_id,
        )
    if has_admitted_divergence(image.archive, identity.replica_id, identity.folder_id):
        return None
    said = _divergence(image, own) or _snapshots(image, own) or _vote(image, own)
    if said is None and known.state is ReplicaState.MEMBER:
        return _as_member(image, own, now_ms)
    return said


def address_of(image: Image, own: ReplicaHoldings) -> str:
    """Return the address that the log has for this folder; empty when the log does not have the
    folder.
    """
    known = image.archive.replicas.get(own.identity.replica_id)
    return known.address if known is not None and known.folder_id == own.identity.folder_id else ""


def _divergence(image: Image, own: ReplicaHoldings) -> ArchiveCommand | None:
    epoch = to_admit(image, own.identity.replica_id)
    if not epoch:
        return None
    return AdmitDivergence(
        replica_id=own.identity.replica_id, epoch=epoch, folder_id=own.identity.folder_id
    )


def _snapshots(image: Image, own: ReplicaHoldings) -> ArchiveCommand | None:
    """Return the next announcement, or the next withdrawal of a lost snapshot.

    Withdrawals of newer snapshots come first, since the log keeps only the newest announcement.
    """
    said = image.archive.announced(own.identity.replica_id)
    announced = {s.epoch: (s.hash, s.first_epoch) for s in said}
    lost = [epoch for epoch in announced if epoch not in own.epochs]
    for held in own.held[:SNAPSHOTS_KEPT]:
        new = _announcement(image, own, held)
        if new is None or announced.get(new.epoch) == (new.hash, new.first_epoch):
            continue
        newer = [epoch for epoch in lost if epoch > new.epoch]
        return WithdrawSnapshot(own.identity.replica_id, newer[0]) if newer else new
    return WithdrawSnapshot(own.identity.replica_id, lost[0]) if lost else None


def _vote(image: Image, own: ReplicaHoldings) -> ArchiveCommand | None:
    vote, proposed = own.vote, image.archive.proposed
    if vote is None or proposed is None or vote.epoch != proposed.epoch:
        return None
    agreed = image.archive.agreed.get(own.identity.replica_id)
    is_said = agreed is not None and (agreed.hash, agreed.store) == (vote.hash, vote.store)
    return None if is_said else vote


def _as_member(image: Image, own: ReplicaHoldings, now_ms: int) -> ArchiveCommand | None:
    """Return a command on how far back the log and the archive reach, if one is due."""
    if TRUNCATE_BEHIND.of(image.features.settings):
        found = truncatable(image, now_ms)
        if found.epoch:
            return TruncateLog(found.epoch, found.offset)
    trim = trimming(image, now_ms).trim
    if trim is not None:
        return TrimArchive(trim.epoch)
    point = to_propose(image, own.points, now_ms)
    if point is None:
        return None
    return ProposeTrim(
        replica_id=own.identity.replica_id, epoch=point.epoch, state_id=point.state_id.hex()
    )


def _announcement(image: Image, own: ReplicaHoldings, held: Kept) -> AnnounceSnapshot | None:
    """Return the announcement of a snapshot; None when epochs before it are missing or it is
    outdated.
    """
    head = held.head
    span = next((s for s in own.spans if s.first <= head.epoch <= s.last), None)
    trimmed = image.archive.trimmed_epoch
    if span is None or head.epoch < max(image.archive.truncated_epoch, trimmed):
        return None
    if head.log_id != image.log_id.hex():
        return None  # of a log from which this one was recovered
    return AnnounceSnapshot(
        replica_id=own.identity.replica_id,
        epoch=head.epoch,
        state_id=head.state_id,
        hash=held.hash,
        size_bytes=held.size_bytes,
        first_epoch=min(head.epoch, _first(span, own, trimmed)),
        anchor_offset=head.anchor_offset,
        log_id=head.log_id,
        folder_id=own.identity.folder_id,
    )


def _first(span: EpochSpan, own: ReplicaHoldings, trimmed: int) -> int:
    """Return the first epoch that the replica can serve.

    At the archive's beginning that needs its snapshot.
    """
    if span.first < trimmed or trimmed == 0:
        return max(span.first, trimmed)
    return span.first if trimmed in own.epochs else max(span.first, trimmed + 1)


def envelope_of(
    image: Image, own: ReplicaHoldings, command: ArchiveCommand, wall_ms: int, horizon_ms: int = -1
) -> Envelope:
    """Wrap the command in an envelope with a deterministic request id.

    Replicas that want the same truncation at once send one request. A repetition is the same
    request while the log has not moved. ``wall_ms`` is this machine's time. ``horizon_ms`` is the
    horizon that the log reported when the last id was too old.
    """
    name = command_name(command)
    who = "" if isinstance(command, TruncateLog | TrimArchive) else own.identity.replica_id
    what = f"{name}/{who}/{command}/{image.state_id.hex()}"
    return Envelope(
        request_id=named(what, asking_ms(image.state_id, wall_ms, horizon_ms)),
        command=command,
        actor=own.actor,
        reason=_REASONS.get(type(command), "has it on its disk"),
        log_id=image.log_id.hex(),
    )


class Submits(Protocol):
    """Accepts commands; see ``Commander``."""

    @property
    def horizon_ms(self) -> int: ...

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome: ...


async def send_due_commands(
    commanding: Callable[[], AbstractAsyncContextManager[Submits]],
    image: Callable[[], Image],
    own: Callable[[], ReplicaHoldings],
) -> None:
    """Send the due commands, forever. ``own`` is called in a thread.

    A refusal is logged and the command is sent again later. If the horizon has moved, it is sent
    again at once under a newer id.

    Raises ConfigurationError when another process announces this folder.
    """
    was_known = False
    async with commanding() as commander:
        while True:
            now, held = image(), await asyncio.to_thread(own)
            address = address_of(now, held)
            if was_known and address not in ("", held.address):
                raise ConfigurationError(
                    f"STELE_DATA_DIR is copied: the process at {address} has a folder of replica"
                    f" {held.identity.replica_id} too. End one of the two, and give it an empty folder and an"
                    " STELE_INSTANCE_ID of its own"
                )
            was_known = was_known or address == held.address
            command = next_command(now, held, state_time_ms(now.state_id)) if now.cluster else None
            if command is None:
                await asyncio.sleep(LOOK_S)
                continue
            wall_ms = time.time_ns() // NS_IN_MS
            before_ms = commander.horizon_ms
            envelope = envelope_of(now, held, command, wall_ms, before_ms)
            if await _submit(commander, envelope):
                await _until_moved(image, now)
            elif not moved_on(commander.horizon_ms, before_ms):
                await asyncio.sleep(PAUSE_S)


async def _submit(commander: Submits, envelope: Envelope) -> bool:
    try:
        outcome = await commander.submit(envelope, SUBMIT_S)
    except (TimeoutError, KafkaException, NotTakenError) as error:
        log.warning("the log does not take it now", what=str(envelope.command), why=str(error))
        return False
    if outcome.rejection is not None:
        log.warning("refused", what=str(envelope.command), why=outcome.rejection.message)
    return outcome.rejection is None


async def _until_moved(image: Callable[[], Image], before: Image) -> None:
    """Wait until the accepted command is read from the log, at most ``LOOK_S``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            while image() is before:  # noqa: ASYNC110
                await asyncio.sleep(MOMENT_S)
