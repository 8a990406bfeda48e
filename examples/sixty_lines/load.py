"""Clients that write and read for some seconds, and then read back all that was acknowledged.

python -m examples.sixty_lines.load METADATA_LOG_URL KEYSPACE SECONDS
"""

import asyncio
import os
import sys
import time

import aiohttp

from examples.sixty_lines.client import Client
from stele.router import RoutingError, http_router

CLIENTS = 3
KEYS = 150
"""Of each client, which write to keys of their own."""


async def write(client: Client, name: int, end_s: float, acknowledged: dict[str, bytes]) -> int:
    """How many writes failed, whose values may be there or not."""
    failed = number = 0
    while time.monotonic() < end_s:
        number += 1
        key, value = f"c{name}/{number % KEYS}", os.urandom(100)
        acknowledged.pop(key, None)
        try:
            await client.put(key, value)
        except (RoutingError, aiohttp.ClientError):
            failed += 1
        else:
            acknowledged[key] = value
        await asyncio.sleep(0.005)
    print(f"client {name}: {number} writes, {failed} failed", flush=True)
    return failed


async def main(url: str, keyspace: str, seconds: float) -> int:
    acknowledged: dict[str, bytes] = {}
    async with http_router([url]) as router, aiohttp.ClientSession() as http:
        client, end_s = Client(router, http, keyspace), time.monotonic() + seconds
        await asyncio.gather(*(write(client, n, end_s, acknowledged) for n in range(CLIENTS)))
        found = {key: await client.get(key) for key in acknowledged}
    lost = [key for key, value in acknowledged.items() if found[key] != value]
    print(f"{len(acknowledged)} acknowledged values read back, {len(lost)} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
