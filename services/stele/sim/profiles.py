"""Profiles: the weather, how often what goes wrong, and how wrong clocks are."""

from typing import Final

import msgspec

from stele.sim.network import Weather


class ClockError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How wrong a process's clocks are from the beginning: see ``kernel.Clock``."""

    skew_ms: int = 0
    drift_ppm: int = 0


FAIR_CLOCK: Final = ClockError()


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
