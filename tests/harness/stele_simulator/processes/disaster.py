"""How a seed becomes a disaster: the cluster, everyday faults, and the rounds in which something is lost."""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from stele_simulator.network import Weather
from stele_simulator.processes.delayed_fetches import make_delayed_fetches
from stele_simulator.processes.delayed_requests import BESIDE_S as BESIDE_LATE_S
from stele_simulator.processes.delayed_requests import LATE, make_delayed_requests
from stele_simulator.processes.expired_ids import Memory, make_memory
from stele_simulator.processes.large_records import Records, make_records
from stele_simulator.processes.older_disk_copies import make_older
from stele_simulator.processes.releases import make_upgrades
from stele_simulator.processes.rival_coordinators import make_rivals
from stele_simulator.processes.stale_leaders import make_old_ends
from stele_simulator.processes.step_faults import late_to_truncate, make_step_faults
from stele_simulator.processes.swapped_disks import make_swapped
from stele_simulator.scenario import Action, ClockError, seconds_within, times

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
"""Faults of messages and appends in most runs."""
STORM_SHARE: Final = 0.2
"""Share of the disasters with worse weather."""
POWER_LOSS_SHARE: Final = 0.1
"""Share of the disasters in which the archive, the services and the nodes lose their power at one time."""
POWER_LOSS_S: Final = (0.5, 6.0)
POWER_LOSS_FIRST_S: Final = 5.0
FULL: Final = "full"
"""The disk of a node, or of a replica of the archive, is full."""
FULL_SHARE: Final = 0.15
"""Share of the disasters."""
FULL_EVERY_S: Final = 15.0
FULL_S: Final = (2.0, 30.0)
FULL_NODE_SHARE: Final = 0.7
BROKERS: Final = "brokers"
"""The brokers are out of reach."""
STOPPED: Final = "stopped"
"""A process gets SIGSTOP, and SIGCONT later."""
EVERYBODY: Final = "everybody"
COORDINATORS: Final = "coordinators"
HOLDER: Final = "coordinator"
"""As a target: the coordinator of the present term."""
LEAVE: Final = "leave"
MOVE: Final = "move"
REBUILD: Final = "rebuild"
EXCLUDE: Final = "exclude"
ALTER: Final = "alter"
"""A change of the replication of the keyspace without tablets."""
CHANGES: Final = (LEAVE, MOVE, REBUILD, EXCLUDE, ALTER)
"""Kinds of requests that are made just before a silence."""
MIGRATE: Final = "migrate"
SNAPSHOT: Final = "snapshot"
TABLET_CHANGES: Final = (MIGRATE, SNAPSHOT)
"""Further kinds where there are tablets."""
SILENCE_SHARE: Final = 0.15
"""Share of the disasters that have silences."""
SILENCE_COUNTS: Final = (1, 1, 2)
SILENCE_S: Final = {BROKERS: (35.0, 180.0), STOPPED: (20.0, 120.0)}
SILENCE_WITHIN_S: Final = 0.06
"""A silence begins within this time after a step of an operation. The next step follows after 0.05 s."""
PROFILE: Final = "disaster"
COLUMNS: Final = "columns"
"""Profile of runs whose schema changes. Their seeds are others than those of disasters."""
COLUMNS_EVERY_S: Final = 3.0
COLUMNS_LOST_SHARE: Final = 0.3
FAULT_EVERY_S: Final = 9.0
AWAY_EVERY_S: Final = 25.0
"""A node is away for longer than barriers or readers are patient."""
REDIS_EVERY_S: Final = 15.0
DARK_EVERY_S: Final = 60.0
"""All nodes lose their power at once."""
DEAF_EVERY_S: Final = 20.0
DEAF_S: Final = (12.0, 30.0)
"""Time for which a node receives nothing from the brokers, longer than a barrier's patience, while clients
use it.
"""
ONLY_FROM_BROKERS: Final = 3
"""Share of cuts from brokers only, as one in this number."""
BESIDE_S: Final = 1.0
"""After a node has become deaf the tablet that clients ask for most is to move."""
SLOW_EVERY_S: Final = 15.0
SLOW_S: Final = (2.0, 12.0)
"""A node's disk is slow."""
REQUEST_EVERY_S: Final = 4.0
BURY_EVERY_S: Final = 45.0
COLOCATED_SHARE: Final = 0.4
PRESSED_SHARE: Final = 0.6
THREE_SHARE: Final = 0.7
ROUTED_SHARE: Final = 0.9
ROUTERS: Final = 2
"""One over HTTP, one by the log."""
STOPS: Final = ("crash", "power", "pause")
IN_A_TURN_SHARE: Final = 0.5
MOST_CALLBACKS: Final = 200
ROUTER_FAULT_EVERY_S: Final = 6.0
FROM_THE_LOG: Final = 4
ONE_RACK_SHARE: Final = 0.8
"""Where racks have one copy each there is hardly any other place for a tablet."""
TRUNCATED_SHARE: Final = 0.5
TRUNCATE_EVERY_S: Final = 10.0
CLEANED_SHARE: Final = 0.5
CLEANED_EVERY_S: Final = 12.0
SHARDS_SHARE: Final = 0.4
"""Share of the disasters with tablets."""
OTHERS_SHARE: Final = 0.4
OTHERS_EVERY_S: Final = 8.0
EXCLUDE_WELL: Final = "exclude_well"
OTHERS: Final = {
    "noop": 2,
    "quiesce": 1,
    "cdc_generation": 2,
    EXCLUDE_WELL: 1,
    "taken_tokens": 2,
    "cleanup": 1,
    "cancel": 1,
}
"""Further requests, some of which appear in some scenarios, with tablets or without."""
DEAD_SHARE: Final = 0.35
DEAD_EVERY_S: Final = 30.0
DEAD: Final = "dead"
MORE_NODES: Final = 5
MORE_NODES_SHARE: Final = 0.6
DATACENTRES_SHARE: Final = 0.16
"""Share of the disasters with enough nodes with a store, in addition to those under pressure."""
DATACENTRE_NODES: Final = 4
TWO_COPIES_SHARE: Final = 0.7
"""Share of two copies. With one copy no node with data may leave."""
FREEZE_SHARE: Final = 0.3
FREEZE_EVERY_S: Final = 20.0
LONGEST_FREEZE_S: Final = 10.0
APART_SHARE: Final = 0.4
WATCHES_SHARE: Final = 0.5
FEW_COMPARED: Final = (1, 5, 25)
WATCHES: Final = 2
REQUESTS_PAST_S: Final = 10.0
"""Time for which requests continue after the last round."""
FIRST_ROUND_S: Final = 25.0
FAR_AHEAD_SHARE: Final = 0.15
FAR_AHEAD_MS: Final = 3_600_000
"""A clock that somebody has set to another time zone."""
LOST: Final = "lost"
BACK: Final = "back"
NOTHING: Final = "nothing"
BURY: Final = "bury"
CLEANED: Final = "cleaned"
"""A node whose disk is slow is to clean up, and to get a tablet at once."""
REQUESTS: Final = {
    "migrate": 3,
    "to_and_fro": 2,
    "resize": 1,
    "alter": 2,
    "keyspace": 2,
    "table": 2,
    "colocated_table": 1,
    "truncate": 1,
    "move": 2,
    "rebuild": 1,
    "repair": 1,
    "cleanup": 2,
    "cancel": 1,
    "switch": 1,
    "snapshot": 1,
    "restore": 1,
}
"""Kinds of requests, and how often they are made."""
DISK_FAULTS: Final = ("wipe", "flip", "flip", "put_back")


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something is lost, and the operator recovers it."""

    after_s: float
    """Since the round before."""
    kind: str = NOTHING
    """``lost``: the topic is recreated. ``back``: it keeps a ``share`` of its records. ``nothing``."""
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
    """Number of clients of rows; 0: nodes are stores that embed the agent."""
    routers: int = 0
    """Number of clients of such stores."""
    copies: int = 2
    """Copies of each row."""
    tablets: int = 0
    """Tablets of the initial table, with a balancer; 0: there is neither."""
    dcs: int = 1
    racks: int = 1
    """Racks of each dc."""
    pressed: bool = False
    """Clients meet at the same keys, and nodes are late and slow."""
    asked: bool = False
    """Somebody asks for changes of the topology."""
    shards: dict[str, int] = {}
    """By node; the others have one."""
    truncated: bool = False
    """A table and a keyspace with clients of their own are truncated now and then."""
    dead_together: bool = False
    """Nodes are declared dead, several at one time where there are enough, with force or without."""
    least_copies: int = 1
    """Least replication factor of temporary keyspaces."""
    colocated: bool = False
    """Another table has the tablets of the first."""
    columns: bool = False
    """Two tables have columns, which change while clients of their own write and read them."""
    watches: int = 0
    """Number of watches of epochs. Metadata-logs then keep little of the past, and read it from the archive.
    """
    apart: bool = False
    """Whether metadata-logs decide commands that scan rows outside of their event loops."""
    memory: Memory = Memory()
    """Memory of decided requests."""
    records: Records = Records()
    """How large they may be."""
    guards: int = 0
    """Session guards, and as many who ask them."""
    clocks: dict[str, ClockError] = {}
    snapshot_epochs: int = 15
    truncate_behind: int = 1
    segment_epochs: int = 20
    snapshots_kept: int = 3
    compared_epochs: int = 0
    """Number of epochs whose states replicas report unasked at a recovery; 0: as in production, more than a
    run has.
    """
    short_records: int = 30
    """A topic of no more records is read from its beginning."""
    actions: tuple[Action, ...] = ()
    requests: tuple[Action, ...] = ()
    """Requests by the commands topic; see ``requester``."""
    freezes: tuple[Action, ...] = ()
    """When the log is frozen or left to one actor, and for how long."""
    upgrades: tuple[Action, ...] = ()
    """Times at which processes change to the newer release or back, and related requests; see ``releases``.
    With any of them, all processes start with the older release.
    """
    rounds: tuple[Round, ...] = ()
    silences: tuple[Action, ...] = ()
    """Long silences after the rounds, one after the other; see ``silence_checks``."""

    @property
    def replication(self) -> dict[str, int]:
        """Return the replication by dc. With an odd factor the first one has more."""
        counts = {
            f"dc{i + 1}": (self.copies + self.dcs - 1 - i) // self.dcs for i in range(self.dcs)
        }
        return {dc: count for dc, count in counts.items() if count}

    @property
    def declares(self) -> bool:
        """Return whether a node without a replacement may be excluded."""
        return any(each.kind in (DEAD, EXCLUDE_WELL) for each in self.requests)

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
        weather=_weather(Random(f"weather/{seed}")),
    )
    copies = base.members if base.nodes > base.members else 2
    base = msgspec.structs.replace(base, copies=copies)
    base = _pressed(Random(f"busy/{seed}"), base)
    base = _routed(Random(f"routed/{seed}"), base)
    base = _with_tablets(Random(f"tablets/{seed}"), base)
    base = _with_shards(Random(f"shards/{seed}"), base)
    is_truncated = (
        base.asked and not base.routers and Random(f"truncated/{seed}").random() < TRUNCATED_SHARE
    )
    base = msgspec.structs.replace(base, truncated=is_truncated)
    dead = Random(f"dead/{seed}")
    base = _with_dead_nodes(dead, base)
    base = _with_datacentres(Random(f"two dcs/{seed}"), base)
    count = random.choice((1, 1, 2, 2, 3))
    rounds = tuple(_round(Random(f"round/{seed}/{i}"), base, i) for i in range(count))
    base = msgspec.structs.replace(base, rounds=rounds)
    actions = _faults(Random(f"faults/{seed}"), base)
    actions += _of_nodes(Random(f"nodes/{seed}"), base)
    actions += make_step_faults(Random(f"traps/{seed}"), base.length_s, tablets=bool(base.tablets))
    actions += make_delayed_fetches(Random(f"deaf/{seed}"), base.logs, base.length_s)
    actions += make_rivals(Random(f"rivals/{seed}"), base.coordinators, base.length_s)
    if base.asked:
        actions += make_delayed_requests(Random(f"late/{seed}"), base.nodes, base.length_s)
    actions += _full_disks(Random(f"full disks/{seed}"), base)
    actions += make_old_ends(Random(f"old ends/{seed}"), _upgraded(base), base.length_s)
    actions += make_swapped(Random(f"swapped/{seed}"), base.nodes, base.length_s)
    actions += make_older(Random(f"older/{seed}"), base.nodes, base.length_s)
    actions += _power_loss(Random(f"dark/{seed}"), _upgraded(base), base.length_s)
    if base.weather != WEATHER:
        actions += _faults(Random(f"storm/{seed}"), base)
    if base.routers:
        actions += _of_routers(Random(f"of routers/{seed}"), base)
    if seed % 2:
        actions = _at_any_await(Random(f"callbacks/{seed}"), actions)
    if base.truncated:
        actions += late_to_truncate(Random(f"late to truncate/{seed}"), base.length_s)
    base = msgspec.structs.replace(base, actions=tuple(actions))
    requests = _requests(Random(f"requests/{seed}"), base)
    requests += _others(Random(f"others/{seed}"), base)
    if base.dead_together:
        requests += _declarations(dead, base)
    clocks = _clocks(Random(f"clocks/{seed}"), base)
    return msgspec.structs.replace(
        base,
        requests=tuple(sorted(requests, key=lambda action: action.at_s)),
        freezes=tuple(_freezes(Random(f"freezes/{seed}"), base)),
        apart=Random(f"apart/{seed}").random() < APART_SHARE,
        upgrades=tuple(make_upgrades(Random(f"upgrades/{seed}"), _upgraded(base), base.length_s)),
        watches=WATCHES if Random(f"watches/{seed}").random() < WATCHES_SHARE else 0,
        memory=make_memory(Random(f"memory/{seed}")),
        records=make_records(Random(f"records/{seed}")),
        clocks=clocks,
        compared_epochs=Random(f"compared/{seed}").choice((0, *FEW_COMPARED)),
        silences=_silences(Random(f"silences/{seed}"), _upgraded(base), tablets=bool(base.tablets)),
    )


def make_columns(seed: int) -> Disaster:
    """Make a run in which tables with columns and their changes are under load. The log may be lost once."""
    random = Random(f"columns/{seed}")
    members = random.choice((2, 3, 3))
    rounds = [Round(after_s=FIRST_ROUND_S) for _ in range(random.choice((1, 2)))]
    if random.random() < COLUMNS_LOST_SHARE:
        rounds.append(_round(random, Disaster(seed=seed, replicas=2), 0))
    base = Disaster(
        seed=seed,
        profile=COLUMNS,
        replicas=2,
        nodes=4,
        members=members,
        callers=1,
        clients=1,
        guards=1,
        copies=members,
        tablets=4,
        racks=random.choice((1, 1, 2)),
        pressed=True,
        asked=True,
        columns=True,
        weather=_weather(random),
        rounds=tuple(rounds),
    )
    actions = _faults(random, base) + _of_nodes(random, base)
    requests = _requests(random, base)
    requests += [
        Action(at_s, COLUMNS, number=random.randrange(1_000_000))
        for at_s in times(random, COLUMNS_EVERY_S, base.length_s + REQUESTS_PAST_S)
    ]
    return msgspec.structs.replace(
        base,
        actions=tuple(_at_any_await(random, actions) if seed % 2 else actions),
        requests=tuple(sorted(requests, key=lambda action: action.at_s)),
        clocks=_clocks(random, base),
    )


def _pressed(random: Random, base: Disaster) -> Disaster:
    """In most of the clusters with rows clients meet at the same keys, and nodes are late and slow; most of
    these have three copies, so that a quorum is not all of them.
    """
    if not base.clients or random.random() >= PRESSED_SHARE:
        return base
    base = msgspec.structs.replace(
        base,
        pressed=True,
        dcs=random.choice((1, 1, 1, 2)),
        colocated=random.random() < COLOCATED_SHARE,
    )
    if random.random() >= THREE_SHARE:
        return base
    return msgspec.structs.replace(base, nodes=4, members=3, copies=3)


def _routed(random: Random, base: Disaster) -> Disaster:
    """Most of the clusters whose stores embed the agent have clients that find their replicas themselves. With
    one copy a replica that was passed by is missed at once.
    """
    if base.clients or random.random() >= ROUTED_SHARE:
        return base
    base = msgspec.structs.replace(base, routers=ROUTERS, pressed=random.random() < PRESSED_SHARE)
    copies = random.choice((1, 1, 3, 3, 0))
    return msgspec.structs.replace(base, nodes=4, members=3, copies=copies) if copies else base


def _with_tablets(random: Random, base: Disaster) -> Disaster:
    tablets, racks = random.choice((0, 4, 8)), random.choice((1, 2, 3))
    if not (base.clients or base.routers) or not tablets:
        return msgspec.structs.replace(base, colocated=False)
    members, asked = max(2, base.members), random.choice((False, True, True))
    if base.pressed and random.random() < ONE_RACK_SHARE:
        racks = 1
    return msgspec.structs.replace(
        base,
        tablets=tablets,
        racks=racks,
        asked=asked,
        nodes=4,
        members=members,
        copies=base.copies if base.routers else members,
    )


def _with_shards(random: Random, base: Disaster) -> Disaster:
    if not base.tablets or base.routers or random.random() >= SHARDS_SHARE:
        return base
    shards = {f"n{number + 1}": random.choice((1, 2, 2, 2)) for number in range(base.nodes)}
    return msgspec.structs.replace(base, shards=shards)


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


def _upgraded(base: Disaster) -> list[str]:
    """All that read the log."""
    return [name for name in _names(base) if name[0] != "p"]


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


def _of_nodes(random: Random, base: Disaster) -> list[Action]:
    """Nodes that are late, or slow."""
    found = list[Action]()
    if not base.pressed:
        return found
    for every_s, bounds, kind in (
        (DEAF_EVERY_S, DEAF_S, "cut"),
        (SLOW_EVERY_S, SLOW_S, "slow"),
    ):
        for at_s in times(random, every_s, base.length_s):
            node = f"n{random.randrange(base.nodes) + 1}"
            seconds = seconds_within(random, bounds)
            number = ONLY_FROM_BROKERS if kind == "cut" else 0
            found.append(Action(at_s, kind, node, seconds, number))
    return found


def _at_any_await(random: Random, actions: list[Action]) -> list[Action]:
    """In every other run, move half of the pauses and ends between two callbacks of one turn. ``number`` is
    the count of callbacks before.
    """
    return [
        msgspec.structs.replace(each, number=random.randrange(1, MOST_CALLBACKS))
        if each.kind in STOPS and random.random() < IN_A_TURN_SHARE
        else each
        for each in actions
    ]


def _of_routers(random: Random, base: Disaster) -> list[Action]:
    """Pause or end a client, or stop its epochs, so that it uses what it has."""
    found = list[Action]()
    for at_s in times(random, ROUTER_FAULT_EVERY_S, base.length_s):
        router = f"u{random.randrange(base.routers) + 1}"
        kind = random.choice(("crash", "pause", "cut", "cut", "cut"))
        seconds = round(0.1 + 10 * random.random(), 3)
        found.append(Action(at_s, kind, router, seconds, FROM_THE_LOG if kind == "cut" else 0))
    return found


def _requests(random: Random, base: Disaster) -> list[Action]:
    """Plan requests. ``number`` seeds the choice of a request when its time has come."""
    if not base.asked:
        return []
    kinds = [kind for kind, weight in sorted(REQUESTS.items()) for _ in range(weight)]
    until_s = base.length_s + REQUESTS_PAST_S
    found = [
        Action(at_s, random.choice(kinds), number=random.randrange(1_000_000))
        for at_s in times(random, REQUEST_EVERY_S, until_s)
    ]
    beside = [
        Action(round(each.at_s + BESIDE_S, 3), "migrate_hot", number=random.randrange(1_000_000))
        for each in base.actions
        if each.kind == "cut" and each.number in (ONLY_FROM_BROKERS, FROM_THE_LOG)
    ]
    late = Random(f"beside late/{base.seed}")
    beside += [
        Action(round(each.at_s + BESIDE_LATE_S, 3), "migrate_hot", number=late.randrange(1_000_000))
        for each in base.actions
        if each.kind == LATE
    ]
    beside += _asked_beside(base, until_s)
    buried = [
        Action(at_s, BURY, number=random.randrange(1_000_000))
        for at_s in times(random, BURY_EVERY_S, until_s)[1:]
    ]
    return sorted(found + beside + buried, key=lambda action: action.at_s)


def _asked_beside(base: Disaster, until_s: float) -> list[Action]:
    """Return the additional requests of some disasters."""
    found, random = list[Action](), Random(f"truncations/{base.seed}")
    for at_s in times(random, TRUNCATE_EVERY_S, until_s) if base.truncated else ():
        found.append(Action(at_s, "truncate_written", number=random.randrange(1_000_000)))
    random = Random(f"cleaned/{base.seed}")
    if random.random() < CLEANED_SHARE:
        for at_s in times(random, CLEANED_EVERY_S, until_s):
            found.append(Action(at_s, CLEANED, number=random.randrange(1_000_000)))
    return found


def _with_dead_nodes(random: Random, base: Disaster) -> Disaster:
    if random.random() >= DEAD_SHARE:
        return base
    return msgspec.structs.replace(
        base,
        dead_together=True,
        nodes=MORE_NODES if random.random() < MORE_NODES_SHARE else base.nodes,
        least_copies=2 if random.random() < TWO_COPIES_SHARE else 1,
    )


def _with_datacentres(random: Random, base: Disaster) -> Disaster:
    if not (base.clients or base.routers):
        return base
    if random.random() >= DATACENTRES_SHARE or base.nodes < DATACENTRE_NODES:
        return base
    return msgspec.structs.replace(base, dcs=2)


def _declarations(random: Random, base: Disaster) -> list[Action]:
    moments = times(random, DEAD_EVERY_S, base.length_s + REQUESTS_PAST_S)[1:]
    return [Action(at_s, DEAD, number=random.randrange(1_000_000)) for at_s in moments]


def _others(random: Random, base: Disaster) -> list[Action]:
    if random.random() >= OTHERS_SHARE:
        return []
    kinds = [kind for kind, weight in sorted(OTHERS.items()) for _ in range(weight)]
    return [
        Action(at_s, random.choice(kinds), number=random.randrange(1_000_000))
        for at_s in times(random, OTHERS_EVERY_S, base.length_s + REQUESTS_PAST_S)
    ]


def _freezes(random: Random, base: Disaster) -> list[Action]:
    """``number`` says whether one actor is left, and which."""
    if random.random() >= FREEZE_SHARE:
        return []
    return [
        Action(
            at_s,
            "freeze",
            seconds=round(LONGEST_FREEZE_S * random.random(), 3),
            number=random.randrange(12),
        )
        for at_s in times(random, FREEZE_EVERY_S, base.length_s)
    ]


def _clocks(random: Random, base: Disaster) -> dict[str, ClockError]:
    found = {
        name: ClockError(random.randint(-2000, 2000), random.randint(-1000, 1000))
        for name in _names(base)
    }
    if random.random() < FAR_AHEAD_SHARE:
        found["w1"] = ClockError(FAR_AHEAD_MS, 0)
    return found


def _weather(random: Random) -> Weather:
    if random.random() >= STORM_SHARE:
        return WEATHER

    def between(least: float, most: float) -> float:
        return round(least + (most - least) * random.random(), 4)

    return Weather(
        loss=between(0.02, 0.06),
        duplicate=between(0.02, 0.08),
        delay_s=between(0.003, 0.015),
        tail=between(0.01, 0.03),
        tail_s=between(1.0, 4.0),
        append_loss=between(0.03, 0.1),
        append_duplicate=between(0.05, 0.1),
        append_tail=between(0.03, 0.1),
    )


def _power_loss(random: Random, names: Sequence[str], length_s: float) -> list[Action]:
    """Return a loss of the power of all machines at one time. They are back at different times."""
    if random.random() >= POWER_LOSS_SHARE:
        return []
    first_s = POWER_LOSS_FIRST_S
    at_s = round(first_s + max(0.0, length_s - first_s) * random.random(), 3)
    return [Action(at_s, "power", name, seconds_within(random, POWER_LOSS_S)) for name in names]


def _full_disks(random: Random, base: Disaster) -> list[Action]:
    if random.random() >= FULL_SHARE:
        return []
    found = list[Action]()
    _, *moments = times(random, FULL_EVERY_S, base.length_s)  # at the first there are no writes
    for at_s in moments:
        is_node = random.random() < FULL_NODE_SHARE
        kind, count = ("n", base.nodes) if is_node else ("cu", base.replicas)
        seconds = seconds_within(random, FULL_S)
        found.append(Action(at_s, FULL, f"{kind}{random.randrange(count) + 1}", seconds))
    return found


def _silences(random: Random, names: Sequence[str], *, tablets: bool) -> tuple[Action, ...]:
    """Return the long silences of a run, while no process is dead. They follow the rounds.

    ``text`` is the kind of the request that is made before a silence, and ``number`` the seed of its contents
    and of the step that the silence waits for. ``at_s`` counts from that step.
    """
    if random.random() >= SILENCE_SHARE:
        return ()
    found, asked = list[Action](), (*CHANGES, *TABLET_CHANGES) if tablets else CHANGES
    for _ in range(random.choice(SILENCE_COUNTS)):
        kind = random.choice((BROKERS, STOPPED))
        found.append(
            Action(
                at_s=round(SILENCE_WITHIN_S * random.random(), 3),
                kind=kind,
                target=random.choice((EVERYBODY, COORDINATORS, HOLDER, random.choice(names))),
                seconds=seconds_within(random, SILENCE_S[kind]),
                number=random.randrange(1_000_000),
                text=random.choice(asked),
            )
        )
    return tuple(found)
