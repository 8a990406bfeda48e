"""How a seed becomes a scenario: each kind of scene has its own chances, so that one more changes no other."""

from random import Random
from typing import Final

import msgspec

from stele.sim.profiles import FAIR_CLOCK, PROFILES, ClockError, Profile
from stele.sim.scenario import (
    DEFAULT_DURATION_S,
    KEYSPACE,
    MAX_NODES,
    POINTS,
    STATES,
    Action,
    Scenario,
    times,
)
from stele.sim.scenes_dead import dead_together, fewer_copies, with_dead_nodes
from stele.sim.scenes_log import freezes
from stele.sim.scenes_tables import (
    colocated,
    loads,
    rack_lists,
    recounts,
    repairs,
    resizes,
    snapshots,
    switches,
    with_tables,
)

MOVES_SHARE: Final = 0.4
ZERO_TOKEN_SHARE: Final = 0.3
MOVE_EVERY_S: Final = 10.0
"""Moves and rebuilds, in the scenarios that have any; in a share of these a node without tokens too."""
TAKEN_TOKENS_SHARE: Final = 0.2
GLOBAL_SHARE: Final = 0.3
GLOBAL_EVERY_S: Final = 12.0
GLOBAL_KINDS: Final = (
    *("truncate",) * 2,
    "cleanup",
    "noop_request",
    "quiesce",
    "new_cdc_generation",
)
CROWD_SHARE: Final = 0.15
CROWD_S: Final = 90.0
"""Longest that somebody may wait for his turn in a crowd, once nothing fails any more."""
CROWD_PAUSE_S: Final = 1.0
SHARDS_SHARE: Final = 0.3
ALTERING_SHARE: Final = 0.4
ALTER_EVERY_S: Final = 12.0
BARRIER_EVERY_S: Final = 3.0
"""Linearizable reads; each is up to three that come close together."""


def make_scenario(seed: int, profile: str, duration_s: float = DEFAULT_DURATION_S) -> Scenario:
    """The scenario of a seed. Raises KeyError for an unknown profile."""
    rules = PROFILES[profile]
    random = Random(f"scenario/{profile}/{seed}")
    nodes = random.choice((3, 4, 4, 5))
    base = Scenario(
        seed=seed,
        profile=profile,
        duration_s=duration_s,
        weather=rules.weather,
        nodes=nodes,
        racks=random.choice((1, 2, 3)),
        rf=random.choice((1, 2, 3, 3, 3)),
        num_tokens=random.choice((1, 2, 3)),
        drivers=random.choice((2, 3)),
    )
    actions = [*_requests(random, rules, base), *_faults(random, rules, base)]
    actions += _alterations(Random(f"alter/{profile}/{seed}"), base)
    actions = with_dead_nodes(Random(f"dead/{profile}/{seed}"), rules, base, actions)
    actions += _moves(Random(f"moves/{profile}/{seed}"), base)
    actions += _taken_tokens(Random(f"taken/{profile}/{seed}"), base)
    actions += _global_requests(Random(f"global/{profile}/{seed}"), base)
    actions += fewer_copies(Random(f"fewer/{profile}/{seed}"), base)
    at_once, together = dead_together(Random(f"together/{profile}/{seed}"), base)
    base, actions = msgspec.structs.replace(base, dead_at_once=at_once), actions + together
    tables, tablets = with_tables(Random(f"tablets/{profile}/{seed}"), rules, base)
    base, actions = msgspec.structs.replace(base, tables=tables), actions + tablets
    base = msgspec.structs.replace(base, shards=_shards(Random(f"shards/{profile}/{seed}"), base))
    actions += resizes(Random(f"resizes/{profile}/{seed}"), base)
    actions += recounts(Random(f"recounts/{profile}/{seed}"), base)
    actions += rack_lists(Random(f"listings/{profile}/{seed}"), base)
    actions += repairs(Random(f"repairs/{profile}/{seed}"), base)
    actions += switches(Random(f"switches/{profile}/{seed}"), base)
    actions += loads(Random(f"loads/{profile}/{seed}"), base)
    actions += colocated(Random(f"colocated/{profile}/{seed}"), base)
    actions += snapshots(Random(f"snapshots/{profile}/{seed}"), base)
    actions += freezes(Random(f"freezes/{profile}/{seed}"), base)
    actions += _crowd(Random(f"crowd/{profile}/{seed}"), base)
    actions.sort(key=lambda action: (action.at_s, action.kind, action.target))
    clocks = _clocks(Random(f"clocks/{profile}/{seed}"), rules.clocks, base)
    return msgspec.structs.replace(base, clocks=clocks, actions=tuple(actions))


def _shards(random: Random, base: Scenario) -> dict[str, int]:
    """Nodes have several, in some of the scenarios with tables."""
    if not base.tables or random.random() >= SHARDS_SHARE:
        return {}
    return {f"n{number + 1}": random.choice((1, 2, 2, 3)) for number in range(MAX_NODES)}


def _clocks(random: Random, most: ClockError, base: Scenario) -> dict[str, ClockError]:
    """Every clock is wrong in its own way, as far as the profile lets it."""
    if most == FAIR_CLOCK:
        return {}
    return {
        name: ClockError(
            random.randint(-most.skew_ms, most.skew_ms),
            random.randint(-most.drift_ppm, most.drift_ppm),
        )
        for name in _process_names(base)
    }


def _requests(random: Random, rules: Profile, base: Scenario) -> list[Action]:
    found = list[Action]()
    joined = base.nodes
    kinds = (
        *("join",) * 4,
        *("leave",) * 4,
        *("cancel",) * 3,
        *("keyspace",) * 3,
        *("join_and_leave", "setting", "bad"),
    )
    for at_s in times(random, BARRIER_EVERY_S, base.duration_s):
        found.append(Action(at_s, "barrier", number=random.randrange(1, 4)))
    for at_s in times(random, rules.request_every_s, base.duration_s):
        kind = random.choice(kinds)
        number = random.randrange(1, 4)
        if kind in ("join", "join_and_leave"):
            for _ in range(min(random.choice((1, 1, 2, 3)), MAX_NODES - joined)):
                joined += 1
                rack = f"r{random.randrange(base.racks) + 1}"
                found.append(Action(at_s, "join", f"n{joined}", number=number, text=rack))
        if kind in ("leave", "join_and_leave"):
            count = random.choice((1, 1, 2))
            leaving = random.sample(range(1, joined + 1), count)
            found.extend(Action(at_s, "leave", f"n{node}") for node in leaving)
        elif kind == "keyspace":
            found.extend(_keyspace(random, at_s, number))
        elif kind in ("cancel", "setting", "bad"):
            found.append(Action(at_s, kind, number=number))
    return found


def _keyspace(random: Random, at_s: float, number: int) -> list[Action]:
    """Make a keyspace, drop it, or drop it and make another of its name as soon as that may be free."""
    name, again_s = f"k{number}", round(at_s + 3 * random.random(), 3)
    create = Action(at_s, "keyspace", name, number=random.randrange(1, 4))
    drop = Action(at_s, "drop", name)
    again = Action(again_s, "keyspace", name, number=random.randrange(1, 4))
    return random.choice(([create], [create], [drop], [drop, again]))


def _alterations(random: Random, base: Scenario) -> list[Action]:
    """Keyspaces get other replications, in some of the scenarios: nodes come and go the less meanwhile."""
    if random.random() >= ALTERING_SHARE:
        return []
    return [
        Action(
            at_s,
            "alter",
            random.choice((KEYSPACE, KEYSPACE, "k1", "k2", "k3")),
            number=random.randrange(1, 4),
        )
        for at_s in times(random, ALTER_EVERY_S, base.duration_s)
    ]


def _faults(random: Random, rules: Profile, base: Scenario) -> list[Action]:
    found = list[Action]()
    kinds = [kind for kind, weight in sorted(rules.faults.items()) for _ in range(weight)]
    processes = _process_names(base)
    for at_s in times(random, rules.fault_every_s, base.duration_s):
        kind = random.choice(kinds)
        seconds = round(0.1 + rules.longest_s * random.random() ** 4, 3)
        if kind == "trap":
            found.append(_trap(random, at_s, seconds, rules.longest_s))
        elif kind == "cut":
            found.append(_cut(random, at_s, seconds, processes))
        elif kind == "leader":
            found.append(Action(at_s, "leader", seconds=round(2 * random.random(), 3)))
        elif kind == "jump":
            ms = random.choice((-3_600_000, -500, 500, 3_600_000))
            found.append(Action(at_s, "jump", random.choice(processes), number=ms))
        elif kind == "wipe":
            found.append(Action(at_s, "wipe", f"n{random.randrange(MAX_NODES) + 1}"))
        elif kind == "wipe_on":
            who = random.choice(("operation_node", "member", "member"))
            state, number = random.choice(STATES), random.randrange(3)
            found.append(Action(at_s, "wipe_on", who, 0.0, number, state))
        else:
            found.append(Action(at_s, kind, random.choice(processes), seconds))
    return found


def _crowd(random: Random, base: Scenario) -> list[Action]:
    """After the faults: requests of one kind that follow one another without a gap, and somebody who waits."""
    if random.random() >= CROWD_SHARE:
        return []
    kinds = ("alter", "alter", "move", "rebuild", "truncate")
    kind = random.choice((*kinds, *("migrate",) * 4) if base.tables else kinds)
    return [Action(base.duration_s + CROWD_PAUSE_S, "crowd", kind, CROWD_S, text="f1")]


def _moves(random: Random, base: Scenario) -> list[Action]:
    """Nodes that move, to tokens that are chosen or random ones; nodes that are rebuilt; one without tokens."""
    if random.random() >= MOVES_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, MOVE_EVERY_S, base.duration_s):
        node = f"n{random.randrange(MAX_NODES) + 1}"
        tokens = [random.randrange(-(2**62), 2**62) for _ in range(random.choice((0, 1, 2, 3)))]
        kind = random.choice(("move", "move", "rebuild"))
        text = ",".join(map(str, tokens)) if kind == "move" else ""
        number = random.randrange(2) if kind == "rebuild" else 0
        found.append(Action(at_s, kind, node, number=number, text=text))
    if random.random() < ZERO_TOKEN_SHARE:
        at_s = round(base.duration_s * random.random() / 2, 3)
        found.append(Action(at_s, "join", "z1", number=0, text="r1"))
        found.append(Action(round(at_s + 20 * random.random(), 3), "leave", "z1"))
    return found


def _taken_tokens(random: Random, base: Scenario) -> list[Action]:
    """Now and then a node asks for the tokens that another one has."""
    if random.random() >= TAKEN_TOKENS_SHARE:
        return []
    one, two = (f"n{node}" for node in random.sample(range(1, base.nodes + 1), 2))
    return [Action(round(base.duration_s * random.random(), 3), "move", one, text=f"as {two}")]


def _global_requests(random: Random, base: Scenario) -> list[Action]:
    """In some of the scenarios: what was truncated is not there any more to be read."""
    if random.random() >= GLOBAL_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, GLOBAL_EVERY_S, base.duration_s):
        kind = random.choice(GLOBAL_KINDS)
        keyspace = random.choice(("data", "data", "k1", "k2"))
        node = random.choice(("", "", f"n{random.randrange(base.nodes) + 1}"))
        target = {"truncate": keyspace, "cleanup": node}.get(kind, "")
        found.append(Action(at_s, kind, target))
    return found


def _process_names(base: Scenario) -> list[str]:
    nodes = [f"n{i + 1}" for i in range(MAX_NODES)]
    writers = [f"w{i + 1}" for i in range(base.writers)]
    return [*nodes, *writers, *(f"c{i + 1}" for i in range(base.drivers))]


def _trap(random: Random, at_s: float, seconds: float, longest_s: float) -> Action:
    """Crash or pause somebody at a certain step instead of at a certain time."""
    if random.random() < 0.5:
        seconds = round(0.1 + longest_s * random.random() ** 2, 3)
        who = random.choice(("coordinator", "operation_node", "member", "member", "writer"))
        kind = random.choice(("crash_on", "pause_on", "cut_on"))
        if (
            kind == "cut_on"
        ):  # who lacks the log for less than a barrier's patience is only waited for
            seconds = round(longest_s * (0.6 + 0.4 * random.random()), 3)
        return Action(at_s, kind, who, seconds, random.randrange(3), random.choice(STATES))
    return Action(
        at_s, "crash_at", "", min(seconds, 10.0), random.randrange(5), random.choice(POINTS)
    )


def _cut(random: Random, at_s: float, seconds: float, processes: list[str]) -> Action:
    """``number``: 0 cuts both ways, 1 only what goes in, 2 only what comes out, 3 only from the log."""
    names = [*processes, "log"]
    size = 1 if random.random() < 0.6 else random.randrange(2, len(names) // 2)
    group = sorted(random.sample(names, size))
    return Action(at_s, "cut", ",".join(group), seconds, random.randrange(4))
