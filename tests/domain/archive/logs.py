"""A founded log for the archive's tests, with replicas that are members or candidates."""

from stele.domain.commands import (
    AnyCommand,
    ClaimCoordinator,
    FoundCluster,
    Noop,
    Rejection,
    SetSetting,
)
from stele.domain.model.archive import ArchiveImage
from tests.domain.archive.announced import replica, snapshot
from tests.domain.archive.checks import check_archive
from tests.domain.epochs import LOG_ID, History

DAY_MS = 86_400_000


def founded(**settings: str) -> History:
    """Return the history of a founded log. Every epoch is checked."""
    history = History(check_archive)
    took(history, FoundCluster("demo/1", LOG_ID.hex()), ClaimCoordinator("c1", 1))
    for name, value in settings.items():
        took(history, SetSetting(name, value))
    return history


def with_members(*names: str, **settings: str) -> History:
    history = founded(**({"archive_replication": str(len(names))} | settings))
    took(history, *(replica(name, rack=name) for name in names))
    assert history.image.archive.members() == sorted(names)
    return history


def archive(history: History) -> ArchiveImage:
    return history.image.archive


def took(history: History, *commands: AnyCommand) -> None:
    for command in commands:
        refused = history.apply(command)
        assert refused is None, refused


def refusal(history: History, command: AnyCommand) -> Rejection:
    refused = history.apply(command)
    assert refused is not None, "it was taken"
    return refused


def pass_epochs(history: History, count: int = 5) -> int:
    """Append ``count`` NOOPs. Return the newest epoch."""
    took(history, *[Noop()] * count)
    return history.image.epoch


def agree(history: History, *names: str, first_epoch: int = 1) -> int:
    """Announce equal snapshots of one epoch by these replicas. Return the epoch."""
    epoch = pass_epochs(history)
    took(history, *(snapshot(name, epoch, first_epoch) for name in names))
    return epoch
