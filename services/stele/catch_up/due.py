"""When a snapshot is due: at the same epochs on every replica, since only the log decides it. Pure."""

from typing import Final, NamedTuple

from stele.domain.archive.commands import (
    AdmitDivergence,
    AgreeToTrim,
    AnnounceReader,
    AnnounceReplica,
    AnnounceSnapshot,
    ProposeTrim,
    TrimArchive,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.archive.facts import SnapshotAsked
from stele.domain.archive.limits import SNAPSHOT_EPOCHS, SNAPSHOT_MB
from stele.domain.cluster.facts import LogRecovered
from stele.domain.facts import Epoch
from stele.domain.image import Image

MB: Final = 1_000_000
UPKEEP: Final = frozenset(
    command.__struct_config__.tag
    for command in (
        AdmitDivergence,
        AgreeToTrim,
        AnnounceReader,
        AnnounceReplica,
        AnnounceSnapshot,
        ProposeTrim,
        TrimArchive,
        TruncateLog,
        WithdrawSnapshot,
    )
)
"""What replicas and readers say by themselves, most of it since there is a new snapshot."""


class Since(NamedTuple):
    """What came since the last snapshot. ``is_news``: some of it was more than the archive's own upkeep."""

    epochs: int = 0
    size_bytes: int = 0
    is_news: bool = False

    def after(self, value: bytes, epoch: Epoch) -> "Since":
        is_news = self.is_news or epoch.command not in UPKEEP
        return Since(self.epochs + 1, self.size_bytes + len(value), is_news)


def is_due(since: Since, image: Image, epoch: Epoch) -> bool:
    """Whether a snapshot is taken of ``image``, which ``epoch`` led to and which ``since`` counts. What follows
    from a snapshot makes no other one due: a log in which nothing else happens comes to rest.
    """
    if is_asked(epoch):
        return True
    settings = image.features.settings
    return since.is_news and (
        since.epochs >= SNAPSHOT_EPOCHS.of(settings)
        or since.size_bytes >= SNAPSHOT_MB.of(settings) * MB
    )


def is_asked(epoch: Epoch) -> bool:
    """Whether all have a snapshot of this very epoch; behind a recovery its writer has one in any case."""
    return any(isinstance(fact, SnapshotAsked | LogRecovered) for fact in epoch.facts)
