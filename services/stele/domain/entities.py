"""The rows that facts carry and images hold. All are frozen; a change is a new row."""

import msgspec

from stele.domain.names import (
    CleanupStatus,
    NodeState,
    RequestKind,
    RequestStatus,
    TransitionState,
)
from stele.domain.ring.transition import TransitionPlan


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A member, a former member, or a node that asked to become one.

    ``tokens`` are signed 64-bit Murmur3 tokens, sorted; they count as part of the ring only in the
    states ``OWNS_TOKENS``. ``request_id`` is the node's current topology request, or its last.
    ``host_id`` names the data directory that it was admitted with; no other one can take its place.
    """

    node_id: str
    address: str
    dc: str
    rack: str
    num_tokens: int
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    initial_tokens: tuple[int, ...] = ()
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    cleanup: CleanupStatus = CleanupStatus.CLEAN
    request_id: str = ""
    host_id: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One topology request with its stable id: who asked, why, and how it stands.

    Epochs are 0 until they happen. The ``*_at_ms`` (milliseconds since 1970) are shown to people and
    never decide anything.
    """

    request_id: str
    kind: RequestKind
    node_id: str
    status: RequestStatus
    actor: str = ""
    reason: str = ""
    error: str = ""
    cancelled: bool = False
    submitted_epoch: int = 0
    started_epoch: int = 0
    finished_epoch: int = 0
    submitted_at_ms: int = 0
    started_at_ms: int = 0
    finished_at_ms: int = 0


class Keyspace(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace. Those with equal replication share one placement, named by ``placement``."""

    name: str
    replication: dict[str, int]
    placement: str


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster-wide part of the topology (seed 000: the static columns of its table).

    ``version`` goes up with every change of routing, ``fence_version`` follows it once the older
    versions are drained or fenced out. ``since_epoch`` is the epoch of the newest version: a barrier
    waits for it. ``fence_epoch`` is the epoch that wrote ``fence_version``. ``rollback`` holds why the
    operation under way is being undone: it is on its way back, or goes back with its next step.
    """

    version: int = 1
    fence_version: int = 1
    transition_state: TransitionState = TransitionState.NONE
    session: str = ""
    since_epoch: int = 0
    fence_epoch: int = 0
    rollback: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The operation in transition with the placements of all its steps, computed once at its start.

    ``plans`` maps a placement's name to its plan. Steps look their rows up here and never compute
    replicas again, so readers fold the log without any strategy code (CEP-21, in-progress sequences).
    """

    request_id: str
    kind: RequestKind
    node_id: str
    tokens: tuple[int, ...]
    plans: dict[str, TransitionPlan]


class Coordinator(msgspec.Struct, frozen=True):
    """The newest claim to drive the topology. Commands of an older term are rejected."""

    term: int = 0
    holder: str = ""


def placement_name(replication: dict[str, int]) -> str:
    """Name of the placement that keyspaces of this replication share, e.g. ``dc1:3,dc2:2``."""
    return ",".join(f"{dc}:{rf}" for dc, rf in sorted(replication.items()))
