"""Making a failing scenario small: leave out what it fails without (delta debugging over its parts)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from stele_simulator.network import FINE
from stele_simulator.processes.disaster import Disaster, Round
from stele_simulator.result import Failure, Result
from stele_simulator.scenario import Action

MOST_RUNS: Final = 80
"""Runs that shrinking may take: each takes seconds, and stops where it fails."""

replace = msgspec.structs.replace

WEATHER: Final = ("append_tail", "append_duplicate", "append_loss", "tail", "duplicate", "loss")
PLAIN: Final[dict[str, Any]] = {
    "guards": 0,
    "watches": 0,
    "colocated": False,
    "dcs": 1,
    "racks": 1,
    "coordinators": 1,
    "logs": 1,
    "callers": 1,
    "clients": 1,
    "routers": 0,
}
PLAIN_ROUND: Final[dict[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(Round) if field.name != "kind"
}
"""But for when it comes, every part of a round has a value that means that it has none."""


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest scenario found that fails by the same invariant, and how many runs it took."""

    scenario: Disaster
    failure: Failure
    runs: int


class _Shrinker:
    def __init__(
        self,
        scenario: Disaster,
        failure: Failure,
        run: Callable[[Disaster], Result],
        most_runs: int,
    ) -> None:
        self.best = scenario
        self.failure = failure
        self.runs = 0
        self._run = run
        self._most = most_runs

    def fails(self, candidate: Disaster) -> bool:
        """Keep the candidate when it fails by the same invariant."""
        if self.runs >= self._most or candidate == self.best:
            return False
        self.runs += 1
        failure = self._run(candidate).failure
        if failure is None or failure.invariant != self.failure.invariant:
            return False
        self.best, self.failure = candidate, failure
        return True

    def drop(self, name: str) -> None:
        """Leave out halves, quarters ... single items of a list, for as long as something can go."""
        parts = 1
        while getattr(self.best, name) and self.runs < self._most:
            items = getattr(self.best, name)
            rests = _without_each(_chunks(items, parts))
            if any(self.fails(replace(self.best, **{name: rest})) for rest in rests):
                parts = max(1, parts - 1)
            elif parts >= len(items):
                return
            else:
                parts = min(len(items), parts * 2)

    def without_late(self, *names: str) -> None:
        """Remove the actions after the failure."""
        early = {
            name: tuple(each for each in getattr(self.best, name) if each.at_s <= self.failure.at_s)
            for name in names
        }
        self.fails(replace(self.best, **early))

    def simplify(self, plain: dict[str, Any]) -> None:
        """Finer weather, right clocks, fewer processes."""
        self.fails(replace(self.best, weather=FINE))
        self.fails(replace(self.best, clocks={}))
        for field in WEATHER:
            self.fails(replace(self.best, weather=replace(self.best.weather, **{field: 0.0})))
        for field, value in plain.items():
            self.fails(replace(self.best, **{field: value}))


def shrink(
    scenario: Disaster,
    failure: Failure,
    run: Callable[[Disaster], Result],
    most_runs: int = MOST_RUNS,
) -> Shrunk:
    """A smaller scenario that fails by the same invariant: fewer rounds, faults, requests and processes."""
    shrinker = _Shrinker(scenario, failure, run, most_runs)
    shrinker.without_late("actions", "requests", "freezes", "upgrades")
    for name in ("silences", "rounds", "freezes", "upgrades", "requests", "actions"):
        shrinker.drop(name)
    for number, each in enumerate(shrinker.best.rounds):
        shrinker.fails(_with_round(shrinker.best, number, _plain_round(each)))
    shrinker.simplify(PLAIN)
    return Shrunk(scenario=shrinker.best, failure=shrinker.failure, runs=shrinker.runs)


def _with_round(scenario: Disaster, number: int, each: Round) -> Disaster:
    before, after = scenario.rounds[:number], scenario.rounds[number + 1 :]
    return replace(scenario, rounds=(*before, each, *after))


def _plain_round(each: Round) -> Round:
    """It loses the same."""
    kept = {"after_s": each.after_s, "share": each.share, "wait_s": each.wait_s}
    return replace(each, **{**PLAIN_ROUND, **kept})


def _chunks(items: Sequence[Action | Round], parts: int) -> list[Sequence[Action | Round]]:
    size = max(1, -(-len(items) // parts))
    return [items[first : first + size] for first in range(0, len(items), size)]


def _without_each(
    chunks: list[Sequence[Action | Round]],
) -> Iterator[tuple[Action | Round, ...]]:
    for left_out in range(len(chunks)):
        kept = (chunk for index, chunk in enumerate(chunks) if index != left_out)
        yield tuple(item for chunk in kept for item in chunk)
