"""A member's requests, and pages of a store, here that of sixty lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.sixty_lines.store import Shelf
from examples.valkey_shards.agent import Valkey
from stele.agent import Code, Member, Refused, Row, Span, open_bound
from stele.agent import transfers as transfers_module
from stele.agent.identity import boot
from stele.agent.transfers import Ask, Cursor, Deletes, Transfers
from stele.domain.image import Image
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.log.follower import LogFollower
from stele.runtime.http import HttpError
from stele.runtime.settings import ConfigurationError
from tests.agent.test_judging import judge_of, routed
from tests.node.world import Sessions, World


class Agent(SimpleNamespace):
    node_id = "n1"
    follower: LogFollower

    @property
    def image(self) -> Image:
        return self.follower.image


async def member_of(world: World) -> tuple[Member, Any]:
    follower = await world.follower()
    sessions = Sessions(follower)
    agent = Agent(
        hold=sessions.hold, release=sessions.release, versions=sessions.versions, follower=follower
    )
    gate = SimpleNamespace(closed=lambda: None)
    membership = SimpleNamespace(follower=follower, gate=gate)
    return Member(membership, agent, judge_of(follower), SimpleNamespace()), agent  # type: ignore[arg-type]


async def test_a_request_holds_its_version_until_it_is_answered() -> None:
    world = World()
    member, agent = await member_of(world)
    async with member.request(routed(world, b"k")):
        assert agent.versions.in_use() == {world.version: 1}
    assert not agent.versions.in_use()


async def test_a_request_that_is_stale_is_not_begun() -> None:
    world = World()
    member, agent = await member_of(world)
    world.start_join()
    request = routed(world, world.key_that_changes())
    world.advance()
    await member.membership.follower.wait_for_epoch(world.image.epoch)
    with pytest.raises(Refused) as refused:
        async with member.request(request):
            raise AssertionError("it is not begun")
    assert (refused.value.code, refused.value.status) == (Code.STALE_VERSION, 409)
    assert refused.value.body.details["epoch"] == world.image.topology.since_epoch
    assert not agent.versions.in_use()


async def test_what_was_begun_in_time_and_ended_late_is_not_acknowledged() -> None:
    world = World()
    member, agent = await member_of(world)
    world.start_join()
    request, done = routed(world, world.key_that_changes()), False
    await member.membership.follower.wait_for_epoch(world.image.epoch)
    with pytest.raises(Refused, match="older than version"):
        async with member.request(request):
            world.advance()
            await member.membership.follower.wait_for_epoch(world.image.epoch)
            done = True
    assert done and not agent.versions.in_use()


async def test_a_node_that_serves_nothing_says_why_and_another_logs_sender_is_refused() -> None:
    world = World()
    member, _ = await member_of(world)
    with pytest.raises(HttpError) as other:
        async with member.request(routed(world, b"k", log_id="0b" * 16)):
            pass
    assert (other.value.status, other.value.body.code) == (421, "other_log")
    closed = SimpleNamespace(code="catching_up", message="The node is reading the log.")
    member.membership.gate = SimpleNamespace(closed=lambda: closed)  # type: ignore[assignment]
    with pytest.raises(HttpError) as catching_up:
        async with member.request(routed(world, b"k")):
            pass
    assert (catching_up.value.status, catching_up.value.body.code) == (503, "catching_up")


RING = Span("a", MIN_TOKEN, MIN_TOKEN)


@pytest.fixture(params=[Shelf, Valkey], ids=["sixty lines", "valkey"])
def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    open_store: Callable[[Path], Any] = request.param
    store = open_store(tmp_path / "store")
    yield store
    if isinstance(store, Valkey):
        store.valkey.close()
        store.process.stop()


def fill(shelf: Any) -> list[tuple[str, int, bytes]]:
    """Rows at the edges of ranges, several of one token, of two tables."""
    tokens = [MIN_TOKEN + 1, -5, -5, -5, 0, 1, 1, 9, 10, 10, 11, MAX_TOKEN]
    keys = [(data, token, b"%d" % at) for data in "ab" for at, token in enumerate(tokens)]
    for data, token, key in keys:
        shelf.merge(data, [Row(token, key, b"v")])
    return keys


@pytest.mark.parametrize("page_rows", [1, 2, 3, 5, 100])
async def test_all_rows_of_the_spans_are_on_one_page_each(
    shelf: Any, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "PAGE_ROWS", page_rows)
    keys = fill(shelf)
    spans = [
        Span("a", MIN_TOKEN, -5),
        Span("b", -5, 10),
        Span("a", -5, 1),
        Span("b", 10, MIN_TOKEN),
    ]
    expected = [
        (at, token, key)
        for at, span in enumerate(spans)
        for data, token, key in sorted(keys)
        if data == span.keyspace and span.bounds()[1] < token <= span.bounds()[2]
    ]
    transfers, found = _transfers(shelf), list[tuple[int, int, bytes]]()
    cursor: Cursor | None = None
    while True:
        ask = Ask(epoch=1, session="s", spans=spans, cursor=cursor)
        page = transfers._page(ask)
        found += [(at, row.token, row.key) for at, row in page.rows]
        assert len(page.rows) <= page_rows
        cursor = page.cursor
        if cursor is None:
            break
    assert found == expected


def _transfers(shelf: Any) -> Transfers:
    transfers = Transfers.__new__(Transfers)
    transfers._store = shelf
    return transfers


async def test_the_newer_of_two_rows_stays_and_deleting_stops_when_it_may_not(shelf: Any) -> None:
    shelf.merge("a", [Row(1, b"k", b"2")])
    shelf.merge("a", [Row(1, b"k", b"1"), Row(2, b"l", b"1")])
    assert shelf.scan(RING, None, 9) == [Row(1, b"k", b"2"), Row(2, b"l", b"1")]
    deletes = Deletes(shelf)
    assert await deletes.partitions() == ["a"]
    assert (await deletes.measure([RING])).size_bytes == 4
    assert (await deletes.delete(RING, 9, lambda: False)).keys == 0
    assert (await deletes.delete(Span("a", 1, 2), 9, lambda: True)).keys == 1
    assert shelf.scan(RING, None, 9) == [Row(1, b"k", b"2")]


Harm = Callable[[Path], None]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(b""), "is empty or belongs to no"),
    ],
)
def test_data_that_was_lost_or_emptied_is_not_taken_for_the_replicas(
    tmp_path: Path, harm: Harm, says: str
) -> None:
    for _ in range(2):
        directory = boot(tmp_path, "n1", "demo", "store")
        store: Any = open_bound(directory, Shelf)
        assert store.host_id() == directory.identity.host_id
        store.db.close()
    harm(tmp_path / "store")
    with pytest.raises(ConfigurationError, match=says):
        open_bound(boot(tmp_path, "n1", "demo", "store"), Shelf)


def test_data_without_its_name_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"data")
    with pytest.raises(ConfigurationError, match=r"holds store without node\.json"):
        boot(tmp_path, "n1", "demo", "store")
