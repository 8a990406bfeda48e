"""Promises of a node for a recovery of the log. They survive a restart."""

from __future__ import annotations

from pathlib import Path

import httpx
from starlette.applications import Starlette

from stele.agent.gate import noted
from stele.agent.identity import boot
from stele.runtime.recent import PATH, Promised, recent_from, recent_route
from tests.domain.history import three_nodes


async def test_promise_of_a_directory_is_what_its_node_acknowledged(tmp_path: Path) -> None:
    image = three_nodes()[0].image
    directory = boot(tmp_path, "n1", "demo")
    app = Starlette(routes=[recent_route(list, directory.promised)])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://n1") as client:

        async def told() -> object:
            return recent_from((await client.get(PATH)).content)

        assert await told() == ([], None)
        directory.save(log_id=image.log_id.hex(), acknowledged=noted(image))
        promised = Promised(image.log_id.hex(), image.epoch, image.state_id.hex())
        assert await told() == ([], promised)
    assert boot(tmp_path, "n1", "demo").promised() == promised
