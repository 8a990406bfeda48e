"""Change of the replication of a keyspace with tablets (ScyllaDB's keyspace_rf_change).

The request is the goal. While it runs, the balancer adds missing replicas to each tablet, then
removes extra ones. It also moves replicas outside of a rack list to other racks. Each step changes
one replica, by a separate migration (``balancer.replication``).

It is done when all tables have the wanted replicas, and only then the keyspace changes. A cancel
reverses the goal: it ends when all tables have their former replicas. Meanwhile each tablet may
have any number of replicas between the two.
"""

from typing import Final

import msgspec

from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.schema import Keyspace, KeyspaceChanged
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.rules.requests import ended, started
from stele.domain.tablets.copies import Unlike, goal, moves_of, unlike
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    Served,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.keyspace_rf_change import change_replication

replace = msgspec.structs.replace


def missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the tablets without their wanted replicas, or with moves still under way."""
    if request.status is RequestStatus.PENDING:
        return None
    keyspace = image.schema.by_id[request.keyspace_id]
    lacking = [*unlike(image, keyspace)]
    if lacking:
        which = ", ".join(
            f"{each.tablets} of {each.of} tablets of {each.table}" for each in lacking
        )
        return MissingCondition(
            f"{which} to have {goal(image, keyspace).words()}",
            left=sum(each.left() for each in lacking),
            of=_replicas_that_change(image, keyspace, request),
        )
    moving = len([*moves_of(image, keyspace)])
    return MissingCondition(f"{moving} moves of tablets to end") if moving else None


def _replicas_that_change(image: Image, keyspace: Keyspace, request: Request) -> int:
    """Return how many replicas are made, deleted and moved to another rack in total."""
    one, two, placements = keyspace.replication, request.replication, image.ring.placements
    tables = image.schema.tables_of(keyspace)
    tablets = sum(len(placements[t.placement]) for t in tables if not t.base_table_id)
    counted = tablets * sum(abs(two.get(dc, 0) - one.get(dc, 0)) for dc in {*one, *two})
    return counted + request.replicas_to_move


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    keyspace = image.schema.by_id[request.keyspace_id]
    return tuple(map(_in_words, unlike(image, keyspace)))


def _in_words(each: Unlike) -> str:
    found = f"{each.table}: {each.more} replicas of {each.of} tablets are to be made, "
    found += f"{each.fewer} to be deleted"
    return f"{found}, {each.to_move} to go to another rack" if each.to_move else found


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done, or as cancelled after it was undone."""
    image = context.image
    if request.status is RequestStatus.PENDING:
        keyspace = image.schema.by_id[request.keyspace_id]
        to_move = sum(each.to_move for each in unlike(image, keyspace))
        return (RequestChanged(replace(started(context, request), replicas_to_move=to_move)),)
    # The balancer has restored the former replicas; the keyspace's row never changed.
    if request.cancelled:
        return ended(context, image, request, RequestStatus.CANCELLED, request.error)
    keyspace = image.schema.by_id[request.keyspace_id]
    changed = KeyspaceChanged(
        replace(keyspace, replication=request.replication, racks=request.racks)
    )
    return changed, *ended(context, image, request, RequestStatus.DONE, "")


TABLET_RF_CHANGE: Final = Operation(
    kind=RequestKind.TABLET_RF_CHANGE,
    command=None,
    ask=change_replication,
    priority=4,
    served=Served(missing=missing, step=step, goes_back=True),
    foreseen=foreseen,
    needed=nobody,
    touched=no_sets,
)
