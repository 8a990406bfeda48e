"""The running stack as the demo sees it: only what any outsider sees, HTTP and stack.json."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from stele.cli.client import Client
from stele.cli.errors import CliError, UnreachableError
from stele.cli.places import LocalService, StackFile, find_places, read_stack_file
from stele.domain.commands import AnyCommand, Envelope
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.runtime.answers.metadata_log import (
    CursorPage,
    NodesPage,
    OutcomeAnswer,
    RequestAnswer,
    RequestsPage,
    TopologyAnswer,
)
from stele.runtime.request_ids import new_request_id
from stele_harness.stack.lifecycle import last_line

T = TypeVar("T")
P = TypeVar("P", bound=CursorPage)

CALL_TIMEOUT_S = 60.0
POLL_S = 0.1
MOST_RESTARTS = 3
"""A process that ends so often while it is waited for will not get there."""

Answers = (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError)
"""What a call may raise while a process is down or comes back."""


class Never(CliError):
    """A process that is waited for has said that it cannot go on."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} cannot go on: {why}", f"See `stele stack logs {name}`.")


class Site:
    """Access to the stack over ``directory``; addresses stay the same over restarts."""

    def __init__(self, directory: Path, http: aiohttp.ClientSession) -> None:
        self.directory = directory
        self.http = http

    def stack(self) -> StackFile:
        """Raises UnreachableError when no stack runs."""
        found = read_stack_file(self.directory)
        if found is None:
            raise UnreachableError(
                f"No stack is running in {self.directory}.", "See stack.log there."
            )
        return found

    def service(self, name: str) -> LocalService:
        """Raises CliError when the stack has no process of this name."""
        stack = self.stack()
        found = stack.service(name)
        if found is None:
            known = ", ".join(service.name for service in stack.services)
            raise CliError(f"The stack has no process '{name}'.", f"It has {known}.")
        return found

    def has(self, name: str) -> bool:
        return self.stack().service(name) is not None

    async def get(self, url: str, kind: type[T], **params: object) -> T:
        """One call. Raises one of ``Answers``, or CliError for an error answer."""
        given = {key: str(value) for key, value in params.items()}
        limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        async with self.http.get(url, params=given, timeout=limit) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise CliError(f"{url} answered {answer.status}: {body[:300].decode()}")
            return msgspec.json.decode(body, type=kind)

    async def topology(self, level: str = "local") -> TopologyAnswer:
        return await self.get(self.url("metadata-log", "/v1/topology"), TopologyAnswer, level=level)

    async def request(self, request_id: str) -> RequestAnswer:
        """One request with the transition that carries it out."""
        return await self.get(
            self.url("metadata-log", f"/v1/requests/{request_id}"), RequestAnswer, level="local"
        )

    async def request_or_none(self, request_id: str) -> RequestAnswer | None:
        """The same; None while the metadata-log is down."""
        try:
            return await self.request(request_id)
        except (*Answers, CliError):
            return None

    async def nodes(self) -> list[Node]:
        return [node for page in await self.pages("/v1/nodes", NodesPage) for node in page.nodes]

    async def node(self, node_id: str) -> Node | None:
        return next((node for node in await self.nodes() if node.node_id == node_id), None)

    async def nodes_or_none(self) -> list[Node] | None:
        """All nodes; None while the metadata-log is down."""
        try:
            return await self.nodes()
        except (*Answers, CliError):
            return None

    async def requests(self) -> list[Request]:
        pages = await self.pages("/v1/requests", RequestsPage)
        return [request for page in pages for request in page.requests]

    async def pages(self, path: str, kind: type[P], **params: object) -> list[P]:
        """All pages of a question to the metadata-log, of one epoch."""
        url, found, cursor = self.url("metadata-log", path), list[P](), ""
        while not found or cursor:
            page = await self.get(url, kind, **params, **({"cursor": cursor} if cursor else {}))
            found.append(page)
            cursor = page.next_cursor
        return found

    def url(self, service: str, path: str) -> str:
        """Raises CliError when the stack has no such process."""
        return f"{self.service(service).url}{path}"

    async def submit(self, command: AnyCommand, reason: str) -> OutcomeAnswer:
        """Send a command under a new request id. Raises CliError; RefusedError for a rejection."""
        envelope = Envelope(
            request_id=new_request_id(),
            command=command,
            actor="demo",
            reason=reason,
            origin="stele demo",
        )
        return await asyncio.to_thread(self._submit, envelope)

    def _submit(self, envelope: Envelope) -> OutcomeAnswer:
        with closing(Client(find_places((), self.directory, {}))) as client:
            return client.submit(envelope)

    def pause(self, name: str) -> LocalService:
        """SIGSTOP: it does nothing until ``resume``."""
        return self._signal(name, signal.SIGSTOP)

    def resume(self, paused: LocalService) -> None:
        if paused.pid is not None:
            os.kill(paused.pid, signal.SIGCONT)

    def kill(self, name: str) -> LocalService:
        """kill -9: the process as it was. Its supervisor starts it again."""
        return self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: signal.Signals) -> LocalService:
        service = self.service(name)
        if service.pid is None:
            raise CliError(f"{name} does not run ({service.state}).", "See stack.log.")
        os.kill(service.pid, number)
        return service

    async def back_after_kill(self, killed: LocalService, deadline_s: float = 300.0) -> float:
        """Seconds until a killed process is healthy again, as a new process."""
        began = time.monotonic()

        async def back() -> bool:
            now = self.service(killed.name)
            if now.pid is None or now.pid == killed.pid:
                return False
            async with self.http.get(f"{now.url}/healthz") as answer:
                return answer.status == 200

        await self.until(f"{killed.name} to come back", back, deadline_s)
        return time.monotonic() - began

    async def until_of(
        self, name: str, what: str, true: Callable[[], Awaitable[bool]], deadline_s: float
    ) -> None:
        """As ``until``, but not longer than process ``name`` can go on. Raises CliError then."""
        restarts = self.service(name).restarts

        async def true_or_never() -> bool:
            now = self.service(name)
            if now.state == "given_up" or now.restarts - restarts >= MOST_RESTARTS:
                raise Never(name, last_line(self.directory, name) or now.state)
            return await true()

        await self.until(what, true_or_never, deadline_s)

    async def until(
        self, what: str, true: Callable[[], Awaitable[bool]], deadline_s: float
    ) -> None:
        """Poll until true; a call that fails counts as not yet. Raises UnreachableError."""
        end, last = time.monotonic() + deadline_s, ""
        while True:
            try:
                if await true():
                    return
            except Never:
                raise
            except (*Answers, CliError) as error:
                last = f" (last: {' '.join(str(error).split())[:300] or repr(error)})"
            if time.monotonic() > end:
                raise UnreachableError(f"Waited {deadline_s:.0f} s for {what}{last}.")
            await asyncio.sleep(POLL_S)
