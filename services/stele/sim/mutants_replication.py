"""Known bugs of tablets that get more replicas, or fewer."""

from typing import Final

from stele.domain.names import RequestKind
from stele.domain.tablets import desk, moves, racks, replication
from stele.domain.topology.operations.base import Served, gaining_nodes
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

_CHANGE: Final = RequestKind.TABLET_RF_CHANGE


def _served() -> Served:
    served = OPERATIONS[_CHANGE].served
    assert served is not None
    return served


def who_keeps_a_tablet_is_given_nothing(patch: Patch) -> None:
    """A replica goes although those that stay may lack what it has acknowledged with another one."""
    change_operation(patch, RequestKind.TABLET_MIGRATION, receivers=gaining_nodes)


def copies_count_before_they_are_there(patch: Patch) -> None:
    """The keyspace has its new replication at once, and its tablets have not."""
    served = _served()
    hasty = Served(missing=lambda image, request: None, step=served.step, goes_back=True)
    change_operation(patch, _CHANGE, served=hasty)


def cancelled_change_is_left_half_way(patch: Patch) -> None:
    """To cancel a change of replication ends it at once, with the tablets that had it by then."""
    served = _served()
    change_operation(patch, _CHANGE, served=Served(missing=served.missing, step=served.step))


def replicas_go_before_others_come(patch: Patch) -> None:
    """Where data moves to another dc a tablet loses replicas before it has all new ones."""
    patch.attribute(replication, "_may_lose", lambda has, lacks: has)


def new_replicas_ignore_racks(patch: Patch) -> None:
    """One replica more goes wherever there is room, be it to a rack that has one."""
    for module in (desk, racks):
        patch.attribute(module, "fewest", lambda held, names: frozenset(names))


def replicas_of_the_living_go_first(patch: Patch) -> None:
    """Where one is too many the one on a dead node stays, and a good one goes."""
    patch.attribute(replication, "_is_of_no_use", lambda state: (False, False))


def copies_are_made_beyond_the_streams(patch: Patch) -> None:
    """All tablets get what they lack at once, whatever nodes can stream."""
    patch.attribute(desk, "fits", lambda load, limit, weight=1: True)


def tablets_may_be_left_without_replicas(patch: Patch) -> None:
    """By hand any replica can be deleted, the last one too."""
    patch.attribute(moves, "_check_fewer", lambda image, table, row, move: None)


def changes_that_cannot_be_wait_for_ever(patch: Patch) -> None:
    """Nobody ends a change of replication for which there are too few nodes."""
    patch.attribute(replication, "_no_room", lambda image, wanted: iter(()))


REPLICATION_MUTANTS: Final = (
    who_keeps_a_tablet_is_given_nothing,
    copies_count_before_they_are_there,
    cancelled_change_is_left_half_way,
)
REPLICATION_TEST_MUTANTS: Final = (
    replicas_go_before_others_come,
    new_replicas_ignore_racks,
    replicas_of_the_living_go_first,
    copies_are_made_beyond_the_streams,
    tablets_may_be_left_without_replicas,
    changes_that_cannot_be_wait_for_ever,
)
