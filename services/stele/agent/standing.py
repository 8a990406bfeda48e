"""What the cluster thinks of a node that it does not want, or not any more: pure functions of the image."""

import msgspec

from stele.agent.identity import Identity
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.topology.operations.table import OPERATIONS


class Expelled(msgspec.Struct, frozen=True):
    """Why a node serves nothing, for good: code, sentence and what to do.

    ``wanted``: it left because somebody asked this working node to, so nothing is wrong with it.
    """

    code: str
    message: str
    hint: str
    wanted: bool = False


def expelled(image: Image, node_id: str) -> Expelled | None:
    """None for a node that is a member, or may become one."""
    row = image.node(node_id)
    if row is None:
        return None
    if row.state is NodeState.LEFT:
        request = image.request(row.request_id)
        return Expelled(
            "node_left",
            f"Node '{node_id}' has left the cluster{_by(request)}, and serves no data.",
            "Stop it. Its data directory is of no use to this cluster any more: delete it once nobody"
            " misses anything.",
            wanted=_was_asked_to_leave(row, request),
        )
    if row.excluded:
        return Expelled(
            "node_excluded",
            f"Node '{node_id}' was declared dead in epoch {row.excluded_since}, and serves no data any more.",
            f"`stele remove {node_id}`, or replace it. Keep its data directory until that is done.",
        )
    return None


def join_ended(image: Image, identity: Identity) -> str:
    """Why the node will never become a member, in words; empty while it may, or when it was one."""
    row = image.node(identity.node_id)
    if row is None or row.state is not NodeState.LEFT or identity.was_member:
        return ""
    request = image.request(row.request_id)
    if request is not None and request.status is RequestStatus.DONE:
        return ""  # it was one, and did not note it in time
    return (
        f"node '{identity.node_id}' did not become a member{_by(request)}. Neither its name nor its data"
        " directory can be used again: when the reason is mended, start it with a new STELE_NODE_ID and an"
        " empty STELE_DATA_DIR (node_left)"
    )


def _by(request: Request | None) -> str:
    """The request that came to this end, and whose it was."""
    if request is None:
        return ""
    who = f" of {request.actor}" if request.actor else ""
    why = request.error or request.reason
    status = "" if request.status is RequestStatus.DONE else f" {request.status}"
    return (
        f" (request {request.request_id}, {request.kind}{who},{status} epoch {request.finished_epoch}"
        + (f": {why})" if why else ")")
    )


def _was_asked_to_leave(row: Node, request: Request | None) -> bool:
    return (
        request is not None
        and request.node_id == row.node_id
        and request.status is RequestStatus.DONE
        and OPERATIONS[request.kind].subjects_work
    )
