"""The domain of decided requests, entered in the registry: one id has one outcome (design, section 1, rule 4).

A process that never decides does not keep it; so it is no part of the state that all processes share.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from stele.domain.facts import Epoch
from stele.domain.registry_entry import Domain
from stele.domain.requests.decisions import decided_ids
from stele.domain.requests.facts import (
    CommandRefused,
    DecidedFact,
    DecidedGeneration,
    DecidedRequests,
)
from stele.domain.requests.memory import Generation, RequestMemory, restored

Memory = RequestMemory | None


def command_refused(memory: Memory, _: CommandRefused) -> Memory:
    """Nothing is true now that was not before; ``remember`` takes note of the epoch."""
    return memory


def decided_generation(memory: Memory, fact: DecidedGeneration) -> Memory:
    entries = np.frombuffer(fact.entries, dtype="<u8").astype(np.uint64)
    generation = Generation(fact.base, fact.last, fact.newest_ms)
    return (memory or RequestMemory()).with_generation(generation, entries)


def decided_requests(_: Memory, fact: DecidedRequests) -> Memory:
    return restored(fact.young, fact.floor, fact.horizon_ms)


def remember(memory: RequestMemory, epoch: Epoch, limit: int) -> RequestMemory:
    """The memory after an epoch; ``limit`` generations are kept."""
    request_ids = decided_ids(epoch)
    if request_ids:
        memory = memory.with_decisions(request_ids, epoch.epoch, limit)
    return memory.limited(limit)


def to_facts(memory: Memory) -> Iterable[DecidedFact]:
    if memory is None:
        return
    yield DecidedRequests(memory.floor, memory.horizon_ms, memory.young.epochs())
    for generation, entries in memory.sealed():
        yield DecidedGeneration(*generation, entries.astype("<u8").tobytes())


def nothing(*_: Memory) -> dict[str, Any]:
    """People see refusals in the history of epochs."""
    return {}


DOMAIN = Domain(
    name="decided",
    empty=RequestMemory(),
    shared=False,
    decide={},
    apply={
        CommandRefused: command_refused,
        DecidedGeneration: decided_generation,
        DecidedRequests: decided_requests,
    },
    to_facts=to_facts,
    view=nothing,
    diff=nothing,
)
