"""How a seed becomes a disaster: the cluster, everyday faults, and the rounds in which something is lost."""

from random import Random
from typing import Final

import msgspec

from stele.sim.network import Weather
from stele.sim.profiles import ClockError
from stele.sim.scenario import Action, times

PROFILE: Final = "disaster"
WEATHER: Final = Weather(
    loss=0.01,
    duplicate=0.02,
    delay_s=0.003,
    tail=0.005,
    tail_s=1.0,
    append_loss=0.03,
    append_duplicate=0.05,
    append_tail=0.03,
)
FAULT_EVERY_S: Final = 9.0
AWAY_EVERY_S: Final = 25.0
"""A node is away for longer than barriers or readers are patient."""
REDIS_EVERY_S: Final = 15.0
DARK_EVERY_S: Final = 60.0
"""All nodes lose their power at once."""
FIRST_ROUND_S: Final = 25.0
FAR_AHEAD_SHARE: Final = 0.15
FAR_AHEAD_MS: Final = 3_600_000
"""A clock that somebody has set to another time zone."""
LOST: Final = "lost"
BACK: Final = "back"
NOTHING: Final = "nothing"
DISK_FAULTS: Final = ("wipe", "flip", "flip", "put_back")


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something is lost, and the operator recovers it."""

    after_s: float
    """Since the round before."""
    kind: str = NOTHING
    """``lost``: the topic is made anew. ``back``: it holds a ``share`` of its records. ``nothing``."""
    share: float = 0.0
    silent: bool = False
    """Consumers learn it by their offsets alone."""
    ghosts: int = 0
    """Records of before that old writers append again, in the minute after it."""
    restart: bool = False
    """All services are killed right after it: what they had in memory is gone."""
    absent: str = ""
    """A replica whose machine was off since ten seconds before, until long after the recovery."""
    victim: str = ""
    """A replica whose disk is hurt, by ``disk_fault``, just before it."""
    disk_fault: str = ""
    wait_s: float = 20.0
    """Until the operator comes."""
    twice: bool = False
    """Two operators recover at once."""
    trap: int = -1
    """The disk operation in which the recovering replica dies; -1: none."""


class Disaster(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run needs; the same scenario gives the same run, to the byte."""

    seed: int
    profile: str = PROFILE
    weather: Weather = WEATHER
    logs: int = 2
    replicas: int = 3
    coordinators: int = 2
    nodes: int = 3
    members: int = 2
    """So many of the nodes are members from the beginning; the others join."""
    callers: int = 3
    clients: int = 3
    """Of the rows; 0: nodes are stores that embed the agent, to which nobody writes."""
    copies: int = 2
    """Of each row."""
    tablets: int = 0
    """Of the table that is there at the beginning, with a balancer; 0: there is neither."""
    racks: int = 1
    requesters: int = 0
    """Who ask for whatever else changes the topology."""
    guards: int = 0
    """Session guards, and as many who ask them."""
    clocks: dict[str, ClockError] = {}
    snapshot_epochs: int = 15
    truncate_behind: int = 1
    segment_epochs: int = 20
    snapshots_kept: int = 3
    short_records: int = 30
    """A topic of no more records is read from its beginning."""
    actions: tuple[Action, ...] = ()
    rounds: tuple[Round, ...] = ()

    @property
    def length_s(self) -> float:
        return sum(each.after_s + each.wait_s for each in self.rounds)


def make_disaster(seed: int) -> Disaster:
    random = Random(f"disaster/{seed}")
    base = Disaster(
        seed=seed,
        replicas=random.choice((2, 3, 3, 4)),
        coordinators=random.choice((1, 2, 2, 3)),
        nodes=random.choice((3, 4, 4)),
        members=random.choice((1, 2, 3, 3)),
        clients=random.choice((0, 2, 3, 3)),
        guards=random.choice((0, 2)),
        snapshot_epochs=random.choice((20, 30, 60)),
        truncate_behind=random.choice((0, 1, 1, 2)),
        segment_epochs=random.choice((4, 10, 30)),
        snapshots_kept=random.choice((2, 3, 4)),
        short_records=random.choice((0, 20, 5000)),
    )
    copies = base.members if base.nodes > base.members else 2
    base = msgspec.structs.replace(base, copies=copies)
    base = _with_tablets(Random(f"tablets/{seed}"), base)
    count = random.choice((1, 1, 2, 2, 3))
    rounds = tuple(_round(Random(f"round/{seed}/{i}"), base, i) for i in range(count))
    base = msgspec.structs.replace(base, rounds=rounds)
    actions = _faults(Random(f"faults/{seed}"), base)
    clocks = _clocks(Random(f"clocks/{seed}"), base)
    return msgspec.structs.replace(base, actions=tuple(actions), clocks=clocks)


def _with_tablets(random: Random, base: Disaster) -> Disaster:
    tablets, racks = random.choice((0, 4, 8)), random.choice((1, 2, 3))
    if not base.clients or not tablets:
        return base
    members, requesters = max(2, base.members), random.choice((0, 1, 1))
    return msgspec.structs.replace(
        base,
        tablets=tablets,
        racks=racks,
        requesters=requesters,
        nodes=4,
        members=members,
        copies=members,
    )


def _round(random: Random, base: Disaster, number: int) -> Round:
    kind = random.choice((LOST, LOST, BACK, BACK, BACK, NOTHING))
    replicas = [f"cu{i + 1}" for i in range(base.replicas)]
    hurt = replicas[0] if random.random() < 0.4 else ""  # one replica alone ever loses its disk
    absent = random.choice(replicas[1:]) if random.random() < 0.35 and len(replicas) > 2 else ""
    return Round(
        after_s=round(FIRST_ROUND_S * (0.6 + random.random()), 3),
        kind=kind,
        share=round(random.choice((0.0, random.random(), 0.97, 0.99)), 3),
        silent=random.random() < 0.4,
        ghosts=random.choice((0, 0, 3, 25)),
        restart=random.random() < 0.15,
        absent=absent,
        victim=hurt,
        disk_fault=random.choice(DISK_FAULTS) if hurt else "",
        wait_s=round(8 + 25 * random.random(), 3),
        twice=random.random() < 0.3,
        trap=random.choice((-1, -1, -1, *range(16))),
    )


def _names(base: Disaster) -> list[str]:
    counts = (
        ("w", base.logs),
        ("cu", base.replicas),
        ("c", base.coordinators),
        ("n", base.nodes),
        ("g", base.guards),
        ("p", base.guards),
        ("b", 1 if base.tablets else 0),
    )
    return [f"{kind}{i + 1}" for kind, count in counts for i in range(count)]


def _faults(random: Random, base: Disaster) -> list[Action]:
    found, names = list[Action](), _names(base)
    for at_s in times(random, FAULT_EVERY_S, base.length_s):
        kind = random.choice(("crash", "crash", "power", "pause", "cut", "cut", "leader", "trap"))
        seconds = round(0.1 + 10 * random.random() ** 3, 3)
        target = random.choice([name for name in names if name[0] != "p"])
        if kind == "leader":
            found.append(Action(at_s, kind, seconds=round(random.random(), 3)))
        elif kind == "trap":
            replica = f"cu{random.randrange(base.replicas) + 1}"
            found.append(Action(at_s, kind, replica, number=random.randrange(25)))
        elif kind == "cut":
            found.append(Action(at_s, kind, target, 2 * seconds, random.randrange(4)))
        else:
            found.append(Action(at_s, kind, target, seconds))
    for at_s in times(random, AWAY_EVERY_S, base.length_s):
        node = f"n{random.randrange(base.nodes) + 1}"
        kind = random.choice(("crash", "power"))
        found.append(Action(at_s, kind, node, round(5 + 15 * random.random(), 3)))
    for at_s in times(random, REDIS_EVERY_S, base.length_s if base.guards else 0.0):
        kind = random.choice(("flush", "fail_over", "away"))
        found.append(Action(at_s, kind, "redis", round(0.5 + 10 * random.random() ** 2, 3)))
    for at_s in times(random, DARK_EVERY_S, base.length_s):
        for i in range(base.nodes):
            seconds = round(0.5 + 3 * random.random(), 3)
            found.append(Action(at_s, "power", f"n{i + 1}", seconds))
    return found


def _clocks(random: Random, base: Disaster) -> dict[str, ClockError]:
    found = {
        name: ClockError(random.randint(-2000, 2000), random.randint(-1000, 1000))
        for name in _names(base)
    }
    if random.random() < FAR_AHEAD_SHARE:
        found["w1"] = ClockError(FAR_AHEAD_MS, 0)
    return found
