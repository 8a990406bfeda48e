"""``python -m benchmarks.store``: what a sync costs the trial store, one writer and many.

Each writer waits for its write to be done before it begins the next. Unsynced is ``synchronous=NORMAL``: a
kill loses nothing, a failure of the power does. The ratio of the two is what compares between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.numbers import measured
from stele.agent.identity import Acknowledged, boot
from stele.node import store as store_module
from stele.node.cells import StoredCell
from stele.node.store import PRAGMAS, SqliteStore

VALUE_BYTES = 1000
CLIENTS = (1, 64)
SECONDS = 3.0
ROUNDS = 3
"""Rounds alternate synced and unsynced, so that a busy moment of the machine hits both."""
SYNC_SAMPLES = 300


async def measure(folder: Path, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Writes a second, and the time of each in seconds."""
    store, numbers, times = SqliteStore(folder / "store.sqlite"), count(1), list[float]()
    value = os.urandom(VALUE_BYTES)
    began = time.perf_counter()

    async def writer() -> None:
        while time.perf_counter() - began < seconds:
            number = next(numbers)
            token = hash((number, "token"))
            at = time.perf_counter()
            await store.write([StoredCell("ks", token, b"%d" % number, number, False, value)])
            times.append(time.perf_counter() - at)

    await asyncio.gather(*(writer() for _ in range(clients)))
    took = time.perf_counter() - began
    await store.close()
    return len(times) / took, times


def each_takes(work: Callable[[int], object]) -> list[float]:
    times = list[float]()
    for number in range(SYNC_SAMPLES):
        at = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - at)
    return times


def bare_syncs(folder: Path) -> list[float]:
    """Seconds of an append of 4 KiB and its fdatasync: the floor of what a synced write can take."""
    with (folder / "bare").open("wb", buffering=0) as file:

        def append(_: int) -> None:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())

        return each_takes(append)


def noted_acks(folder: Path) -> list[float]:
    """Seconds to note in node.json what is about to be acknowledged: once for each new version or fence."""
    directory = boot(folder / "node", "n1", "bench")
    return each_takes(
        lambda number: directory.save(acknowledged=Acknowledged(number, "00" * 16, number, number))
    )


def report(name: str, clients: int, rates: list[float], times: list[float], ratio: str) -> None:
    found = measured(name, clients, times, sum(times))
    rate = f"{median(rates):,.0f}" if rates else ""
    print(f"| {name} | {clients} | {rate} | {found.p50_ms:.2f} | {found.p99_ms:.1f} | {ratio} |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--folder", type=Path, help="where to write; a real disk, not a tmpfs")
    given = arguments.parse_args()
    root = Path(tempfile.mkdtemp(prefix="stele-store-", dir=given.folder))
    kinds = {
        "synced": PRAGMAS,
        "unsynced": tuple(p.replace("synchronous=full", "synchronous=normal") for p in PRAGMAS),
    }
    print(f"load average before: {os.getloadavg()[0]:.1f}; values of {VALUE_BYTES} bytes\n")
    print("| what | writers | per second | p50 ms | p99 ms | rate / unsynced |")
    print("|---|--:|--:|--:|--:|--:|")
    try:
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {name: [] for name in kinds}
            times: dict[str, list[float]] = {name: [] for name in kinds}
            for round_ in range(ROUNDS):
                for name, pragmas in kinds.items():
                    folder = root / f"{name}-{clients}-{round_}"
                    folder.mkdir()
                    with patch.object(store_module, "PRAGMAS", pragmas):
                        rate, took = asyncio.run(measure(folder, clients, given.seconds))
                    rates[name].append(rate)
                    times[name] += took
            for name in kinds:
                ratio = f"{median(rates[name]) / median(rates['unsynced']):.2f}"
                report(f"store, {name}", clients, rates[name], times[name], ratio)
        report("append and fdatasync alone", 1, [], bare_syncs(root), "")
        report("noting an acknowledgement in node.json", 1, [], noted_acks(root), "")
    finally:
        shutil.rmtree(root)
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
