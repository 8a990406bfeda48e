"""Marks: a transition that is to go back does so with its next step, never in between (design, section 3)."""

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.topology.facts import TransitionMarked
from stele.domain.topology.operations.table import way_back

replace = msgspec.structs.replace


def mark(context: Context, request: Request, why: str, *, cancelled: bool) -> Decision:
    """Mark the transition of a running request, when it is before its point of no return (I11).

    The request alone is blamed: others that share the transition wait anew once it has been undone, unless
    they are cancelled too while it goes back.
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
    if transition.mark and request.request_id not in transition.blamed:
        blamed = (*transition.blamed, request.request_id)
        return changed, TransitionMarked(transition.transition_id, transition.mark, blamed)
    if transition.mark or way_back(context.image, transition) is None:
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
