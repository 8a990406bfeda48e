"""Rejections by a replica: of clients, which no barrier waits for, and of nodes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from stele.agent.judging import Code, Judge, Routing
from stele.agent.probing import JUDGE_PATH, judge_route
from stele.domain.model.membership import MembershipImage
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.routed import MalformedRequest, Routed, routed_of
from stele.log.follower import LogFollower
from stele.runtime.http import Health, build_app
from tests.node.world import Sessions, World


def judge_of(follower: LogFollower, node_id: str = "n1", *, clients: bool = True) -> Judge:
    sessions = Sessions(follower)
    routing = Routing(follower)
    return Judge(node_id, follower, routing, sessions, 0.02, clients=clients)


def routed(world: World, key: bytes, version: int = 0, **more: Any) -> Routed:
    return Routed(
        version=version or world.version,
        epoch=world.image.epoch,
        data_id=world.data_id,
        token=token_of(key),
        **{"replica": "n1", **more},
    )


def code(judge: Judge, request: Routed) -> Code | None:
    refusal = judge.refusal(request)
    return None if refusal is None else refusal.code


async def test_client_with_an_older_version_is_refused_before_the_fence() -> None:
    """A barrier that all members answered needs no fence, and a client is no member."""
    world = World()
    world.start_join()
    world.fence()
    follower = await world.follower()
    judge, before = judge_of(follower), world.version
    changes, stays = world.key_that_changes(), world.key_that_stays()
    old_of_client = [routed(world, key, before) for key in (changes, stays)]
    old_of_node = [routed(world, key, before, coordinating="n2") for key in (changes, stays)]
    assert [code(judge, each) for each in (*old_of_client, *old_of_node)] == [None] * 4
    world.advance()
    assert world.image.topology.fence_version == before < world.version
    await follower.wait_for_epoch(world.image.epoch)
    assert [code(judge, each) for each in old_of_client] == [Code.STALE_VERSION, None]
    assert [code(judge, each) for each in old_of_node] == [None, None]
    stale = judge.fenced(old_of_client[0])
    assert stale is not None and stale.epoch == world.image.topology.since_epoch
    assert code(judge, routed(world, changes)) is None


async def test_node_without_direct_clients_needs_a_coordinating_node() -> None:
    world = World()
    judge = judge_of(await world.follower(), clients=False)
    assert code(judge, routed(world, b"k")) is Code.STALE_VERSION
    assert code(judge, routed(world, b"k", coordinating="n2")) is None


@pytest.mark.parametrize("change", [{"state": NodeState.LEFT}, {"excluded_since": 3}])
async def test_left_or_excluded_node_serves_no_requests(
    change: dict[str, Any],
) -> None:
    """Clients may still route by its rows."""
    world = World()
    judge, request = judge_of(follower := await world.follower()), routed(world, b"k")
    assert code(judge, request) is None
    nodes = follower.image.membership.nodes
    gone = nodes.set("n1", replace(nodes["n1"], **change))
    follower.fold.image = replace(follower.image, membership=MembershipImage(gone))
    assert code(judge, request) is Code.NODE_LEFT


async def test_client_request_for_truncated_or_dropped_data_is_refused() -> None:
    for change in (World.truncate, World.drop):
        world = World()
        judge, request = judge_of(follower := await world.follower()), routed(world, b"k")
        change(world)
        await follower.wait_for_epoch(world.image.epoch)
        assert code(judge, request) is Code.STALE_VERSION


async def test_lagging_replica_reads_the_log_before_it_answers_behind() -> None:
    world = World()
    judge = judge_of(await world.follower())
    later = routed(world, b"k", world.version + 1)
    await judge.catch_up([later])
    assert code(judge, later) is Code.BEHIND


async def test_write_only_replica_serves_no_reads() -> None:
    """A joining node may not have the data yet."""
    world = World()
    world.start_join()
    world.advance()
    world.fence()
    follower = await world.follower()
    key = world.key(lambda row: "n4" in row.writes and "n4" not in row.reads)
    request = routed(world, key, replica="n4")
    judge = judge_of(follower, "n4")
    assert code(judge, request) is None
    assert code(judge, replace(request, reads=True)) is Code.NOT_A_REPLICA
    (reader, *_) = world.row(key).reads
    assert code(judge_of(follower, reader), replace(request, replica=reader, reads=True)) is None


async def test_replica_may_lag_behind_the_epoch_of_the_sender() -> None:
    """Otherwise it would serve no request while records arrive faster than it reads."""
    world = World()
    judge = judge_of(await world.follower())
    ahead = replace(routed(world, b"k"), epoch=world.image.epoch + 5)
    assert code(judge, ahead) is None
    assert code(judge, replace(ahead, data_id="made just now")) is Code.BEHIND


def test_route_of_a_request_round_trips_in_headers() -> None:
    request = Routed(
        version=3, epoch=9, data_id="k1", token=-7, replica="n1", session="s", log_id="0a" * 16
    )
    for sent in (request, replace(request, reads=True)):
        assert routed_of(sent.headers()) == sent
    without = {k: v for k, v in request.headers().items() if k != "x-stele-token"}
    with pytest.raises(MalformedRequest, match="no x-stele-token"):
        routed_of(without)
    unnamed = {k: v for k, v in request.headers().items() if k != "x-stele-replica"}
    with pytest.raises(MalformedRequest, match="no x-stele-replica"):
        routed_of(unnamed)
    with pytest.raises(MalformedRequest, match="x-stele-epoch: nine is not a number"):
        routed_of({**request.headers(), "x-stele-epoch": "nine"})


@pytest.mark.parametrize("token", [MIN_TOKEN, MIN_TOKEN - 1, MAX_TOKEN + 1, 2**70])
async def test_invalid_token_is_refused_with_the_valid_range(token: int) -> None:
    """A row with this token would be in no span, so it would never be streamed or cleaned up."""
    world = World()
    headers = {**routed(world, b"k").headers(), "x-stele-token": str(token)}
    judge = judge_of(await world.follower())
    app = build_app("store", [judge_route(judge, lambda log_id: None)], lambda: Health(ok=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://n1") as http:
        answer = await http.post(JUDGE_PATH, headers=headers)
    assert answer.status_code == 400
    assert f"x-stele-token: {token} is no token of a key: these are from -92233" in answer.text
    with pytest.raises(MalformedRequest, match="no token of a key"):
        replace(routed(world, b"k"), token=token)


def test_every_valid_token_round_trips_in_headers() -> None:
    for token in (MIN_TOKEN + 1, -1, 0, MAX_TOKEN):
        request = Routed(version=3, epoch=9, data_id="k1", token=token, replica="n1")
        assert routed_of(request.headers()) == request
