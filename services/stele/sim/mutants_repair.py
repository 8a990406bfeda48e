"""Known bugs of repairs of tablets."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from stele.agent.spans import Span
from stele.domain.names import RequestKind, TransitionState
from stele.domain.repairs.times import Times
from stele.domain.ring.transition import TransitionPlan
from stele.domain.tablets import repairing
from stele.domain.topology import steps
from stele.domain.topology.draft import Draft
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations import table_repair, tablet_repair
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.operations.table import OPERATIONS
from stele.node import comparing, digests
from stele.node.comparing import Verdict
from stele.node.digests import Digest
from stele.sim.patching import Patch
from stele.sim.planting import change_operation
from stele.tablet_balancer.failures import Failures

_REPAIR: Final = RequestKind.TABLET_REPAIR


def replicas_are_not_repaired(patch: Patch) -> None:
    """A tablet counts as repaired although nobody has given anything."""
    change_operation(patch, _REPAIR, receivers=no_receivers)


def failed_repair_counts(patch: Patch) -> None:
    """A repair that failed, or was cancelled, counts as done."""
    plain = steps._end  # noqa: SLF001 - bugs are planted in private places too

    def done(draft: Draft, transition: Transition, *, undone: bool) -> None:
        plain(draft, transition, undone=undone and transition.kind is not _REPAIR)

    patch.attribute(steps, "_end", done)


def excluded_hold_up_repairs(patch: Patch) -> None:
    """A tablet with a replica on a node that is dead for good can never be repaired."""
    states: Any = OPERATIONS[_REPAIR].states
    strict = msgspec.structs.replace(states[TransitionState.REPAIR], reads_stay=False)
    patch.item(states, TransitionState.REPAIR, strict)


def repair_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is repaired."""
    plain = tablet_repair.plans

    def unlocked(image: Any, requests: Any) -> Any:
        found = plain(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: TransitionPlan(plan.rows) for name, plan in found.items()}

    change_operation(patch, _REPAIR, plans=unlocked)


def one_other_replica_is_enough(patch: Patch) -> None:
    """What only the one has that does not answer is not repaired, and counts as if it were."""
    plain = tablet_repair.sources

    def one(image: Any, repairing: Any, row: Any, node_id: str, unavailable: Any) -> Any:
        found = plain(image, repairing, row, node_id, unavailable)
        return None if found is None else (found[0], 1)

    change_operation(patch, _REPAIR, sources=one)


def repairs_go_beyond_the_streams(patch: Patch) -> None:
    """All tablets are repaired at once, whatever nodes can stream."""
    patch.attribute(repairing, "fits", lambda load, limit, weight: True)


def newest_are_repaired_first(patch: Patch) -> None:
    """Tablets that were repaired just now come before those that never were."""
    plain = repairing._oldest  # noqa: SLF001

    def newest(candidates: Any) -> Iterator[tuple[int, int]]:
        yield from reversed([*plain(candidates)])

    patch.attribute(repairing, "_oldest", newest)


def repairs_of_before_count(patch: Patch) -> None:
    """A table is done with tablets that were repaired before it was asked for."""
    patch.attribute(table_repair, "_newest_ms", lambda image, table: 0)


def cancelled_repair_leaves_its_tablets(patch: Patch) -> None:
    """To cancel the repair of a table leaves those of its tablets that have not begun."""
    nobody = lambda image, request: ()  # noqa: E731
    change_operation(patch, RequestKind.TABLE_REPAIR, made_for=nobody)


def scheduled_repairs_wait_for_the_dead(patch: Patch) -> None:
    """Tablets with a dead replica, or with a single one, are repaired by schedule, over and over."""

    def all_of(_: Any, units: slice) -> repairing.Mask:
        return np.ones(units.stop - units.start, np.bool_)

    patch.attribute(repairing.Desk, "is_whole", all_of)


def failed_repairs_are_tried_at_once(patch: Patch) -> None:
    """A tablet that cannot be repaired is tried again and again."""
    patch.attribute(Failures, "paused", lambda self, now_s: frozenset())


def halves_were_never_repaired(patch: Patch) -> None:
    """A split forgets when its tablets were repaired."""
    patch.attribute(Times, "resized", lambda self, tablets: Times.never(tablets))


def digests_count_rows_alone(patch: Patch) -> None:
    """Replicas with as many rows are taken to have the same."""
    plain = digests.digest_of

    def counted(rows: Any) -> Digest:
        return plain(rows)._replace(sum=bytes(digests.HASH_BYTES))

    patch.function(plain, counted)


def differing_ranges_are_pulled_whole(patch: Patch) -> None:
    """One row that differs moves the whole tablet."""
    plain = comparing.judged

    def hasty(span: Span, mine: Digest | None, theirs: Digest | None) -> Verdict:
        found = plain(span, mine, theirs)
        return Verdict.PULL if found is Verdict.SPLIT else found

    patch.function(plain, hasty)


REPAIR_MUTANTS: Final = (
    replicas_are_not_repaired,
    failed_repair_counts,
    excluded_hold_up_repairs,
    repair_locks_nothing,
)
REPAIR_TEST_MUTANTS: Final = (
    one_other_replica_is_enough,
    repairs_go_beyond_the_streams,
    newest_are_repaired_first,
    repairs_of_before_count,
    cancelled_repair_leaves_its_tablets,
    scheduled_repairs_wait_for_the_dead,
    failed_repairs_are_tried_at_once,
    halves_were_never_repaired,
    digests_count_rows_alone,
    differing_ranges_are_pulled_whole,
)
