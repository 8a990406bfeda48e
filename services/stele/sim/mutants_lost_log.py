"""Known bugs of archives, of snapshots to begin with, of truncation and of recovery, in whole processes."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from stele.catch_up import filling, keeper, recovering, shared
from stele.catch_up.finishing import Finisher
from stele.catch_up.keeper import Keeper
from stele.domain.archive import majority
from stele.domain.archive.retention import Point
from stele.domain.cluster.facts import LogRecovered
from stele.domain.image import Image
from stele.domain.requests.not_taken import moved_on
from stele.log import follower
from stele.log.archive import files, segments, snapshot_folder, snapshots
from stele.log.archive.archive import Archive, with_places
from stele.log.archive.records import Archived
from stele.log.archive.snapshot_folder import Kept, Snapshots
from stele.log.archive.snapshots import SnapshotHead
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.layout import Contents
from stele.log.archive_store.lineage import UNKNOWN, Past
from stele.log.archive_store.stored import StoredArchive
from stele.log.chain import RECENT, Anchor
from stele.log.errors import OtherHistoryError, TruncatedError
from stele.log.follower import Floor
from stele.log.history import History, Mark, Winner, first_stray
from stele.log.port import Log, LogPast, Look, Record
from stele.log.reader import LogReader
from stele.log.start import Start
from stele.metadata_log.writer import Writer
from stele.runtime import anew, starting
from stele.runtime.answers.catch_up import Known, SnapshotAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.sim.patching import Patch


def recovery_looks_for_no_other(patch: Patch) -> None:
    """Who recovers the log takes its own record for the first, whoever did it before."""

    plain = recovering.recovery_in
    asked = 0

    async def own(topic: LogPast, log_id: bytes, begin: int, end: int) -> Record | None:
        nonlocal asked
        asked += 1
        return None if asked % 2 else await plain(topic, log_id, begin, end)

    patch.attribute(recovering, "recovery_in", own)


def anchor_is_not_looked_for(patch: Patch) -> None:
    """A reader is content with the topic's name: what stands at its last winner's place is all the same."""

    def content(self: LogReader, anchor: Anchor | None, look: Look) -> None:
        self.topic_id = look.topic_id

    patch.attribute(LogReader, "_compare", content)


def lost_log_ends_the_process(patch: Patch) -> None:
    """Whoever notices that its log is lost ends, and with it what it alone had read."""

    async def at_once(log_id: str, catch_up: CatchUp, finish: anew.Finish) -> None:
        await asyncio.sleep(0)

    patch.function(anew.recovered, at_once)


def topics_end_is_a_lost_log(patch: Patch) -> None:
    """A reader behind the topic's end whose last winner is there waits for a recovery that nobody needs."""
    patch.attribute(anew, "OffsetGoneError", TruncatedError)


def lost_log_of_a_newcomer_has_no_name(patch: Patch) -> None:
    """Who begins on a lost log waits for the recovery of no log."""
    patch.attribute(Writer, "log_id", property(lambda self: self.image.log_id))


def writers_begin_without_what_was_decided(patch: Patch) -> None:
    """A writer that begins with a snapshot does not know which requests were decided."""
    plain = CatchUp.load

    async def image_alone(
        self: CatchUp, url: str, snapshot: SnapshotAnswer, *, decided: bool
    ) -> Start:
        start = await plain(self, url, snapshot, decided=False)
        empty = Image().decided if decided else None
        return start._replace(image=msgspec.structs.replace(start.image, decided=empty))

    patch.attribute(CatchUp, "load", image_alone)


def one_member_is_a_majority(patch: Patch) -> None:
    """Records are deleted that a single replica has."""
    patch.function(majority.majority, lambda members: 1)


def epochs_are_held_before_they_are_synced(patch: Patch) -> None:
    """A segment counts as being on the disk as soon as it was written."""

    def unsynced(file: object) -> None:
        return None

    patch.attribute(segments, "sync_file", unsynced)


def snapshots_tell_who_wrote_them(patch: Patch) -> None:
    """The head of a snapshot has the time of the machine that took it."""
    plain = snapshots.head_of

    def by_its_clock(image: Image, next_offset: int, anchor: Anchor, at_ms: int) -> SnapshotHead:
        return plain(image, next_offset, anchor, vars(keeper)["time"].time_ns() // 1_000_000)

    patch.function(plain, by_its_clock)


def damage_is_not_mended(patch: Patch) -> None:
    """What a replica finds to be missing in its archive, it does not ask others for."""
    patch.function(filling.gaps, lambda *_: iter(()))


def first_epoch_is_left_to_who_recovered_the_log(patch: Patch) -> None:
    """What a replica begins behind it has of others alone, though the topic has it."""

    async def nothing(*_: object) -> None:
        """Others may have it."""

    patch.function(filling.keep_beginning, nothing)


def replicas_floor_is_ones_own(patch: Patch) -> None:
    """A node takes a log that differs from what the replicas hold for the loss of what it acknowledged."""
    plain = follower.Floor.check

    def anonymous(self: follower.Floor, offset: int, *found: Any) -> None:
        try:
            plain(self, offset, *found)
        except OtherHistoryError as error:
            raise OtherHistoryError(offset, str(error)) from error

    patch.attribute(follower.Floor, "check", anonymous)


def half_a_snapshot_is_one(patch: Patch) -> None:
    """What a replica that died had of a snapshot of others is found as a snapshot at its next start."""

    def look_at(self: Snapshots, path: Path) -> None:
        head = snapshots.head_in(path.read_bytes())
        self._kept[head.name] = Kept(head, path, self._paths(path.stem)[1], 0, 0)

    patch.attribute(snapshot_folder, "UNFINISHED", "")
    patch.attribute(Snapshots, "_look_at", look_at)


def whoever_missed_a_recovery_judges(patch: Patch) -> None:
    """A node ends since a replica holds another history, though the log was recovered from the node's own."""
    plain = starting._check_floor  # noqa: SLF001

    def by_each(answers: starting.Answers, floor: Floor | None) -> None:
        for answer in answers:
            plain([answer], floor)

    patch.attribute(starting, "_check_floor", by_each)


def what_is_too_old_is_said_again_after_a_pause(patch: Patch) -> None:
    """A log that remembers little has moved its horizon meanwhile: a replica or service is never heard."""
    patch.function(moved_on, lambda told_ms, before_ms: False)


def deleted_files_are_answered_for(patch: Patch) -> None:
    """What somebody has deleted from a replica's folder it still says to have."""
    patch.attribute(Archive, "forget_deleted", lambda self: 0)


def backups_take_what_was_given_up(patch: Patch) -> None:
    """Who makes a backup takes epochs from whichever replica is near, though it keeps an older log."""
    plain = CatchUp.records

    async def of_anybody(
        self: CatchUp, first: int, last: int, log_id: str = "", among: Collection[str] = ()
    ) -> list[Archived]:
        del among
        return await plain(self, first, last, log_id)

    patch.attribute(CatchUp, "records", of_anybody)


def recovery_is_left_to_who_wrote_it(patch: Patch) -> None:
    """A replica whose archive has what the log goes on from waits for a snapshot of whoever recovered it."""

    async def nothing(self: Finisher) -> bool:
        return False

    patch.attribute(Finisher, "finish", nothing)


def recovery_is_finished_whatever_others_hold(patch: Patch) -> None:
    """A recovery that nobody has begun behind is finished though it gives up what somebody holds."""

    async def never(self: Finisher, fact: LogRecovered) -> bool:
        return False

    patch.attribute(Finisher, "_is_longer", never)


def whoever_is_asked_to_recover_ends(patch: Patch) -> None:
    """A replica that does not have what the log is to go on from is stopped before it says so."""
    patch.function(recovering.lacking, lambda archive, asked, more: [])


def late_answers_are_missing_epochs(patch: Patch) -> None:
    """That a broker does not give an epoch in time is told as if there were none."""
    page = History._page  # noqa: SLF001

    async def paged(self: History, mark: Mark, last: int, read: int) -> tuple[list[Winner], Mark]:
        try:
            return await page(self, mark, last, read)
        except TimeoutError:
            raise self.missing(mark.epoch + 1, self.oldest + 1) from None

    patch.attribute(History, "_page", paged)


def who_begins_on_a_recovered_log_begins_again(patch: Patch) -> None:
    """Where nobody gives a snapshot of a recovered log, processes end as soon as they have begun."""
    plain = anew.begin_anew

    async def at_once(
        failed: asyncio.Event,
        failure: Callable[[], Exception | None],
        log_id: Callable[[], bytes],
        catch_up: CatchUp,
        end: Callable[[], None] = anew.end_in_order,
        finish: anew.Finish = anew.cannot,
        has_read: Callable[[], bool] = lambda: True,
    ) -> None:
        await plain(failed, failure, log_id, catch_up, end, finish)

    patch.function(anew.begin_anew, at_once)


def recovery_gives_up_at_a_time_out(patch: Patch) -> None:
    """Who has written the first record of a recovered log ends when the brokers do not answer at once."""
    plain = recovering._write  # noqa: SLF001

    async def hasty(
        topic: Log,
        ends: recovering.Ends,
        before: int,
        start: Start,
        asked: recovering.RecoverQuestion,
    ) -> tuple[Record, bool]:
        async def once() -> tuple[int, int]:
            try:
                return await ends()
            except TimeoutError as error:
                raise recovering.NotRecoverable(str(error)) from error

        return await plain(topic, once, before, start, asked)

    patch.attribute(recovering, "_write", hasty)


def who_has_lost_the_log_gives_no_places(patch: Patch) -> None:
    """Who begins with a snapshot of a replica that has lost its log compares no winner before it."""

    async def of_readers_alone(self: CatchUp, url: str, start: Start) -> Start:
        epoch, log_id = start.image.epoch, start.image.log_id.hex()
        first = max(1, epoch - RECENT + 1)
        try:
            found = await self.records(first, epoch - 1, log_id, among=[url])
        except (NotArchivedError, CatchUpUnavailable):
            return start
        return with_places(start, found)

    patch.attribute(CatchUp, "with_places", of_readers_alone)


def who_has_lost_the_log_judges_others(patch: Patch) -> None:
    """A node ends for good since a replica that cannot read the log has another history than the node."""
    plain = starting._check_floor  # noqa: SLF001

    def whoever(answers: starting.Answers, floor: Floor | None) -> None:
        well = [(url, msgspec.structs.replace(each, stopped="")) for url, each in answers]
        plain(well, floor)

    patch.function(plain, whoever)


LOST_LOG_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    recovery_looks_for_no_other,
    anchor_is_not_looked_for,
    lost_log_ends_the_process,
    writers_begin_without_what_was_decided,
    one_member_is_a_majority,
    epochs_are_held_before_they_are_synced,
    snapshots_tell_who_wrote_them,
    damage_is_not_mended,
)


def what_was_given_up_stays_beside_its_successor(patch: Patch) -> None:
    """A replica that begins with the snapshot of a recovered log keeps all that it had of the one before."""
    patch.attribute(Archive, "set_aside_after", lambda self, epoch, log_id: 0)


def what_the_giver_cannot_tell_of_is_kept(patch: Patch) -> None:
    """A replica keeps what was lost where who gives it a snapshot was just wiped."""
    plain = shared.newest_shared

    async def trusting(archive: Archive, last: Point, tells: shared.Tells) -> int:
        async def tells_all(epoch: int, state_id: bytes) -> Known:
            told = await tells(epoch, state_id)
            return Known.SAME if told is Known.UNKNOWN else told

        return await plain(archive, last, tells_all)

    patch.function(plain, trusting)


def gap_is_filled_with_whatever_is_given(patch: Patch) -> None:
    """A replica takes epochs that a recovery gave up from whoever has missed that."""

    async def adopted(
        own: Keeper, found: list[Archived], end: Image, *, is_in_the_log: bool
    ) -> bool:
        await own.adopt(found)
        return True

    patch.attribute(filling, "_kept", adopted)


def store_gives_what_was_given_up(patch: Patch) -> None:
    """Epochs of an older log count as far as the newest log has put none of its own into the store."""

    async def unknown(_: StoredArchive, contents: Contents) -> Past:
        return UNKNOWN

    patch.attribute(StoredArchive, "_past", unknown)


def what_is_set_aside_comes_back_without_power(patch: Patch) -> None:
    """The names of what was set aside are not on the disk when a replica goes on."""

    def unsynced(folder: Path) -> None:
        return None

    patch.attribute(segments, "sync_folder", unsynced)


def what_is_set_aside_takes_the_place_of_what_was(patch: Patch) -> None:
    """What is lost of the log once more overwrites what was set aside of the same epochs before."""

    def overwriting(path: Path, suffix: str) -> Path:
        return path.replace(path.with_name(path.name + suffix))

    patch.function(files.renamed_aside, overwriting)


def archives_are_believed_whatever_they_give(patch: Patch) -> None:
    """Epochs of the past that do not lead to what a process has read are taken for its own."""
    patch.function(first_stray, lambda winners, state_id, known: None)


LOST_LOG_TEST_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    topics_end_is_a_lost_log,
    what_was_given_up_stays_beside_its_successor,
    what_the_giver_cannot_tell_of_is_kept,
    gap_is_filled_with_whatever_is_given,
    store_gives_what_was_given_up,
    what_is_set_aside_comes_back_without_power,
    what_is_set_aside_takes_the_place_of_what_was,
    archives_are_believed_whatever_they_give,
    lost_log_of_a_newcomer_has_no_name,
    first_epoch_is_left_to_who_recovered_the_log,
    replicas_floor_is_ones_own,
    half_a_snapshot_is_one,
    whoever_missed_a_recovery_judges,
    what_is_too_old_is_said_again_after_a_pause,
    deleted_files_are_answered_for,
    backups_take_what_was_given_up,
    recovery_is_left_to_who_wrote_it,
    recovery_is_finished_whatever_others_hold,
    whoever_is_asked_to_recover_ends,
    late_answers_are_missing_epochs,
    who_begins_on_a_recovered_log_begins_again,
    recovery_gives_up_at_a_time_out,
    who_has_lost_the_log_gives_no_places,
    who_has_lost_the_log_judges_others,
)
"""Runs come upon these, but too seldom."""
