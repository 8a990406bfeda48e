"""Hunt planted bugs: run seeds until an invariant fails."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

import msgspec

import stele_simulator
from stele_simulator.patching import Patch
from stele_simulator.planting import PLANTED
from stele_simulator.processes.run import run_disaster
from stele_simulator.result import Result

__all__ = ["MOST_SEEDS", "PLANTED", "Found", "hunt", "run_with_bug"]

MOST_SEEDS: Final = 200

for _module in pkgutil.iter_modules(stele_simulator.__path__):
    if _module.name.startswith("mutants_"):
        import_module(f"stele_simulator.{_module.name}")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a planted bug: the number of runs, the seed, and the invariant that failed.

    ``seed`` is -1 when no run found it.
    """

    mutant: str
    rule: str
    runs: int
    seed: int = -1
    invariant: str = ""
    expected: str = ""
    found: str = ""
    at_s: float = 0.0


def run_with_bug(name: str, seed: int) -> Result:
    """Run one random scenario with the bug planted. Raises KeyError for an unknown bug."""
    with Patch() as patch:
        PLANTED[name].plant(patch)
        return run_disaster(seed)


def hunt(name: str, most_seeds: int = MOST_SEEDS) -> Found:
    """Run one seed after the other until an invariant fails."""
    rule = PLANTED[name].description
    for seed in range(most_seeds):
        failure = run_with_bug(name, seed).failure
        if failure is not None:
            return Found(
                mutant=name,
                rule=rule,
                runs=seed + 1,
                seed=seed,
                invariant=failure.invariant,
                expected=failure.expected,
                found=failure.found,
                at_s=failure.at_s,
            )
    return Found(mutant=name, rule=rule, runs=most_seeds)
