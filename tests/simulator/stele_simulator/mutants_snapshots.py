"""Known bugs of snapshots of tables, and of restores from them."""

from typing import Any, Final

from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring.transition import TransitionPlan
from stele.domain.rules import table_snapshots
from stele.domain.topology import steps
from stele.domain.topology.operations import keyspaces, repairs
from stele.domain.topology.operations import table_snapshots as snapshots_of_tables
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.steps import Draft
from stele.node import backups
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

_RESTORE: Final = RequestKind.TABLET_RESTORE
_SNAPSHOT: Final = RequestKind.TABLE_SNAPSHOT


@planted(STORY)
def replicas_read_no_snapshot(patch: Patch) -> None:
    """A tablet counts as restored although no snapshot was read."""
    change_operation(patch, _RESTORE, receivers=no_receivers)


@planted(STORY)
def one_replicas_files_are_enough(patch: Patch) -> None:
    """Only one replica's files of each tablet are read, so rows that it lacked are not restored."""
    plain = backups.files_of

    def first(range_: Any, snapshot: Any, known: Any) -> Any:
        return plain(range_, snapshot, known)[:1]

    patch.function(plain, first)


@planted(STORY)
def restore_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is restored: who gets it reads nothing."""
    change_operation(patch, _RESTORE, plans=_unlocked(repairs.plans))


def _unlocked(plain: Any) -> Any:
    def unlocked(image: Any, requests: Any) -> Any:
        found = plain(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: TransitionPlan(plan.rows) for name, plan in found.items()}

    return unlocked


@planted(STORY)
def failed_snapshot_counts(patch: Patch) -> None:
    """A snapshot counts although a node failed to write its part."""
    plain = steps.move

    def careless(draft: Draft, transition: Transition, asked: Any) -> None:
        if transition.kind is _SNAPSHOT and transition.state is TransitionState.SNAPSHOT:
            written = snapshots_of_tables.on_written(draft.image, transition, asked.wrote, 1)
            draft.add(*(written if transition.mark else ()))
        plain(draft, transition, asked)

    patch.function(plain, careless)


@planted(STORY)
def failed_restore_counts(patch: Patch) -> None:
    """A failed or cancelled restore of a tablet counts as done."""
    plain = steps._end

    def done(draft: Draft, transition: Transition, *, undone: bool) -> None:
        plain(draft, transition, undone=undone and transition.kind is not _RESTORE)

    patch.attribute(steps, "_end", done)


@planted(STORY)
def table_is_truncated_while_it_is_restored(patch: Patch) -> None:
    """A truncation during a restore deletes the restored rows, and the restore still succeeds."""
    plain = keyspaces._has_it

    def not_restores(of_table: Request) -> bool:
        return plain(of_table) and not of_table.restore_id

    patch.attribute(keyspaces, "_has_it", not_restores)


@planted(STORY)
def snapshots_never_expire(patch: Patch) -> None:
    """Snapshots whose time is over stay for ever."""
    patch.function(table_snapshots.expired, lambda image, now_ms: [])
