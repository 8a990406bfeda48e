"""Known bugs of the snapshot that a replica of the archive, or a reader of the log, begins with."""

from collections.abc import Callable
from typing import Final

from stele.catch_up import anchored, filling
from stele.catch_up.sources import Givers
from stele.domain.image import Image
from stele.log.archive.snapshots import SnapshotHead
from stele.log.port import LogPast
from stele.runtime import starting
from stele.runtime.answers.catch_up import Known, StartAnswer
from stele.sim.patching import Patch


def lost_winners_are_a_beginning(patch: Patch) -> None:
    """A replica begins with the snapshot that answers first, though an election took back what it ends with."""

    async def unseen(topic: LogPast, head: SnapshotHead) -> Known:
        return Known.SAME

    patch.function(anchored.anchored, unseen)


def log_before_will_do(patch: Patch) -> None:
    """A replica that gets no snapshot of the newer log, of which it was told, begins with one of before."""
    plain = filling._offers  # noqa: SLF001

    async def of_any(givers: Givers, begin: int, own: Image, newer: str) -> list[filling._Offer]:
        found = await plain(givers, begin, own, newer)
        if found or not begin:
            return found
        with Patch() as forgetful:
            forgetful.attribute(filling, "_recovered_as", lambda own, told: "")
            return await plain(givers, begin, own, "")

    patch.attribute(filling, "_offers", of_any)


def who_has_stopped_gives_the_newest(patch: Patch) -> None:
    """A reader begins with the latest epoch that is given, though its replica has stopped since an election."""

    def latest(answered: tuple[str, StartAnswer]) -> tuple[bool, str, int]:
        snapshot = answered[1].snapshot
        return (True, "", 0) if snapshot is None else (True, snapshot.log_id, snapshot.epoch)

    patch.attribute(starting, "_worth", latest)


BEGINNING_TEST_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    lost_winners_are_a_beginning,
    log_before_will_do,
    who_has_stopped_gives_the_newest,
)
