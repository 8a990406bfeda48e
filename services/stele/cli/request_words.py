"""Requests in words."""

from __future__ import annotations

from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Keyspace


def what(request: Request, keyspaces: list[Keyspace]) -> str:
    """What it is about: ``join n4``, ``replace n3 by n5``, ``keyspace_rf_change library to dc1=3``."""
    if request.replaced_id:
        return f"{request.kind} {request.replaced_id} by {request.node_id}"
    names = (k.name for k in keyspaces if k.keyspace_id == request.keyspace_id)
    dead = ", ".join(request.dead_nodes)
    about = request.node_id or next(names, request.keyspace_id) or dead
    if request.replication:
        about = f"{about} to {copies_text(request.replication)}"
    about = about or ", ".join(request.features)
    return f"{request.kind} {about}".rstrip()


def copies_text(replication: dict[str, int]) -> str:
    """As it is given: ``dc1=3, dc2=2``."""
    return ", ".join(f"{dc}={rf}" for dc, rf in sorted(replication.items()))
