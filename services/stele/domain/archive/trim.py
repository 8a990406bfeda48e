"""Where the archive begins, decided: it is proposed, agreed to, and then a fact."""

import re
from typing import Final

from stele.domain.archive.commands import AgreeToTrim, ProposeTrim, TrimArchive
from stele.domain.archive.decide import check_replica, unknown_replica
from stele.domain.archive.facts import TrimAgreed, TrimProposed
from stele.domain.archive.limits import PROPOSAL_LASTS_S
from stele.domain.archive.retention import Point, may_propose, trimming, why_not_at
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.names import ReplicaState

MAX_STORE_CHARS: Final = 1024
_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def propose_trim(context: Context, command: ProposeTrim) -> Decision:
    """A member's, and only where the rule allows it now."""
    image, archive = context.image, context.image.archive
    replica = archive.replicas.get(command.replica_id)
    if replica is None:
        return unknown_replica(command.replica_id)
    if replica.state is not ReplicaState.MEMBER:
        return Rejection(
            "not_a_member",
            f"Replica '{command.replica_id}' is no member of the archive.",
            "Members propose where it begins: `stele catch-up show` lists them.",
        )
    if not (_ID.fullmatch(command.state_id) and 1 <= command.epoch <= image.epoch):
        return Rejection(
            "no_such_epoch",
            f"There is no epoch {str(command.epoch)[:20]} with state id '{command.state_id[:40]}'.",
            "Give an epoch of the log, and 32 hex digits.",
        )
    if not may_propose(image, context.log_ms):
        assert archive.proposed is not None
        return Rejection(
            "already_proposed",
            f"Epoch {archive.proposed.epoch} is proposed already.",
            f"Agree to it; after {PROPOSAL_LASTS_S} s another one is taken.",
            {"epoch": str(archive.proposed.epoch)},
        )
    point = Point(command.epoch, bytes.fromhex(command.state_id))
    why = why_not_at(image, point, context.log_ms)
    if why:
        return _not_trimmed(command.epoch, why)
    return (
        TrimProposed(
            replica_id=command.replica_id,
            epoch=command.epoch,
            state_id=command.state_id,
            at_ms=context.log_ms,
        ),
    )


def agree_to_trim(context: Context, command: AgreeToTrim) -> Decision:
    archive = context.image.archive
    refused = check_replica(archive, command.replica_id, command.folder_id)
    if refused is not None:
        return refused
    proposed = archive.proposed
    if proposed is None or proposed.epoch != command.epoch:
        return _not_proposed(command.epoch)
    store = command.store
    if (
        not _SHA256.fullmatch(command.hash)
        or len(store) > MAX_STORE_CHARS
        or not f"{store}x".isprintable()
    ):
        return Rejection(
            "bad_snapshot",
            "The hash has the 64 hex digits of a SHA-256, and the store is a URL.",
            "Send them as they are.",
        )
    vote = TrimAgreed(
        replica_id=command.replica_id, epoch=command.epoch, hash=command.hash, store=store
    )
    return () if archive.agreed.get(command.replica_id) == vote else (vote,)


def trim_archive(context: Context, command: TrimArchive) -> Decision:
    """Only while the rule allows it still, and a majority of the members agrees."""
    proposed = context.image.archive.proposed
    if proposed is None or proposed.epoch != command.epoch:
        return _not_proposed(command.epoch)
    found = trimming(context.image, context.log_ms)
    return _not_trimmed(command.epoch, found.why_not) if found.trim is None else (found.trim,)


def _not_proposed(epoch: int) -> Rejection:
    return Rejection(
        "not_proposed",
        f"It is not proposed that the archive begins at epoch {str(epoch)[:20]}.",
        "Members propose it once the settings archive_keep_days and archive_keep_epochs allow it.",
    )


def _not_trimmed(epoch: int, why: str) -> Rejection:
    return Rejection(
        "not_trimmed",
        f"The archive does not begin at epoch {epoch}: {why}.",
        "`stele catch-up show` says where it begins, and what is waited for.",
    )
