"""Announcements of a replica in the log: each once, and only of snapshots that it can serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from stele.catch_up import announcements
from stele.catch_up.announcements import (
    ReplicaHoldings,
    address_of,
    envelope_of,
    next_command,
    send_due_commands,
)
from stele.catch_up.filling import ArchivePeers
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.replica import CatchUpReplica, Ports
from stele.catch_up.settings import CatchUpSettings
from stele.catch_up.trimming import Trimmer
from stele.domain.commands import (
    AnnounceReplica,
    AnnounceSnapshot,
    AnyCommand,
    Envelope,
    Outcome,
    RestrictCommits,
    SetSetting,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.image import EMPTY, Image
from stele.domain.model.archive import SNAPSHOTS_KEPT
from stele.domain.model.requests import state_time_ms, time_ms
from stele.domain.names import CommitMode
from stele.domain.not_taken import expired
from stele.domain.rules.retention import Point
from stele.log.archive.container import EpochSpan
from stele.log.archive.snapshots import Kept, SnapshotHead
from stele.log.commander import NotTakenError
from stele.runtime.settings import ConfigurationError
from tests.domain.epochs import History
from tests.domain.history import three_nodes
from tests.log.archive_store.made import SNAPSHOTS, Made
from tests.polling import until

NOW_MS = 1_700_000_000_000
ME = ReplicaIdentity("cu-1", "demo", "folder")


def head(image: Image, **changes: Any) -> SnapshotHead:
    """Return the head of the image, as if its record were at the offset of its epoch."""
    found = SnapshotHead(
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        topic_id="",
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        at_ms=NOW_MS,
        next_offset=image.epoch + 1,
        anchor_offset=image.epoch,
        anchor_digest="00" * 16,
    )
    return msgspec.structs.replace(found, **changes)


def own(
    *heads: SnapshotHead, spans: tuple[EpochSpan, ...] = (EpochSpan(1, 10_000),)
) -> ReplicaHoldings:
    held = tuple(Kept(h, Path(), Path(), 100, 0, "ab" * 32) for h in heads)
    points = tuple(Point(h.epoch, bytes.fromhex(h.state_id)) for h in heads)
    return ReplicaHoldings(ME, "dc1", "r1", "http://here:1", held, points, spans)


@pytest.fixture
def log() -> History:
    return three_nodes()[0]


def announce_next(log: History, what: ReplicaHoldings) -> object:
    """Return the next announcement, and apply it to the log."""
    command = next_command(log.image, what, NOW_MS)
    if command is not None:
        assert log.submit(envelope_of(log.image, what, command, NOW_MS)) is None, command
    return command


def test_replica_announces_itself_then_its_snapshot_once(log: History) -> None:
    held = head(log.image)
    assert isinstance(announce_next(log, own(held)), AnnounceReplica)
    said = announce_next(log, own(held))
    assert isinstance(said, AnnounceSnapshot)
    assert (said.epoch, said.first_epoch, said.anchor_offset) == (held.epoch, 1, held.epoch)
    assert announce_next(log, own(held)) is None


def test_changed_folder_or_rack_is_announced_at_once(log: History) -> None:
    held = head(log.image)
    announce_next(log, own(held))
    announce_next(log, own(held))
    moved = own(held)._replace(identity=msgspec.structs.replace(ME, folder_id="another"))
    assert isinstance(announce_next(log, moved), AnnounceReplica)
    assert isinstance(announce_next(log, moved), AnnounceSnapshot), (
        "with another folder it had nothing"
    )
    assert isinstance(announce_next(log, moved._replace(rack="r9")), AnnounceReplica)


def test_snapshot_is_announced_once_its_epochs_are_archived(log: History) -> None:
    held = head(log.image)
    announce_next(log, own(held))
    epoch = held.epoch
    assert announce_next(log, own(held, spans=())) is None
    assert (
        announce_next(log, own(held, spans=(EpochSpan(1, epoch - 1), EpochSpan(epoch + 1, 99))))
        is None
    )
    said = announce_next(log, own(held, spans=(EpochSpan(1, 5), EpochSpan(8, epoch))))
    assert isinstance(said, AnnounceSnapshot)
    assert said.first_epoch == 8


def test_deleted_snapshot_is_withdrawn(log: History) -> None:
    held = head(log.image)
    announce_next(log, own(held))
    announce_next(log, own(held))
    assert announce_next(log, own()) == WithdrawSnapshot("cu-1", held.epoch)
    assert announce_next(log, own()) is None


def test_older_snapshots_are_announced_once_newer_ones_are_deleted(log: History) -> None:
    """The log keeps a limited number for each replica. All of those were deleted from disk."""
    heads = list[SnapshotHead]()
    announce_next(log, own())
    for n in range(SNAPSHOTS_KEPT + 2):
        assert log.apply(SetSetting("s", str(n))) is None
        heads.insert(0, head(log.image))
        assert isinstance(announce_next(log, own(*heads)), AnnounceSnapshot)
    left = own(*heads[SNAPSHOTS_KEPT:])
    said = list[object]()
    while (command := announce_next(log, left)) is not None:
        said.append(command)
        assert len(said) <= SNAPSHOTS_KEPT + len(left.held), "the same announcement is repeated"
    announced = log.image.archive.announced("cu-1")
    assert {each.epoch for each in announced} == left.epochs


def test_a_snapshot_of_an_older_log_is_not_announced(log: History) -> None:
    announce_next(log, own())
    assert announce_next(log, own(head(log.image, log_id="00" * 16))) is None


def test_member_requests_truncation_only_with_the_setting(log: History) -> None:
    first = head(log.image)
    announce_next(log, own(first))
    assert isinstance(announce_next(log, own(first)), AnnounceSnapshot)
    for n in range(5):
        assert log.apply(SetSetting("s", str(n))) is None
    both = own(head(log.image), first)
    assert isinstance(announce_next(log, both), AnnounceSnapshot)
    assert announce_next(log, both) is None, "truncate_behind is off"
    assert log.apply(SetSetting("truncate_behind", "2")) is None
    assert announce_next(log, both) == TruncateLog(first.epoch, first.anchor_offset)
    assert announce_next(log, both) is None


def test_equal_truncations_of_replicas_have_one_request_id(log: History) -> None:
    command = TruncateLog(5, 5)
    other = own()._replace(identity=ReplicaIdentity("cu-2", "demo", "another"))
    one, two = (envelope_of(log.image, each, command, NOW_MS) for each in (own(), other))
    assert one.request_id == two.request_id


def test_request_id_is_never_of_a_future_time(log: History) -> None:
    """The newest state id is of a writer with a fast clock. Ids of its time are not accepted."""
    command, newest_ms = TruncateLog(5, 5), state_time_ms(log.image.state_id)
    for wall_ms, expected_ms in (
        (newest_ms + 60_000, newest_ms),
        (newest_ms - 60_000, newest_ms - 60_000),
    ):
        request_id = envelope_of(log.image, own(), command, wall_ms).request_id
        assert time_ms(request_id) == expected_ms


def test_replica_announces_nothing_while_the_log_is_frozen(log: History) -> None:
    said = next_command(log.image, own(), NOW_MS)
    assert said is not None
    actor = envelope_of(log.image, own(), said, NOW_MS).actor
    for mode, who, expected in (
        (CommitMode.FROZEN, "", None),
        (CommitMode.SINGLE_USER, actor, said),
        (CommitMode.OPEN, "", said),
    ):
        assert log.apply(RestrictCommits(mode=mode, actor=who)) is None
        assert next_command(log.image, own(), NOW_MS) == expected


async def test_process_with_a_copied_folder_ends_if_another_announces_itself(
    log: History,
) -> None:
    """Otherwise both would announce their own address forever."""

    class Takes:
        horizon_ms = -1

        async def submit(self, envelope: Envelope, _: float) -> Outcome:
            said.append(envelope.command)
            assert log.apply(envelope.command) is None
            return Outcome(
                request_id=envelope.request_id,
                applied=True,
                epoch=log.image.epoch,
                state_id=log.image.state_id,
            )

    @asynccontextmanager
    async def commander() -> AsyncIterator[Takes]:
        yield Takes()

    said, mine = list[AnyCommand](), own()
    task = asyncio.create_task(send_due_commands(commander, lambda: log.image, lambda: mine))
    async with asyncio.timeout(240):
        while not said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        theirs = mine._replace(address="http://there:2")
        assert isinstance(announce_next(log, theirs), AnnounceReplica)
        with pytest.raises(ConfigurationError, match="http://there:2 has a folder of replica cu-1"):
            await task
    assert len(said) == 1


async def test_retry_after_a_moved_horizon_has_no_pause(
    log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with a short memory moves the horizon during a pause, and would never accept the announcement."""
    begin_ms, pause_s, plain = state_time_ms(log.image.state_id), 0.00123, asyncio.sleep
    asked, pauses = list[tuple[int, int]](), list[float]()
    monkeypatch.setattr(announcements, "PAUSE_S", pause_s)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await plain(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    class Forgetful:
        horizon_ms = -1

        async def submit(self, envelope: Envelope, _: float) -> Outcome:
            asked.append((time_ms(envelope.request_id) - begin_ms, pauses.count(pause_s)))
            self.horizon_ms = begin_ms + 1_000 * min(len(asked), 2)
            raise NotTakenError(envelope.request_id, expired(self.horizon_ms))

    @asynccontextmanager
    async def commander() -> AsyncIterator[Forgetful]:
        yield Forgetful()

    task = asyncio.create_task(send_due_commands(commander, lambda: log.image, own))
    await until(lambda: len(asked) > 3, "it was said again")
    task.cancel()
    assert asked[:4] == [(0, 0), (1_001, 0), (2_001, 0), (2_001, 1)]


async def test_replica_with_a_new_address_announces_it(log: History) -> None:
    """The row of its last start does not belong to another process."""
    announce_next(log, own()._replace(address="http://before:1"))
    assert address_of(log.image, own()) == "http://before:1"
    moved = next_command(log.image, own(), NOW_MS)
    assert isinstance(moved, AnnounceReplica)
    assert moved.address == "http://here:1"


def test_files_deleted_from_the_folder_are_no_longer_announced(tmp_path: Path) -> None:
    """Otherwise the log would be truncated although no disk has the epochs."""
    made = Made(tmp_path)
    settings = CatchUpSettings(
        cluster="demo", kafka_bootstrap="nowhere:1", instance_id="cu-1", data_dir=tmp_path
    )
    peers, ports = cast(ArchivePeers, None), cast(Ports, None)
    replica = CatchUpReplica(settings, ME, "http://here:1", made.archive, peers, ports)
    trimmer = Trimmer(replica.keeper, lambda: EMPTY, ME, None)

    def answered() -> ReplicaHoldings:
        return replica.holdings(trimmer)

    assert [each.head.epoch for each in answered().held] == [*SNAPSHOTS[::-1]]
    assert answered().spans == (EpochSpan(1, 80),)
    newest = made.archive.snapshots.all()[0]
    newest.decided_path.unlink()
    first = min((tmp_path / "segments").glob("*.avro"))
    first.unlink()
    assert [each.head.epoch for each in answered().held] == [*SNAPSHOTS[-2::-1]]
    assert answered().epochs == {*SNAPSHOTS[:-1]}
    assert answered().spans == (EpochSpan(26, 80),)
