"""Planted bugs of global requests: what they wait for, and what becomes of truncated data."""

from collections.abc import Sequence
from typing import Final

import msgspec

from stele.agent.cleanup import foreign_ranges
from stele.agent.pulling import Reading
from stele.coordinator import steps
from stele.coordinator.desk import Desk
from stele.domain import fencing
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.ring.ranges import Range
from stele.domain.schema.facts import owner_of
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations import quiesce
from stele.domain.topology.operations.base import Served, State
from stele.domain.topology.operations.table import OPERATIONS
from stele.node.cells import Row
from stele.node.streaming import Streamer
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

replace = msgspec.structs.replace


def truncation_keeps_the_data(patch: Patch) -> None:
    """The data of a truncated keyspace has the id that it had."""
    kept = replace(OPERATIONS[RequestKind.TRUNCATE], on_open=lambda image, transition, version: ())
    patch.item(OPERATIONS, RequestKind.TRUNCATE, kept)


def truncation_ends_by_a_quorum(patch: Patch) -> None:
    """A truncation is done when most members have reported."""
    plain = steps._have_all_done  # noqa: SLF001 - bugs are planted in private places too

    def most_have(desk: Desk, transition: Transition, state: State) -> bool:
        members = len(desk.seen.image.membership.taking_part())
        if plain(desk, transition, state):
            return True
        return 2 * len(desk.waits[-1].blockers) < members

    patch.attribute(steps, "_have_all_done", most_have)


def truncated_data_answers_until_the_fence(patch: Patch) -> None:
    """Who knows of a truncation serves the data of before until its version is fenced."""
    plain = fencing.check_token

    def by_the_fence(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        keyspace = image.schema.by_id.get(owner_of(data_id))
        fenced = image.topology.fence_version
        if keyspace is not None and keyspace.data_id != data_id and version >= fenced:
            return None
        return plain(image, data_id, token, version)

    patch.function(plain, by_the_fence)


def streams_bring_truncated_data_back(patch: Patch) -> None:
    """What is streamed is kept, though it was truncated meanwhile."""

    def keeps(self: Streamer, reading: Reading, rows: Sequence[Row], place: int) -> bool:
        return reading.guard.is_open

    patch.attribute(Streamer, "_may_keep", keeps)


def cleanup_keeps_what_was_truncated(patch: Patch) -> None:
    """Who cleans up looks at present data alone, though it was no member when the rest was truncated."""
    plain = foreign_ranges

    def of_what_is_there(image: Image, node_id: str, data_id: str, shard: int = 0) -> list[Range]:
        there = image.schema.of_data(data_id) is not None
        return plain(image, node_id, data_id, shard) if there else []

    patch.function(plain, of_what_is_there)


def cleanup_waits_for_nobody(patch: Patch) -> None:
    """A cleanup is done as soon as it was begun."""
    _serve(patch, RequestKind.CLEANUP)


def noop_passes_the_fence(patch: Patch) -> None:
    """A noop is done although a version that was there before it is not fenced."""
    _serve(patch, RequestKind.NOOP_REQUEST)


def quiesce_forgets_what_was_before(patch: Patch) -> None:
    """A quiesce does not wait for the requests before it."""
    rest = tuple(c for c in quiesce.CONDITIONS if c is not quiesce.earlier_requests)
    patch.attribute(quiesce, "CONDITIONS", rest)


def _serve(patch: Patch, kind: RequestKind) -> None:
    """Nothing is ever missing for requests of this kind."""
    served = OPERATIONS[kind].served
    assert served is not None
    hasty = Served(missing=lambda image, request: None, step=served.step)
    change_operation(patch, kind, served=hasty)


GLOBAL_MUTANTS: Final = (
    truncation_keeps_the_data,
    truncation_ends_by_a_quorum,
    truncated_data_answers_until_the_fence,
    streams_bring_truncated_data_back,
    cleanup_keeps_what_was_truncated,
    cleanup_waits_for_nobody,
    noop_passes_the_fence,
    quiesce_forgets_what_was_before,
)
