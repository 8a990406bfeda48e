"""Known bugs of tablets that get more replicas, or fewer."""

from typing import Final

from stele.domain.names import RequestKind
from stele.domain.topology.operations.base import Served, gaining_nodes
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

_CHANGE: Final = RequestKind.TABLET_RF_CHANGE


def _served() -> Served:
    served = OPERATIONS[_CHANGE].served
    assert served is not None
    return served


@planted(STORY, rule="I5")
def who_keeps_a_tablet_is_given_nothing(patch: Patch) -> None:
    """A replica goes although those that stay may lack what it has acknowledged with another one."""
    change_operation(patch, RequestKind.TABLET_MIGRATION, receivers=gaining_nodes)


@planted(STORY, rule="I7")
def copies_count_before_they_are_there(patch: Patch) -> None:
    """The keyspace has its new replication at once, and its tablets have not."""
    served = _served()
    hasty = Served(missing=lambda image, request: None, step=served.step, goes_back=True)
    change_operation(patch, _CHANGE, served=hasty)


@planted(STORY)
def cancelled_change_is_left_half_way(patch: Patch) -> None:
    """Cancelling a change of replication ends it at once, with tablets half changed."""
    served = _served()
    change_operation(patch, _CHANGE, served=Served(missing=served.missing, step=served.step))
