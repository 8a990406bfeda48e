"""Known bugs of snapshots of tables, and of restores from them."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.repairs.among import ALL
from stele.domain.requests.facts import Request
from stele.domain.ring.transition import TransitionPlan
from stele.domain.table_snapshots import decide
from stele.domain.table_snapshots.facts import TabletRestored
from stele.domain.tablets import repairing, restoring
from stele.domain.tablets.conditions import Conditions
from stele.domain.topology import steps
from stele.domain.topology.draft import Draft
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations import (
    keyspaces,
    table_restore,
    table_snapshot,
    tablet_repair,
    tablet_resize,
)
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.operations.table import OPERATIONS
from stele.node import backups, manifests
from stele.node import restoring as node_restoring
from stele.sim.patching import Patch
from stele.sim.planting import change_operation

_RESTORE: Final = RequestKind.TABLET_RESTORE
_SNAPSHOT: Final = RequestKind.TABLE_SNAPSHOT


def replicas_read_no_snapshot(patch: Patch) -> None:
    """A tablet counts as restored although nobody has read anything."""
    change_operation(patch, _RESTORE, receivers=no_receivers)


def one_replicas_files_are_enough(patch: Patch) -> None:
    """Of each tablet only what one replica wrote is read: what it had not is not restored."""
    plain = manifests.files_of

    def first(range_: Any, snapshot: Any, known: Any) -> Any:
        return plain(range_, snapshot, known)[:1]

    patch.function(plain, first)


def snapshot_locks_nothing(patch: Patch) -> None:
    """A tablet moves while a snapshot is taken, and is in it with neither node."""
    change_operation(patch, _SNAPSHOT, plans=_unlocked(table_snapshot.plans))


def restore_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is restored: who gets it reads nothing."""
    change_operation(patch, _RESTORE, plans=_unlocked(tablet_repair.plans))


def _unlocked(plain: Any) -> Any:
    def unlocked(image: Any, requests: Any) -> Any:
        found = plain(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: TransitionPlan(plan.rows) for name, plan in found.items()}

    return unlocked


def failed_snapshot_counts(patch: Patch) -> None:
    """A snapshot of which somebody has not written its part is there all the same."""
    plain = steps.move

    def careless(draft: Draft, transition: Transition, asked: Any) -> None:
        if transition.kind is _SNAPSHOT and transition.state is TransitionState.SNAPSHOT:
            written = table_snapshot.on_written(draft.image, transition, asked.wrote, 1)
            draft.add(*(written if transition.mark else ()))
        plain(draft, transition, asked)

    patch.function(plain, careless)


def failed_restore_counts(patch: Patch) -> None:
    """A tablet of which a restore failed, or was cancelled, counts as restored."""
    plain = steps._end  # noqa: SLF001 - bugs are planted in private places too

    def done(draft: Draft, transition: Transition, *, undone: bool) -> None:
        plain(draft, transition, undone=undone and transition.kind is not _RESTORE)

    patch.attribute(steps, "_end", done)


def table_is_truncated_while_it_is_restored(patch: Patch) -> None:
    """What was restored before the truncation is gone, and the restore is done all the same."""
    plain = keyspaces._has_it  # noqa: SLF001

    def not_restores(of_table: Request) -> bool:
        return plain(of_table) and not of_table.restore_id

    patch.attribute(keyspaces, "_has_it", not_restores)


def cancelled_restore_goes_on(patch: Patch) -> None:
    """To cancel the restore of a table leaves those of its tablets."""
    nobody = lambda image, request: ()  # noqa: E731
    change_operation(patch, RequestKind.TABLE_RESTORE, made_for=nobody)


def snapshots_never_expire(patch: Patch) -> None:
    """Snapshots whose time is over stay for ever."""
    patch.function(decide.expired, lambda image, now_ms: [])


def dead_hold_up_restores(patch: Patch) -> None:
    """A tablet with a replica on a node that is dead for good can never be restored."""
    states: Any = OPERATIONS[_RESTORE].states
    strict = msgspec.structs.replace(states[TransitionState.RESTORE], reads_stay=False)
    patch.item(states, TransitionState.RESTORE, strict)


def snapshot_without_a_quorum(patch: Patch) -> None:
    """A snapshot is taken although too few replicas of a tablet are left to have all that was acknowledged."""
    patch.attribute(table_snapshot, "_unreadable", lambda image, placement: "")


def files_of_too_few_are_enough(patch: Patch) -> None:
    """A tablet is restored from less than a quorum of its replicas."""
    patch.attribute(manifests, "quorum_of", lambda replicas: 1)


def damaged_files_are_restored(patch: Patch) -> None:
    """Nobody looks at the hashes of files."""
    nothing = lambda self, node_id, name, content, expected: None  # noqa: E731
    patch.attribute(node_restoring._Reader, "_check", nothing)  # noqa: SLF001


def files_of_unknown_logs_are_deleted(patch: Patch) -> None:
    """A node deletes what it does not know, be it of a log or an epoch that it has not read."""
    patch.attribute(backups, "_is_of", lambda image, folder: True)


def restores_go_beyond_the_streams(patch: Patch) -> None:
    """All tablets are restored at once, whatever nodes can stream."""
    patch.attribute(repairing.Desk, "takes", lambda self, unit, among=ALL, *, alone=False: True)


def dead_replicas_count_as_restored(patch: Patch) -> None:
    """A tablet that nobody has but the dead is asked for, and counts since nobody fails."""
    patch.attribute(
        repairing.Desk, "lives", lambda self, units: np.ones(units.stop - units.start, np.bool_)
    )
    nobody_refuses = lambda image, requests: None  # noqa: E731
    change_operation(patch, _RESTORE, check=nobody_refuses, on_done=_counts_anyhow)


def _counts_anyhow(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    request = image.requests.requests[done.transition_id]
    yield TabletRestored(request.restore_id, request.tablet, request.tablet_count, epoch)


def restart_ends_a_restore(patch: Patch) -> None:
    """Tablets are restored while a node is down whose files they need."""
    plain = restoring.restores

    def hasty(image: Image, what: Any, conditions: Conditions, desk: Any, resized: Any) -> Any:
        return plain(image, what, conditions._replace(down=frozenset()), desk, resized)

    patch.function(plain, hasty)


def hopeless_restore_goes_on(patch: Patch) -> None:
    """A restore whose files are damaged never ends."""
    patch.attribute(table_restore, "_hopeless", lambda failures: "")


def split_forgets_the_restore(patch: Patch) -> None:
    """A restore counts the tablets of before a split."""
    plain = tablet_resize.on_done

    def forgetful(image: Any, done: Any, epoch: int) -> Any:
        facts = [*plain(image, done, epoch)]
        return [f for f in facts if type(f).__name__ != "TableRestoreResized"]

    change_operation(patch, RequestKind.TABLET_RESIZE, on_done=forgetful)


SNAPSHOT_MUTANTS: Final = (
    replicas_read_no_snapshot,
    one_replicas_files_are_enough,
    restore_locks_nothing,
    failed_snapshot_counts,
    failed_restore_counts,
    table_is_truncated_while_it_is_restored,
    snapshots_never_expire,
)
SNAPSHOT_TEST_MUTANTS: Final = (
    dead_hold_up_restores,
    snapshot_locks_nothing,
    cancelled_restore_goes_on,
    snapshot_without_a_quorum,
    files_of_too_few_are_enough,
    damaged_files_are_restored,
    files_of_unknown_logs_are_deleted,
    restores_go_beyond_the_streams,
    dead_replicas_count_as_restored,
    restart_ends_a_restore,
    hopeless_restore_goes_on,
    split_forgets_the_restore,
)
