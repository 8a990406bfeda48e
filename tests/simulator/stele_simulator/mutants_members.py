"""Planted bugs of moves and rebuilds: whose tokens when, who streams, from how many, and what is locked."""

from collections.abc import Set
from typing import Any

import msgspec

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring.transition import TransitionPlan, TransitionRow
from stele.domain.topology.operations import rebuild
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

replace = msgspec.structs.replace
_STATE = TransitionState


def _state(patch: Patch, kind: RequestKind, state: TransitionState, **changes: Any) -> None:
    states: Any = OPERATIONS[kind].states
    patch.item(states, state, replace(states[state], **changes))


@planted(STORY, rule="I11")
def move_takes_its_tokens_before_it_streams(patch: Patch) -> None:
    """The ring has the new tokens while a cancel still has to bring the old ones back."""
    _state(patch, RequestKind.MOVE, _STATE.WRITE_BOTH_READ_OLD, takes_tokens=True)


@planted(RUN, rule="I5")
def move_streams_to_the_mover_alone(patch: Patch) -> None:
    """Nodes that take over a moving node's ranges stream nothing."""
    change_operation(patch, RequestKind.MOVE, receivers=lambda moving: sorted(moving.nodes()))


@planted(STORY, rule="I11")
def move_turns_round_after_reads_have_moved(patch: Patch) -> None:
    """A move may be undone when the node's new ranges have been written without the old replicas."""
    _state(
        patch, RequestKind.MOVE, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL
    )


@planted(RUN, rule="I5")
def rebuild_is_done_before_it_has_streamed(patch: Patch) -> None:
    """A rebuild orders no streams."""
    change_operation(patch, RequestKind.REBUILD, receivers=no_receivers)


@planted(STORY)
def rebuild_is_content_with_one_source(patch: Patch) -> None:
    """A write that the node acknowledged with one other may be with a third that is not asked."""
    plain = rebuild.sources

    def one(
        image: Image, open_: Transition, row: TransitionRow, node_id: str, gone: Set[str]
    ) -> Any:
        asked = plain(image, open_, row, node_id, gone)
        return None if asked is None else (asked[0], min(1, asked[1]))

    change_operation(patch, RequestKind.REBUILD, sources=one)


@planted(STORY)
def rebuild_locks_nothing(patch: Patch) -> None:
    """Others move the ranges away while their replicas are read."""

    def unlocked(image: Image, requests: list[Request]) -> Any:
        found = rebuild.plans(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: TransitionPlan(rows=plan.rows) for name, plan in found.items()}

    change_operation(patch, RequestKind.REBUILD, plans=unlocked)
