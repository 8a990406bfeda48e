"""Planted bugs of global requests: what they wait for, and what becomes of truncated data."""

from collections.abc import Sequence

import msgspec

from stele.agent.cleanup import foreign_ranges
from stele.agent.pulling import Reading
from stele.coordinator import transitions
from stele.coordinator.actions import Check
from stele.coordinator.model import StepContext, Wait
from stele.domain import fencing
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.model.schema import owner_of
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind
from stele.domain.ring.ranges import Range
from stele.domain.topology.operations import global_requests
from stele.domain.topology.operations.base import Served, State
from stele.domain.topology.operations.table import OPERATIONS
from stele.node.cells import StoredCell
from stele.node.streaming import Streamer
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

replace = msgspec.structs.replace


@planted(STORY)
def truncation_keeps_the_data(patch: Patch) -> None:
    """The data of a truncated keyspace has the id that it had."""
    change_operation(patch, RequestKind.TRUNCATE, on_open=lambda image, transition, version: ())


@planted(RUN)
def truncation_ends_by_a_quorum(patch: Patch) -> None:
    """A truncation is done when most members have reported."""
    plain = transitions._have_reported_work

    def most_have(context: StepContext, transition: Transition, state: State) -> Check:
        members = len(context.image.membership.taking_part())
        found = plain(context, transition, state)
        waits = [action for action in found.actions if isinstance(action, Wait)]
        passed = any(2 * len(wait.blockers) < members for wait in waits)
        return Check(found.passed or passed, found.actions)

    patch.attribute(transitions, "_have_reported_work", most_have)


@planted(STORY)
def truncated_data_answers_until_the_fence(patch: Patch) -> None:
    """A replica that knows of a truncation serves older data until its version is fenced."""
    plain = fencing.check_token

    def by_the_fence(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        keyspace = image.schema.by_id.get(owner_of(data_id))
        fenced = image.topology.fence_version
        if keyspace is not None and keyspace.data_id != data_id and version >= fenced:
            return None
        return plain(image, data_id, token, version)

    patch.function(plain, by_the_fence)


@planted(STORY)
def streams_bring_truncated_data_back(patch: Patch) -> None:
    """Streamed rows are stored although they were truncated in the meantime."""

    def keeps(self: Streamer, reading: Reading, rows: Sequence[StoredCell], place: int) -> bool:
        return reading.guard.is_open

    patch.attribute(Streamer, "_may_keep", keeps)


@planted(STORY)
def cleanup_keeps_what_was_truncated(patch: Patch) -> None:
    """A cleanup checks only present data, although the node missed a truncation of the rest."""
    plain = foreign_ranges

    def of_what_is_there(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
        there = image.schema.of_data(data_id) is not None
        return plain(image, node_id, data_id, shard) if there else []

    patch.function(plain, of_what_is_there)


@planted(STORY)
def cleanup_waits_for_nobody(patch: Patch) -> None:
    """A cleanup is done as soon as it was begun."""
    _serve(patch, RequestKind.CLEANUP)


@planted(STORY)
def noop_passes_the_fence(patch: Patch) -> None:
    """A noop is done although a version that was there before it is not fenced."""
    _serve(patch, RequestKind.NOOP_REQUEST)


@planted(STORY)
def quiesce_forgets_what_was_before(patch: Patch) -> None:
    """A quiesce does not wait for the requests before it."""
    rest = tuple(c for c in global_requests.CONDITIONS if c is not global_requests.earlier_requests)
    patch.attribute(global_requests, "CONDITIONS", rest)


def _serve(patch: Patch, kind: RequestKind) -> None:
    """Report that requests of this kind need no more orders."""
    served = OPERATIONS[kind].served
    assert served is not None
    hasty = Served(missing=lambda image, request: None, step=served.step)
    change_operation(patch, kind, served=hasty)
