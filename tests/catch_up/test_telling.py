"""Announcements of a replica in the log: each once, and only of what it can serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.catch_up import announcements
from stele.catch_up.announcements import HeldSnapshot, Own, address_of, envelope_of, tell, to_say
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper
from stele.catch_up.replica import own_of
from stele.catch_up.settings import CatchUpSettings
from stele.catch_up.trimming import Trimmer
from stele.domain.archive.model import SNAPSHOTS_KEPT
from stele.domain.archive.retention import Point
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
from stele.domain.names import CommitMode
from stele.domain.requests.model import state_time_ms, time_ms
from stele.domain.requests.not_taken import expired
from stele.log.archive.container import EpochSpan
from stele.log.archive.snapshots import SnapshotHead
from stele.log.commander import NotTakenError
from stele.runtime.settings import ConfigurationError
from tests.domain.epochs import History
from tests.domain.history import three_nodes
from tests.log.archive_store.made import SNAPSHOTS, Made
from tests.services.world import until

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


def own(*heads: SnapshotHead, spans: tuple[EpochSpan, ...] = (EpochSpan(1, 10_000),)) -> Own:
    held = tuple(HeldSnapshot(h, "ab" * 32, 100) for h in heads)
    points = tuple(Point(h.epoch, bytes.fromhex(h.state_id)) for h in heads)
    return Own(ME, "dc1", "r1", "http://here:1", held, points, spans)


@pytest.fixture
def log() -> History:
    return three_nodes()[0]


def say(log: History, what: Own) -> object:
    """The next thing to be said, which the log takes."""
    command = to_say(log.image, what, NOW_MS)
    if command is not None:
        assert log.submit(envelope_of(log.image, what, command, NOW_MS)) is None, command
    return command


def test_it_tells_who_it_is_and_then_what_it_has_and_then_nothing(log: History) -> None:
    held = head(log.image)
    assert isinstance(say(log, own(held)), AnnounceReplica)
    said = say(log, own(held))
    assert isinstance(said, AnnounceSnapshot)
    assert (said.epoch, said.first_epoch, said.anchor_offset) == (held.epoch, 1, held.epoch)
    assert say(log, own(held)) is None


def test_another_folder_or_place_is_told_at_once(log: History) -> None:
    held = head(log.image)
    say(log, own(held))
    say(log, own(held))
    moved = own(held)._replace(identity=msgspec.structs.replace(ME, folder_id="another"))
    assert isinstance(say(log, moved), AnnounceReplica)
    assert isinstance(say(log, moved), AnnounceSnapshot), "with another folder it had nothing"
    assert isinstance(say(log, moved._replace(rack="r9")), AnnounceReplica)


def test_a_snapshot_is_not_announced_before_all_its_epochs_are_there(log: History) -> None:
    held = head(log.image)
    say(log, own(held))
    epoch = held.epoch
    assert say(log, own(held, spans=())) is None
    assert say(log, own(held, spans=(EpochSpan(1, epoch - 1), EpochSpan(epoch + 1, 99)))) is None
    said = say(log, own(held, spans=(EpochSpan(1, 5), EpochSpan(8, epoch))))
    assert isinstance(said, AnnounceSnapshot)
    assert said.first_epoch == 8


def test_what_is_gone_is_withdrawn(log: History) -> None:
    held = head(log.image)
    say(log, own(held))
    say(log, own(held))
    assert say(log, own()) == WithdrawSnapshot("cu-1", held.epoch)
    assert say(log, own()) is None


def test_older_ones_are_announced_once_the_newer_are_gone(log: History) -> None:
    """As many are announced as the log keeps of a replica; somebody has deleted all of these."""
    heads = list[SnapshotHead]()
    say(log, own())
    for n in range(SNAPSHOTS_KEPT + 2):
        assert log.apply(SetSetting("s", str(n))) is None
        heads.insert(0, head(log.image))
        assert isinstance(say(log, own(*heads)), AnnounceSnapshot)
    left = own(*heads[SNAPSHOTS_KEPT:])
    said = list[object]()
    while (command := say(log, left)) is not None:
        said.append(command)
        assert len(said) <= SNAPSHOTS_KEPT + len(left.held), "it says the same again and again"
    announced = log.image.archive.announced("cu-1")
    assert {each.epoch for each in announced} == left.epochs


def test_a_snapshot_of_an_older_log_is_not_announced(log: History) -> None:
    say(log, own())
    assert say(log, own(head(log.image, log_id="00" * 16))) is None


def test_a_member_asks_for_truncation_when_the_setting_says_so(log: History) -> None:
    first = head(log.image)
    say(log, own(first))
    assert isinstance(say(log, own(first)), AnnounceSnapshot)
    for n in range(5):
        assert log.apply(SetSetting("s", str(n))) is None
    both = own(head(log.image), first)
    assert isinstance(say(log, both), AnnounceSnapshot)
    assert say(log, both) is None, "truncate_behind is off"
    assert log.apply(SetSetting("truncate_behind", "2")) is None
    assert say(log, both) == TruncateLog(first.epoch, first.anchor_offset)
    assert say(log, both) is None


def test_replicas_that_want_the_same_truncation_send_one_request(log: History) -> None:
    command = TruncateLog(5, 5)
    other = own()._replace(identity=ReplicaIdentity("cu-2", "demo", "another"))
    one, two = (envelope_of(log.image, each, command, NOW_MS) for each in (own(), other))
    assert one.request_id == two.request_id


def test_an_id_is_never_of_a_time_that_has_not_come(log: History) -> None:
    """The newest state id is of a writer whose clock was ahead once: ids of its time are not taken."""
    command, newest_ms = TruncateLog(5, 5), state_time_ms(log.image.state_id)
    for wall_ms, expected_ms in (
        (newest_ms + 60_000, newest_ms),
        (newest_ms - 60_000, newest_ms - 60_000),
    ):
        request_id = envelope_of(log.image, own(), command, wall_ms).request_id
        assert time_ms(request_id) == expected_ms


def test_while_the_log_is_frozen_it_says_nothing_and_afterwards_all(log: History) -> None:
    said = to_say(log.image, own(), NOW_MS)
    assert said is not None
    actor = envelope_of(log.image, own(), said, NOW_MS).actor
    for mode, who, expected in (
        (CommitMode.FROZEN, "", None),
        (CommitMode.SINGLE_USER, actor, said),
        (CommitMode.OPEN, "", said),
    ):
        assert log.apply(RestrictCommits(mode=mode, actor=who)) is None
        assert to_say(log.image, own(), NOW_MS) == expected


async def test_a_process_with_a_copied_folder_ends_when_the_other_one_has_spoken(
    log: History,
) -> None:
    """Or both would say for ever that the replica is at their own address."""

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
    task = asyncio.create_task(tell(commander, lambda: log.image, lambda: mine))
    async with asyncio.timeout(90):
        while not said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        theirs = mine._replace(address="http://there:2")
        assert isinstance(say(log, theirs), AnnounceReplica)
        with pytest.raises(ConfigurationError, match="http://there:2 has a folder of replica cu-1"):
            await task
    assert len(said) == 1


async def test_who_was_told_the_horizon_says_it_under_an_id_behind_it(
    log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no other command arrives, all ids of its time are too old."""
    monkeypatch.setattr(announcements, "PAUSE_S", 0.001)
    horizon_ms, asked = state_time_ms(log.image.state_id) + 1_000, list[str]()

    class Forgetful:
        horizon_ms = -1

        async def submit(self, envelope: Envelope, _: float) -> Outcome:
            asked.append(envelope.request_id)
            self.horizon_ms = horizon_ms
            raise NotTakenError(envelope.request_id, expired(horizon_ms))

    @asynccontextmanager
    async def commander() -> AsyncIterator[Forgetful]:
        yield Forgetful()

    task = asyncio.create_task(tell(commander, lambda: log.image, own))
    await until(lambda: len(asked) > 2, "it was said again")
    task.cancel()
    times = [time_ms(request_id) for request_id in asked[:3]]
    assert times == [state_time_ms(log.image.state_id), horizon_ms + 1, horizon_ms + 1]


async def test_who_is_told_a_later_horizon_each_time_does_not_pause(
    log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that remembers little has moved it again after a pause, and would never take anything."""
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

    task = asyncio.create_task(tell(commander, lambda: log.image, own))
    await until(lambda: len(asked) > 3, "it was said again")
    task.cancel()
    assert asked[:4] == [(0, 0), (1_001, 0), (2_001, 0), (2_001, 1)]


async def test_a_replica_that_has_moved_says_where_it_is_now(log: History) -> None:
    """Its own row of the last start is no other process."""
    say(log, own()._replace(address="http://before:1"))
    assert address_of(log.image, own()) == "http://before:1"
    moved = to_say(log.image, own(), NOW_MS)
    assert isinstance(moved, AnnounceReplica)
    assert moved.address == "http://here:1"


def test_what_somebody_deletes_from_the_folder_is_not_answered_for(tmp_path: Path) -> None:
    """Else records would be deleted from the log that no disk has any more."""
    made = Made(tmp_path)
    settings = CatchUpSettings(
        cluster="demo", kafka_bootstrap="nowhere:1", instance_id="cu-1", data_dir=tmp_path
    )
    keeper = Keeper(made.archive, 3, 0.01)
    trimmer = Trimmer(keeper, lambda: EMPTY, ME, None)

    def answered() -> Own:
        return own_of(ME, settings, "http://here:1", made.archive, trimmer)

    assert [each.head.epoch for each in answered().held] == [*SNAPSHOTS[::-1]]
    assert answered().spans == (EpochSpan(1, 80),)
    newest = made.archive.snapshots.all()[0]
    newest.decided_path.unlink()
    first = min((tmp_path / "segments").glob("*.avro"))
    first.unlink()
    assert [each.head.epoch for each in answered().held] == [*SNAPSHOTS[-2::-1]]
    assert answered().epochs == {*SNAPSHOTS[:-1]}
    assert answered().spans == (EpochSpan(26, 80),)
