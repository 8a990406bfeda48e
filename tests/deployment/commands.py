"""Commands and questions to the metadata-log of a deployment: fill the log, set a value, take snapshots."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
from confluent_kafka.admin import AdminClient

from stele.domain.model.requests import named
from tests.deployment.process import PLAIN_HTTP, Service

WELL_S = 240.0


async def is_well(service: Service) -> None:
    """Wait until a service is healthy. It may end and be started again before."""
    async with asyncio.timeout(WELL_S):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await service.get("/healthz"))["ok"]:
                    return
            await asyncio.sleep(0.1)


async def command(log: Service, request_id: str = "", **fields: Any) -> httpx.Response:
    """The answer to a command; ``request_id`` is the name of an id."""
    async with httpx.AsyncClient(timeout=240, verify=PLAIN_HTTP) as client:
        body = {"request_id": named(request_id) if request_id else "", "command": fields}
        return await client.post(f"{log.url}/v1/commands", json=body)


async def snapshots(log: Service, count: int) -> None:
    """Request snapshots, which every replica takes; a replica that is behind skips some that are due."""
    for _ in range(count):
        answer = await command(log, type="ask_snapshot")
        assert answer.status_code == 200, answer.text


async def change(log: Service, name: str, value: str) -> int:
    """Change a setting; return its epoch."""
    answer = await command(log, type="set_setting", name=name, value=value)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["epoch"])


async def fill(log: Service, count: int) -> None:
    """Commit ``count`` epochs, twenty at a time."""
    async with httpx.AsyncClient(timeout=240, verify=PLAIN_HTTP) as client:

        async def one(n: int) -> None:
            body = {"command": {"type": "set_setting", "name": f"s{n % 9}", "value": str(n)}}
            answer = await client.post(f"{log.url}/v1/commands", json=body)
            assert answer.status_code == 200, answer.text

        for begin in range(0, count, 20):
            await asyncio.gather(*(one(n) for n in range(begin, begin + 20)))


async def newest(log: Service) -> int:
    """The newest committed epoch."""
    found = await log.get("/v1/topology?level=barrier")
    return int(found["epoch"])


def spans(answer: Any) -> list[tuple[int, int]]:
    """First and last epoch of each span in the answer of an archive."""
    return [(span["first"], span["last"]) for span in answer["spans"]]


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
