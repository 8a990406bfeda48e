"""Topology requests at one epoch."""

import msgspec
from immutables import Map

from stele.domain.names import UNFINISHED, RequestStatus
from stele.domain.requests.facts import Request


class RequestsImage(msgspec.Struct, frozen=True):
    requests: Map[str, Request] = Map()

    def unfinished(self) -> list[Request]:
        """Pending and running requests, first come first."""
        open_ = (r for r in self.requests.values() if r.status in UNFINISHED)
        return sorted(open_, key=_first_come)

    def pending(self) -> list[Request]:
        """Requests that wait to be started, first come first."""
        return [r for r in self.unfinished() if r.status is RequestStatus.PENDING]

    def going(self) -> frozenset[str]:
        """Nodes that are about to be gone: room and racks count without them."""
        return frozenset(r.node_id for r in self.unfinished() if r.removes_node)

    def finished(self) -> list[Request]:
        """Finished requests, the oldest first."""
        ended = (r for r in self.requests.values() if r.status not in UNFINISHED)
        return sorted(ended, key=lambda r: (r.finished_epoch, r.request_id))


def _first_come(request: Request) -> tuple[int, str]:
    return request.submitted_epoch, request.request_id
