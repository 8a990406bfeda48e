"""Clients that write rows until SIGTERM, and then read back all that was acknowledged.

python -m examples.sixty_lines.load METADATA_LOG_URL KEYSPACE.TABLE
"""

import asyncio
import json
import os
import signal
import sys

import aiohttp

from examples.sixty_lines.client import Client
from stele.router import RoutingError, http_router

CLIENTS = 3
KEYS = 150
"""Number of keys of each client. No key has two writers."""


def columns_of(client: Client) -> list[str]:
    """Return the columns of a row, without the key, in the version that the router has read."""
    columns = client.router.lookup(client.keyspace, b"").columns
    return [each.name for each in columns.columns if not each.in_primary_key] if columns else []


async def write(
    client: Client, name: int, stopped: asyncio.Event, acknowledged: dict[str, bytes]
) -> None:
    """Write until stopped. The values of failed writes may be there or not."""
    failed = number = 0
    while not stopped.is_set():
        number += 1
        key = f"c{name}/{number % KEYS}"
        row = {column: os.urandom(16).hex() for column in columns_of(client)}
        value = json.dumps(row).encode()
        acknowledged.pop(key, None)
        try:
            await client.put(key, value)
        except (RoutingError, aiohttp.ClientError):
            failed += 1
        else:
            acknowledged[key] = value
        await asyncio.sleep(0.005)
    print(f"client {name}: {number} writes, {failed} failed", flush=True)


async def main(url: str, table: str) -> int:
    acknowledged: dict[str, bytes] = {}
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with http_router([url]) as router, aiohttp.ClientSession() as http:
        client = Client(router, http, table)
        await asyncio.gather(*(write(client, n, stopped, acknowledged) for n in range(CLIENTS)))
        found = {key: await client.get(key) for key in acknowledged}
    lost = [key for key, value in acknowledged.items() if found[key] != value]
    print(f"columns at the end: {', '.join(columns_of(client))}")
    print(f"{len(acknowledged)} acknowledged values read back, {len(lost)} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1], sys.argv[2])))
