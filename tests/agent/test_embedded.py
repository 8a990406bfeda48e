"""A member's requests, and pages of a store, here that of sixty lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.sixty_lines.store import Shelf
from examples.valkey_shards.agent import Valkey
from stele.agent import Code, Member, Refused, Row, Span, open_bound
from stele.agent import transfers as transfers_module
from stele.agent.identity import boot
from stele.agent.orders import OrderProgress
from stele.agent.pulling import Reading
from stele.agent.sourcing import Sourcing
from stele.agent.transfers import Ask, Cursor, Deletes, Given, Transfers, encode
from stele.domain.commands import Noop
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import OrderKind
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.domain.sessions import SessionClosedError
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
        node_id="n1",
        hold=sessions.hold,
        release=sessions.release,
        versions=sessions.versions,
        follower=follower,
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


async def test_an_effect_that_has_waited_is_checked_in_its_own_turn() -> None:
    world = World()
    member, _ = await member_of(world)
    world.start_join()
    request = routed(world, world.key_that_changes())
    await member.membership.follower.wait_for_epoch(world.image.epoch)
    has_effect = False
    with pytest.raises(Refused, match="older than version"):
        async with member.request(request):
            member.check(request)
            world.advance()
            await member.membership.follower.wait_for_epoch(world.image.epoch)
            member.check(request)
            has_effect = True
    assert not has_effect


async def test_a_node_that_serves_nothing_says_why_and_another_logs_sender_is_refused() -> None:
    world = World()
    member, _ = await member_of(world)
    with pytest.raises(HttpError) as other:
        async with member.request(routed(world, b"k", log_id="0b" * 16)):
            pass
    assert (other.value.status, other.value.body.code) == (409, "other_log")
    closed = SimpleNamespace(code="catching_up", message="The node is reading the log.")
    member.membership.gate = SimpleNamespace(closed=lambda: closed)  # type: ignore[assignment]
    with pytest.raises(HttpError) as catching_up:
        async with member.request(routed(world, b"k")):
            pass
    assert (catching_up.value.status, catching_up.value.body.code) == (503, "catching_up")


async def test_what_is_meant_for_another_node_is_not_begun() -> None:
    """Who takes a dead node's place may have its address, and has none of its data."""
    world = World()
    member, agent = await member_of(world)
    with pytest.raises(HttpError) as other:
        async with member.request(routed(world, b"k", replica="n2")):
            raise AssertionError("it is not begun")
    assert (other.value.status, other.value.body.code) == (421, "other_node")
    assert not agent.versions.in_use()


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


class Pages:
    """What a source answers, ``meanwhile`` that something happens."""

    def __init__(self, given: Given, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._given = given
        self._meanwhile = meanwhile

    async def ask(self, _: str, took: Callable[[int, bytes], None], *__: Any, **___: Any) -> int:
        await self._meanwhile()
        took(200, encode(self._given))
        return 200


async def streaming(world: World) -> tuple[LogFollower, Sessions]:
    """n4 joins, and its data is about to move."""
    world.start_join()
    world.advance()
    world.fence()
    follower = await world.follower()
    return follower, Sessions(follower)


def opened(folder: Path) -> Any:
    open_store: Callable[[Path], Any] = Shelf
    return open_store(folder / "store")


async def test_rows_are_given_under_an_open_session_alone(tmp_path: Path) -> None:
    world = World()
    follower, sessions = await streaming(world)
    shelf = opened(tmp_path)
    shelf.merge(world.data_id, [Row(1, b"k", b"v")])
    sourcing = Sourcing(follower, sessions, judge_of(follower))
    agent: Any = Agent(follower=follower)
    transfers = Transfers(agent, sourcing, shelf, SimpleNamespace())
    spans = [Span(world.data_id, MIN_TOKEN, MIN_TOKEN)]
    ask = Ask(epoch=world.image.epoch, session=world.session, spans=spans)
    assert (await transfers.give(ask)).rows == [(0, Row(1, b"k", b"v"))]
    later = Ask(epoch=ask.epoch + 1, session=ask.session, spans=spans)
    assert await refused(transfers, later) is Code.BEHIND
    world.advance()
    await follower.wait_for_epoch(world.image.epoch)
    assert await refused(transfers, ask) is Code.SESSION_CLOSED


async def test_a_source_reads_on_to_what_the_receiver_knows(tmp_path: Path) -> None:
    world = World()
    follower, sessions = await streaming(world)
    shelf, agent = opened(tmp_path), Agent(follower=follower)
    sourcing = Sourcing(follower, sessions, judge_of(follower))
    transfers: Any = Transfers(agent, sourcing, shelf, SimpleNamespace())  # type: ignore[arg-type]
    ask = Ask(epoch=world.image.epoch + 1, session=world.session, spans=[])
    giving = asyncio.create_task(transfers.give(ask))
    await asyncio.sleep(0)
    world.apply(Noop())
    assert (await giving).code is Code.OK


async def refused(transfers: Transfers, ask: Ask) -> Code:
    given = await transfers.give(ask)
    assert not given.rows
    return given.code


@pytest.mark.parametrize("meanwhile", ["nothing", "closed", "truncated"])
async def test_rows_that_came_are_kept_under_an_open_session_and_unless_they_are_truncated_away(
    meanwhile: str, tmp_path: Path
) -> None:
    world = World()
    follower, sessions = await streaming(world)

    async def happens() -> None:
        if meanwhile == "closed":
            world.advance()
        elif meanwhile == "truncated":
            world.truncate()
        await follower.wait_for_epoch(world.image.epoch)

    shelf = opened(tmp_path)
    source: Any = Pages(Given(code=Code.OK, rows=[(0, Row(1, b"k", b"v"))]), happens)
    agent: Any = Agent(follower=follower)
    transfers = Transfers(agent, SimpleNamespace(), shelf, source)  # type: ignore[arg-type]
    spans, progress = [Span(world.data_id, MIN_TOKEN, MIN_TOKEN)], OrderProgress()
    order = Order(
        node_id="n4",
        term=1,
        index=1,
        kind=OrderKind.STREAM,
        epoch=world.image.epoch,
        session=world.session,
    )
    with sessions.enter(world.session) as guard:
        reading = Reading(order, world.image, guard, set(), compares=False)
        if meanwhile == "closed":
            with pytest.raises(SessionClosedError):
                await transfers.pull(reading, "n1", spans, progress)
        else:
            assert await transfers.pull(reading, "n1", spans, progress)
    assert shelf.data_ids() == ([spans[0].keyspace] if meanwhile == "nothing" else [])


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
