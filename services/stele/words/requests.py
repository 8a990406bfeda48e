"""Requests in words."""

from __future__ import annotations

from collections.abc import Mapping

from stele.domain.requests.facts import Request


def what(request: Request, names: Mapping[str, str]) -> str:
    """What it is about: ``join n4``, ``replace n3 by n5``, ``keyspace_rf_change library to dc1=3``.

    ``names`` are of keyspaces and tables, by their ids.
    """
    if request.replaced_id:
        return f"{request.kind} {request.replaced_id} by {request.node_id}"
    about = request.node_id or _data(request, names) or ", ".join(request.dead_nodes)
    if request.reconfigures:
        return f"{request.kind} to {request.archive_replication}"
    if request.replication:
        about = f"{about} to {request.wanted.words()}"
    about = about or ", ".join(request.features)
    return f"{request.kind} {about}".rstrip()


def _data(request: Request, names: Mapping[str, str]) -> str:
    id_ = request.table_id or request.keyspace_id
    name = names.get(id_, id_)
    if request.resizes:
        before = f" from {request.tablet_count_before}" if request.tablet_count_before else ""
        return f"{name}{before} to {request.tablet_count}"
    if request.repairs:
        tablet = f"of {name} tablet {request.tablet}" if request.repairs_tablet else name
        return f"{tablet}{request.among.words()}"
    if request.tag:
        tablet = f" tablet {request.tablet}" if request.restores_tablet else ""
        return f"{name}{tablet} {'from' if request.restore_id else 'as'} {request.tag}"
    if not request.moves_replica:
        return name
    return f"of {name} tablet {request.tablet}{request.ways()}"
