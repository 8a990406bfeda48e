"""Announcements of catch-up replicas in tests: equal snapshots of equal epochs, unless one has diverged."""

from hashlib import sha256

from stele.domain.commands import AnnounceReplica, AnnounceSnapshot, TruncateLog
from tests.domain.epochs import LOG_ID

OFFSETS_PER_EPOCH = 3
"""The topic has losers too."""


def replica(
    replica_id: str, dc: str = "dc1", rack: str = "r1", folder: str = ""
) -> AnnounceReplica:
    return AnnounceReplica(
        replica_id=replica_id,
        dc=dc,
        rack=rack,
        address=f"http://{replica_id}:8086",
        folder_id=folder,
    )


def snapshot(
    replica_id: str,
    epoch: int,
    first_epoch: int = 1,
    content: str = "right",
    folder: str = "",
    log_id: bytes = LOG_ID,
) -> AnnounceSnapshot:
    return AnnounceSnapshot(
        replica_id=replica_id,
        epoch=epoch,
        state_id=f"{epoch:032x}",
        hash=sha256(f"{content} {epoch}".encode()).hexdigest(),
        size_bytes=1000 + epoch,
        first_epoch=first_epoch,
        anchor_offset=offset_of(epoch),
        log_id=log_id.hex(),
        folder_id=folder,
    )


def offset_of(epoch: int) -> int:
    return OFFSETS_PER_EPOCH * epoch


def truncate(epoch: int) -> TruncateLog:
    return TruncateLog(epoch, offset_of(epoch))
