"""Which faults a run has, by its seed: a pure plan. Who is hit is chosen when it happens, of those who live."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from stele.sim.live.fabric import Rule

MEAN_PAUSE_S: Final = 5.0
"""Between two faults; they may overlap, but for those of brokers."""
BROKER_RECOVERY_S: Final = 12.0
"""A broker that was away is in sync again after this: one of three at a time, or writes must stop."""


class FaultKind(StrEnum):
    KILL = "kill -9"
    GONE = "kill -9, and gone for longer than an election takes"
    PAUSE = "pause"
    ISOLATE = "cut off"
    DEAF = "hears nothing"
    MUTE = "is not heard"
    NO_LOG = "cut off from the brokers"
    SLOW = "slow"
    LOSSY = "loses packets"


class Role(StrEnum):
    """Whom a fault hits; the names of the role's processes begin with it, but those of nodes."""

    BROKER = "broker"
    METADATA_LOG = "metadata-log"
    COORDINATOR = "coordinator"
    GUARD = "session-guard"
    NODE = "node"
    REDIS = "redis"
    EVERYBODY = "everybody"


class Fault(msgspec.Struct, frozen=True):
    """Begins ``at_s`` after the run's begin and lasts ``lasts_s``; ``chance`` in [0, 1) picks the process."""

    at_s: float
    kind: FaultKind
    role: Role
    chance: float
    lasts_s: float
    strength: float

    def pick(self, names: Sequence[str]) -> str:
        return names[int(self.chance * len(names))]


_SECONDS: Final = {
    FaultKind.KILL: (1.0, 5.0),
    FaultKind.GONE: (30.0, 60.0),
    FaultKind.PAUSE: (0.5, 18.0),
    FaultKind.ISOLATE: (1.0, 12.0),
    FaultKind.DEAF: (1.0, 10.0),
    FaultKind.MUTE: (1.0, 10.0),
    FaultKind.NO_LOG: (1.0, 15.0),
    FaultKind.SLOW: (5.0, 20.0),
    FaultKind.LOSSY: (5.0, 20.0),
}
_WEIGHTS: Final = {
    Role.BROKER: 4,
    Role.METADATA_LOG: 5,
    Role.COORDINATOR: 5,
    Role.GUARD: 1,
    Role.NODE: 7,
    Role.REDIS: 1,
    Role.EVERYBODY: 2,
}
_NETWORK: Final = (FaultKind.SLOW, FaultKind.LOSSY)
_OF_SERVICES: Final = tuple(kind for kind in FaultKind if kind is not FaultKind.GONE)
"""The supervisor starts a service that was killed at once."""
_KINDS: Final = {
    # A broker that others cannot hear would stay the leader in its own belief: KRaft has no answer to it.
    Role.BROKER: (
        FaultKind.KILL,
        FaultKind.GONE,
        FaultKind.GONE,
        FaultKind.PAUSE,
        FaultKind.ISOLATE,
        *_NETWORK,
    ),
    Role.REDIS: (FaultKind.KILL, FaultKind.PAUSE, FaultKind.ISOLATE),
    Role.EVERYBODY: _NETWORK,
}


def plan(seed: int, duration_s: float) -> list[Fault]:
    """The faults of a run, by their begin. The same seed gives the same plan."""
    chance, faults, at_s, broker_free_s = random.Random(seed), list[Fault](), 3.0, 0.0
    while True:
        at_s += chance.expovariate(1 / MEAN_PAUSE_S)
        if at_s >= duration_s:
            return faults
        role = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if role is Role.BROKER and at_s < broker_free_s:
            role = Role.NODE
        kind = chance.choice(_KINDS.get(role, _OF_SERVICES))
        lasts_s = min(chance.uniform(*_SECONDS[kind]), duration_s - at_s)
        if role is Role.BROKER:
            broker_free_s = at_s + lasts_s + BROKER_RECOVERY_S
        faults.append(Fault(at_s, kind, role, chance.random(), lasts_s, chance.random()))


def rules_of(fault: Fault, name: str, brokers: Sequence[str]) -> list[Rule]:
    """What a network fault does to process ``name``; "" stands for everybody. None for other faults."""
    me, log = frozenset({name} if name else ()), frozenset(brokers)
    delay_s = 0.02 + 0.28 * fault.strength * (1.0 if name else 0.3)
    loss = 0.01 + 0.09 * fault.strength
    deaf, mute = Rule(targets=me, cut=True), Rule(sources=me, cut=True)
    rules = {
        FaultKind.ISOLATE: [deaf, mute],
        FaultKind.DEAF: [deaf],
        FaultKind.MUTE: [mute],
        FaultKind.NO_LOG: [
            Rule(sources=me, targets=log, cut=True),
            Rule(sources=log, targets=me, cut=True),
        ],
        FaultKind.SLOW: _both_ways(Rule(sources=me, delay_s=delay_s)),
        FaultKind.LOSSY: _both_ways(Rule(sources=me, loss=loss)),
    }
    return rules.get(fault.kind, [])


def _both_ways(rule: Rule) -> list[Rule]:
    """Also what comes back; for everybody one rule says both."""
    back = msgspec.structs.replace(rule, sources=rule.targets, targets=rule.sources)
    return [rule, back] if rule.sources else [rule]
