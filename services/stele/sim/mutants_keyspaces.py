"""Known bugs about changes of replication: who needs which data, whose quorums count, and what is fenced."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.ring import transition
from stele.domain.ring.transition import TransitionRow
from stele.domain.schema.facts import KeyspaceChanged
from stele.domain.topology import planning
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.keyspace_rf_change import to_shared_placement
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import locks, moving_placements, needs
from stele.sim.patching import Patch


def _change(patch: Patch, **parts: Any) -> None:
    kind = RequestKind.KEYSPACE_RF_CHANGE
    patch.item(OPERATIONS, kind, replace(OPERATIONS[kind], **parts))


def who_stays_is_given_nothing(patch: Patch) -> None:
    """Of fewer replicas each keeps what it has, although it may lack what the others acknowledged."""
    patch.attribute(TransitionRow, "receiving", TransitionRow.coming)


def shrinking_needs_no_quorum_of_those_left(patch: Patch) -> None:
    """While a range only loses replicas, a write needs no quorum on the other side."""
    plain = transition._moving  # noqa: SLF001 - bugs are planted in private places too

    def one_sided(row: TransitionRow, reads: tuple[str, ...], other: tuple[str, ...]) -> Any:
        range_, read, written, asked = plain(row, reads, other)
        return range_, read, written, () if {*row.new} < {*row.old} else asked

    patch.attribute(transition, "_moving", one_sided)


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


def undone_change_counts_as_done(patch: Patch) -> None:
    """A change that was cancelled gives the keyspace the replication that was asked for."""

    def on_undone(image: Image, undone: Transition) -> Iterable[Any]:
        wanted = image.requests.requests[undone.transition_id].replication
        return to_shared_placement(image, undone, wanted)

    _change(patch, on_undone=on_undone)


def ring_moves_while_replication_changes(patch: Patch) -> None:
    """Nodes come and go beside a change of replication, whose plan is of the ring without them."""
    patch.function(moving_placements, lambda image: frozenset[str]())
    patch.function(needs, lambda image, planned: locks(planned))
    patch.attribute(planning, "_check_outcome", lambda image, later, planned: None)


KEYSPACE_MUTANTS: Final = (
    who_stays_is_given_nothing,
    shrinking_needs_no_quorum_of_those_left,
    change_of_placement_is_not_fenced,
    undone_change_counts_as_done,
    ring_moves_while_replication_changes,
)
