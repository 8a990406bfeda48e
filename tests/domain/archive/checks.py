"""Rules of every epoch about the archive, computed by other means than production's."""

from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.archive import ArchiveImage, ArchiveTrimmed, LogTruncated, ReplicaForgotten
from stele.domain.model.requests import state_time_ms
from stele.domain.names import ReplicaState


def check_archive(before: Image, after: Image, epoch: Epoch) -> None:
    one, two = before.archive, after.archive
    forced = any(isinstance(f, ReplicaForgotten) and f.unsafe for f in epoch.facts)
    changed = [n for n in {*one.replicas, *two.replicas} if state(one, n) != state(two, n)]
    assert len(changed) <= 1, "one replica at a time"
    assert len(joining(two)) <= 1, "one replica joins at a time"
    assert two.members() or not one.members() or forced, "there is always a member"
    if one.members() != two.members() and two.members() and not forced:
        check_majority_has_all(one, two)
    for fact in Delta(before, epoch).facts():
        if isinstance(fact, LogTruncated):
            check_truncated(before, fact)
        if isinstance(fact, ArchiveTrimmed):
            check_trimmed(before, after, fact)
    for announced in two.snapshots.values():
        assert all(two.trimmed_epoch <= s.first_epoch <= s.epoch for s in announced)


def state(archive: ArchiveImage, replica_id: str) -> ReplicaState | None:
    """Return the state of a member or a joining replica. Candidates have none: they may come and go freely."""
    replica = archive.replicas.get(replica_id)
    return None if replica is None or replica.state is ReplicaState.CANDIDATE else replica.state


def joining(archive: ArchiveImage) -> list[str]:
    return [n for n, each in archive.replicas.items() if each.state is ReplicaState.JOINING]


def check_majority_has_all(one: ArchiveImage, two: ArchiveImage) -> None:
    """Check that a change of members keeps a majority with the deleted epochs, if there was one."""
    if has_majority(one):
        assert has_majority(two), (one.members(), two.members())


def has_majority(archive: ArchiveImage) -> bool:
    """Return whether a majority has the deleted epochs and a snapshot behind them."""
    until = 0 if archive.truncated is None else archive.truncated.epoch
    having = [
        name
        for name in archive.members()
        if any(s.epoch >= until >= s.first_epoch for s in archive.announced(name))
    ]
    return until == 0 or 2 * len(having) > len(archive.members())


def check_truncated(before: Image, fact: LogTruncated) -> None:
    """Check that more than half of the members have this snapshot and all that it deletes, and that no
    moving reader still needs the deleted epochs.
    """
    archive = before.archive
    begins = 1 if archive.truncated is None else archive.truncated.epoch
    having = {
        name
        for name in archive.members()
        for each in archive.announced(name)
        if (each.epoch, each.hash, each.log_id) == (fact.epoch, fact.hash, before.log_id.hex())
        and each.anchor_offset == fact.offset
        and each.first_epoch <= begins
    }
    assert 2 * len(having) > len(archive.members())
    assert {*fact.members} == having
    assert fact.epoch > begins or archive.truncated is None
    for reader in archive.readers.values():
        assert reader.epoch >= fact.epoch or reader.reader_id in fact.lost_readers


def check_trimmed(before: Image, after: Image, fact: ArchiveTrimmed) -> None:
    """Check that more than half of the members have this snapshot, that the log begins no earlier, that
    the settings allow the deletion, and that no moving reader still needs the deleted epochs.
    """
    archive, settings = before.archive, before.features.settings
    having = {
        name
        for name in archive.members()
        if name in archive.agreed and archive.agreed[name].hash == fact.hash
    }
    assert {*fact.members} == having
    assert 2 * len(having) > len(archive.members())
    assert {vote.epoch for vote in archive.agreed.values()} == {fact.epoch}
    assert archive.trimmed_epoch < fact.epoch <= archive.truncated_epoch
    days, epochs = (int(settings.get(f"archive_keep_{each}", "0")) for each in ("days", "epochs"))
    assert days or epochs
    assert before.epoch - fact.epoch >= epochs
    at_ms, now_ms = state_time_ms(bytes.fromhex(fact.state_id)), state_time_ms(after.state_id)
    assert now_ms - at_ms >= days * 86_400_000
    for reader in archive.readers.values():
        assert reader.epoch >= fact.epoch or reader.reader_id in fact.lost_readers
