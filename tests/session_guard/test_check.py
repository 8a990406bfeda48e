"""``GET /v1/check``: what is permitted, what is refused, and that a lagging guard permits nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from stele.log.follower import LogFollower
from stele.runtime.http import Health, build_app
from stele.session_guard.guard import Guard
from stele.session_guard.http import routes
from stele.session_guard.proof import Proofs
from tests.log.memory import MemoryLog, MemoryPartition
from tests.session_guard.world import GuardedWorld

MAX_AGE_S = 0.2


@asynccontextmanager
async def asking(guard: Guard, proofs: Proofs) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app("session-guard", routes(guard, proofs, MAX_AGE_S), lambda: Health(ok=True))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:
        yield client
    await proofs.close()


async def test_check_permits_current_versions_and_refuses_stale_ones() -> None:
    world = await GuardedWorld.make()
    world.world.start_join()
    world.world.fence()
    topology = world.guard.image.topology
    async with asking(world.guard, world.proofs) as client:
        permitted = (await client.get(f"/v1/check?version={topology.version}")).json()
        assert permitted["ok"] and permitted["code"] == "permitted"
        assert 0 <= permitted["proof_age_s"] <= MAX_AGE_S
        assert permitted["log_id"] == world.guard.image.log_id.hex()
        stale = await client.get(f"/v1/check?version={topology.fence_version - 1}")
        assert (stale.status_code, stale.json()["ok"]) == (200, False)
        assert stale.json()["code"] == "stale_version"
        closed = (await client.get("/v1/check?session=not-there")).json()
        assert (closed["ok"], closed["code"]) == (False, "session_not_open")
        assert (await client.get("/v1/check?session=")).json()["ok"] is False
        same = f"/v1/check?version={topology.version}&log_id={permitted['log_id']}"
        assert (await client.get(same)).json()["ok"] is True
        lost = (await client.get(f"/v1/check?version={topology.version}&log_id={'0a' * 16}")).json()
        assert (lost["ok"], lost["code"]) == (False, "other_log")


async def test_open_session_is_permitted_and_listed() -> None:
    world = await GuardedWorld.make()
    world.world.start_join()
    while not world.world.session:
        world.world.advance()
    session = world.world.session
    await world.follower.wait_for_epoch(world.world.image.epoch)
    async with asking(world.guard, world.proofs) as client:
        assert (await client.get(f"/v1/check?session={session}")).json()["ok"] is True
        listed = (await client.get("/v1/sessions")).json()
        assert listed["sessions"] == [session]
        assert listed["epoch"] == world.guard.image.epoch


@pytest.mark.parametrize("how", ["frozen", "cut off"])
async def test_lagging_guard_refuses_what_its_image_would_permit(how: str) -> None:
    """The guard's consumer receives nothing more. Meanwhile the version is fenced out."""
    world = await GuardedWorld.make()
    world.world.start_join()
    old = world.world.version - 1
    async with asking(world.guard, world.proofs) as client:
        if how == "frozen":
            world.freeze()
        else:
            world.cut_off()
        world.world.fence()
        world.world.advance()
        world.world.fence()
        assert old >= world.guard.image.topology.fence_version  # by its own image it would permit
        answer = await client.get(f"/v1/check?version={old}")
        assert answer.status_code == 503
        found = answer.json()
        assert (found["ok"], found["code"]) == (False, "not_current")
        assert found["details"]["proof_max_age_s"] == MAX_AGE_S
        assert found["message"] and found["hint"]
        world.answer()
        world.thaw()
        await world.follower.wait_for_epoch(world.world.image.epoch)
        now = (await client.get(f"/v1/check?version={old}")).json()
        assert (now["ok"], now["code"]) == (False, "stale_version")


async def test_old_proof_permits_only_within_its_age_limit() -> None:
    world = await GuardedWorld.make()
    version = world.world.version
    async with asking(world.guard, world.proofs) as client:
        assert (await client.get(f"/v1/check?version={version}")).json()["ok"] is True
        world.cut_off()
        refused = await client.get(f"/v1/check?version={version}")
        while refused.status_code == 200:  # by the earlier proof, for as long as that counts
            assert refused.json()["proof_age_s"] <= MAX_AGE_S
            refused = await client.get(f"/v1/check?version={version}")
        assert refused.json()["code"] == "not_current"
        assert refused.json()["proof_age_s"] > MAX_AGE_S


async def test_nothing_is_permitted_without_a_cluster() -> None:
    follower = LogFollower(MemoryLog(MemoryPartition()))
    follower.start()
    async with asking(Guard(follower, 5.0), Proofs(follower, 5.0)) as client:
        answer = await client.get("/v1/check?version=1")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_current")
        assert "no cluster" in answer.json()["message"]


@pytest.mark.parametrize(
    "query",
    [
        *("", "?log_id=", "?version=x", "?version=-1", "?version=", "?version=1&version=y"),
        *("?version=9&sesion=s", "?version=1&version=9", "?session=s&session=t"),
    ],
)
async def test_invalid_query_is_a_400(query: str) -> None:
    world = await GuardedWorld.make()
    async with asking(world.guard, world.proofs) as client:
        answer = await client.get(f"/v1/check{query}")
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid_request"
        assert (await client.get("/v1/barrier?epoch=x")).status_code == 400
