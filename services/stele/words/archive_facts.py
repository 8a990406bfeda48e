"""Facts about the archive of the log in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stele.domain.names import ReplicaState

Fact = Mapping[str, Any]

_IS: Final = {
    ReplicaState.CANDIDATE: "is a candidate",
    ReplicaState.JOINING: "joins the members",
    ReplicaState.MEMBER: "is a member",
}


def _replica(fact: Fact) -> str:
    replica = fact["replica"]
    state = _IS.get(replica["state"], replica["state"])
    return f"catch-up replica {replica['replica_id']} {state}, at {replica['address']}"


def _forgotten(fact: Fact) -> str:
    unsafe = " (unsafe)" if fact.get("unsafe") else ""
    return f"catch-up replica {fact['replica_id']} is forgotten{unsafe}"


def _announced(fact: Fact) -> str:
    snapshot = fact["snapshot"]
    epochs = f"epochs {snapshot['first_epoch']} to {snapshot['epoch']}"
    return (
        f"{fact['replica_id']} has {epochs}, and the snapshot {snapshot['hash'][:12]} of the last"
    )


def _withdrawn(fact: Fact) -> str:
    epochs = ", ".join(map(str, fact["epochs"]))
    return f"snapshots of {fact['replica_id']} count no more: of epoch {epochs}"


def _truncated(fact: Fact) -> str:
    lost = fact["lost_readers"]
    named = f"; readers that are lost: {', '.join(lost)}" if lost else ""
    return f"the log begins at epoch {fact['epoch']}, offset {fact['offset']}{named}"


def _reader(fact: Fact) -> str:
    reader = fact["reader"]
    return f"reader {reader['reader_id']} is at epoch {reader['epoch']}"


def _diverged(fact: Fact) -> str:
    return (
        f"{fact['replica_id']} has diverged (time {fact['times']}): its snapshot of epoch {fact['epoch']} is"
        " not the members', and it begins anew"
    )


def _agrees(fact: Fact) -> str:
    store = f", and what is before it is in {fact['store']}" if fact["store"] else ""
    return (
        f"{fact['replica_id']} has the snapshot {fact['hash'][:12]} of epoch {fact['epoch']}{store}"
    )


def _trimmed(fact: Fact) -> str:
    lost, stores = fact["lost_readers"], fact["stores"]
    older = f"; older ones are in {', '.join(stores)}" if stores else ""
    named = f"; readers that are lost: {', '.join(lost)}" if lost else ""
    return f"the archive begins at epoch {fact['epoch']}{older}{named}"


ARCHIVE: Final[dict[str, Callable[[Fact], str]]] = {
    "ReplicaChanged": _replica,
    "ReplicaForgotten": _forgotten,
    "SnapshotAnnounced": _announced,
    "SnapshotsForgotten": _withdrawn,
    "SnapshotAsked": lambda fact: f"catch-up replicas take a snapshot of epoch {fact['epoch']}",
    "LogTruncated": _truncated,
    "ReaderChanged": _reader,
    "ReplicaDiverged": _diverged,
    "TrimProposed": lambda fact: f"the archive is to begin at epoch {fact['epoch']}",
    "TrimAgreed": _agrees,
    "ArchiveTrimmed": _trimmed,
    "ReaderForgotten": lambda fact: f"reader {fact['reader_id']} is forgotten",
}
"""By the fact's name."""
