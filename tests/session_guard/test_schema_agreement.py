"""The members that have applied the schema, and the request that waits until all of them have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from stele.domain.commands import CreateKeyspace
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele.domain.topology.barriers import AckTable
from stele.log.codec import encode_ack
from stele.metadata_log.schema_request import Guards
from stele.runtime.answers.session_guard import LONGEST_AGREEMENT_S, Liveness
from stele.runtime.http import Health, build_app
from stele.session_guard.guard import LivenessTracker, schema_agreement
from stele.session_guard.http import routes
from tests.client_transport import ClientTransport
from tests.domain.ack_of import ack_of
from tests.domain.history import three_nodes
from tests.node.world import World
from tests.session_guard.world import GuardedWorld

TIMEOUT_S = 5.0
LONG_S = 60


def two_states() -> tuple[Image, Image]:
    """Return the states before and after a keyspace was created."""
    history, _ = three_nodes()
    history.enable(SCHEMA_OBJECTS)
    before = history.image
    assert history.apply(CreateKeyspace("music", {"dc1": 1})) is None
    return before, history.image


def acked(*acks: tuple[Image, str]) -> AckTable:
    table = AckTable()
    for image, node_id in acks:
        table = table.with_ack(ack_of(image, node_id), 0.0)
    return table


def tracker_of(*nodes: str) -> LivenessTracker:
    tracker = LivenessTracker(TIMEOUT_S).read_until(0.0)
    for node_id in nodes:
        tracker = tracker.seen(node_id, 0.5)
    return tracker


def test_members_behind_the_schema_are_named_with_the_reason() -> None:
    before, after = two_states()
    acks = acked((after, "n1"), (before, "n2"))
    found = schema_agreement(after, acks, tracker_of("n1", "n2"), 1.0)
    assert (found.epoch, found.schema_version) == (after.epoch, after.schema.version)
    assert not found.agreed
    assert found.behind == ("n2", "n3")
    assert [member.applied for member in found.members] == [True, False, False]
    assert [member.why for member in found.members] == [
        "",
        f"has applied epoch {before.epoch}, not {after.epoch}",
        "never sent a heartbeat",
    ]


def test_later_epoch_without_a_schema_change_delays_no_agreement() -> None:
    _, after = two_states()
    acks = acked(*((after, node_id) for node_id in ("n1", "n2", "n3")))
    tracker = tracker_of("n1", "n2", "n3")
    assert schema_agreement(after, acks, tracker, 1.0).agreed
    later = schema_agreement(after, acks, tracker, 1.0, after.epoch + 1)
    assert not later.agreed, "the guard itself has not read this epoch"


def test_down_member_does_not_count_but_an_unknown_one_does() -> None:
    before, after = two_states()
    acks = acked((after, "n1"), (after, "n2"), (before, "n3"))
    unknown = tracker_of("n1", "n2")
    found = schema_agreement(after, acks, unknown, 1.0)
    assert found.members[2].liveness is Liveness.UNKNOWN
    assert found.behind == ("n3",)
    down = unknown
    for second in range(8):
        down = down.seen("n1", second).seen("n2", second).read_until(second)
    found = schema_agreement(after, acks, down, 7.0)
    assert found.members[2].liveness is Liveness.DOWN
    assert found.agreed and not found.behind


def test_ack_of_another_history_or_directory_proves_nothing() -> None:
    _, after = two_states()
    acks = acked((after, "n1"), (after, "n2"))
    acks = acks.with_ack(ack_of(after, "n3", host_id="new disk"), 0.0)
    found = schema_agreement(after, acks, tracker_of("n1", "n2", "n3"), 1.0)
    assert found.behind == ("n3",)
    found = schema_agreement(
        after, acks, tracker_of("n1", "n2", "n3"), 1.0, state_id_of=lambda epoch: b"other"
    )
    assert found.behind == ("n1", "n2", "n3")


@asynccontextmanager
async def asking(world: GuardedWorld) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(
        "session-guard", routes(world.guard, world.proofs, 1.0), lambda: Health(ok=True)
    )
    app.state.stopping = asyncio.Event()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:
        yield client
    await world.proofs.close()


async def test_request_waits_until_all_have_applied_the_epoch_or_times_out() -> None:
    world = World()
    world.enable(SCHEMA_OBJECTS)
    guarded = await GuardedWorld.make(world)
    image, path = world.image, "/v1/schema/agreement"
    async with asking(guarded) as client:
        for node_id in ("n1", "n2"):
            guarded.guard.on_ack(encode_ack(ack_of(image, node_id)))
        late = (await client.get(path)).json()
        assert (late["agreed"], late["behind"]) == (False, ["n3"])
        waiting = asyncio.create_task(
            client.get(f"{path}?epoch={image.epoch}&timeout_s={LONG_S}", timeout=2 * LONG_S)
        )
        guarded.guard.on_ack(encode_ack(ack_of(image, "n3")))
        found = (await asyncio.wait_for(waiting, LONG_S / 2)).json()
        assert (found["agreed"], found["epoch"]) == (True, image.epoch)


async def test_schema_change_over_http_waits_for_members_and_names_lagging_ones() -> None:
    world = World()
    world.enable(SCHEMA_OBJECTS)
    guarded = await GuardedWorld.make(world)
    image = world.image
    for node_id in ("n1", "n2"):
        guarded.guard.on_ack(encode_ack(ack_of(image, node_id)))
    async with asking(guarded) as client:
        transport = ClientTransport(client)
        guards = Guards(("http://guard/nothing", "http://guard"), transport)
        found = await guards.agreement(image.epoch, 0)
        assert found is not None
        assert (found.agreed, found.behind) == (False, ("n3",))
        waiting = asyncio.create_task(guards.agreement(image.epoch, LONGEST_AGREEMENT_S))
        guarded.guard.on_ack(encode_ack(ack_of(image, "n3")))
        agreed = await asyncio.wait_for(waiting, LONG_S)
        assert agreed is not None and agreed.agreed
        assert await Guards(("http://guard/nothing",), transport).agreement(image.epoch, 0) is None


@pytest.mark.parametrize("query", ["epoch=x", "timeout_s=-1", "timeout_s=61"])
async def test_invalid_number_is_refused(query: str) -> None:
    async with asking(await GuardedWorld.make()) as client:
        answer = await client.get(f"/v1/schema/agreement?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
