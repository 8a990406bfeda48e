"""Known bugs of what is deleted from the archive, of replicas that diverge, and of checks of the archive."""

from collections.abc import Iterable
from typing import Final

from stele.catch_up import diverging
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.trimming import Trimmer
from stele.domain.archive import divergence, members, retention
from stele.domain.archive.commands import TrimArchive
from stele.domain.archive.facts import LogReader, TrimAgreed
from stele.domain.archive.image import ArchiveImage
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.registry import DECISIONS
from stele.log.archive_store import verify
from stele.log.start import Start
from stele.sim.patching import Patch


def any_snapshot_is_agreed_on(patch: Patch) -> None:
    """The archive begins with a snapshot that only one member has."""

    def agreeing(members: Iterable[str], votes: Iterable[TrimAgreed]) -> list[TrimAgreed]:
        known = {*members}
        return sorted(
            (v for v in votes if v.replica_id in known), key=lambda v: (v.hash, v.replica_id)
        )

    patch.function(retention.agreeing, agreeing)


def the_archive_forgets_what_readers_need(patch: Patch) -> None:
    """A reader that is behind the log's beginning finds nothing in the archive either."""

    def behind(image: Image, epoch: int) -> list[LogReader]:
        return []

    patch.attribute(retention, "_behind", behind)


def the_archive_forgets_what_the_log_has(patch: Patch) -> None:
    """It begins later than the topic: whoever fills up has it from nobody."""
    patch.function(members.archived_until, lambda image: image.epoch)


def the_rule_is_looked_at_once(patch: Patch) -> None:
    """What was proposed is deleted though a setting keeps it by now."""
    plain = retention.trimming

    def trim_archive(context: Context, command: TrimArchive) -> Decision:
        with Patch() as inner:
            inner.attribute(retention, "why_not_at", lambda image, point, now_ms: "")
            found = plain(context.image, context.log_ms)
        if found.trim is None:
            return Rejection("not_trimmed", found.why_not, "Wait.")
        return (found.trim,)

    patch.item(DECISIONS, TrimArchive, trim_archive)


def what_the_store_lacks_is_deleted(patch: Patch) -> None:
    """A replica deletes what its mirror was never given."""
    plain = Trimmer._is_there  # noqa: SLF001

    def is_there(self: Trimmer, epoch: int) -> bool:
        store, self._store = self._store, None
        try:
            return plain(self, epoch)
        finally:
            self._store = store

    patch.attribute(Trimmer, "_is_there", is_there)


def who_diverged_goes_on_giving(patch: Patch) -> None:
    """Others begin with a state that the members do not have."""

    def served(image: Image, identity: ReplicaIdentity) -> str:
        return ""

    patch.function(diverging.why_not_served, served)


def who_diverges_again_stays(patch: Patch) -> None:
    """A member whose disk lies fills up again and again, and never counts."""

    def nobody(archive: ArchiveImage) -> set[str]:
        return set()

    patch.function(divergence.unreliable, nobody)


def snapshots_are_not_compared(patch: Patch) -> None:
    """A check believes a snapshot whose file is whole."""

    def same(start: Start, reached: Start) -> str:
        return ""

    patch.function(verify.why_other, same)


UPKEEP_TEST_MUTANTS: Final = (
    any_snapshot_is_agreed_on,
    the_archive_forgets_what_readers_need,
    the_archive_forgets_what_the_log_has,
    the_rule_is_looked_at_once,
    what_the_store_lacks_is_deleted,
    who_diverged_goes_on_giving,
    who_diverges_again_stays,
    snapshots_are_not_compared,
)
"""The simulator runs no catch-up replicas: tests find these."""
