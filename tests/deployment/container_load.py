"""Runs inside a container of the deployment's network: writes and reads until standard input ends.

    docker run -i --network <network> ... stele/services python load.py

Then it reads every key back through every member and prints its account as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import aiohttp

from stele.cli.commands.data import data_path
from stele_harness.demo.load import KEYSPACE, Load

METADATA_LOGS = tuple(os.environ["STELE_METADATA_LOG_URLS"].split(","))
OWNS_TOKENS = ("normal", "leaving")
FOLLOW_S = 0.3
CALL_TIMEOUT_S = 5.0
MEMBERS_DEADLINE_S = 60.0
PRELOADED = 1500
PRELOADED_BYTES = 20_000
PRELOAD_WORKERS = 8
PRELOAD_TIMEOUT_S = 20.0


async def members(http: aiohttp.ClientSession) -> tuple[str, ...]:
    """Addresses of the nodes that own data, by the first metadata-log that answers; or none."""
    for url in METADATA_LOGS:
        try:
            async with http.get(
                f"{url}/v1/state", timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
            ) as answer:
                view = await answer.json()
            return tuple(n["address"] for n in view["nodes"] if n["state"] in OWNS_TOKENS)
        except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
            continue
    return ()


async def preload(http: aiohttp.ClientSession, nodes: tuple[str, ...]) -> None:
    """Data enough that to stream it takes a moment."""
    todo = iter(range(PRELOADED))

    async def write_some() -> None:
        for number in todo:
            async with http.put(
                nodes[number % len(nodes)] + data_path(KEYSPACE, f"preloaded/{number}"),
                data=os.urandom(PRELOADED_BYTES),
                timeout=aiohttp.ClientTimeout(total=PRELOAD_TIMEOUT_S),
            ) as answer:
                answer.raise_for_status()

    await asyncio.gather(*(write_some() for _ in range(PRELOAD_WORKERS)))


async def follow(http: aiohttp.ClientSession, load: Load) -> None:
    while True:
        load.nodes = await members(http) or load.nodes
        await asyncio.sleep(FOLLOW_S)


async def main() -> None:
    async with aiohttp.ClientSession() as http:
        load = Load(http)
        end = time.monotonic() + MEMBERS_DEADLINE_S
        while not (nodes := await members(http)):
            if time.monotonic() > end:
                sys.exit("no metadata-log named a member")
            await asyncio.sleep(FOLLOW_S)
        await preload(http, nodes)
        load.start(nodes)
        following = asyncio.create_task(follow(http, load))
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await load.stop()
        following.cancel()
        load.nodes = await members(http) or load.nodes
        account = load.account
        answer = {
            "seconds": load.ended - load.began,
            "writes_acknowledged": account.writes_acknowledged,
            "writes_refused": account.writes_refused,
            "writes_unknown": account.writes_unknown,
            "reads_answered": account.reads_answered,
            "reads_failed": account.reads_failed,
            "longest_gap_s": account.longest_gap_s,
            "stale_reads": account.stale_reads,
            "failures": dict(account.failures.most_common(8)),
            "read_back_through": list(load.nodes),
            "lost": await load.lost_writes(),
        }
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
