"""A dead node is replaced at its own address, while clients still send requests for the dead one there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp

from examples.sixty_lines import store
from examples.sixty_lines.client import Client
from stele.agent.embedded import Member
from stele.domain.commands import AnnounceNode, ExcludeDead, Replace
from stele.domain.ring.ranges import RangeReplicas
from stele.router import Router, write_quorum
from stele.runtime.http import Health, bind, build_app, serving
from stele_harness.stack.ports import LOOPBACK, free_port
from tests.agent.test_embedded import Agent
from tests.agent.test_judging import judge_of
from tests.node.world import Sessions, World

KEYSPACE = "library"
SHELF: Any = store.Shelf
ROUTES: Any = store.routes
SLOW_S = 0.2
"""Delay of the replica that has the value, so that it answers last."""
NAMES = ("n1", "n2", "n3")


@asynccontextmanager
async def store_of(
    world: World, node_id: str, port: int, shelf: Any, answers_after_s: float = 0.0
) -> AsyncIterator[None]:
    """Return the production member with the routes of the example, over HTTP."""
    follower = await world.follower()
    sessions = Sessions(follower)
    host_id = f"host-{node_id}"
    agent = Agent(
        node_id=node_id,
        host_id=host_id,
        hold=sessions.hold,
        release=sessions.release,
        follower=follower,
    )
    membership = SimpleNamespace(follower=follower, gate=SimpleNamespace(closed=lambda: None))
    judge = judge_of(follower, node_id)
    member = Member(membership, agent, judge, SimpleNamespace())  # type: ignore[arg-type]
    app: Any = build_app(node_id, ROUTES(member, shelf), lambda: Health(ok=True))

    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(answers_after_s)
        await app(scope, receive, send)

    late.state = app.state  # type: ignore[attr-defined]
    async with serving(late, bind(LOOPBACK, port), grace_s=0.1):  # type: ignore[arg-type]
        yield


async def test_new_node_at_a_dead_nodes_address_is_not_counted_as_the_dead_one() -> None:
    """The new node has no rows of the dead one. Counted as the dead one, it would form a quorum with a replica
    that was down when the value was written.
    """
    world, router = World(), Router()
    ports = {name: free_port() for name in NAMES}
    shelves = {name: SHELF(":memory:") for name in (*NAMES, "n5")}
    for name, port in ports.items():
        node = world.image.node(name)
        assert node is not None
        world.apply(
            AnnounceNode(node_id=name, address=f"http://{LOOPBACK}:{port}", host_id=node.host_id)
        )
    router.take(world.image)
    async with aiohttp.ClientSession() as http, AsyncExitStack() as others:
        client = Client(router, http, KEYSPACE)
        async with (
            store_of(world, "n1", ports["n1"], shelves["n1"]),
            store_of(world, "n2", ports["n2"], shelves["n2"]),
        ):
            await client.put("k", b"dark and stormy")  # n3 is down
        await others.enter_async_context(store_of(world, "n3", ports["n3"], shelves["n3"]))
        _replace(world, "n1", "n5", f"http://{LOOPBACK}:{ports['n1']}")
        await others.enter_async_context(store_of(world, "n2", ports["n2"], shelves["n2"], SLOW_S))
        await others.enter_async_context(store_of(world, "n5", ports["n1"], shelves["n5"]))
        router.take(world.image)
        found = router.lookup(KEYSPACE, b"k")
        assert "n1" in found.reads and found.place("n1").address == found.place("n5").address
        assert await client.get("k") == b"dark and stormy"
        acks = await write_quorum(
            found, lambda at: client.call("PUT", at, found, bytes(8) + b"and a stormier one")
        )
        assert "n1" not in acks


def _replace(world: World, dead: str, name: str, address: str) -> None:
    """Advance the replacement until writes also go to the new node, and reads to the old replicas."""
    command = Replace(
        node_id=name,
        replaced_id=dead,
        cluster=world.image.cluster,
        address=address,
        dc="dc1",
        rack="r1",
        host_id=f"host-{name}",
    )
    world.apply(command, "replace")
    world.apply(ExcludeDead(1, "replace"))
    world.open("replace")
    while not any(row.other for row in _rows(world)):
        world.advance("replace")


def _rows(world: World) -> tuple[RangeReplicas, ...]:
    placement = world.image.placement_of(KEYSPACE)
    assert placement is not None
    return placement.rows
