"""Long silences while no process is dead: brokers that are out of reach, and processes that are stopped.

They follow the rounds of a disaster, when all processes are well again. ``silence_checks`` carries them out.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from stele_simulator.scenario import Action

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
ASKED: Final = (LEAVE, MOVE, REBUILD, EXCLUDE, ALTER)
"""Kinds of requests that are made just before a silence."""
MIGRATE: Final = "migrate"
SNAPSHOT: Final = "snapshot"
ABOUT_TABLETS: Final = (MIGRATE, SNAPSHOT)
"""Further kinds where there are tablets."""
SHARE: Final = 0.15
"""The share of the disasters that have silences."""
COUNTS: Final = (1, 1, 2)
SECONDS: Final = {BROKERS: (35.0, 180.0), STOPPED: (20.0, 120.0)}
WITHIN_S: Final = 0.06
"""A silence begins within this time after a step of an operation. The next step follows after 0.05 s."""


def make_silences(random: Random, names: Sequence[str], *, tablets: bool) -> tuple[Action, ...]:
    """Return the silences of a run.

    ``text`` is the kind of the request that is made before a silence, and ``number`` the seed of its contents
    and of the step that the silence waits for. ``at_s`` counts from that step.
    """
    if random.random() >= SHARE:
        return ()
    found, asked = list[Action](), (*ASKED, *ABOUT_TABLETS) if tablets else ASKED
    for _ in range(random.choice(COUNTS)):
        kind = random.choice((BROKERS, STOPPED))
        least_s, most_s = SECONDS[kind]
        found.append(
            Action(
                at_s=round(WITHIN_S * random.random(), 3),
                kind=kind,
                target=random.choice((EVERYBODY, COORDINATORS, HOLDER, random.choice(names))),
                seconds=round(least_s + (most_s - least_s) * random.random(), 3),
                number=random.randrange(1_000_000),
                text=random.choice(asked),
            )
        )
    return tuple(found)
