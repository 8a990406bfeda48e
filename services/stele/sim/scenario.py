"""A scenario: the cluster, the weather, and everything that will be asked and broken, with its time.

It is made from a seed before the run begins and is plain data, so that a failing one can be written down,
shrunk and run again.
"""

from random import Random
from typing import Final

import msgspec

from stele.sim.network import FINE, Weather


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happens at ``at_s``. What the fields mean for each kind: see ``actions.py``."""

    at_s: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    number: int = 0
    text: str = ""


class ClockError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How wrong a process's clocks are from the beginning: see ``kernel.Clock``."""

    skew_ms: int = 0
    drift_ppm: int = 0


FAIR_CLOCK: Final = ClockError()


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run needs; the same scenario gives the same run, to the byte."""

    seed: int
    profile: str
    duration_s: float
    """How long faults and requests go on; after it all faults end and the system must come to rest."""
    weather: Weather = FINE
    nodes: int = 4
    racks: int = 2
    rf: int = 3
    num_tokens: int = 2
    writers: int = 2
    drivers: int = 2
    clients: int = 3
    keys: int = 24
    clocks: dict[str, ClockError] = {}
    """By process; the others' are right."""
    actions: tuple[Action, ...] = ()


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How rough a run is: the weather, the faults (kind -> weight), and seconds between two of them."""

    weather: Weather
    faults: dict[str, int] = {}
    fault_every_s: float = 0.0
    request_every_s: float = 5.0
    dead_every_s: float = 0.0
    """Seconds between two declarations that a node is dead."""
    longest_s: float = 0.0
    """Longest crash, pause or partition."""
    clocks: ClockError = FAIR_CLOCK
    """The most that clocks may be wrong, either way."""


_ROUGH_FAULTS: Final = {"crash": 4, "pause": 3, "cut": 3, "leader": 1, "jump": 1, "trap": 4}
_STORM_FAULTS: Final = {**_ROUGH_FAULTS, "wipe": 1, "wipe_on": 1, "trap": 6}
PROFILES: Final = {
    "calm": Profile(weather=Weather(delay_s=0.002), dead_every_s=30.0),
    "rough": Profile(
        weather=Weather(
            loss=0.02,
            duplicate=0.05,
            delay_s=0.003,
            tail=0.01,
            tail_s=2.0,
            append_loss=0.05,
            append_duplicate=0.1,
            append_tail=0.05,
        ),
        faults=_ROUGH_FAULTS,
        fault_every_s=5.0,
        dead_every_s=20.0,
        longest_s=15.0,
        clocks=ClockError(skew_ms=2_000, drift_ppm=1_000),
    ),
    "storm": Profile(
        weather=Weather(
            loss=0.1,
            duplicate=0.2,
            delay_s=0.006,
            tail=0.04,
            tail_s=5.0,
            append_loss=0.15,
            append_duplicate=0.3,
            append_tail=0.15,
        ),
        faults=_STORM_FAULTS,
        fault_every_s=3.0,
        dead_every_s=20.0,
        longest_s=60.0,
        clocks=ClockError(skew_ms=600_000, drift_ppm=200_000),
    ),
}
DEFAULT_DURATION_S: Final = 60.0
DEAD_NODES_SHARE: Final = 0.4
MOVES_SHARE: Final = 0.4
ZERO_TOKEN_SHARE: Final = 0.3
MOVE_EVERY_S: Final = 10.0
"""Moves and rebuilds, in the scenarios that have any; in a share of these a node without tokens too."""
GLOBAL_SHARE: Final = 0.3
GLOBAL_EVERY_S: Final = 12.0
GLOBAL_KINDS: Final = (
    *("truncate",) * 2,
    "cleanup",
    "noop_request",
    "quiesce",
    "new_cdc_generation",
)
ALTERING_SHARE: Final = 0.4
ALTER_EVERY_S: Final = 12.0
KEYSPACE: Final = "data"
"""The keyspace that clients write to from the beginning."""
BARRIER_EVERY_S: Final = 3.0
"""Linearizable reads; each is up to three that come close together."""
MAX_NODES: Final = 8
STATES: Final = (
    "join_group0",
    "commit_cdc_generation",
    *("write_both_read_old",) * 4,
    *("write_both_read_new",) * 2,
    "finishing",
    "left_token_ring",
    "rollback_to_normal",
    "rebuilding",
    "drop_keyspace",
    "idle",
)
POINTS: Final = (
    "before_append",
    "after_append",
    "after_command",
    "after_stream",
    "after_cleanup",
    "stream_done",
    "cleanup_done",
    "after_store",
    "before_retry",
)


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
    actions = _with_dead_nodes(Random(f"dead/{profile}/{seed}"), rules, base, actions)
    actions += _moves(Random(f"moves/{profile}/{seed}"), base)
    actions += _global_requests(Random(f"global/{profile}/{seed}"), base)
    actions.sort(key=lambda action: (action.at_s, action.kind, action.target))
    clocks = _clocks(Random(f"clocks/{profile}/{seed}"), rules.clocks, base)
    return msgspec.structs.replace(base, clocks=clocks, actions=tuple(actions))


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


def _times(random: Random, every_s: float, until_s: float) -> list[float]:
    """Moments in order, ``every_s`` apart on average, to a thousandth of a second."""
    moments, now = list[float](), 1.0
    while every_s and now < until_s:
        moments.append(round(now, 3))
        now += every_s * (0.2 + 1.6 * random.random())
    return moments


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
    for at_s in _times(random, BARRIER_EVERY_S, base.duration_s):
        found.append(Action(at_s, "barrier", number=random.randrange(1, 4)))
    for at_s in _times(random, rules.request_every_s, base.duration_s):
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
        for at_s in _times(random, ALTER_EVERY_S, base.duration_s)
    ]


def _faults(random: Random, rules: Profile, base: Scenario) -> list[Action]:
    found = list[Action]()
    kinds = [kind for kind, weight in sorted(rules.faults.items()) for _ in range(weight)]
    processes = _process_names(base)
    for at_s in _times(random, rules.fault_every_s, base.duration_s):
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


def _with_dead_nodes(
    random: Random, rules: Profile, base: Scenario, actions: list[Action]
) -> list[Action]:
    """Nodes that are gone, or away for long, or well, and what the operator then asks for: in some of the
    scenarios, since little can be written meanwhile.

    Of a keyspace with one replica nobody who has data is let go, so there is mostly none where the first one
    has more. It locks the least: the others are where most goes on at once.
    """
    if random.random() >= DEAD_NODES_SHARE:
        return actions
    least_rf = min(base.rf, random.choice((1, 2, 2)))
    found = [
        msgspec.structs.replace(a, number=max(a.number, least_rf))
        if a.kind in ("keyspace", "alter")
        else a
        for a in actions
    ]
    faults = ("wipe", "crash", "pause", "cut", "") if rules.faults else ("",)
    for number, at_s in enumerate(_times(random, rules.dead_every_s, base.duration_s), 1):
        node = f"n{random.randrange(base.nodes) + 1}"
        fault, seconds = random.choice(faults), round(10 + 35 * random.random(), 3)
        if fault:
            found.append(Action(at_s, fault, node, seconds, random.choice((0, 1, 2, 3, 4, 4))))
        target = random.choice((node, node, "gone"))
        asked_s = round(at_s + 12 * random.random() ** 2, 3)
        again_s = round(asked_s + 20 * random.random(), 3)
        kind = random.choice(("remove", "remove", "replace", "replace", "exclude"))
        found.append(_declaration(asked_s, kind, target, f"x{number}"))
        found.append(
            _declaration(again_s, random.choice(("remove", "replace")), target, f"y{number}")
        )
    return [action for action in found if action.at_s < base.duration_s]


def _moves(random: Random, base: Scenario) -> list[Action]:
    """Nodes that move, to tokens that are chosen or random ones; nodes that are rebuilt; one without tokens."""
    if random.random() >= MOVES_SHARE:
        return []
    found = list[Action]()
    for at_s in _times(random, MOVE_EVERY_S, base.duration_s):
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


def _global_requests(random: Random, base: Scenario) -> list[Action]:
    """In some of the scenarios: what was truncated is not there any more to be read."""
    if random.random() >= GLOBAL_SHARE:
        return []
    found = list[Action]()
    for at_s in _times(random, GLOBAL_EVERY_S, base.duration_s):
        kind = random.choice(GLOBAL_KINDS)
        keyspace = random.choice(("data", "data", "k1", "k2"))
        node = random.choice(("", "", f"n{random.randrange(base.nodes) + 1}"))
        target = {"truncate": keyspace, "cleanup": node}.get(kind, "")
        found.append(Action(at_s, kind, target))
    return found


def _declaration(at_s: float, kind: str, target: str, new_node: str) -> Action:
    return Action(at_s, kind, target, text=new_node if kind == "replace" else "")


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
