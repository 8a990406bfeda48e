"""A router that follows metadata-log over HTTP has the state of the log, also after failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from stele.client import HistoryChangedError, ServiceAwayError, check
from stele.domain.commands import (
    AlterSchema,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    SetSetting,
    Truncate,
)
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele.log.errors import AnchorLostError
from stele.router import NotReady, Router, StaleRoute, http_router
from stele.router.over_http import LACKS_S, LINE_BYTES
from stele.runtime.answers.common import ErrorBody
from stele.runtime.transport import HttpTransport, OnPiece
from stele.words.cql_parser import parse_cql
from tests.deployment.in_memory import Site
from tests.domain.history import History, join, three_nodes
from tests.polling import until

TABLE = "music.songs"
COLUMNS = (
    "CREATE TABLE music.plays (day date PRIMARY KEY); CREATE TABLE films.cast (id int PRIMARY KEY)"
)
KEYS = [f"key-{number}".encode() for number in range(200)]


def life() -> History:
    """Return a history in which a node joins, and keyspaces and tables are created, changed and dropped."""
    history, world = three_nodes()

    def then(*commands: object) -> None:
        for command in commands:
            assert history.apply(command) is None  # type: ignore[arg-type]
        world.run()

    history.enable(SCHEMA_OBJECTS)
    then(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4))
    then(CreateTable(TABLE), SetSetting("colour", "blue"))
    then(replace(join(4, "r1"), supported_features=(SCHEMA_OBJECTS,)))
    then(Truncate("library"), CreateKeyspace("films", {"dc1": 1}))
    then(DropKeyspace("library"))
    then(
        AlterSchema(parse_cql(COLUMNS)), AlterSchema(parse_cql("ALTER TABLE music.plays ADD n int"))
    )
    return history


def same_routes(router: Router, image: Image) -> None:
    """Check that every key has the same replicas in router and image, at the same version."""
    assert router.image.state_id == image.state_id and router.version == image.topology.version
    assert router.image.membership.nodes == image.membership.nodes
    assert router.image.schema.by_id == image.schema.by_id
    assert router.image.schema.tables == image.schema.tables
    assert router.image.schema.schemas == image.schema.schemas
    assert {*router.image.ring.placements} == {*image.ring.placements}
    for data in image.schema.all_data():
        if image.schema.serving(data.name) is None:
            continue
        for key in KEYS:
            found = router.lookup(data.name, key)
            assert found.data_id == data.data_id
            assert found.row == image.ring.placements[data.placement].row_for(found.token)


@pytest.mark.parametrize("seed", range(3))
async def test_routes_equal_the_log_after_each_burst_of_epochs(seed: int) -> None:
    site, chance = Site(life()), random.Random(seed)
    site.give(chance.randint(1, 30))
    async with site.serving() as url, http_router([url]) as router:
        while True:
            await router.wait_for_epoch(site.given, 20)
            same_routes(router, site.image)
            if site.given == len(site.history.epochs):
                break
            site.give(chance.choice((1, 2, 9)))
            await asyncio.sleep(chance.choice((0, 0.01)))
    assert site.image.schema.serving(TABLE) is not None
    assert site.image.schema.serving("library") is None


async def test_router_uses_the_next_address_if_the_first_is_unavailable() -> None:
    site = Site(life())
    site.give(40)
    async with site.serving() as first:
        async with http_router(["http://127.0.0.1:1", first]) as router:
            same_routes(router, site.image)
            site.give(1)
            await router.wait_for_epoch(41, 20)
    site.give(len(site.history.epochs))
    port = int(first.rpartition(":")[2])
    async with site.serving(port) as url:
        assert url == first
        async with http_router([first]) as again:
            same_routes(again, site.image)


async def test_router_resumes_the_stream_when_the_service_returns() -> None:
    site = Site(life())
    site.give(40)
    async with site.serving() as url:
        opened = http_router([url])
        router = await opened.__aenter__()
    try:
        site.give(len(site.history.epochs))
        await until(lambda: bool(router.trouble), "the router to notice that nobody answers")
        assert router.epoch == 40
        assert router.lookup(TABLE, b"k").reads, "it routes by what it knows"
        async with site.serving(int(url.rpartition(":")[2])):
            await router.wait_for_epoch(site.given, 20)
            same_routes(router, site.image)
    finally:
        await opened.__aexit__(None, None, None)


async def test_router_rereads_the_state_of_a_recovered_log() -> None:
    site = Site(life())
    site.give(60)
    async with site.serving() as url:
        opened = http_router([url])
        router = await opened.__aenter__()
    try:
        other = Site(three_nodes()[0])
        other.give(len(other.history.epochs))
        assert other.given < 60
        async with other.serving(int(url.rpartition(":")[2])):
            async with asyncio.timeout(240):
                while router.image.state_id != other.image.state_id:
                    other.history.apply(SetSetting("colour", str(other.given)))
                    other.give(1)
                    await asyncio.sleep(0.05)
            same_routes(router, other.image)
    finally:
        await opened.__aexit__(None, None, None)


class Answers(HttpTransport):
    """A transport with the answers of services, or those that a test plans for an address and path."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[str]()
        self.planned = dict[str, list[tuple[int, bytes]]]()
        """Each planned answer is used once, in order. Then the service answers."""
        self.always = dict[str, tuple[int, bytes]]()
        self.changed: Callable[[bytes], bytes] = lambda body: body
        """Modifies the body of diffs."""

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        self.asked.append(url)
        given = self.planned.get(url, [])
        if given or url in self.always:
            status, content = given.pop(0) if given else self.always[url]
            on_piece(status, content)
            return status
        if not url.endswith("/v1/diff"):
            return await super().ask(url, on_piece, total_s, params or {}, headers or {})
        came = bytearray()
        take: OnPiece = lambda _, piece: came.extend(piece)  # noqa: E731
        status = await super().ask(url, take, total_s, params or {}, headers or {})
        on_piece(status, self.changed(bytes(came)))
        return status


@asynccontextmanager
async def two_sites(given: int) -> AsyncIterator[tuple[Site, str, Site, str]]:
    """Yield two metadata-logs of one log, each with its address."""
    first = Site(life())
    second = Site(first.history)
    first.give(given)
    second.give(given)
    async with first.serving() as first_url, second.serving() as second_url:
        yield first, first_url, second, second_url


@pytest.mark.parametrize(
    "answer",
    (
        (404, b'{"code":"not_found","message":"There is nothing at /v1/state."}'),
        (404, b"<html>"),
        (404, b"[]"),
        (403, b'{"code":"forbidden","message":"no"}'),
        (301, b""),
        (200, b"<html>"),
    ),
)
@pytest.mark.parametrize("path", ("/v1/state", "/v1/changes"))
async def test_foreign_service_at_the_first_address_is_skipped(
    path: str, answer: tuple[int, bytes]
) -> None:
    async with two_sites(20) as (_, first, site, second):
        http = Answers()
        http.always[first + path] = answer
        async with http_router([first, second], 5, http) as router:
            site.give(13)
            await router.wait_for_epoch(site.given, 5)
            same_routes(router, site.image)


@pytest.mark.parametrize(
    ("status", "code", "is_anew"),
    (
        (410, "other_history", True),
        (404, "epoch_not_found", True),
        (404, "epoch_truncated", True),
        (404, "not_found", False),
        (400, "invalid_request", False),
        (401, "unauthorized", False),
        (503, "reader_stopped", False),
    ),
)
def test_only_history_errors_of_metadata_log_cause_a_reread(
    status: int, code: str, is_anew: bool
) -> None:
    body = bytearray(msgspec.json.encode(ErrorBody(code, "It is so.")))
    with pytest.raises(HistoryChangedError if is_anew else ServiceAwayError):
        check("/v1/changes", status, body)


async def test_router_leaves_a_service_with_a_stopped_reader() -> None:
    async with two_sites(20) as (stopped, first, site, second):
        async with http_router([first, second]) as router:
            assert stopped.writer is not None
            stopped.writer._fail(AnchorLostError(1, "planted"))
            site.give(13)
            await router.wait_for_epoch(site.given, 5)
            same_routes(router, site.image)


async def test_router_leaves_a_service_whose_streams_end_at_once() -> None:
    async with two_sites(20) as (_, first, site, second):
        http = Answers()
        http.always[f"{first}/v1/changes"] = 200, b""
        async with http_router([first, second], transport=http) as router:
            site.give(13)
            await router.wait_for_epoch(site.given, 5)


async def test_epoch_requested_by_a_replica_is_read_from_the_next_service() -> None:
    """The first service no longer reads the log, but keeps its stream open."""
    async with two_sites(20) as (_, first, site, second), http_router([first, second]) as router:
        site.give(13)
        async for attempt in router.attempts("library", b"k"):
            with attempt as replicas:
                if replicas.epoch < site.given:
                    raise StaleRoute(site.given)
        assert router.epoch == site.given
    assert not router.awaited


async def test_router_keeps_its_service_after_a_wait_has_timed_out() -> None:
    async with two_sites(20) as (_, first, _, second):
        http = Answers()
        async with http_router([first, second], transport=http) as router:
            with pytest.raises(TimeoutError):
                await router.wait_for_epoch(10**6, LACKS_S / 2)
            await asyncio.sleep(LACKS_S)
            assert [url for url in http.asked if url.startswith(second)] == []


def _of_no_keyspace(body: bytes) -> bytes:
    state = msgspec.json.decode(body)
    return msgspec.json.encode({**state, "keyspaces": []})


@pytest.mark.parametrize(
    ("path", "body"),
    (
        ("/v1/diff", b"null"),
        ("/v1/diff", b"[]"),
        ("/v1/diff", b"{}"),
        ("/v1/diff", b"<html>"),
        ("/v1/changes", b"data: 5\n\n"),
        ("/v1/changes", b"data: \x00\xff\n\n"),
        ("/v1/changes", b'data: {"epoch":41,"state_id":"xx","changes":{}}\n\n'),
    ),
)
async def test_router_continues_after_a_malformed_answer(path: str, body: bytes) -> None:
    site, http = Site(life()), Answers()
    site.give(40)
    async with site.serving() as url:
        http.planned[url + path] = [(200, body)]
        async with http_router([url], 5, http) as router:
            site.give(13)
            await router.wait_for_epoch(site.given, 5)
            same_routes(router, site.image)
            assert http.planned[url + path] == []


async def test_too_long_event_makes_the_router_reread_the_state() -> None:
    """The event would be as long at the next address."""
    site, http = Site(life()), Answers()
    site.give(40)
    async with site.serving() as url:
        http.planned[f"{url}/v1/changes"] = [(200, b"data: " + b"x" * (LINE_BYTES + 1))]
        async with http_router([url], 5, http) as router:
            site.give(13)
            await router.wait_for_epoch(site.given, 5)
            same_routes(router, site.image)
            assert http.asked.count(f"{url}/v1/state") == 2


async def test_router_retries_after_an_inconsistent_state() -> None:
    site, http = Site(life()), Answers()
    site.give(len(site.history.epochs))
    async with site.serving() as url:
        state = bytearray()
        await http.ask(f"{url}/v1/state", lambda _, piece: state.extend(piece), 5)
        http.planned[f"{url}/v1/state"] = [(200, _of_no_keyspace(bytes(state))), (200, b"[]")]
        async with http_router([url], 5, http) as router:
            same_routes(router, site.image)
            assert router.trouble == ""


@pytest.mark.parametrize(
    ("changed", "trouble"),
    (
        ({"cluster_id": "another"}, "it is of cluster demo (another), and this router of demo"),
        ({"epoch": 0}, "the log is empty"),
        ({"log_id": "00" * 16}, "it is at log 00000000000000000000000000000000, which was"),
    ),
)
async def test_state_of_another_cluster_or_older_log_is_refused(
    changed: dict[str, object], trouble: str
) -> None:
    """Otherwise nodes of the other cluster would receive the writes."""
    site, http = Site(life()), Answers()
    site.give(40)
    async with site.serving() as url:
        read = bytearray()
        await http.ask(f"{url}/v1/state", lambda _, piece: read.extend(piece), 5)
        other = msgspec.json.encode({**msgspec.json.decode(bytes(read)), **changed, "nodes": []})
        http.planned[f"{url}/v1/state"] = [(200, bytes(read))]
        http.planned[f"{url}/v1/changes"] = [(410, b"{}")]
        http.always[f"{url}/v1/state"] = 200, other
        async with http_router([url], transport=http) as router:
            await until(lambda: trouble in router.trouble, "the router to say what it refuses")
            assert router.epoch == 40 and router.lookup(TABLE, b"k").reads
            del http.always[f"{url}/v1/state"]
            site.give(13)
            await router.wait_for_epoch(site.given, 20)
            same_routes(router, site.image)


async def test_new_router_waits_until_the_cluster_is_founded() -> None:
    site = Site(life())
    async with site.serving() as url:
        with pytest.raises(NotReady, match="the log is empty"):
            async with http_router([url], 0.5):
                pass
        opened = asyncio.create_task(http_router([url], 20).__aenter__())
        await asyncio.sleep(0.3)
        site.give(40)
        router = await opened
        same_routes(router, site.image)


@pytest.mark.parametrize(
    ("url", "why"),
    (
        ("127.0.0.1:31812", "it does not begin with http:// or https://"),
        ("http://127.0.0.1:31812,http://", "it names no host"),
        ([], "address"),
    ),
)
async def test_invalid_address_is_refused_at_once(url: str | list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        async with http_router(url):
            pass


async def test_unreachable_address_is_named_in_the_error() -> None:
    with pytest.raises(NotReady, match=r"http://127.0.0.1:1 does not answer: nothing answers"):
        async with http_router("http://127.0.0.1:1", 0.5):
            pass


async def test_unknown_fields_of_a_newer_metadata_log_are_ignored() -> None:
    def newer(body: bytes) -> bytes:
        diff = msgspec.json.decode(body)
        diff["topology"]["mood"] = {"before": "", "after": "fine"}
        return msgspec.json.encode({**diff, "moods": {"added": [{"mood": "fine"}]}})

    site, http = Site(life()), Answers()
    http.changed = newer
    site.give(20)
    async with site.serving() as url, http_router([url], transport=http) as router:
        site.give(33)
        await router.wait_for_epoch(site.given, 5)
        same_routes(router, site.image)
        assert http.asked.count(f"{url}/v1/diff") > 0 and http.asked.count(f"{url}/v1/state") == 1


async def test_state_is_reread_with_growing_pauses() -> None:
    site, http = Site(life()), Answers()
    site.give(20)
    async with site.serving() as url:
        http.always[f"{url}/v1/changes"] = 410, b""
        async with http_router([url], transport=http) as router:
            await asyncio.sleep(1.5)
            assert http.asked.count(f"{url}/v1/state") in (3, 4)
            assert "/v1/changes answers 410" in router.trouble
            assert router.lookup("library", b"k").reads, "it routes by what it knows"


async def test_closed_router_leaves_no_task() -> None:
    site = Site(life())
    site.give(20)
    async with site.serving() as url:
        async with http_router([url]):  # tasks that the server starts with its first stream
            await asyncio.sleep(0.05)
        before = asyncio.all_tasks()
        async with http_router([url]):
            await asyncio.sleep(0.05)
        await until(lambda: asyncio.all_tasks() <= before, "what it began to end", 5)
