"""Known bugs of the archive of the log: who has it, who its members are, and what is deleted."""

from collections.abc import Iterable, Mapping, Set
from typing import Final

import msgspec

from stele.coordinator import archive as looking_after
from stele.coordinator.desk import Desk
from stele.domain.archive import decide, majority, members, replicas, truncation
from stele.domain.archive.commands import AnnounceSnapshot
from stele.domain.archive.facts import AnnouncedSnapshot, LogReader, Replica, SnapshotsForgotten
from stele.domain.archive.heads import AgreedSnapshot
from stele.domain.archive.image import ArchiveImage
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import ReplicaState
from stele.domain.registry import DECISIONS
from stele.domain.requests.facts import Request
from stele.domain.requests.image import RequestsImage
from stele.sim.patching import Patch


def half_of_the_members_are_enough(patch: Patch) -> None:
    """Records are deleted that only half of the members have."""
    patch.function(majority.majority, lambda members: max(members // 2, 1))


def candidates_count_as_members(patch: Patch) -> None:
    """A replica that may have anything, or nothing of before, counts for the majority."""
    patch.attribute(ArchiveImage, "members", lambda self: sorted(self.replicas))


def gaps_in_the_archive_do_not_count(patch: Patch) -> None:
    """A snapshot is enough, whatever is missing before it."""
    plain = majority.agreed

    def agreed(archive: ArchiveImage, log_id: str, from_epoch: int) -> list[AgreedSnapshot]:
        return plain(archive, log_id, 1 << 62)

    patch.function(plain, agreed)


def all_snapshots_of_an_epoch_are_equal(patch: Patch) -> None:
    """Nobody looks at the hashes of what the members have."""

    def content(snapshot: AnnouncedSnapshot) -> majority.Content:
        return "", "", snapshot.anchor_offset

    patch.function(majority.content, content)


def emptied_disks_count(patch: Patch) -> None:
    """What was on the folder before counts for a replica that comes with another one."""

    def nothing(archive: ArchiveImage, replica_id: str) -> tuple[AnyFact, ...]:
        return ()

    patch.attribute(replicas, "forgotten_snapshots", nothing)


def announcements_are_true_for_ever(patch: Patch) -> None:
    """A replica that has lost its first segments is believed what it said before."""
    plain = decide.announce_snapshot

    def said(context: Context, command: AnnounceSnapshot) -> Decision:
        found = plain(context, command)
        if isinstance(found, Rejection):
            return found
        return tuple(fact for fact in found if not isinstance(fact, SnapshotsForgotten))

    patch.item(DECISIONS, AnnounceSnapshot, said)


def offsets_of_other_logs_count(patch: Patch) -> None:
    """A recovered log is truncated at an offset of the topic of before."""
    plain = majority.agreed

    def agreed(archive: ArchiveImage, log_id: str, from_epoch: int) -> list[AgreedSnapshot]:
        logs = {s.log_id for each in archive.snapshots.values() for s in each}
        return [
            found for log in sorted(logs | {log_id}) for found in plain(archive, log, from_epoch)
        ]

    patch.function(plain, agreed)


def readers_are_not_waited_for(patch: Patch) -> None:
    """Records are deleted that a reader still needs."""

    def nobody(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[LogReader]:
        return []

    patch.function(truncation.readers_waited_for, nobody)


def readers_are_lost_in_silence(patch: Patch) -> None:
    """A reader that had read all there was is lost when nothing happens for a week."""
    plain = truncation.readers_waited_for

    def waited_for(image: Image, snapshot: AgreedSnapshot, now_ms: int) -> list[LogReader]:
        return plain(image, msgspec.structs.replace(snapshot, since_ms=0), now_ms)

    patch.function(plain, waited_for)


def members_go_whatever_they_have(patch: Patch) -> None:
    """A member goes although no majority of the others has what was deleted."""

    def dispensable(image: Image, replica_id: str) -> str:
        others = {*image.archive.members()} - {replica_id}
        return "" if others else "it is the only one"

    patch.function(members.why_not_without, dispensable)


def who_joins_is_a_member_at_once(patch: Patch) -> None:
    """A replica becomes a member before it has anything."""
    patch.function(members.why_not_member, lambda image, replica_id: "")


def newcomers_lack_what_was_deleted(patch: Patch) -> None:
    """Replicas become members when they announce themselves, also where the log has not all any more."""
    patch.function(members.archived_until, lambda image: 0)


def requests_for_members_do_not_queue(patch: Patch) -> None:
    """Two changes of members are made at the same time."""

    def alone(self: RequestsImage) -> list[Request]:
        found = [request for request in self.unfinished() if request.reconfigures]
        return found[-1:]

    patch.attribute(RequestsImage, "reconfigurations", alone)


def who_joins_is_waited_for_without_end(patch: Patch) -> None:
    """A replica that dies while it joins holds up its request for ever."""
    patch.attribute(looking_after, "_is_there", lambda desk, replica_id: True)


def whoever_was_never_heard_is_up(patch: Patch) -> None:
    """A new coordinator chooses replicas that are dead."""

    def is_up(desk: Desk, replica_id: str) -> bool:
        known = desk.seen.replicas.get(replica_id)
        return known is not None and known.heard_s is None

    plain = looking_after._is_up  # noqa: SLF001
    patch.attribute(
        looking_after, "_is_up", lambda desk, name: plain(desk, name) or is_up(desk, name)
    )


def silence_counts_from_before(patch: Patch) -> None:
    """A replica that was never asked has been silent for ever."""
    plain = looking_after._silent_for_s  # noqa: SLF001

    def silent_for_s(desk: Desk, replica_id: str) -> float:
        known = desk.seen.replicas.get(replica_id)
        heard = known is not None and known.heard_s is not None
        return plain(desk, replica_id) if heard else float("inf")

    patch.attribute(looking_after, "_silent_for_s", silent_for_s)


def racks_do_not_count(patch: Patch) -> None:
    """All members are in one rack, where there are others."""
    plain = members.choose

    def by_name(
        replicas: Iterable[Replica], wanted: Mapping[str, int], last: Set[str] = frozenset()
    ) -> tuple[str, ...]:
        one = (msgspec.structs.replace(each, rack="", dc="") for each in replicas)
        return plain(one, {"": sum(wanted.values())}, last)

    patch.function(plain, by_name)


def the_dead_are_chosen_first(patch: Patch) -> None:
    """A member stays because it is one, dead or not."""
    plain = members.choose

    def whoever(
        replicas: Iterable[Replica], wanted: Mapping[str, int], last: Set[str] = frozenset()
    ) -> tuple[str, ...]:
        found = list(replicas)
        stay = {r.replica_id for r in found if r.state is ReplicaState.MEMBER}
        return plain(found, wanted, last - stay)

    patch.function(plain, whoever)


ARCHIVE_TEST_MUTANTS: Final = (
    half_of_the_members_are_enough,
    candidates_count_as_members,
    gaps_in_the_archive_do_not_count,
    all_snapshots_of_an_epoch_are_equal,
    emptied_disks_count,
    announcements_are_true_for_ever,
    offsets_of_other_logs_count,
    readers_are_not_waited_for,
    readers_are_lost_in_silence,
    members_go_whatever_they_have,
    who_joins_is_a_member_at_once,
    newcomers_lack_what_was_deleted,
    requests_for_members_do_not_queue,
    who_joins_is_waited_for_without_end,
    whoever_was_never_heard_is_up,
    silence_counts_from_before,
    racks_do_not_count,
    the_dead_are_chosen_first,
)
"""Tests find these; what whole processes make of such bugs is in ``mutants_lost_log``."""
