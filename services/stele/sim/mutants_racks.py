"""Known bugs of rack lists, and of repairs among some replicas."""

from typing import Any, Final

from stele.domain.balance import rack_lists, state
from stele.domain.names import RequestKind
from stele.domain.repairs.facts import TabletRepaired
from stele.domain.schema import replication as replications
from stele.domain.tablets import copies, moves, replication
from stele.domain.topology.operations import leave
from stele.domain.topology.operations.base import Served
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

_CHANGE: Final = RequestKind.TABLET_RF_CHANGE
_REPAIR: Final = RequestKind.TABLET_REPAIR


def racks_are_named_before_tablets_are_there(patch: Patch) -> None:
    """A keyspace that names its racks has them at once, and its tablets are elsewhere."""
    served = OPERATIONS[_CHANGE].served
    assert served is not None
    plain = served.missing

    def missing(image: Any, request: Any) -> Any:
        return None if request.racks else plain(image, request)

    hasty = Served(missing=missing, step=served.step, goes_back=True)
    change_operation(patch, _CHANGE, served=hasty)


def by_hand_any_rack_will_do(patch: Patch) -> None:
    """A tablet is moved by hand out of the racks that are named."""
    patch.attribute(moves, "_check_list", lambda image, row, move, racks: None)


def balancer_leaves_the_list(patch: Patch) -> None:
    """The balancer evens out over all racks, also where they are named."""
    patch.attribute(state.State, "list_racks", lambda self, table, dc, racks: None)


def racks_are_only_counted(patch: Patch) -> None:
    """A tablet with as many replicas as racks are named counts as being in these."""
    plain = copies.amiss

    def counted(wanted: Any, places: Any, replicas: Any) -> Any:
        return plain(wanted._replace(racks={}), places, replicas)

    patch.function(plain, counted)


def replicas_of_the_list_may_go(patch: Patch) -> None:
    """Where racks are taken off the list any replica may go, and not that of these racks."""
    patch.function(rack_lists.strays, lambda racks, of: [*range(len(of))])


def new_replicas_go_beside_the_list(patch: Patch) -> None:
    """One replica more goes wherever there is room, be it to a rack that is not named."""
    patch.function(rack_lists.vacant, lambda racks, of: frozenset(racks) | {*of})


def last_node_of_a_listed_rack_may_leave(patch: Patch) -> None:
    """A rack that has a replica of each tablet may lose its last node."""
    plain = leave.check_enough_remain

    def lenient(image: Any, leaving: Any) -> Any:
        found = plain(image, leaving)
        return None if found is not None and found.code == "last_of_rack" else found

    patch.function(plain, lenient)


def racks_need_not_be_there(patch: Patch) -> None:
    """Racks may be named in which there is no node."""
    plain = replications.check_replication

    def lenient(image: Any, wanted: Any) -> Any:
        return plain(image, wanted._replace(racks={}))

    patch.function(plain, lenient)


def rack_that_is_gone_is_waited_for(patch: Patch) -> None:
    """Nobody ends a change to racks of which one has no node any more."""
    plain = replication._no_room  # noqa: SLF001 - bugs are planted in private places too
    patch.function(plain, lambda image, wanted: plain(image, wanted._replace(racks={})))


def moves_of_a_change_are_switched_off(patch: Patch) -> None:
    """While balancing is off nothing goes to the racks that somebody has named."""
    plain = copies.is_required

    def strict(image: Any, table: Any, move: Any) -> Any:
        return plain(image, table, move) and bool(move.from_node) != bool(move.to_node)

    patch.function(plain, strict)


def some_replicas_count_as_all(patch: Patch) -> None:
    """A repair among some replicas counts as one of the tablet."""
    plain = OPERATIONS[_REPAIR].on_done

    def on_done(image: Any, done: Any, epoch: int) -> Any:
        yield from plain(image, done, epoch)
        request = image.requests.requests[done.transition_id]
        if request.is_restricted:
            of = request.tablet_count
            yield TabletRepaired(request.table_id, request.tablet, of, request.submitted_ms)

    change_operation(patch, _REPAIR, on_done=on_done)


def others_are_asked_too(patch: Patch) -> None:
    """A repair among some replicas is done by all, and waits for those that are down."""
    change_operation(patch, _REPAIR, left_aside=lambda image, repairing: frozenset())


RACK_TEST_MUTANTS: Final = (
    racks_are_named_before_tablets_are_there,
    balancer_leaves_the_list,
    racks_are_only_counted,
    replicas_of_the_list_may_go,
    new_replicas_go_beside_the_list,
    last_node_of_a_listed_rack_may_leave,
    racks_need_not_be_there,
    rack_that_is_gone_is_waited_for,
    moves_of_a_change_are_switched_off,
    some_replicas_count_as_all,
    others_are_asked_too,
    by_hand_any_rack_will_do,
)
