"""One service process of a test: start it, wait for its announcement, ask it, kill it, end it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from stele_harness.stack.process import Process, Program
from tests import forked
from tests.polling import wait_until

ANNOUNCEMENT_S = 240.0
HTTP_TIMEOUT_S = 240.0
PLAIN_HTTP = False
"""The ``verify`` of httpx: to read certificates that no test needs takes 20 ms of processor time a call."""


class Service:
    """One ``python -m stele.<module>``; ``url`` is the address that it announced in this run."""

    def __init__(self, module: str, folder: Path, env: dict[str, str]) -> None:
        self.instance = env["STELE_INSTANCE_ID"]
        self.url = ""
        self._module = module
        self._folder = folder
        self._env = env
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "start() first"
        return self._process

    @property
    def is_started(self) -> bool:
        """Return whether a process was started. It may have ended since."""
        return self._process is not None

    def start_now(self) -> None:
        """Return once the process has announced its address. Raises AssertionError if it ends before."""
        command = Program(
            self.instance,
            [sys.executable, "-m", f"stele.{self._module}"],
            stdout=self._folder / f"{self.instance}.out",
            stderr=self._folder / f"{self.instance}.err",
            env={**os.environ, **self._env},
        )
        self._process = process = forked.start(command)

        def has_announced() -> bool:
            has_ended = process.poll() is not None
            line, is_whole, _ = process.stdout_of_this_run().partition("\n")
            assert line or not has_ended, f"it ended: {process.tail()}"
            if is_whole:
                self.url = json.loads(line)["http"]
            return bool(is_whole)

        wait_until(has_announced, f"the announcement of {self.instance}", ANNOUNCEMENT_S)

    async def start(self) -> None:
        """As ``start_now``."""
        await asyncio.to_thread(self.start_now)

    async def get(self, path: str) -> Any:
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, verify=PLAIN_HTTP) as client:
            answer = await client.get(self.url + path)
        return answer.json()

    async def until(
        self, path: str, condition: Callable[[Any], object], what: str, deadline_s: float = 90.0
    ) -> Any:
        """Poll a route until its answer fits; returns the answer."""
        found: Any = None
        try:
            async with asyncio.timeout(deadline_s):
                while not condition(found := await self.get(path)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(
                f"not within {deadline_s} s: {what}; last: {found}; {self.process.tail()}"
            ) from None
        return found

    async def restart(self, **environment: str) -> None:
        """Stop in an orderly way, then start with other variables."""
        await self.stop()
        self._env = {**self._env, **environment}
        await self.start()

    def kill(self) -> None:
        """As a crash: SIGKILL."""
        self.process.kill()

    async def stop(self) -> int | None:
        """Stop in an orderly way; the exit code."""
        return await asyncio.to_thread(self.process.stop) if self.is_started else None


Start = Callable[..., Awaitable[Service]]


@asynccontextmanager
async def services(
    bootstrap: str, cluster: str, redis_url: str, folder: Path, **environment: str
) -> AsyncIterator[Start]:
    """``start(module, instance, **settings)``; every process that was started is stopped at the end.

    ``environment`` holds variables of all processes.
    """
    running: list[Service] = []

    async def start(module: str, instance: str = "", **settings: object) -> Service:
        name = instance or f"{module.replace('_', '-')}-1"
        env = {
            "STELE_CLUSTER": cluster,
            "STELE_KAFKA_BOOTSTRAP": bootstrap,
            "STELE_REDIS_URL": redis_url,
            "STELE_FOUND": "auto",
            "STELE_INSTANCE_ID": name,
            "STELE_DATA_DIR": str(folder / "data" / module / name),
            **environment,
            **{f"STELE_{name}".upper(): str(value) for name, value in settings.items()},
        }
        service = Service(module, folder, env)
        running.append(service)
        await service.start()
        return service

    try:
        yield start
    finally:
        await asyncio.gather(*(service.stop() for service in running))
