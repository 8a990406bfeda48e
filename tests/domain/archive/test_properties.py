"""Random announcements, requests and choices. Every epoch is checked (``checks``)."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.commands import (
    AnnounceReader,
    AnyCommand,
    AskSnapshot,
    Cancel,
    ChooseMembers,
    ForgetReader,
    ForgetReplica,
    ReconfigureCatchUp,
    ServeRequest,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.names import RequestStatus
from stele.domain.rules.retention import choose, truncatable, wanted_members
from tests.domain.archive.announced import replica, snapshot, truncate
from tests.domain.archive.logs import archive, founded

ACTIONS = 200
DCS = ("dc1", "dc2")
NAMES = tuple(f"c-{index}" for index in range(6))
REPLICATIONS = ("1", "2", "3", "dc1=1,dc2=1", "dc1=2", "")
seeds = st.integers(0, 2**32)


class RandomArchive:
    """A log with random commands in a random order. The coordinator of ``choose`` may choose wrongly."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.history = founded(archive_replication=self.chance.choice("13"))
        self.folders = Counter[str]()
        self.done = Counter[str]()

    def go(self) -> None:
        for _ in range(ACTIONS):
            acts: list[Callable[[], AnyCommand | None]] = [
                self.replica,
                *[self.snapshot] * 6,
                self.reader,
                *[self.truncate] * 3,
            ]
            acts += [self.ask, *[self.choose] * 3, *[self.serve] * 8, self.rarely]
            command = self.chance.choice(acts)()
            if command is not None and self.history.apply(command) is None:
                facts = self.history.epochs[-1].facts
                self.done.update(type(fact).__name__ for fact in facts)

    def replica(self) -> AnyCommand:
        name = self.chance.choice(NAMES)
        self.folders[name] += self.chance.random() < 0.4
        return replica(name, DCS[NAMES.index(name) % 2], folder=f"f{self.folders[name]}")

    def snapshot(self) -> AnyCommand:
        """Return a snapshot, usually the requested one, rarely one that differs from the others'."""
        name, newest = self.chance.choice(NAMES), self.history.image.epoch
        asked = archive(self.history).asked_epoch or newest
        epoch = asked if self.chance.random() < 0.8 else self.chance.randint(1, newest)
        first = 1 if self.chance.random() < 0.9 else self.chance.randint(1, epoch)
        content = "right" if self.chance.random() < 0.97 else "wrong"
        return snapshot(name, epoch, first, content, folder=f"f{self.folders[name]}")

    def reader(self) -> AnyCommand:
        epoch = self.chance.randint(1, self.history.image.epoch)
        self.history.at_ms += self.chance.choice((0, 0, 400_000_000))
        return AnnounceReader("one", epoch) if self.chance.random() < 0.5 else ForgetReader("one")

    def truncate(self) -> AnyCommand:
        found = truncatable(self.history.image, self.history.at_ms)
        if found.epoch:
            return TruncateLog(found.epoch, found.offset)
        return truncate(self.chance.randint(1, self.history.image.epoch))

    def ask(self) -> AnyCommand:
        if self.chance.random() < 0.6:
            return AskSnapshot()
        return ReconfigureCatchUp(replication=self.chance.choice(REPLICATIONS))

    def choose(self) -> AnyCommand | None:
        """Choose by the rules, or at random."""
        for request in self.history.image.requests.reconfigurations()[:1]:
            replicas = archive(self.history).replicas
            wanted = wanted_members(self.history.image)
            found = self.chance.sample(sorted(replicas), self.chance.randint(0, len(replicas)))
            chosen = tuple(found[: sum(wanted.values())])
            if self.chance.random() < 0.5:
                chosen = choose([replicas[name] for name in found], wanted)
            changed = archive(self.history).changed_epoch
            return ChooseMembers(1, request.request_id, chosen, changed)
        return None

    def serve(self) -> AnyCommand | None:
        for request in self.history.image.requests.reconfigurations()[:1]:
            changed = archive(self.history).changed_epoch
            return ServeRequest(1, request.request_id, request.status, changed)
        return None

    def rarely(self) -> AnyCommand | None:
        name = self.chance.choice(NAMES)
        snapshots = archive(self.history).announced(name)
        turn = self.history.image.requests.reconfigurations()
        rare: list[AnyCommand] = [ForgetReplica(replica_id=name)]
        rare += [WithdrawSnapshot(name, each.epoch) for each in snapshots[-1:]]
        rare += [Cancel(request.request_id) for request in turn[:1]]
        if self.chance.random() < 0.1:
            rare = [ForgetReplica(replica_id=name, force=True)]
        return self.chance.choice(rare)


@settings(deadline=None, max_examples=100)
@given(seeds)
def test_every_epoch_keeps_the_invariants_of_the_archive(seed: int) -> None:
    """A majority has all deleted epochs, there is always a member, and one replica changes at a time."""
    RandomArchive(seed).go()


@pytest.mark.parametrize("seed", range(3))
def test_reconfiguration_ends_once_all_announce_the_requested_snapshot(seed: int) -> None:
    """After any history, live replicas with correct snapshots complete it."""
    crowd = RandomArchive(seed)
    crowd.go()
    history = crowd.history
    for name in archive(history).replicas:
        history.apply(replica(name, DCS[NAMES.index(name) % 2], folder="last"))
    for _ in range(100):
        asked = archive(history).asked_epoch
        for name in archive(history).replicas:
            history.apply(snapshot(name, asked, folder="last"))
        pending = history.image.requests.reconfigurations()[:1]
        if not pending:
            return
        if pending[0].status is RequestStatus.PENDING or not {*pending[0].members} & {
            *archive(history).replicas
        }:
            wanted = wanted_members(history.image)
            chosen = choose(archive(history).replicas.values(), wanted)
            changed = archive(history).changed_epoch
            history.apply(ChooseMembers(1, pending[0].request_id, chosen, changed))
        command = crowd.serve()
        assert command is not None
        history.apply(command)
    pytest.fail(str(history.image.requests.reconfigurations()))


def test_random_runs_reach_all_kinds_of_facts() -> None:
    done = Counter[str]()
    for seed in range(30):
        crowd = RandomArchive(seed)
        crowd.go()
        done += crowd.done
        ended = crowd.history.image.requests.finished()
        done.update(str(each.status) for each in ended if each.reconfigures)
    assert done["LogTruncated"] > 20
    assert done["done"] > 5
    assert done["cancelled"] > 2
    assert done["SnapshotsForgotten"] > 20
    assert done["ReplicaForgotten"] > 2
