"""Known bugs of stored data: rows, repairs, snapshots and disks."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from stele.agent import identity, judging, member
from stele.agent.cleanup import Cleaner
from stele.agent.identity import FILE, STORE_FILE, DataDirectory, Heartbeats
from stele.agent.judging import Judge
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.rules import table_snapshots
from stele.domain.topology import steps
from stele.domain.topology.operations import (
    keyspaces,
)
from stele.domain.topology.operations import (
    table_snapshots as snapshots_of_tables,
)
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.steps import Draft
from stele.log import reader
from stele.log.chain import Anchor
from stele.log.port import TopicProbe
from stele.log.reader import TopicReader
from stele.node import backups, cells, commits, coordinate, store
from stele.node.cells import Cell
from stele.node.commits import DiskFull
from stele.node.coordinate import Consistency, Coordination, Enough, _Attempt
from stele.node.streaming import Streamer
from stele_simulator.patching import Patch
from stele_simulator.planting import (
    RUN,
    STORY,
    change_operation,
    change_state,
    count_failures_as_done,
    plan_without_locks,
    planted,
)

# Known bugs of what nodes keep for clients, in whole nodes: the store, requests, streams.


@planted(RUN, rule="I14")
def rows_are_not_synced(patch: Patch) -> None:
    """A write is answered once it is committed: a power failure takes it back."""
    unsynced = tuple(p.replace("synchronous=full", "synchronous=normal") for p in store.PRAGMAS)
    patch.attribute(store, "PRAGMAS", unsynced)


@planted(RUN)
def writes_are_timed_by_the_nodes_clock(patch: Patch) -> None:
    """A write does not ask what the newest one is: where clocks differ, an earlier one may beat it."""

    async def own(self: Coordination, attempt: _Attempt, consistency: Consistency) -> int:
        return int(vars(reader)["time"].time_ns()) // 1000

    patch.attribute(Coordination, "_timestamp", own)


@planted(RUN)
def streamed_rows_are_dropped(patch: Patch) -> None:
    """Streamed rows are counted, but not stored."""
    patch.attribute(Streamer, "_may_keep", lambda self, reading, rows, place: False)


@planted(RUN, rule="3")
def refused_writes_may_stand(patch: Patch) -> None:
    """A write with too few acknowledgements is reported as not done."""
    patch.attribute(coordinate.Vote, "may_be_done", lambda self: False)


@planted(RUN, rule="I14")
def one_ack_is_a_quorum(patch: Patch) -> None:
    """A write is done once one replica has it, at whatever consistency."""

    def enough(consistency: Consistency, row: RangeReplicas) -> Enough:
        return lambda done: not done.isdisjoint(row.writes)

    patch.function(coordinate.enough_writes, enough)


@planted(RUN, rule="I14")
def reads_do_not_settle(patch: Patch) -> None:
    """A read returns a value of too few replicas without repairing the others."""

    async def nothing(self: Coordination, attempt: _Attempt, cell: Cell, have: set[str]) -> None:
        return None

    patch.attribute(Coordination, "_read_repair", nothing)


@planted(RUN)
def older_rows_win(patch: Patch) -> None:
    """A read returns the oldest row of its replicas."""

    def oldest(found: list[Cell]) -> Cell:
        return min(found)

    patch.function(cells.newest, oldest)


@planted(RUN)
def rows_are_overwritten(patch: Patch) -> None:
    """A replica keeps what came last, and not what is the newest."""
    plain = vars(store)["_WRITE"]
    patch.attribute(store, "_WRITE", plain[: plain.index("where")])


@planted(RUN)
def replicas_ask_for_no_fence(patch: Patch) -> None:
    """A replica serves any row that it has, whatever is fenced."""
    patch.attribute(Judge, "fenced", lambda self, request: None)


@planted(STORY, rule="I6")
def replicas_serve_fenced_versions(patch: Patch) -> None:
    """A replica serves members by rows of whatever version, as long as the data is there."""
    plain = vars(judging)["check_token"]

    def truncated(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        is_there = image.schema.of_data(data_id) is not None
        return None if is_there else plain(image, data_id, token, version)

    patch.attribute(judging, "check_token", truncated)


@planted(RUN)
def cleaners_do_not_look_again(patch: Patch) -> None:
    """A cleanup deletes ranges that became the node's own after the cleanup began."""
    patch.attribute(Cleaner, "_may_delete", lambda self, order, span: True)


# Known bugs of repairs of tablets.


_REPAIR: Final = RequestKind.TABLET_REPAIR


@planted(STORY, rule="I5")
def replicas_are_not_repaired(patch: Patch) -> None:
    """A tablet counts as repaired although no replica sent a row."""
    change_operation(patch, _REPAIR, receivers=no_receivers)


@planted(STORY)
def failed_repair_counts(patch: Patch) -> None:
    """A repair that failed, or was cancelled, counts as done."""
    count_failures_as_done(patch, _REPAIR)


@planted(STORY)
def excluded_hold_up_repairs(patch: Patch) -> None:
    """A tablet with an excluded replica cannot be repaired."""
    change_state(patch, _REPAIR, TransitionState.REPAIR, reads_stay=False)


@planted(STORY)
def repair_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is repaired."""
    plan_without_locks(patch, _REPAIR)


# Known bugs of snapshots of tables, and of restores from them.


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

    patch.function(plain, lambda range_, snapshot, known: plain(range_, snapshot, known)[:1])


@planted(STORY)
def restore_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is restored: who gets it reads nothing."""
    plan_without_locks(patch, _RESTORE)


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
    count_failures_as_done(patch, _RESTORE)


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


# Planted bugs of disks that are full, or in another node's machine, and of brokers that tell an
# old end.


@planted(RUN, rule="I14")
def full_disk_counts_as_done(patch: Patch) -> None:
    """A write that had no room on the disk is answered as one that is there."""
    plain = commits._answer

    def answer(job: Any, result: object, error: Exception | None) -> None:
        plain(job, result, None if isinstance(error, DiskFull) else error)

    patch.function(plain, answer)


@planted(RUN)
def another_nodes_disk_is_taken(patch: Patch) -> None:
    """A node serves with whatever data directory it finds."""
    plain = identity.boot

    def boot(
        folder: Path,
        node_id: str,
        cluster: str,
        store_file: str = STORE_FILE,
        supported: Set[str] = KNOWN_FEATURES,
    ) -> DataDirectory:
        known = identity._read(folder / FILE)
        return plain(folder, known.node_id if known else node_id, cluster, store_file, supported)

    patch.function(plain, boot)


@planted(RUN)
def old_end_is_proof_of_loss(patch: Patch) -> None:
    """An end before the last winner is taken at once for the loss of it."""

    def at_once(self: TopicReader, anchor: Anchor, look: TopicProbe) -> None:
        raise self._lost(anchor, "it is gone")

    patch.attribute(TopicReader, "_wait_for_leader", at_once)


@planted(RUN, rule="I14")
def older_copies_are_taken(patch: Patch) -> None:
    """A node does not compare its disk with its earlier acknowledgements."""

    async def newest_ack(*_: object) -> None: ...

    patch.attribute(member, "newest_ack", newest_ack)


@planted(RUN, rule="I1")
def heartbeats_are_counted_in_memory(patch: Patch) -> None:
    """The number is raised, and the disk does not have it."""

    def raise_to(self: Heartbeats, number: int) -> None:
        self.counted = max(self.counted, number)

    patch.attribute(Heartbeats, "raise_to", raise_to)
