"""Facts: what is now true. An epoch carries a list of them, and they hold all or none.

A fact is an entity's new row, or the rows of a placement that changed. It carries computed results, so
that folding needs no decision: a snapshot of an image is the same facts, written from nothing.
"""

import msgspec

from stele.domain.entities import Coordinator, Keyspace, Node, Operation, Request, Topology
from stele.domain.ring.ranges import Range, RangeReplicas


class Fact(msgspec.Struct, frozen=True, tag=True):
    """Base of all facts; the tag is the class name, in JSON as in the Avro schema."""


class ClusterCreated(Fact, frozen=True):
    cluster: str
    cluster_id: str
    partitioner: str


class NodeChanged(Fact, frozen=True):
    node: Node


class RequestChanged(Fact, frozen=True):
    request: Request


class KeyspaceChanged(Fact, frozen=True):
    keyspace: Keyspace


class KeyspaceDropped(Fact, frozen=True):
    name: str


class PlacementChanged(Fact, frozen=True):
    """Rows that left a placement and rows that came in; the rest of the ring is untouched."""

    placement: str
    removed: tuple[Range, ...]
    added: tuple[RangeReplicas, ...]


class PlacementDropped(Fact, frozen=True):
    placement: str


class TopologyChanged(Fact, frozen=True):
    topology: Topology


class OperationChanged(Fact, frozen=True):
    """The operation in transition; None when there is none any more."""

    operation: Operation | None


class CoordinatorChanged(Fact, frozen=True):
    coordinator: Coordinator


class FeaturesEnabled(Fact, frozen=True):
    features: tuple[str, ...]


class SettingChanged(Fact, frozen=True):
    """A cluster-wide setting; an empty value removes it."""

    name: str
    value: str


class CommandRefused(Fact, frozen=True, kw_only=True):
    """A command was decided: nothing changes, and its id stays refused (design, section 1, rule 4)."""

    request_id: str
    digest: bytes
    command: str
    code: str
    message: str
    hint: str
    details: dict[str, str]
    actor: str
    reason: str
    origin: str


class DecidedGeneration(Fact, frozen=True):
    """In snapshots only: a sealed generation of decided requests; entries of 8 bytes, little endian."""

    base: int
    last: int
    newest_ms: int
    entries: bytes


class DecidedRequests(Fact, frozen=True):
    """In snapshots only: the newest decided requests and their epochs, and what is forgotten."""

    floor: int
    horizon_ms: int
    young: dict[str, int]


AnyFact = (
    ClusterCreated
    | NodeChanged
    | RequestChanged
    | KeyspaceChanged
    | KeyspaceDropped
    | PlacementChanged
    | PlacementDropped
    | TopologyChanged
    | OperationChanged
    | CoordinatorChanged
    | FeaturesEnabled
    | SettingChanged
    | CommandRefused
    | DecidedGeneration
    | DecidedRequests
)


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log (design, section 1). Ids of states are 16 bytes, ordered by time.

    A barrier has no request id: nobody asks for it again.
    """

    prev_state_id: bytes
    state_id: bytes
    epoch: int
    request_id: str
    command: str
    facts: tuple[AnyFact, ...]
    actor: str = ""
    reason: str = ""
    origin: str = ""
    at_ms: int = 0
    required_features: tuple[str, ...] = ()
    command_digest: bytes = b""
