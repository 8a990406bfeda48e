"""A router that follows metadata-log over HTTP knows at each moment what the log says, over cuts too."""

from __future__ import annotations

import asyncio
import random

import pytest

from stele.domain.commands import CreateKeyspace, CreateTable, DropKeyspace, SetSetting, Truncate
from stele.domain.image import Image
from stele.router import NotReady, Router, http_router
from tests.domain.history import History, join, three_nodes
from tests.router.site import Site
from tests.services.world import until

TABLE = "music.songs"
KEYS = [f"key-{number}".encode() for number in range(200)]


def life() -> History:
    """A fourth node joins; keyspaces and tables with and without tablets come, change and go."""
    history, world = three_nodes()

    def then(*commands: object) -> None:
        for command in commands:
            assert history.apply(command) is None  # type: ignore[arg-type]
        world.run()

    then(CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4))
    then(CreateTable(TABLE), SetSetting("colour", "blue"))
    then(join(4, "r1"))
    then(Truncate("library"), CreateKeyspace("films", {"dc1": 1}))
    then(DropKeyspace("library"))
    return history


def same_routes(router: Router, image: Image) -> None:
    """Every key has the same replicas by both, at the same version."""
    assert router.image.state_id == image.state_id and router.version == image.topology.version
    assert router.image.membership.nodes == image.membership.nodes
    assert router.image.schema.by_id == image.schema.by_id
    assert router.image.schema.tables == image.schema.tables
    assert {*router.image.ring.placements} == {*image.ring.placements}
    for data in image.schema.all_data():
        if image.schema.serving(data.name) is None:
            continue
        for key in KEYS:
            found = router.lookup(data.name, key)
            assert found.data_id == data.data_id
            assert found.row == image.ring.placements[data.placement].row_for(found.token)


@pytest.mark.parametrize("seed", range(3))
async def test_the_router_routes_as_the_log_says_after_each_burst_of_epochs(seed: int) -> None:
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


async def test_a_router_goes_on_after_the_service_was_away_and_asks_the_next_one() -> None:
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


async def test_a_router_takes_up_the_stream_when_the_service_is_there_again() -> None:
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


async def test_a_router_begins_anew_when_the_log_was_recovered_without_what_it_knows() -> None:
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
            async with asyncio.timeout(90):
                while router.image.state_id != other.image.state_id:
                    other.history.apply(SetSetting("colour", str(other.given)))
                    other.give(1)
                    await asyncio.sleep(0.05)
            same_routes(router, other.image)
    finally:
        await opened.__aexit__(None, None, None)


async def test_a_router_without_a_service_says_so() -> None:
    with pytest.raises(NotReady, match=r"127\.0\.0\.1:1 does not answer"):
        async with http_router(["http://127.0.0.1:1"], ready_s=0.5):
            pass
    with pytest.raises(ValueError, match="address"):
        async with http_router([]):
            pass
