"""How messages and appends fare in a disaster: as on most days, or in a storm."""

from random import Random
from typing import Final

from stele_simulator.network import Weather

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
STORM_SHARE: Final = 0.2
"""Share of the disasters."""


def make_weather(random: Random) -> Weather:
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
