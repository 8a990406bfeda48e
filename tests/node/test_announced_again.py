"""A running node corrects its row when the log contradicts it, and keeps running if that fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from stele.agent import admission
from stele.agent.admission import Advertised, announcement_again, keep_announced, row_differs
from stele.agent.identity import DataDirectory, Identity
from stele.agent.member import Membership
from stele.agent.settings import AgentSettings
from stele.domain.commands import AnnounceNode, Envelope
from stele.domain.image import Image
from stele.domain.model.commits import RestrictCommits
from stele.domain.model.membership import Node
from stele.domain.names import CommitMode, NodeState
from stele.log.brokers import Brokers
from stele.log.follower import LogFollower
from stele.runtime import announce
from stele.runtime.announce import Announcer
from stele.runtime.service import Stop
from tests.node.world import World
from tests.polling import until

NODE, HOST = "n1", "host-n1"
OWN = Advertised(
    address="http://n1",
    dc="dc1",
    rack="r1",
    num_tokens=1,
    supported_features=("tablets",),
    release_version="newer",
)
IDENTITY = Identity(NODE, "demo", HOST, 2, "join-1")


class RecordedAnnouncements:
    """Records the node's announcements. Raises ``answers`` first, then decides each announcement."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: list[Envelope] = []
        self.answers: list[Exception] = []

    async def announce(self, envelope: Envelope, bootstrap: str, cluster: str) -> int | None:
        self.asked.append(envelope)
        if self.answers:
            raise self.answers.pop(0)
        if self.world.history.apply(envelope.command) is not None:
            return None
        self.world._publish()
        return self.world.image.epoch

    def has(self, count: int) -> bool:
        return len(self.asked) >= count

    @property
    def ids(self) -> list[str]:
        return [envelope.request_id for envelope in self.asked]


@pytest.fixture
def recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> RecordedAnnouncements:
    monkeypatch.setattr(admission, "CHECK_S", 0.001)
    monkeypatch.setattr(admission, "growing_pauses", lambda: itertools.repeat(0.001))
    recorded = RecordedAnnouncements(world)
    monkeypatch.setattr(announce, "announce", recorded.announce)
    return recorded


def announce_as(world: World, told: Advertised) -> None:
    """Decide an announcement of a node's process."""
    world.apply(announcement_again(IDENTITY, told, None).command)


def row(world: World) -> Node:
    found = world.image.node(NODE)
    assert found is not None
    return found


@pytest.fixture
def running(world: World, recorded: RecordedAnnouncements, tmp_path: Path) -> Callable[[], Any]:
    """Return a context manager in which n1 runs, with a correct row in the log."""

    @asynccontextmanager
    async def run() -> AsyncIterator[LogFollower]:
        announce_as(world, OWN)
        follower, stop = await world.follower(), Stop()
        announcer = Announcer(partial(announcement_again, IDENTITY, OWN), Brokers(""), "demo")
        directory = DataDirectory(tmp_path, IDENTITY)
        keeping = asyncio.create_task(keep_announced(directory, OWN, follower, announcer, stop))
        await asyncio.sleep(0.02)
        assert not recorded.asked
        yield follower
        stop.request("the test is over")
        await keeping  # it did not fail

    return run


EARLIER = [
    replace(OWN, release_version="older"),
    replace(OWN, supported_features=()),
    replace(OWN, supported_features=("more", "tablets")),
    replace(OWN, address="http://elsewhere"),
]


@pytest.mark.parametrize("told", EARLIER, ids=["release", "less", "more", "address"])
async def test_running_node_corrects_a_late_announcement_of_an_earlier_process(
    told: Advertised,
    world: World,
    recorded: RecordedAnnouncements,
    running: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The announcement of the ended process is decided after the new process checked its row."""
    async with running():
        for count in (1, 2):
            announce_as(world, told)
            await until(partial(recorded.has, count), "the correction")
            await until(lambda: not row_differs(IDENTITY, OWN, row(world)), "the row")
        await asyncio.sleep(0.02)
    assert len({*recorded.ids}) == len(recorded.ids) == 2
    said = capsys.readouterr().out
    assert "the log says something else of this node" in said
    assert "another process runs as node 'n1'" in said
    assert str(told.release_version) in said


async def test_running_node_takes_back_its_address_from_another_node(
    world: World, recorded: RecordedAnnouncements, running: Callable[[], Any]
) -> None:
    n2 = replace(IDENTITY, node_id="n2", host_id="host-n2")
    async with running():
        world.apply(announcement_again(n2, OWN, None).command)
        await until(lambda: row(world).address == OWN.address, "the row")
    other = world.image.node("n2")
    assert other is not None and other.address == ""


async def test_pauses_between_corrections_grow_while_the_node_runs(
    world: World,
    recorded: RecordedAnnouncements,
    running: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes, of a data directory and its copy, correct the row in turn."""
    monkeypatch.setattr(admission, "growing_pauses", lambda: iter([0.001, 0.001, 3600.0]))
    async with running():
        for count in (1, 2, 3):
            announce_as(world, EARLIER[3])
            await until(partial(recorded.has, count), "the correction")
            await asyncio.sleep(0.02)
        announce_as(world, EARLIER[3])
        await asyncio.sleep(0.05)
    assert len(recorded.ids) == 3


async def test_correction_waits_until_a_frozen_log_is_thawed(
    world: World, recorded: RecordedAnnouncements, running: Callable[[], Any]
) -> None:
    async with running():
        announce_as(world, EARLIER[0])
        world.apply(RestrictCommits(mode=CommitMode.FROZEN))
        await asyncio.sleep(0.02)
        before = len(recorded.ids)
        await asyncio.sleep(0.02)
        assert len(recorded.ids) == before
        world.apply(RestrictCommits(mode=CommitMode.OPEN))
        await until(lambda: row(world).release_version == "newer", "the row")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, False),
        ({"release_version": "older"}, True),
        ({"release_version": "older", "host_id": "another"}, False),
        ({"release_version": "older", "state": NodeState.LEFT}, False),
        ({"release_version": "older", "state": NodeState.BOOTSTRAPPING}, True),
        ({"shards": 4}, False),
    ],
    ids=["right", "older", "another host", "left", "joins", "what is not announced"],
)
def test_row_is_contradicted_only_for_a_current_member_of_the_same_host(
    known: dict[str, Any], expected: bool
) -> None:
    own = Node(
        node_id=NODE,
        address=OWN.address,
        dc="dc1",
        rack="r1",
        num_tokens=1,
        state=NodeState.NORMAL,
        supported_features=OWN.supported_features,
        release_version=OWN.release_version,
        host_id=HOST,
    )
    assert row_differs(IDENTITY, OWN, replace(own, **known)) is expected


def test_correction_never_claims_a_free_host_id() -> None:
    command = announcement_again(IDENTITY, replace(OWN, claims_host_id="free"), None).command
    assert isinstance(command, AnnounceNode)
    assert command.claims_host_id == ""
    assert command.host_id == HOST


async def test_failing_correction_does_not_end_a_node_that_waits_for_admission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the correction is logged and does not end the process."""
    begun = asyncio.Event()

    async def nothing(*_: object) -> None: ...

    async def fail(*_: object) -> None:
        begun.set()
        raise AssertionError("a bug")

    gate: Any = SimpleNamespace(reach=nothing, recognise=nothing, check_host=lambda _: None)
    followed: Any = SimpleNamespace(follower=SimpleNamespace(image=Image()), caught_up=None)
    monkeypatch.setattr("stele.agent.member.admit", nothing)
    monkeypatch.setattr("stele.agent.member.keep_announced", fail)
    monkeypatch.setattr("stele.agent.member.Commander", lambda *_: nullcontext())
    directory, stop = DataDirectory(tmp_path, replace(IDENTITY, boots=0)), Stop()
    member = Membership(AgentSettings(), directory, OWN, gate, followed)
    async with member.admitting(stop):
        await asyncio.wait_for(begun.wait(), 240)
        await asyncio.sleep(0.02)
        assert not stop.requested
