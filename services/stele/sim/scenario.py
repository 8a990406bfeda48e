"""A scenario: the cluster, the weather, and everything that will be asked and broken, with its time.

It is made from a seed before the run begins, by ``making.py``, and is plain data, so that a failing one can be
written down, shrunk and run again.
"""

from random import Random
from typing import Final

import msgspec

from stele.sim.network import FINE, Weather
from stele.sim.profiles import ClockError


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happens at ``at_s``. What the fields mean for each kind: see ``actions.py``."""

    at_s: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    number: int = 0
    text: str = ""


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
    tables: bool = False
    """Tables with tablets come and go, clients use them, and a balancer works."""
    shards: dict[str, int] = {}
    """By node; the others have one."""
    dead_at_once: int = 1
    """Nodes that may be declared dead, or be gone, at one time."""
    clocks: dict[str, ClockError] = {}
    """By process; the others' are right."""
    actions: tuple[Action, ...] = ()


DEFAULT_DURATION_S: Final = 60.0
KEYSPACE: Final = "data"
"""The keyspace that clients write to from the beginning."""
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


def times(random: Random, every_s: float, until_s: float) -> list[float]:
    """Moments in order, ``every_s`` apart on average, to a thousandth of a second."""
    moments, now = list[float](), 1.0
    while every_s and now < until_s:
        moments.append(round(now, 3))
        now += every_s * (0.2 + 1.6 * random.random())
    return moments
