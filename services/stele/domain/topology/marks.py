"""Marks: a marked transition goes back in the next Advance, never between rounds.

See docs/design.md, rule 21.
"""

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.requests.model import Request, RequestChanged
from stele.domain.topology.facts import TransitionMarked
from stele.domain.topology.operations.table import OPERATIONS

replace = msgspec.structs.replace


def mark(context: Context, request: Request, why: str, *, cancelled: bool) -> Decision:
    """Mark the transition of a running request, if it is before its point of no return (I11).

    After reads have moved, a cancel is refused. The log does not contain which replicas are alive.
    A way back could lead to one that is down, and the replicas that serve the range would delete
    their data.

    The request alone is blamed. Others that share the transition become pending again after it was
    undone, unless they are cancelled too meanwhile.
    """
    transition = context.image.topology.of_request(request.request_id)
    if transition is None:
        return Rejection(
            "not_in_transition",
            f"Request {request.request_id} is not in transition.",
            "Read the newest state and try again.",
        )
    text = f"Rolled back: {why}"
    changed = RequestChanged(replace(request, error=text, cancelled=cancelled))
    # The way back has begun already; this request only joins the blamed ones.
    if transition.mark and request.request_id not in transition.blamed:
        blamed = (*transition.blamed, request.request_id)
        return changed, TransitionMarked(transition.transition_id, transition.mark, blamed)
    state = OPERATIONS[transition.kind].states[transition.state]
    if transition.mark or not state.can_be_cancelled:
        return Rejection(
            "past_point_of_no_return",
            f"Request {request.request_id} is in '{transition.state}' and cannot be undone"
            f"{': it is being rolled back already' if transition.mark else ''}.",
            "Let it finish; a node that has joined can leave afterwards."
            if transition.subjects
            else "Let it finish; nodes that are dead for good can be excluded.",
            {"transition_state": transition.state},
        )
    return changed, TransitionMarked(transition.transition_id, text, (request.request_id,))
