"""The kit's own values, written and read as by a client that finds the replicas itself.

A store is tested with them if it serves ``VALUES_PATH``, as the stores of the examples do. A value
begins with its client's time in eight bytes. The newer one of two values is found by that time.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import aiohttp
from msgspec.structs import replace

from stele.agent.probing import HOLDS_PATH, SPAN_END, SPAN_START
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import DATA, Routed
from stele_harness.conformance.rules import Wrong

VALUES_PATH: Final = "/v1/values/"
KEYS: Final = 120
"""Number of keys. A handful of nodes with four tokens then has some in each range."""
LOADED: Final = KEYS // 12
"""Keys written while nodes join and leave. A write hides that a stream has lost the key."""
RANDOM_BYTES: Final = 24
STAMP_BYTES: Final = 8
PATIENCE_S: Final = 60.0
"""Time after which a replica that was asked by an older version was asked by the newest one."""
HTTP_S: Final = 30.0
PAUSE_S: Final = 0.1
CONNECTIONS: Final = 16
NOT_THERE: Final = frozenset({404, 405, 501})
NOT_FOUND: Final = 404
SUCCESS: Final = range(200, 300)
TEXT: Final = 200

SERVED: Final = "current-request-is-served"
KEPT: Final = "values-are-kept"
NEWER: Final = "newer-value-stays"
DELETED: Final = "given-away-is-deleted"
TRUNCATED: Final = "truncates"


class Site(Protocol):
    """The part of a cluster that values need."""

    @property
    def image(self) -> Image: ...

    def answers(self, name: str) -> bool:
        """Return True if the process of this node runs."""
        ...


class _Answer(Exception):
    """Raised when a replica did not do what was requested."""

    def __init__(self, name: str, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.name, self.what, self.status = name, what, status


class Values:
    """The newest value of each key that all its replicas acknowledged.

    ``not_tried`` is the reason why there are none.
    """

    def __init__(self, site: Site) -> None:
        self.not_tried = ""
        self.not_counted = ""
        """Reason why deletions were not checked; empty if they were."""
        self._site = site
        self._newest: dict[str, dict[str, bytes]] = {}
        self._clock = 0
        limit = aiohttp.ClientTimeout(total=HTTP_S)
        connections = aiohttp.TCPConnector(limit=CONNECTIONS)
        self._http = aiohttp.ClientSession(timeout=limit, connector=connections)

    async def close(self) -> None:
        await self._http.close()

    async def write(self, data: str, count: int = KEYS) -> None:
        """Write new values for ``count`` keys of a keyspace or table at all replicas.

        Raises Wrong.
        """
        first, *others = [f"kit/{number}" for number in range(count)]
        if await self._write(data, first):
            await asyncio.gather(*(self._write(data, key) for key in others))

    async def write_older(self, data: str) -> None:
        """Write each value again, then an older one, which no read may return. Raises Wrong."""
        for key, value in self._newest.get(data, {}).items():
            older = (0).to_bytes(STAMP_BYTES, "big") + os.urandom(RANDOM_BYTES)
            for again in (value, older):
                await self._everywhere(data, key, again)
        await self.check(data, NEWER, "an older one was written after it")

    @asynccontextmanager
    async def under_load(self, data: str) -> AsyncIterator[None]:
        """Write ``LOADED`` keys repeatedly inside the block. The other keys can only be streamed.

        Raises Wrong after the block.
        """
        ends = asyncio.Event()

        async def write() -> None:
            while not ends.is_set() and not self.not_tried:
                await self.write(data, LOADED)
                await asyncio.sleep(PAUSE_S)

        writing = asyncio.create_task(write())
        try:
            yield
        except BaseException:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            raise
        ends.set()
        await writing

    async def check(self, data: str, rule: str = KEPT, after: str = "") -> None:
        """Check that each replica that serves reads has the newest value of each key.

        Raises Wrong.
        """
        expected = [*self._newest.get(data, {}).items()]
        await asyncio.gather(
            *(self._read(data, key, value, rule, after) for key, value in expected)
        )

    async def check_deleted(self, data: str) -> None:
        """Check that no running node has rows of ranges that it does not replicate. Raises Wrong.

        The cluster must be at rest.
        """
        found = self._site.image.schema.serving(data)
        if self.not_tried or found is None:
            return
        rows = self._site.image.ring.placements[found.placement].rows
        for row in rows:
            others = [name for name in self._nodes() if name not in row.writes]
            for name in others:
                await self._has_none(name, found.data_id, row, DELETED)

    async def check_truncated(self, data: str, data_id: str) -> None:
        """Check that no node has data under the earlier id, and no key has a value.

        Raises Wrong.
        """
        known = self._newest.pop(data, {})
        found = self._site.image.schema.serving(data)
        if self.not_tried or found is None:
            return
        rows = self._site.image.ring.placements[found.placement].rows
        for name in self._nodes():
            for row in rows:
                await self._has_none(name, data_id, row, TRUNCATED)
        after = "its data was truncated away"
        await asyncio.gather(*(self._read(data, key, b"", TRUNCATED, after) for key in known))

    async def refused(self, name: str, asked: Iterable[tuple[str, Routed, str]]) -> None:
        """Check that requests, as (rule, request, code), are neither written nor read.

        Raises Wrong.
        """
        if self.not_tried:
            return
        for rule, request, code in asked:
            for method in ("PUT", "GET"):
                status, body = await self._refused(method, name, request)
                if status in SUCCESS or code.encode() not in body:
                    said = body[:TEXT].decode(errors="replace")
                    what = f"{method} {VALUES_PATH}... is answered {status} {said}, not '{code}'"
                    raise Wrong(rule, name, what)

    async def _write(self, data: str, key: str) -> bool:
        self._clock += 1
        value = self._clock.to_bytes(STAMP_BYTES, "big") + os.urandom(RANDOM_BYTES)
        if await self._everywhere(data, key, value):
            self._newest.setdefault(data, {})[key] = value
            return True
        return False

    async def _everywhere(self, data: str, key: str, value: bytes) -> bool:
        """Write a value at all replicas of a key. Return False if the store takes no values.

        Raises Wrong when a replica does not acknowledge it in time.
        """

        async def put(name: str, request: Routed) -> None:
            status, body = await self._ask("PUT", name, key, request, value)
            if status not in SUCCESS:
                said = body[:TEXT].decode(errors="replace")
                raise _Answer(name, f"PUT {VALUES_PATH}{key} is answered {status} {said}", status)

        end_s = asyncio.get_running_loop().time() + PATIENCE_S
        while not self.not_tried:
            request, row = self._route(data, key)
            names = [name for name in row.writes if self._site.answers(name)]
            done = await asyncio.gather(*(put(n, request) for n in names), return_exceptions=True)
            failed = [found for found in done if isinstance(found, BaseException)]
            if not failed:
                return True
            await self._again(failed[0], SERVED, end_s)
        return False

    async def _read(self, data: str, key: str, expected: bytes, rule: str, after: str) -> None:
        async def get(name: str, request: Routed) -> bytes:
            status, body = await self._ask("GET", name, key, request)
            if status not in SUCCESS and status != NOT_FOUND:
                said = body[:TEXT].decode(errors="replace")
                raise _Answer(name, f"GET {VALUES_PATH}{key} is answered {status} {said}", status)
            return body if status in SUCCESS else b""

        end_s = asyncio.get_running_loop().time() + PATIENCE_S
        while not self.not_tried:
            request, row = self._route(data, key)
            names = [name for name in row.reads if self._site.answers(name)]
            found = await asyncio.gather(*(get(n, request) for n in names), return_exceptions=True)
            failed = [each for each in found if isinstance(each, BaseException)]
            if failed:
                await self._again(failed[0], SERVED, end_s)
                continue
            for name, value in zip(names, found, strict=True):
                if isinstance(value, bytes) and value != expected:
                    raise Wrong(rule, name, _wrong_value(data, key, value, expected, after))
            return

    async def _again(self, error: BaseException, rule: str, end_s: float) -> None:
        """Wait before the next attempt. Raise the error, or Wrong, when there is none."""
        if not isinstance(error, _Answer):
            raise error
        if error.status in NOT_THERE and not self._newest:
            self.not_tried = f"PUT {VALUES_PATH}... is not there"
            return
        if asyncio.get_running_loop().time() > end_s:
            raise Wrong(rule, error.name, error.what)
        await asyncio.sleep(PAUSE_S)

    async def _has_none(self, name: str, data_id: str, row: RangeReplicas, rule: str) -> None:
        if self.not_counted:
            return
        headers = {DATA: data_id, SPAN_START: str(row.start), SPAN_END: str(row.end)}
        try:
            status, body = await self._patiently(
                lambda: self._call("POST", name, HOLDS_PATH, headers)
            )
        except _Answer as error:
            raise Wrong(rule, name, error.what) from error
        if status in NOT_THERE:
            self.not_counted = f"{HOLDS_PATH} is not there"
        elif status not in SUCCESS or body not in (b"yes", b"no"):
            said = body[:TEXT].decode(errors="replace")
            raise Wrong(rule, name, f"POST {HOLDS_PATH} is answered {status} {said}, not yes or no")
        elif body == b"yes":
            what = f"it still has rows of ({row.start}, {row.end}] of data {data_id}"
            raise Wrong(rule, name, what)

    async def _ask(
        self, method: str, name: str, key: str, request: Routed, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Return status and body. Raises _Answer when there is none."""
        headers = meant_for(name, request).headers()
        return await self._call(method, name, f"{VALUES_PATH}{key}", headers, body)

    async def _call(
        self, method: str, name: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> tuple[int, bytes]:
        url = f"{self._address(name)}{path}"
        try:
            async with self._http.request(
                method, url, headers=headers, data=body or None
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _Answer(name, f"{method} {path}: {error!r}") from error

    async def _patiently(
        self, ask: Callable[[], Awaitable[tuple[int, bytes]]]
    ) -> tuple[int, bytes]:
        """Call ``ask`` until it answers, for PATIENCE_S. Raises _Answer.

        A node that was started again may have announced its new address only a moment ago.
        """
        end_s = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await ask()
            except _Answer:
                if asyncio.get_running_loop().time() > end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _refused(self, method: str, name: str, request: Routed) -> tuple[int, bytes]:
        body = bytes(STAMP_BYTES)
        try:
            return await self._patiently(
                lambda: self._ask(method, name, "kit/refused", request, body)
            )
        except _Answer as error:
            raise Wrong(SERVED, name, error.what) from error

    def _route(self, data: str, key: str) -> tuple[Routed, RangeReplicas]:
        image, token = self._site.image, token_of(key.encode())
        found = image.schema.serving(data)
        assert found is not None, f"no scene has made {data}"
        request = Routed(
            version=image.topology.version,
            epoch=image.epoch,
            data_id=found.data_id,
            token=token,
            replica="",
            log_id=image.log_id.hex(),
        )
        return request, image.ring.placements[found.placement].row_for(token)

    def _nodes(self) -> Sequence[str]:
        """Return the members whose process runs."""
        nodes = self._site.image.membership.nodes.values()
        members = [node.node_id for node in nodes if node.state is NodeState.NORMAL]
        return [name for name in members if self._site.answers(name)]

    def _address(self, name: str) -> str:
        node = self._site.image.node(name)
        assert node is not None
        return node.address


def meant_for(name: str, request: Routed) -> Routed:
    """Return the request addressed to this agent, unless it names another."""
    return replace(request, replica=request.replica or name)


def _wrong_value(data: str, key: str, found: bytes, expected: bytes, after: str) -> str:
    what = "no value" if not found else f"the value of time {_time(found)}"
    wanted = (
        "none"
        if not expected
        else f"that of time {_time(expected)}, which it acknowledged or streamed"
    )
    return f"GET {VALUES_PATH}{key} of {data} gives {what}, not {wanted}{f': {after}' if after else ''}"


def _time(value: bytes) -> int:
    return int.from_bytes(value[:STAMP_BYTES], "big")
