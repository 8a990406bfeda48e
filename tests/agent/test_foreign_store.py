"""A node that streams from another kind of store gets an error: the protocols differ, and no rows are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.pulling import Puller, StreamFailed
from stele.agent.transfers import Transfers
from stele.domain.names import OrderKind
from stele.domain.routed import REPLICA
from stele.node.peers import Peers
from stele.node.wire import Scan
from stele.runtime.http import Health, bind, build_app, serving
from tests.node.world import Sessions, World


class NothingThere:
    """A transport in which every address answers 404."""

    async def ask(self, *_: object, **__: object) -> int:
        return 404

    async def close(self) -> None: ...


async def test_stream_from_a_foreign_store_fails_with_the_missing_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stele.agent.pulling.RETRY_S", 0.001)
    world = World()
    world.start_join()
    world.advance()
    world.fence()
    follower = await world.follower()
    agent: Any = SimpleNamespace(image=world.image)
    nobody: Any = None
    transfers = Transfers(agent, nobody, nobody, NothingThere())
    puller = Puller("n4", follower, Sessions(follower), transfers)
    order = world.order(OrderKind.STREAM, "n4", request_id="join-n4")
    with pytest.raises(StreamFailed) as failed:
        await puller.run(order, OrderProgress())
    told = str(failed.value)
    assert "n1, n2, n3 gave no data; " in told
    assert "; n2: unreachable, there is nothing at /v1/agent/pages of http://n2" in told
    assert "Let all members of the cluster run one kind of store" in told


async def test_trial_node_reports_the_missing_path_of_a_foreign_store() -> None:
    app = build_app("foreign", [], lambda: Health(ok=True))
    peers = Peers(lambda node_id: {REPLICA: node_id})
    scan = Scan(epoch=1, session="s", spans=[], cursor=None, limit_bytes=1)
    async with serving(app, bind("127.0.0.1", 0)) as url:
        found = await peers.scan("n1", url, scan)
    await peers.close()
    assert found.code is Code.UNREACHABLE
    assert found.text.startswith(f"there is nothing at /v1/replica/page of {url}: ")
