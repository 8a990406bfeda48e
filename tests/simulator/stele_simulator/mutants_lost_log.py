"""Known bugs of archives, of snapshots to begin with, of truncation and of recovery, in whole processes."""

import asyncio

import msgspec

from stele.catch_up import filling, keeper, recovering
from stele.domain.image import Image
from stele.domain.model import archive
from stele.log.archive import segments, snapshots
from stele.log.archive.snapshots import SnapshotHead
from stele.log.chain import Anchor
from stele.log.fold import Start
from stele.log.port import LogPast, Record, TopicProbe
from stele.log.reader import TopicReader
from stele.runtime import starting
from stele.runtime.answers.catch_up import SnapshotAnswer
from stele.runtime.catch_up import CatchUp
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN, rule="I1")
def recovery_looks_for_no_other(patch: Patch) -> None:
    """A recovery takes its own record for the first one, even after another recovery."""

    plain = recovering.recovery_in
    asked = 0

    async def own(topic: LogPast, log_id: bytes, begin: int, end: int) -> Record | None:
        nonlocal asked
        asked += 1
        return None if asked % 2 else await plain(topic, log_id, begin, end)

    patch.attribute(recovering, "recovery_in", own)


@planted(RUN, rule="11")
def anchor_is_not_looked_for(patch: Patch) -> None:
    """A reader is content with the topic's name: what stands at its last winner's place is all the same."""

    def content(self: TopicReader, anchor: Anchor | None, look: TopicProbe) -> None:
        self.topic_id = look.topic_id

    patch.attribute(TopicReader, "_compare", content)


@planted(RUN, rule="I10")
def lost_log_ends_the_process(patch: Patch) -> None:
    """A process that detects the loss of its log exits, and its unarchived epochs are lost."""

    async def at_once(log_id: str, catch_up: CatchUp) -> None:
        await asyncio.sleep(0)

    patch.function(starting.recovered, at_once)


@planted(RUN, rule="I2")
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


@planted(RUN)
def one_member_is_a_majority(patch: Patch) -> None:
    """Records are deleted that a single replica has."""
    patch.function(archive.majority, lambda members: 1)


@planted(RUN)
def epochs_are_held_before_they_are_synced(patch: Patch) -> None:
    """A segment counts as being on the disk as soon as it was written."""

    def unsynced(file: object) -> None:
        return None

    patch.attribute(segments, "sync_file", unsynced)


@planted(RUN, rule="13")
def snapshots_tell_who_wrote_them(patch: Patch) -> None:
    """The head of a snapshot has the time of the machine that took it."""
    plain = snapshots.head_of

    def by_its_clock(image: Image, next_offset: int, anchor: Anchor, at_ms: int) -> SnapshotHead:
        return plain(image, next_offset, anchor, vars(keeper)["time"].time_ns() // 1_000_000)

    patch.function(plain, by_its_clock)


@planted(RUN, rule="I10")
def damage_is_not_mended(patch: Patch) -> None:
    """A replica does not fetch missing parts of its archive from others."""
    patch.function(filling.gaps, lambda *_: iter(()))
