"""New CDC generation: one that fits the present ring (``check_and_repair_cdc_streams`` in
ScyllaDB).

commit_cdc_generation -> (done)
failure or cancel: rollback_to_normal -> (the written generation is forgotten).
Unless forced, it is done at once when the present generation fits the ring with all open operations.
It does not fit after nodes have left or moved; joins make a generation of their own.

Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (global operations).
"""

from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.operations import NewCdcGeneration
from stele.domain.names import RequestKind, RequestStatus, TransitionState
from stele.domain.rules.cdc import is_ahead
from stele.domain.rules.requests import ended, new_request
from stele.domain.rules.ring import tokens_of_streams
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Operation,
    State,
    no_sets,
    nobody,
)


def new_cdc_generation(context: Context, command: NewCdcGeneration) -> Decision:
    """Queue it, or end it at once if there is nothing to repair."""
    image = context.image
    tokens = tokens_of_streams(image)
    refused = _check_tokens(tokens) or _check_alone(image)
    if refused is not None:
        return refused
    asked = new_request(context, RequestKind.NEW_CDC_GENERATION, force=command.force)
    present = image.cdc.newest()
    is_good = present and not is_ahead(context, image, present) and present.fits(tokens)
    if is_good and not command.force:
        return ended(context, image, asked.request, RequestStatus.DONE, "")
    return (asked,)


def _check_tokens(tokens: set[int]) -> Rejection | None:
    if tokens:
        return None
    return Rejection(
        "no_tokens_yet",
        "No node of the cluster has tokens yet, so there are no ranges to make streams for.",
        "Let a node with tokens join: that makes the first CDC generation.",
    )


def _check_alone(image: Image) -> Rejection | None:
    for other in image.requests.unfinished():
        if other.kind is RequestKind.NEW_CDC_GENERATION:
            return Rejection(
                "cdc_generation_in_progress",
                f"Request {other.request_id} makes a CDC generation already.",
                f"Wait until it is done: `stele request follow {other.request_id}`; or cancel it.",
                {"request_id": other.request_id},
            )
    return None


_STATE = TransitionState
NEW_CDC_GENERATION: Final = Operation(
    kind=RequestKind.NEW_CDC_GENERATION,
    command=NewCdcGeneration,
    ask=new_cdc_generation,
    priority=GLOBAL_PRIORITY,
    needed=nobody,
    first=_STATE.COMMIT_CDC_GENERATION,
    states={
        _STATE.COMMIT_CDC_GENERATION: State(
            makes_cdc_generation=True,
            everybody_knows=True,
            on_failure=_STATE.ROLLBACK_TO_NORMAL,
        ),
        _STATE.ROLLBACK_TO_NORMAL: State(undoing=True),
    },
    touched=no_sets,
)
