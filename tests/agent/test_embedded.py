"""Requests of a member, and pages of a store, here the one of sixty lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.sixty_lines.store import Shelf
from examples.valkey_shards.agent import Valkey
from stele.agent import Code, Member, Refused, Row, Span, open_bound
from stele.agent.identity import boot
from stele.agent.judging import Judge, Routing
from stele.agent.orders import OrderProgress
from stele.agent.pulling import Reading
from stele.agent.stores import PAGE_BYTES, PAGE_S, Page, page_of
from stele.agent.transfers import Ask, Deletes, Given, Transfers, encode
from stele.domain.commands import Noop, SetSetting
from stele.domain.fencing import SessionClosedError
from stele.domain.image import Image
from stele.domain.model.settings import MIB
from stele.domain.names import OrderKind
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.log.follower import LogFollower
from stele.runtime.http import HttpError
from stele.runtime.settings import ConfigurationError
from tests.agent.test_judging import judge_of, routed
from tests.node.world import Sessions, World


class Agent(SimpleNamespace):
    node_id = "n1"
    host_id = "host-n1"
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


async def test_request_holds_its_version_until_it_is_answered() -> None:
    world = World()
    member, agent = await member_of(world)
    async with member.request(routed(world, b"k")):
        assert agent.versions.in_use() == {world.version: 1}
    assert not agent.versions.in_use()


async def test_stale_request_is_not_started() -> None:
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


async def test_request_that_becomes_stale_is_not_acknowledged() -> None:
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


async def test_delayed_effect_is_checked_before_it_happens() -> None:
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


async def test_closed_gate_and_another_log_id_refuse_requests_with_a_reason() -> None:
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


async def test_request_for_another_node_is_refused() -> None:
    """A node that replaces a dead one may have its address, but none of its data."""
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
    """Write rows at the edges of ranges, and several with one token, in two tables."""
    tokens = [MIN_TOKEN + 1, -5, -5, -5, 0, 1, 1, 9, 10, 10, 11, MAX_TOKEN]
    keys = [(data, token, b"%d" % at) for data in "ab" for at, token in enumerate(tokens)]
    for data, token, key in keys:
        shelf.merge(data, [Row(token, key, b"v")])
    return keys


def pages_of(shelf: Any, spans: Sequence[Span], limit_bytes: int = PAGE_BYTES) -> list[Page]:
    """Return all pages, each requested with the cursor of the one before."""
    found = [page_of(shelf, spans, None, limit_bytes)]
    while found[-1].cursor is not None:
        found.append(page_of(shelf, spans, found[-1].cursor, limit_bytes))
    return found


@pytest.mark.parametrize(
    ("page_rows", "limit_bytes"),
    [(1, 99), (2, 99), (3, 99), (5, 99), (100, 99), (100, 1), (100, 4), (3, 7)],
)
async def test_each_row_of_the_spans_is_on_exactly_one_page(
    shelf: Any, page_rows: int, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.stores.PAGE_ROWS", page_rows)
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
    pages = pages_of(shelf, spans, limit_bytes)
    assert [(at, r.token, r.key) for page in pages for at, r in page.rows] == expected
    for page in pages:
        assert 1 <= len(page.rows) <= page_rows
        assert page.size_bytes == sum(len(r.key) + len(r.value) for _, r in page.rows)
        assert page.size_bytes <= limit_bytes or len(page.rows) == 1


class Large:
    """A store with values of 256 KiB, and a larger one at token 8. ``most`` is the largest scan in bytes."""

    def __init__(self) -> None:
        self.most = 0

    def scan(self, _: Span, after: tuple[int, bytes] | None, limit: int) -> list[Row]:
        first = 1 if after is None else after[0] + 1
        tokens = range(first, min(first + limit, 31))
        rows = [Row(at, b"k", bytes(5 * MIB if at == 8 else MIB // 4)) for at in tokens]
        self.most = max(self.most, sum(len(row.value) for row in rows))
        return rows


def test_page_exceeds_its_limit_only_for_a_single_large_row() -> None:
    store = Large()
    pages = pages_of(store, [RING])
    assert [len(page.rows) for page in pages] == [7, 1, 7, 7, 7, 1]
    assert [page.rows[0][1].token for page in pages if page.size_bytes > PAGE_BYTES] == [8]
    assert store.most < PAGE_BYTES + 5 * MIB, "nor is much more read for it"


async def test_low_rate_limit_makes_pages_small() -> None:
    world = World()
    world.apply(SetSetting("stream_mib_per_s", "1"))
    follower, sessions = await streaming(world)
    store: Any = Large()
    transfers = transfers_of(follower, store, sessions)
    given = await transfers.give(Ask(epoch=world.image.epoch, session=world.session, spans=[RING]))
    assert len(given.rows) == 1
    assert given.size_bytes <= PAGE_S * MIB
    assert given.cursor == (0, 1, b"k")


class Pages:
    """The answers of a source. ``meanwhile`` is called between them."""

    def __init__(self, given: Given, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._given = given
        self._meanwhile = meanwhile

    async def ask(self, _: str, took: Callable[[int, bytes], None], *__: Any, **___: Any) -> int:
        await self._meanwhile()
        took(200, encode(self._given))
        return 200


async def streaming(world: World) -> tuple[LogFollower, Sessions]:
    """Return a follower and sessions while n4 joins, before its data moves."""
    world.start_join()
    world.advance()
    world.fence()
    follower = await world.follower()
    return follower, Sessions(follower)


def transfers_of(
    follower: LogFollower, store: Any, sessions: Sessions, transport: Any = None
) -> Transfers:
    judge = Judge("n1", follower, Routing(follower), sessions)
    agent: Any = Agent(follower=follower)
    return Transfers(agent, judge, store, transport or SimpleNamespace())


def opened(folder: Path) -> Any:
    open_store: Callable[[Path], Any] = Shelf
    return open_store(folder / "store")


async def test_rows_are_served_only_under_an_open_session(tmp_path: Path) -> None:
    world = World()
    follower, sessions = await streaming(world)
    shelf = opened(tmp_path)
    shelf.merge(world.data_id, [Row(1, b"k", b"v")])
    transfers = transfers_of(follower, shelf, sessions)
    spans = [Span(world.data_id, MIN_TOKEN, MIN_TOKEN)]
    ask = Ask(epoch=world.image.epoch, session=world.session, spans=spans)
    assert (await transfers.give(ask)).rows == [(0, Row(1, b"k", b"v"))]
    later = Ask(epoch=ask.epoch + 1, session=ask.session, spans=spans)
    assert await refused(transfers, later) is Code.BEHIND
    world.advance()
    await follower.wait_for_epoch(world.image.epoch)
    assert await refused(transfers, ask) is Code.SESSION_CLOSED


async def test_source_reads_the_log_up_to_the_epoch_of_the_receiver(tmp_path: Path) -> None:
    world = World()
    follower, sessions = await streaming(world)
    transfers = transfers_of(follower, opened(tmp_path), sessions)
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
async def test_pulled_rows_are_stored_only_in_an_open_session_of_live_data(
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
    transfers = transfers_of(follower, shelf, sessions, source)
    spans, progress = [Span(world.data_id, MIN_TOKEN, MIN_TOKEN)], OrderProgress()
    order = world.order(OrderKind.STREAM, "n4")
    with sessions.enter(world.session) as guard:
        reading = Reading(order, world.image, guard, set(), compares=False)
        if meanwhile == "closed":
            with pytest.raises(SessionClosedError):
                await transfers.pull(reading, "n1", spans, progress, differing=False)
        else:
            assert await transfers.pull(reading, "n1", spans, progress, differing=False)
    assert shelf.data_ids() == ([spans[0].keyspace] if meanwhile == "nothing" else [])


async def test_newer_row_is_kept_and_delete_needs_permission(shelf: Any) -> None:
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
def test_lost_or_emptied_store_is_refused(tmp_path: Path, harm: Harm, says: str) -> None:
    for _ in range(2):
        directory = boot(tmp_path, "n1", "demo", "store")
        store: Any = open_bound(directory, Shelf)
        assert store.host_id() == directory.identity.host_id
        store.db.close()
    harm(tmp_path / "store")
    with pytest.raises(ConfigurationError, match=says):
        open_bound(boot(tmp_path, "n1", "demo", "store"), Shelf)
