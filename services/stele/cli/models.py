"""Answers of the services, as far as the command line shows them. Fields that it does not know pass by."""

from __future__ import annotations

import msgspec

from stele.domain.entities import Coordinator, Keyspace, Node, Request, Topology
from stele.runtime.answers import BlockerView


class Refusal(msgspec.Struct, frozen=True):
    """The one shape of errors and rejections."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, object] = {}


class NodeIdentity(msgspec.Struct, frozen=True):
    """GET /v1/node of a data node."""

    node_id: str
    cluster: str
    dc: str
    rack: str
    num_tokens: int
    address: str
    state: str = ""
    epoch: int = 0
    version: int = 0
    keys: int = 0
    bytes: int = 0


class NodeWork(msgspec.Struct, frozen=True):
    """A node's order under way, in bytes."""

    kind: str = ""
    status: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    keys_done: int = 0
    error: str = ""


class ProgressAnswer(msgspec.Struct, frozen=True):
    """GET /v1/progress of the coordinator."""

    term: int = 0
    active: bool = False
    waiting_for: str | None = None
    blockers: tuple[BlockerView, ...] = ()
    request_id: str | None = None
    transition_state: str | None = None
    nodes: dict[str, NodeWork] = {}
    bytes_done: int = 0
    bytes_total: int = 0
    eta_s: float | None = None


class PlacementRow(msgspec.Struct, frozen=True):
    """A range of the ring, start exclusive, end inclusive, and who serves it."""

    start: int
    end: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class OperationRow(msgspec.Struct, frozen=True):
    """The operation in transition."""

    request_id: str
    kind: str
    node_id: str


class StateView(msgspec.Struct, frozen=True):
    """GET /v1/state of the metadata-log: all that is true at one epoch."""

    epoch: int
    state_id: str
    cluster: str = ""
    cluster_id: str = ""
    hash: str = ""
    topology: Topology = Topology()
    coordinator: Coordinator = Coordinator()
    operation: OperationRow | None = None
    nodes: tuple[Node, ...] = ()
    requests: tuple[Request, ...] = ()
    keyspaces: tuple[Keyspace, ...] = ()
    placements: dict[str, tuple[PlacementRow, ...]] = {}
    features: tuple[str, ...] = ()
    settings: dict[str, str] = {}

    def node(self, node_id: str) -> Node | None:
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def request(self, request_id: str) -> Request | None:
        return next((r for r in self.requests if r.request_id == request_id), None)
