"""Known bugs about changes of replication: who needs which data, whose quorums count, and what is fenced."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from stele.coordinator import openings
from stele.domain.ddl import keyspaces as schema_decisions
from stele.domain.image import Image
from stele.domain.model.schema import KeyspaceChanged
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind
from stele.domain.ring import transition
from stele.domain.ring.quorum import blocking
from stele.domain.ring.transition import TransitionRow
from stele.domain.topology import planning
from stele.domain.topology.operations.replication import to_shared_placement
from stele.domain.topology.planning import Locks, locks, moving_placements, needs
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted


def _change(patch: Patch, **parts: Any) -> None:
    change_operation(patch, RequestKind.KEYSPACE_RF_CHANGE, **parts)


@planted(RUN, rule="I5")
def who_stays_is_given_nothing(patch: Patch) -> None:
    """When replicas are removed, the others pull nothing, although they may lack acknowledged writes."""
    patch.attribute(TransitionRow, "receiving", TransitionRow.coming)


@planted(STORY)
def shrinking_needs_no_quorum_of_those_left(patch: Patch) -> None:
    """While a range only loses replicas, a write needs no quorum on the other side."""
    plain = transition._moving

    def one_sided(row: TransitionRow, *, to_new: bool) -> Any:
        read, written, asked, *shards = plain(row, to_new=to_new)
        return read, written, () if {*row.new} < {*row.old} else asked, *shards

    patch.attribute(transition, "_moving", one_sided)


@planted(STORY, rule="I3")
def change_of_placement_is_not_fenced(patch: Patch) -> None:
    """The shared placement's versions alone say who is stale, and they know nothing of the change."""

    def plain(image: Image, done: Transition, replication: dict[str, int]) -> Iterable[Any]:
        for fact in to_shared_placement(image, done, replication):
            if isinstance(fact, KeyspaceChanged):
                was = image.schema.by_id[fact.keyspace.keyspace_id].placed_version
                yield KeyspaceChanged(replace(fact.keyspace, placed_version=was))
            else:
                yield fact

    def on_done(image: Image, done: Transition, epoch: int) -> Iterable[Any]:
        return plain(image, done, image.requests.requests[done.transition_id].replication)

    _change(patch, on_done=on_done)


@planted(STORY, rule="I7")
def undone_change_counts_as_done(patch: Patch) -> None:
    """A change that was cancelled gives the keyspace the replication that was asked for."""

    def on_undone(image: Image, undone: Transition) -> Iterable[Any]:
        wanted = image.requests.requests[undone.transition_id].replication
        return to_shared_placement(image, undone, wanted)

    _change(patch, on_undone=on_undone)


@planted(STORY)
def ring_moves_while_replication_changes(patch: Patch) -> None:
    """Nodes come and go beside a change of replication, whose plan is of the ring without them."""
    patch.function(moving_placements, lambda image: frozenset[str]())
    patch.function(needs, lambda image, planned: locks(planned))
    patch.attribute(planning, "_changes_tokens", lambda transition: False)
    patch.attribute(planning, "_check_outcome", lambda image, later, planned: None)


@planted(RUN, rule="I5")
def who_stays_of_two_need_not_be_there(patch: Patch) -> None:
    """The other's copy is given up for that of a node that is dead, since it has everything."""

    def only_when_it_may_lack(row: TransitionRow) -> list[str]:
        may_lack = len(row.new) < len(row.old) and blocking(len(row.old)) > 1
        return [*row.new] if may_lack else row.coming()

    patch.attribute(TransitionRow, "receiving", only_when_it_may_lack)


@planted(STORY)
def changes_of_replication_overtake_nodes(patch: Patch) -> None:
    """A waiting request blocks those that change the same ranges, but not those that it waits for."""

    first_meeting = openings._Queue.first_meeting

    def same_ranges(earlier: Any, mine: Locks, want: Locks) -> str:
        queue = openings._Queue()
        queue._request_ids, queue._locks = earlier._request_ids, earlier._locks
        return first_meeting(queue, {}, mine)

    patch.attribute(openings._Queue, "first_meeting", same_ranges)


@planted(STORY, rule="I7")
def keyspaces_are_made_on_the_dead(patch: Patch) -> None:
    """A new keyspace gets ranges without live replicas, which also block the removal of the dead node."""
    patch.attribute(schema_decisions, "_check_can_be_written", lambda image, placement: None)
