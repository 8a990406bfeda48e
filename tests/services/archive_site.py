"""A cluster of metadata-log and catch-up replicas, whose addresses everybody knows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from stele.domain.requests.ids import named
from stele.log.brokers import Brokers
from stele.log.ends import Prober
from stele.log.flows import flow_topic
from stele.stack.ports import free_port
from stele.stack.process import Command
from tests import forked
from tests.services.processes import PLAIN_HTTP, Service, Start

LOOK_S = 0.1
CLI_S = 120
WELL_S = 120.0
DELETED_S = 90.0


class Site:
    """Processes by name. Their ports stay the same over restarts."""

    def __init__(self, start: Start, folder: Path, kafka: str, cluster: str) -> None:
        self.kafka, self.cluster = kafka, cluster
        self.ports = [free_port() for _ in range(4)]
        self.urls = ",".join(f"http://127.0.0.1:{port}" for port in self.ports[:3])
        self.running: list[Service] = []
        self._start = start
        self._folder = folder

    async def metadata_log(
        self, instance: str = "ml-1", *, waits: bool = True, **more: object
    ) -> Service:
        """Once it is well, unless nobody waits. It waits for no replicas, which tests start later."""
        settings = {"replicas_patience_s": 0, **more}
        log = await self._start(
            "metadata_log", instance, catch_up_urls=self.urls, http_port=self.ports[3], **settings
        )
        if waits:
            await log.until("/healthz", lambda answer: answer["ok"], "metadata-log is well")
        self.running.append(log)
        return log

    async def catch_up(self, number: int, **more: object) -> Service:
        replica = await self._start(
            "catch_up",
            f"cu-{number}",
            catch_up_urls=self.urls,
            http_port=self.ports[number - 1],
            data_dir=self.folder_of(number),
            rack=f"r{number}",
            snapshots_kept=3,
            **more,
        )
        self.running.append(replica)
        return replica

    def folder_of(self, number: int) -> Path:
        return self._folder / f"archive-{number}"

    def without(self, *numbers: int) -> tuple[str, ...]:
        """Options of a recovery that goes on without these replicas."""
        urls = self.urls.split(",")
        return tuple(each for number in numbers for each in ("--without", urls[number - 1]))

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Whoever ends inside the block is started again, as a supervisor does."""

        starting = dict[Service, asyncio.Task[None]]()

        async def start(service: Service) -> None:
            try:
                with contextlib.suppress(AssertionError):
                    await service.start()
            finally:
                del starting[service]

        async def supervise() -> None:
            while True:
                for service in self.running:
                    # Each by itself: one that begins anew may have to wait for another that does.
                    if service not in starting and service.process.poll() is not None:
                        starting[service] = asyncio.create_task(start(service))
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(supervise())
        try:
            yield
        finally:
            for each in (task, *starting.values()):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def begins_behind(self, offset: int) -> int:
        """The topic's first offset, once it is behind this one."""
        prober, topic = Prober(Brokers(self.kafka)), flow_topic(self.cluster, "epochs")
        try:
            async with asyncio.timeout(DELETED_S):
                while (begin := (await asyncio.to_thread(prober.ends, topic)).begin) <= offset:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        finally:
            prober.close()
        return begin

    async def stele(self, *arguments: str, fails: bool = False) -> Any:
        """The command line's answer, as JSON if it is that."""
        env = {
            **os.environ,
            "STELE_URL": f"http://127.0.0.1:{self.ports[3]}",
            "STELE_METADATA_LOG_URLS": f"http://127.0.0.1:{self.ports[3]}",
            "STELE_CATCH_UP_URLS": self.urls,
            "STELE_KAFKA_BOOTSTRAP": self.kafka,
            "STELE_CLUSTER": self.cluster,
            "COLUMNS": "200",
        }
        argv = [sys.executable, "-m", "stele.cli", *arguments]
        with TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            command = Command("stele", argv, folder / "out", folder / "err", env)
            process = await asyncio.to_thread(forked.start, command)
            code = await asyncio.to_thread(process.wait, CLI_S)
            process.kill()
            out, err = command.stdout.read_text(), command.stderr.read_text()
        assert code is not None, f"{arguments} did not end within {CLI_S} s: {out}\n{err}"
        assert (code != 0) is fails, f"{out}\n{err}"
        if fails:
            return err
        return json.loads(out) if "--json" in arguments else out


async def is_well(service: Service) -> None:
    """It may end and be started again before."""
    async with asyncio.timeout(WELL_S):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await service.get("/healthz"))["ok"]:
                    return
            await asyncio.sleep(0.1)


async def command(log: Service, request_id: str = "", **fields: Any) -> httpx.Response:
    """A command's answer; ``request_id`` is a name of the id."""
    async with httpx.AsyncClient(timeout=90, verify=PLAIN_HTTP) as client:
        body = {"request_id": named(request_id) if request_id else "", "command": fields}
        return await client.post(f"{log.url}/v1/commands", json=body)


async def snapshots(log: Service, count: int) -> None:
    """So many that every replica takes, however far behind; of those that are due it passes over some."""
    for _ in range(count):
        answer = await command(log, type="ask_snapshot")
        assert answer.status_code == 200, answer.text


async def change(log: Service, name: str, value: str) -> int:
    """The epoch in which a setting changed."""
    answer = await command(log, type="set_setting", name=name, value=value)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["epoch"])


async def fill(log: Service, count: int) -> None:
    """So many epochs, twenty at a time."""
    async with httpx.AsyncClient(timeout=90, verify=PLAIN_HTTP) as client:

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
    """What an archive has, of its answer."""
    return [(span["first"], span["last"]) for span in answer["spans"]]
