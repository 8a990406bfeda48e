"""When a snapshot is due: at the same epochs on every replica, since only the log decides it. Pure."""

from typing import Final, NamedTuple

from stele.domain.archive.facts import SnapshotAsked
from stele.domain.archive.limits import SNAPSHOT_EPOCHS, SNAPSHOT_MB
from stele.domain.cluster.facts import LogRecovered
from stele.domain.facts import Epoch
from stele.domain.image import Image

MB: Final = 1_000_000


class Since(NamedTuple):
    """What came since the last snapshot."""

    epochs: int = 0
    size_bytes: int = 0

    def after(self, value: bytes) -> "Since":
        return Since(self.epochs + 1, self.size_bytes + len(value))


def is_due(since: Since, image: Image, epoch: Epoch) -> bool:
    """Whether a snapshot is taken of ``image``, which ``epoch`` led to and which ``since`` counts."""
    if is_asked(epoch):
        return True
    settings = image.features.settings
    return (
        since.epochs >= SNAPSHOT_EPOCHS.of(settings)
        or since.size_bytes >= SNAPSHOT_MB.of(settings) * MB
    )


def is_asked(epoch: Epoch) -> bool:
    """Whether all have a snapshot of this very epoch; behind a recovery its writer has one in any case."""
    return any(isinstance(fact, SnapshotAsked | LogRecovered) for fact in epoch.facts)
