"""A client of the store of sixty lines: it finds a key's replicas itself, and reads and writes at quorums."""

import time

import aiohttp

from stele.router import Place, Replicas, Router, StaleRoute, read_quorum, write_quorum

ROUTE_ANEW = 409


class Client:
    def __init__(self, router: Router, http: aiohttp.ClientSession, keyspace: str) -> None:
        self.router, self.http, self.keyspace = router, http, keyspace

    async def put(self, key: str, value: bytes) -> None:
        """Raises Unavailable and StaleTooLong, after which the value may be there or not."""
        stamped = time.time_ns().to_bytes(8, "big") + value  # the same one in each attempt
        async for attempt in self.router.attempts(self.keyspace, key.encode()):
            with attempt as replicas:
                await write_quorum(replicas, lambda at: self.call("PUT", at, replicas, stamped))

    async def get(self, key: str) -> bytes | None:
        found: dict[str, bytes] = {}
        async for attempt in self.router.attempts(self.keyspace, key.encode()):
            with attempt as replicas:
                found = await read_quorum(replicas, lambda at: self.call("GET", at, replicas))
        newest = max(found.values())
        return newest[8:] if newest else None

    async def call(self, method: str, at: Place, replicas: Replicas, body: bytes = b"") -> bytes:
        url, headers = f"{at.address}/v1/values/{replicas.key.decode()}", replicas.headers(at)
        async with self.http.request(method, url, data=body, headers=headers) as answer:
            if answer.status == ROUTE_ANEW:
                raise StaleRoute((await answer.json())["details"].get("epoch", 0))
            answer.raise_for_status()
            return await answer.read()
