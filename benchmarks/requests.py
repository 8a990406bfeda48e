"""How long the memory of decided requests takes: python -m benchmarks.requests"""

from __future__ import annotations

import random
import time

from stele.domain.requests.ids import uuid7
from stele.domain.requests.memory import DEFAULT_GENERATIONS, GENERATION, RequestMemory

EXTRA = 20
"""Generations beyond the limit, so that forgetting is measured too."""
LOOKUPS = 200_000


def main() -> None:
    chance = random.Random(1)
    found, total, slowest_s, spent_s = RequestMemory(), 0, 0.0, 0.0
    for _ in range(DEFAULT_GENERATIONS + EXTRA):
        ids = [uuid7(total + n, chance.getrandbits(74)) for n in range(GENERATION)]
        began_s = time.thread_time()
        for request_id in ids[:-1]:
            total += 1
            found = found.with_decisions((request_id,), total)
        last_s = time.thread_time()
        total += 1
        found = found.with_decisions((ids[-1],), total)
        ended_s = time.thread_time()
        spent_s += ended_s - began_s
        slowest_s = max(slowest_s, ended_s - last_s)
    print(f"with_decisions: {spent_s / total * 1e6:.2f} us each of {total}")
    print(f"the slowest seal and merge: {slowest_s * 1e3:.0f} ms")
    size_bytes = sum(run.entries.nbytes for run in found.runs)
    print(f"sealed: {size_bytes / 2**20:.1f} MiB in {len(found.runs)} runs")
    unknown = [uuid7(n, chance.getrandbits(74)) for n in range(LOOKUPS)]
    began_s = time.thread_time()
    for request_id in unknown:
        found.candidates(request_id)
    print(f"unknown id: {(time.thread_time() - began_s) / LOOKUPS * 1e6:.2f} us each")


if __name__ == "__main__":
    main()
