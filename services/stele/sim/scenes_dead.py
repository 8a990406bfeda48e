"""Which nodes are declared dead when, and what is asked for meanwhile."""

from random import Random
from typing import Final

import msgspec

from stele.sim.profiles import Profile
from stele.sim.scenario import MAX_NODES, Action, Scenario, times

DEAD_NODES_SHARE: Final = 0.4
DEAD_TOGETHER_SHARE: Final = 0.25
DEAD_TOGETHER_EVERY_S: Final = 25.0
DEAD_TOGETHER_AFTER_S: Final = 8.0
"""By then nodes that asked to join at the beginning are there."""
FEWER_COPIES_SHARE: Final = 0.25


def with_dead_nodes(
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
    for number, at_s in enumerate(times(random, rules.dead_every_s, base.duration_s), 1):
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


def dead_together(random: Random, base: Scenario) -> tuple[int, list[Action]]:
    """How many are dead at one time, and how they come to be declared: by one request or by many. It may be
    all that have data, while one without any lives.
    """
    if random.random() >= DEAD_TOGETHER_SHARE:
        return 1, []
    at_once = random.choice((2, 2, 2, MAX_NODES))
    found, everybody = list[Action](), at_once > 2
    if everybody:
        found.append(Action(0.2, "join", "z2", number=0, text="r1"))
    until_s = base.duration_s - DEAD_TOGETHER_AFTER_S
    for number, after_s in enumerate(times(random, DEAD_TOGETHER_EVERY_S, until_s), 1):
        at_s = round(after_s + DEAD_TOGETHER_AFTER_S, 3)
        one, two = (f"n{node}" for node in random.sample(range(1, base.nodes + 1), 2))
        found.append(Action(at_s, "crash", one, round(10 + 30 * random.random(), 3)))
        asked_s = round(at_s + 2 * random.random(), 3)
        later_s = round(asked_s + 8 * random.random() ** 2, 3)
        if everybody and random.random() < 0.6:
            kind = random.choice(("exclude", "exclude", "remove"))
            asked = [Action(asked_s, "exclude", one), Action(later_s, kind, "rest")]
        else:
            asked = random.choice(
                (
                    [Action(asked_s, "exclude", one), Action(later_s, "exclude", two)],
                    [Action(asked_s, "exclude", f"{one},{two}")],
                    [Action(asked_s, "remove", f"{one},{two}")],
                    [Action(asked_s, "remove", one), Action(later_s, "remove", two)],
                    [
                        Action(asked_s, "exclude", one),
                        Action(later_s, "replace", two, text=f"t{number}"),
                    ],
                )
            )
        found += asked
        again_s = round(later_s + 25 * random.random(), 3)
        found.append(Action(again_s, "remove", f"{one},{two}"))
    return at_once, [action for action in found if action.at_s < base.duration_s]


def fewer_copies(random: Random, base: Scenario) -> list[Action]:
    """A keyspace goes from two copies to one, and others are made, while a node is declared dead."""
    if random.random() >= FEWER_COPIES_SHARE:
        return []
    node = f"n{random.randrange(base.nodes) + 1}"
    at_s = round(base.duration_s * random.random() / 2, 3)
    found = [
        Action(at_s, "keyspace", "k1", number=2),
        Action(at_s, "alter", "k1", number=2),
        Action(round(at_s + 4, 3), "crash", node, round(8 + 30 * random.random(), 3)),
        Action(round(at_s + 5, 3), "exclude", node),
    ]
    asked_s = at_s + 11
    for name, number in (("k2", 1), ("k3", 2), ("k4", random.randrange(1, 4))):
        asked_s = round(asked_s + 2 * random.random(), 3)
        found.append(Action(asked_s, "keyspace", name, number=number))
    for name, number in (("k1", 1), ("k3", 1), ("k1", 3)):
        asked_s = round(asked_s + 3 * random.random(), 3)
        found.append(Action(asked_s, "alter", name, number=number))
    found.append(Action(round(asked_s + 10 * random.random(), 3), "remove", node))
    return [action for action in found if action.at_s < base.duration_s]


def _declaration(at_s: float, kind: str, target: str, new_node: str) -> Action:
    return Action(at_s, kind, target, text=new_node if kind == "replace" else "")
