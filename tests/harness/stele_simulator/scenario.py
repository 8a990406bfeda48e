"""The events of a run and their times. They are made from a seed before the run begins, and are plain data,
so that a failing scenario can be written down, shrunk and repeated.
"""

from random import Random

import msgspec


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event at ``at_s``. The module that executes it documents the fields of each kind."""

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


def seconds_within(random: Random, bounds: tuple[float, float]) -> float:
    """Return a duration between the bounds, to a thousandth of a second."""
    least_s, most_s = bounds
    return round(least_s + (most_s - least_s) * random.random(), 3)


def times(random: Random, every_s: float, until_s: float) -> list[float]:
    """Moments in order, ``every_s`` apart on average, to a thousandth of a second."""
    moments, now = list[float](), 1.0
    while every_s and now < until_s:
        moments.append(round(now, 3))
        now += every_s * (0.2 + 1.6 * random.random())
    return moments
