"""Known bugs of splits and merges: what they wait for, what they keep, and when they are wanted no more."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stele.domain.base import Rejection
from stele.domain.column import Ints
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import RequestKind
from stele.domain.requests.facts import Request
from stele.domain.ring.columns import Rows
from stele.domain.ring.placement import Placement
from stele.domain.tablets import colocation, look, maps, resizing, sizing
from stele.domain.tablets.racks import InRack, after_move
from stele.domain.tablets.sizing import Goals, Present
from stele.domain.topology.operations import tablet_migration, tablet_resize
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

replace = msgspec.structs.replace
_RESIZE: Final = RequestKind.TABLET_RESIZE


def resize_does_not_wait_for_migrations(patch: Patch) -> None:
    """The new map comes while tablets of the old one move."""
    plain = OPERATIONS[_RESIZE].plans
    assert plain is not None

    def unlocked(image: Image, requests: list[Request]) -> Any:
        found = plain(image, requests)
        if isinstance(found, Rejection):
            return found
        return {name: replace(plan, locks=()) for name, plan in found.items()}

    change_operation(patch, _RESIZE, plans=unlocked)


def siblings_that_are_apart_become_one(patch: Patch) -> None:
    """A merge does not wait until both tablets are on the same nodes."""
    change_operation(patch, _RESIZE, held=OPERATIONS[RequestKind.TRUNCATE].held)


def split_does_not_wait_for_storage(patch: Patch) -> None:
    """A split is finished although replicas have not cut their storage."""
    change_operation(patch, _RESIZE, prepared_by=OPERATIONS[RequestKind.TRUNCATE].prepared_by)


def new_tablets_forget_their_versions(patch: Patch) -> None:
    """After a resize late requests are served by the replicas that their tablet had before."""
    plain = maps.resized

    def forgetful(placement: Placement, count: int) -> Rows:
        rows = plain(placement, count)
        _, _, *replicas = rows.values
        never = np.zeros(len(rows), np.int64)
        return Rows(rows.keys, (never, never, *replicas))

    patch.function(plain, forgetful)


def merged_tablet_has_the_version_of_the_first(patch: Patch) -> None:
    """Of two tablets that become one the second one's newest change is forgotten."""

    def first(versions: Ints, versions_before: Ints) -> tuple[Ints, Ints]:
        return versions[::2], versions_before[::2]

    patch.attribute(maps, "_versions_of_both", first)


def number_of_a_tablet_outlives_a_split(patch: Patch) -> None:
    """A migration that was asked for before moves whatever tablet has that number by now."""
    plain = tablet_migration.plans

    def whatever(image: Image, requests: list[Request]) -> Any:
        (request,) = requests
        table = image.schema.tables.get(request.table_id)
        if table is not None and table.placement in image.ring.placements:
            count = len(image.ring.placements[table.placement])
            requests = [replace(request, tablet_count=count)]
        return plain(image, requests)

    change_operation(patch, RequestKind.TABLET_MIGRATION, plans=whatever)


def two_resizes_of_a_table_at_once(patch: Patch) -> None:
    """A table may be asked to be split while it is being merged."""
    patch.attribute(tablet_resize, "_is_of", lambda request, table: False)


def sizes_that_waver_turn_a_resize_round(patch: Patch) -> None:
    """What has begun is judged as if it had not."""
    for name in ("_fewest_by_size", "_most_by_size"):
        plain = getattr(sizing, name)

        def anew(present: Present, goals: Goals, plain: Any = plain) -> Any:
            return plain(replace(present, resizing_to=0), goals)

        patch.attribute(sizing, name, anew)


def what_users_ask_for_is_revoked(patch: Patch) -> None:
    """The balancer cancels any resize that it would not have asked for."""
    patch.attribute(resizing, "may_be_revoked", lambda asked: True)


def siblings_come_together_in_a_full_rack(patch: Patch) -> None:
    """A tablet is sent to its sibling's node whatever that does to its racks, and the log refuses it."""
    patch.attribute(colocation, "after_move", lambda nodes, row, source, target: InRack(1, 1))


def siblings_are_told_apart_by_the_order_of_their_replicas(patch: Patch) -> None:
    """Tablets on the same nodes with another primary never become one."""

    def strict(placement: Placement) -> Any:
        reads = placement.reads()
        return np.flatnonzero((reads[::2] != reads[1::2]).any(axis=1))

    patch.function(maps.apart, strict)


def racks_of_other_dcs_count(patch: Patch) -> None:
    """A full rack of one dc lets a rack of another one get too many replicas, and the log refuses it."""

    def of_all(nodes: Mapping[str, Node], row: Sequence[str], source: str, target: str) -> InRack:
        most = max(Counter((nodes[n].dc, nodes[n].rack) for n in row).values())
        return after_move(nodes, row, source, target)._replace(fullest=most)

    patch.attribute(colocation, "after_move", of_all)


def what_cannot_be_counts_for_others(patch: Patch) -> None:
    """Tablets that a table may never have make all tables too many, and the others are merged for them."""
    patch.attribute(sizing, "_capped", lambda wanted, options: wanted)


def merges_wait_for_who_is_away(patch: Patch) -> None:
    """Tables are merged while tablets of theirs are on nodes that are not heard, and stand still meanwhile."""
    patch.attribute(resizing, "_why_apart", lambda image, placement, down: "")


def nodes_are_drained_for_what_cannot_be(patch: Patch) -> None:
    """Who is to leave or to be removed gives its tablets away before that can be carried out."""
    patch.attribute(look, "_waiting", lambda image, down: frozenset())


RESIZING_MUTANTS: Final = (
    resize_does_not_wait_for_migrations,
    siblings_that_are_apart_become_one,
    new_tablets_forget_their_versions,
    merged_tablet_has_the_version_of_the_first,
)
RESIZING_TEST_MUTANTS: Final = (
    split_does_not_wait_for_storage,
    number_of_a_tablet_outlives_a_split,
    two_resizes_of_a_table_at_once,
    sizes_that_waver_turn_a_resize_round,
    what_users_ask_for_is_revoked,
    siblings_come_together_in_a_full_rack,
    siblings_are_told_apart_by_the_order_of_their_replicas,
    racks_of_other_dcs_count,
    what_cannot_be_counts_for_others,
    merges_wait_for_who_is_away,
    nodes_are_drained_for_what_cannot_be,
)
