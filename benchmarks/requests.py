"""How long the memory of decided requests takes, in time of one core: python -m benchmarks.requests"""

from __future__ import annotations

import random
import time

import numpy as np

from stele.domain.model.requests import GENERATIONS, uuid7
from stele.domain.request_memory import GENERATION, PLACE_BITS, RequestMemory, SealedGeneration

MEASURED = 8
"""Generations added one decision at a time: one cycle of merging."""
LOOKUPS = 50_000


def main() -> None:
    chance = random.Random(1)
    found, epoch = RequestMemory(), 0
    numbers = np.random.default_rng(1)
    for _ in range(GENERATIONS.default):
        places = np.arange(1, GENERATION + 1, dtype=np.uint64)
        hashes = numbers.integers(0, 1 << 40, GENERATION, dtype=np.uint64)
        entries = np.sort(hashes << np.uint64(PLACE_BITS) | places)
        generation = SealedGeneration(epoch, epoch + GENERATION, epoch)
        found, epoch = found.with_generation(generation, entries), epoch + GENERATION
    single_s = slowest_s = 0.0
    for _ in range(MEASURED):
        ids = make_ids(chance, epoch, GENERATION)
        began_s = time.thread_time()
        for request_id in ids[:-1]:
            epoch += 1
            found = found.with_decisions((request_id,), epoch)
        last_s = time.thread_time()
        epoch += 1
        found = found.with_decisions((ids[-1],), epoch)
        ended_s = time.thread_time()
        single_s += ended_s - began_s
        slowest_s = max(slowest_s, ended_s - last_s)
    print(f"with_decisions: {single_s / (MEASURED * GENERATION) * 1e6:.2f} us each, amortized")
    print(f"the slowest seal and merge: {slowest_s * 1e3:.0f} ms")
    size_bytes = sum(run.entries.nbytes for run in found.runs)
    print(f"sealed: {size_bytes / 2**20:.1f} MiB in {len(found.runs)} runs")
    unknown = make_ids(chance, epoch, LOOKUPS)
    began_s = time.thread_time()
    for request_id in unknown:
        found.candidates(request_id)
    print(f"unknown id: {(time.thread_time() - began_s) / LOOKUPS * 1e6:.2f} us each")


def make_ids(chance: random.Random, ms: int, count: int) -> list[str]:
    return [uuid7(ms + n, chance.getrandbits(74)) for n in range(count)]


if __name__ == "__main__":
    main()
