"""Topology requests at one epoch."""

from heapq import nsmallest

import msgspec
from immutables import Map

from stele.domain.names import UNFINISHED, RequestStatus
from stele.domain.requests.facts import Request, RequestForgotten


class RequestsImage(msgspec.Struct, frozen=True):
    """``open`` are those of ``requests`` that are not finished. ``forgotten`` is the one that had ended last of
    all that have left; all that ended later are here. ``changes`` are, by the keyspace's id, those that give
    one another replication.
    """

    requests: Map[str, Request] = Map()
    open: Map[str, Request] = Map()
    forgotten: RequestForgotten | None = None
    changes: Map[str, str] = Map()

    def unfinished(self) -> list[Request]:
        """Pending and running requests, first come first."""
        return sorted(self.open.values(), key=_first_come)

    def pending(self) -> list[Request]:
        """Requests that wait to be started, first come first."""
        return [r for r in self.unfinished() if r.status is RequestStatus.PENDING]

    def going(self) -> frozenset[str]:
        """Nodes that are about to be gone: room and racks count without them."""
        return frozenset(r.node_id for r in self.open.values() if r.removes_node)

    def resizing(self) -> tuple[str, ...]:
        """Ids of those that give tables another number of tablets."""
        return tuple(sorted(r.request_id for r in self.open.values() if r.resizes))

    def table_repairs(self) -> dict[str, Request]:
        """Those that repair all tablets of a table, by the table's id."""
        found = (r for r in self.open.values() if r.repairs and not r.repairs_tablet)
        return {request.table_id: request for request in found}

    def reconfigurations(self) -> list[Request]:
        """Those that change who the members of the archive are, first come first: one is served at a time."""
        return [r for r in self.unfinished() if r.reconfigures]

    def finished(self) -> list[Request]:
        """Finished requests, the oldest first."""
        return self.finished_first(len(self.requests))

    def finished_first(self, count: int) -> list[Request]:
        """So many of them, the oldest first."""
        ended = (r for r in self.requests.values() if r.status not in UNFINISHED)
        return nsmallest(count, ended, key=_first_finished) if count else []


def _first_finished(request: Request) -> tuple[int, str]:
    return request.finished_epoch, request.request_id


def _first_come(request: Request) -> tuple[int, str]:
    return request.submitted_epoch, request.request_id
