"""The faults of a run by its seed: a pure plan. Targets are chosen among live processes at the time of the
fault.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from stele_simulator.live.tcp_proxies import Rule

LONG_PAUSE_S: Final = 150.0
"""Mean time from the end of a long fault to the begin of the next one."""
NO_BROKER_SHARE: Final = 0.4
"""The share of the long faults in which no service and no node reaches a broker."""
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
    STOP = "stopped for minutes"
    NO_BROKER = "no broker is reached"


class Role(StrEnum):
    """The target of a fault. Names of its processes begin with the role, except those of nodes."""

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
    FaultKind.STOP: (20.0, 120.0),
    FaultKind.NO_BROKER: (35.0, 180.0),
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
_LONG: Final = (FaultKind.STOP, FaultKind.NO_BROKER)
_OF_SERVICES: Final = tuple(kind for kind in FaultKind if kind not in (FaultKind.GONE, *_LONG))
"""The supervisor starts a service that was killed at once. Long faults have a plan of their own."""
_STOPPED: Final = (Role.METADATA_LOG, Role.COORDINATOR, Role.GUARD, Role.NODE)
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
    """Return the faults of a run, by their begin. The same seed gives the same plan."""
    faults = _short(seed, duration_s) + _long(seed, duration_s)
    return sorted(faults, key=lambda fault: fault.at_s)


def _long(seed: int, duration_s: float) -> list[Fault]:
    """Return the faults of minutes, one after the other, beside the others."""
    chance, faults, at_s = random.Random(f"long/{seed}"), list[Fault](), 0.0
    while True:
        at_s += chance.expovariate(1 / LONG_PAUSE_S)
        if at_s >= duration_s:
            return faults
        is_everybody = chance.random() < NO_BROKER_SHARE
        kind = FaultKind.NO_BROKER if is_everybody else FaultKind.STOP
        role = Role.EVERYBODY if is_everybody else chance.choice(_STOPPED)
        lasts_s = min(chance.uniform(*_SECONDS[kind]), duration_s - at_s)
        faults.append(Fault(at_s, kind, role, chance.random(), lasts_s, chance.random()))
        at_s += lasts_s


def _short(seed: int, duration_s: float) -> list[Fault]:
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


def rules_of(
    fault: Fault, name: str, brokers: Sequence[str], services: Sequence[str] = ()
) -> list[Rule]:
    """Return what a network fault does to process ``name``; "" stands for everybody.

    Other faults have no rules. ``services`` are all processes that may be cut off from the brokers, which
    still reach each other.
    """
    me, log = frozenset({name} if name else ()), frozenset(brokers)
    everybody = frozenset(services)
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
        FaultKind.NO_BROKER: [
            Rule(sources=everybody, targets=log, cut=True),
            Rule(sources=log, targets=everybody, cut=True),
        ],
        FaultKind.SLOW: _both_ways(Rule(sources=me, delay_s=delay_s)),
        FaultKind.LOSSY: _both_ways(Rule(sources=me, loss=loss)),
    }
    return rules.get(fault.kind, [])


def _both_ways(rule: Rule) -> list[Rule]:
    """Also what comes back; for everybody one rule says both."""
    back = msgspec.structs.replace(rule, sources=rule.targets, targets=rule.sources)
    return [rule, back] if rule.sources else [rule]
